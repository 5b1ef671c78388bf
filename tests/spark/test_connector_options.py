"""The options of Spark's own connector (connector_options.py): ours takes each, refuses what cannot be, and reads and
writes the same. With TWOFOLD_LONG=1 both formats are asked in real queries."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import connector_options as c
import pytest
from connector import when_long
from spark_kit import Kit

from twofold.spark.errors import OptionError
from twofold.spark.options import read_options, write_options

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
NAMED = {"topic": "t", "checkpointLocation": "/c"}
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "moving.md"


def named(row: c.Read) -> str:
    return f"{row.name}={row.value[:20]}"


BEGINNINGS = {"startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp"}


def read(row: c.Read, value: str, topic: str = "t", servers: str = "127.0.0.1:9092") -> dict[str, str]:
    base = {} if row.instead_of_subscribe else {"subscribe": topic}
    if row.name not in BEGINNINGS:
        base["startingOffsets"] = "earliest"
    return base | {row.name: value.replace("{t}", topic).replace("{servers}", servers)}


@pytest.mark.parametrize("row", c.READ, ids=named)
def test_every_option_of_the_source_is_taken_and_what_it_cannot_be_is_refused(row: c.Read) -> None:
    for kind in row.kinds:
        read_options(SERVERS | read(row, row.value), streaming=kind == c.STREAM)
    for value in row.wrong:
        if value.startswith("{") and "Offsets" in row.name:
            continue  # that a partition is missing is seen when the partitions are known
        options = SERVERS | read(row, value)
        # Spark hands names over in lower case; the message has them as they are written.
        for given in (options, {name.lower(): text for name, text in options.items()}):
            with pytest.raises(OptionError, match=row.name):
                read_options(given, streaming=row.kinds[-1] == c.STREAM)


@pytest.mark.parametrize(("name", "value"), c.WRITE)
def test_every_option_of_the_sink_is_taken(name: str, value: str) -> None:
    given = {name: value.replace("{t}", "t").replace("{servers}", "127.0.0.1:9092")}
    for streaming in (False, True):
        write_options(SERVERS | NAMED | given, streaming=streaming)


def test_what_neither_takes_is_refused_with_its_name() -> None:
    for name in c.NEVER_ON_READ:
        with pytest.raises(OptionError, match=name):
            read_options(SERVERS | {"subscribe": "t", name: "x"}, streaming=True)
    for name in c.NEVER_ON_WRITE:
        with pytest.raises(OptionError, match=name):
            write_options(SERVERS | NAMED | {name: "x"}, streaming=True)


@pytest.mark.parametrize(("name", "value"), c.DECIDED)
def test_what_only_ours_refuses_is_refused_with_its_name(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name):
        write_options(SERVERS | NAMED | {name: value}, streaming=True)


@pytest.mark.parametrize(("name", "value"), c.TAKEN_WHEN_OFF)
def test_what_transactions_rule_out_is_taken_without_them(name: str, value: str) -> None:
    assert (name, value) in c.DECIDED
    write_options(SERVERS | NAMED | {name: value, "exactlyOnce": "off"}, streaming=True)


@pytest.mark.parametrize(("name", "value"), c.ONLY_WITH_A_PROTOCOL)
def test_what_needs_a_protocol_is_refused_in_plain_text_on_both_sides(name: str, value: str) -> None:
    refused = f"{name} has no effect without kafka.security.protocol: the connection would be in plain text"
    for streaming in (True, False):
        with pytest.raises(OptionError, match=refused):
            read_options(SERVERS | {"subscribe": "t", name: value}, streaming=streaming)
        with pytest.raises(OptionError, match=refused):
            write_options(SERVERS | NAMED | {name: value}, streaming=streaming)


ROWS_OF_SEVERAL = {
    "kafka.client.id": "the other settings of the producer",
    "kafka.sasl.mechanism": "`kafka.sasl.*`",
    "kafka.ssl.truststore.location": "`kafka.ssl.*`",
    "kafka.compresion.type": "a name that is misspelled",
    "a-misspelled-option": "a name that is misspelled",
}


def test_the_guide_to_moving_has_a_row_for_every_option() -> None:
    names = [*(row.name for row in c.READ), *(name for name, _ in (*c.WRITE, *c.DECIDED)), c.NEVER_ON_READ[1]]
    table = GUIDE.read_text().partition("## Option by option")[2]
    assert [name for name in names if ROWS_OF_SEVERAL.get(name, f"`{name}`") not in table] == []


# Both formats, in real queries


@pytest.fixture
def topic(kit: Kit) -> str:
    name = kit.topic(2)
    rows = [{"value": b"%d" % n, "partition": n % 2, "timestamp": c.AT + n} for n in range(10)]
    kit.send(name, rows)
    return name


@when_long
@pytest.mark.parametrize("row", c.READ, ids=named)
def test_both_formats_read_the_same(kit: Kit, topic: str, row: c.Read) -> None:
    options: Mapping[str, Any] = read(row, row.value, topic, kit.bootstrap_servers)
    if c.BATCH in row.kinds:
        assert kit.values(**options) == list(row.rows)
    if c.STREAM in row.kinds:
        assert kit.run(**options).values == list(row.rows)
    for value in row.wrong:
        wrong = read(row, value, topic, kit.bootstrap_servers)
        with pytest.raises(Exception, match=r"."):
            kit.values(**wrong) if c.BATCH in row.kinds else kit.run("wrong", **wrong)


@when_long
@pytest.mark.parametrize(("name", "value"), c.WRITE)
def test_both_formats_write_the_same(kit: Kit, name: str, value: str) -> None:
    for write in (write_batch, write_stream):
        target = kit.topic(2)
        given = {"topic": target, name: value.replace("{t}", target).replace("{servers}", kit.bootstrap_servers)}
        write(kit, given)
        assert kit.values(subscribe=target) == list(range(20)), write.__name__


def write_batch(kit: Kit, options: Mapping[str, str], form: str | None = None) -> None:
    frame = kit.spark.range(0, 20, 1, 2).selectExpr("cast(id as string) key", "cast(id as string) value")
    writer = frame.write.format(form or kit.form).option("kafka.bootstrap.servers", kit.bootstrap_servers)
    writer.options(**options).mode("append").save()


def write_stream(kit: Kit, options: Mapping[str, str], form: str | None = None) -> None:
    source = kit.topic(2)
    kit.send(source, range(20))
    frame = kit.stream(subscribe=source, startingOffsets="earliest").selectExpr("value key", "value")
    writer = frame.writeStream.format(form or kit.form).option("kafka.bootstrap.servers", kit.bootstrap_servers)
    writer = writer.options(**options).option("checkpointLocation", str(kit.directory / source))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120) and query.exception() is None


@when_long
@pytest.mark.parametrize(("name", "value"), c.DECIDED)
def test_what_ours_refuses_the_other_takes_or_fails_at_later(ours: Kit, name: str, value: str) -> None:
    target = ours.topic(2)
    for write in (write_batch, write_stream):
        with pytest.raises(Exception, match=name):
            write(ours, {"topic": target, name: value}, "twofold")
    assert ours.values(subscribe=target) == []
    options = {"topic": target, name: value, "kafka.max.block.ms": "5000"}
    if (name, value) in c.FAILS_LATER:
        with pytest.raises(Exception, match=c.FAILS_LATER[name, value]):
            write_batch(ours, options, "kafka")
    else:
        write_batch(ours, options, "kafka")
        assert ours.values(subscribe=target) == list(range(20))


@when_long
@pytest.mark.parametrize("name", c.NEVER_ON_READ)
def test_both_formats_refuse_what_may_not_be_set(kit: Kit, topic: str, name: str) -> None:
    with pytest.raises(Exception, match=name.removeprefix("kafka.")):
        kit.values(subscribe=topic, **{name: "x"})
