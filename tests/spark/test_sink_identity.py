"""What a sink knows again: a query by its id, a batch by its input, a batch job by its writeId; with real Spark. Each
is a case that lost rows or doubled them when a query was known by the spelling of a path, a batch by its number, and a
writeId for as long as 32 others."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from host_kit import Host, Pipe
from sink_kit import SETTINGS, Broker

from kits.processes.server import TwofoldServer
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.runtime.real import real_runtime, run
from twofold.sink.decided import DecidedEntry, Purpose
from twofold.sink.driver import Driver, SinkSettings
from twofold.sink.names import decision_topic, prefix_of_checkpoint
from twofold.sink.recognition import MAX_WRITE_IDS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FIXTURE = Path(__file__).parent.parent / "fixtures" / "spark-twofold-0.1.0.tar.gz"
ALL_AT_ONCE = 100_000
LONG = bool(os.environ.get("TWOFOLD_LONG"))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("server"), SETTINGS) as running:
        yield running


@pytest.fixture
def pipe(host: Host, server: TwofoldServer, tmp_path: Path) -> Pipe:
    host.orders.clear()
    return Pipe(host, Broker(server.bootstrap_servers), tmp_path, per_batch=ALL_AT_ONCE)


def records(pipe: Pipe, prefix: str | None = None) -> list[dict[str, Any]]:
    """The registers of the journal."""
    name = prefix or pipe.prefix
    return [json.loads(value) for _, key, value in pipe.broker.read(decision_topic(name)) if key == name.encode()]


def lose(checkpoint: Path, *names: str) -> None:
    for name in names:
        for path in (checkpoint / name, (checkpoint / name).parent / f".{Path(name).name}.crc"):
            path.unlink(missing_ok=True)


# A batch is known by its input


def test_a_decided_batch_that_comes_with_other_input_stops_the_query_and_nothing_is_lost(pipe: Pipe) -> None:
    pipe.send(50)
    assert pipe.run().well
    kept = pipe.directory / "backup"
    shutil.copytree(pipe.checkpoint, kept)
    lose(pipe.checkpoint, "offsets/0", "commits/0")
    pipe.send(70)
    for _ in range(2):  # it is no matter of trying again
        ended = pipe.run()
        assert ended.error is not None
        assert f"batch 0 of query {pipe.query_id} was decided with other input" in ended.error
        assert "put back the checkpoint's newest files (offsets/ and commits/ up to 0)" in ended.error
        assert (
            "start the query with a new checkpointLocation where the output ends, with startingOffsets=" in ended.error
        )
        assert str(pipe.checkpoint) in ended.error
        assert len(pipe.visible) == 50
    shutil.rmtree(pipe.checkpoint)
    shutil.copytree(kept, pipe.checkpoint)
    pipe.run_to_end()
    pipe.check()


def test_the_other_way_on_is_a_new_checkpoint_from_the_offsets_that_the_message_names(pipe: Pipe) -> None:
    pipe.send(50)
    assert pipe.run().well
    lose(pipe.checkpoint, "offsets/0", "commits/0")
    pipe.send(70)
    error = pipe.run().error or ""
    offsets = error.partition("startingOffsets=")[2].partition(" (for its first start)")[0]
    assert sum(json.loads(offsets)[pipe.source].values()) == 50
    pipe.checkpoint = pipe.directory / "new"
    pipe.read["startingOffsets"] = offsets
    pipe.run_to_end()
    pipe.check()


def test_the_same_batch_again_is_skipped_as_often_as_it_comes(pipe: Pipe) -> None:
    pipe.send(50)
    assert pipe.run().well
    for _ in range(2):
        lose(pipe.checkpoint, "commits/0")
        assert pipe.run().well
    pipe.send(70)
    assert pipe.run().well
    pipe.check()
    digests = {row[4] for body in records(pipe) for row in body["decided"]}
    assert all(len(digest) == 16 for text in digests for digest in text.split())


def test_a_batch_without_rows_is_known_by_its_input_too(pipe: Pipe) -> None:
    """A window that is not over: batch 0 writes nothing. With more input it is another batch."""
    pipe.shape = "windowed"
    pipe.source = pipe.broker.topic(1)
    pipe.broker.send(pipe.source, range(10), timestamp_ms=lambda n: 1_700_000_000_000 + n)
    ended = pipe.run()
    assert ended.well, ended.error
    assert pipe.visible == Counter() and [row[0] for row in records(pipe)[-1]["decided"]] == [pipe.query_id]
    for number in (0, 1):  # Spark may have made one without input, to move the watermark
        lose(pipe.checkpoint, f"offsets/{number}", f"commits/{number}")
    shutil.rmtree(pipe.checkpoint / "state")
    pipe.broker.send(pipe.source, range(10), timestamp_ms=lambda n: 1_700_000_060_000 + n)
    assert "was decided with other input" in (pipe.run().error or "")


def test_a_checkpoint_that_only_spark_can_read_is_refused_unless_the_user_accepts_the_risk(pipe: Pipe) -> None:
    """It is behind a file system of Hadoop's that the sink has no library for, as an object store's may be."""
    pipe.conf["fs.viewfs.mounttable.c.link./there"] = f"file://{pipe.directory}"
    pipe.write["checkpointLocation"] = "viewfs://c/there/checkpoint"
    pipe.send(50)
    error = pipe.run().error or ""
    assert "cannot read" in error and "'viewfs://c/there/checkpoint'" in error
    assert "transactionalIdPrefix together with batchCheck=number" in error
    assert pipe.visible == Counter()
    pipe.write["transactionalIdPrefix"] = f"chosen-{pipe.source}"
    assert "batchCheck=number" in (pipe.run().error or ""), "a name for the query does not tell its batches apart"
    pipe.write["batchCheck"] = "number"
    pipe.orders.give("commit: decided", "raise")
    assert not pipe.run().well
    pipe.run_to_end()
    pipe.check()
    # When it can be read, what was decided by its number is taken for the same once.
    pipe.write |= {"checkpointLocation": str(pipe.checkpoint), "batchCheck": "input"}
    lose(pipe.checkpoint, "commits/0")
    pipe.run_to_end()
    pipe.check()
    assert len(records(pipe, pipe.write["transactionalIdPrefix"])[-1]["decided"][0][4]) == 16


# A query is known by its id


def crash_after_the_decision(pipe: Pipe) -> None:
    pipe.orders.give("commit: decided", "raise")
    pipe.orders.give("abort", "raise")
    assert not pipe.run().well


@pytest.mark.parametrize("first", ["relative", *(["absolute"] if LONG else [])])
def test_a_query_is_the_same_however_the_path_of_its_checkpoint_is_spelled(pipe: Pipe, first: str) -> None:
    relative = os.path.relpath(pipe.checkpoint, pipe.host.directory)
    spellings = [relative, str(pipe.checkpoint), f"file://{pipe.checkpoint}/", f"file:{pipe.checkpoint}"]
    pipe.send(50)
    pipe.write["checkpointLocation"] = spellings[0] if first == "relative" else spellings[1]
    crash_after_the_decision(pipe)
    for number, spelling in enumerate(reversed(spellings) if first == "relative" else spellings):
        pipe.write["checkpointLocation"] = spelling
        pipe.run_to_end()
        assert len(pipe.visible) == 50 + 10 * number
        pipe.send(10)
    pipe.run_to_end()
    pipe.check()


def test_a_checkpoint_that_was_moved_goes_on_where_it_was(pipe: Pipe) -> None:
    pipe.send(50)
    crash_after_the_decision(pipe)
    moved = pipe.directory / "elsewhere"
    pipe.checkpoint.rename(moved)
    pipe.checkpoint = moved
    pipe.run_to_end()
    pipe.check()


def test_a_copy_of_a_checkpoint_beside_the_original_is_fenced_with_a_message(
    pipe: Pipe, host: Host, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The later one has the query; the earlier one is told where the other is, and doubles nothing."""
    pipe.send(50)
    pipe.run_to_end()
    copy = pipe.directory / "copy"
    shutil.copytree(pipe.checkpoint, copy)
    pipe.send(50)
    number = pipe.orders.give("commit", "wait")
    original = pipe.run_to_step()
    other_host = Host(tmp_path_factory.mktemp("other"))
    try:
        other = Pipe(other_host, pipe.broker, pipe.directory, per_batch=ALL_AT_ONCE)
        other.source, other.target, other.checkpoint, other.sent = pipe.source, pipe.target, copy, pipe.sent
        other.run_to_end()
    finally:
        other_host.kill()
    pipe.orders.go(number)
    error = host.ended(original).error or ""
    assert "Another query or job with the same id or prefix runs, perhaps from a copy of the checkpoint" in error
    assert str(copy) in error and str(pipe.checkpoint) in error
    other.check()


# What the version before left


@pytest.fixture
def left(tmp_path: Path) -> Iterator[TwofoldServer]:
    """A query that was killed in the middle of its second batch, by the version before."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    with TwofoldServer(tmp_path, SETTINGS) as running:
        yield running


@pytest.fixture
def upgraded(left: TwofoldServer) -> Iterator[Pipe]:
    """That query by this version, started where the version before was: it had the path as it was spelled there."""
    host = Host(left.directory)
    pipe = Pipe(host, Broker(left.bootstrap_servers), left.directory, per_batch=50)
    pipe.source, pipe.target, pipe.checkpoint = "in", "out", left.directory / "relck"
    yield pipe
    host.kill()


@pytest.mark.parametrize("spelling", ["absolute", *(["relative"] if LONG else [])])
def test_a_query_that_the_version_before_left_in_a_batch_is_finished_and_goes_on(upgraded: Pipe, spelling: str) -> None:
    expected = json.loads((upgraded.directory / "expected.json").read_text())
    broker, checkpoint = upgraded.broker, upgraded.checkpoint
    old = prefix_of_checkpoint("relck")
    assert len(broker.open_transactions(old)) == 1
    if spelling == "relative":
        upgraded.write["checkpointLocation"] = "relck"
    # Killed once more, between the record in the old journal and the one in the new.
    upgraded.orders.give("journal: moved", "kill-driver")
    upgraded.orders.give("start: settled", "kill-driver")
    assert upgraded.run().died and upgraded.run().died and upgraded.orders.left == []
    upgraded.run_to_end()
    found = Counter(int(value) for _, _, value in broker.read("out"))
    assert found == Counter(range(expected["rows"])), "0 lost, 0 doubled"
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    assert broker.open_transactions(old) == [] and broker.open_transactions(f"spark-{query_id}") == []
    last = json.loads(broker.read(decision_topic(old))[-1][2])
    assert (last["t"], last["movedTo"]) == ("moved", f"spark-{query_id}")
    # The batch that had no digest was taken for the same once. It has one now.
    for number in (1, 2):
        lose(checkpoint, f"offsets/{number}", f"commits/{number}")
    broker.send("in", range(expected["rows"], expected["rows"] + 100), keys=16)
    upgraded.per_batch = 70
    assert f"batch 1 of query {query_id} was decided with other input" in (upgraded.run().error or "")
    assert len(broker.read("out")) == expected["rows"]


# A writeId is never forgotten

Write = Callable[..., None]


@pytest.fixture
def write(spark: Any, server: TwofoldServer) -> Write:
    def write(topic: str, write_id: str, prefix: str, bootstrap_servers: str = server.bootstrap_servers) -> None:
        rows = spark.createDataFrame([(write_id,)], "value string").coalesce(1)
        options = {"topic": topic, "writeId": write_id, "transactionalIdPrefix": prefix}
        options["kafka.bootstrap.servers"] = bootstrap_servers
        rows.write.format("twofold").options(**options).mode("append").save()

    return write


def values(broker: Broker, topic: str) -> Counter[str]:
    return Counter(value.decode() for _, _, value in broker.read(topic))


def prune(bootstrap_servers: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "twofold", "pipeline", "prune", "-b", bootstrap_servers, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def fill_journal(bootstrap_servers: str, prefix: str, names: list[str]) -> None:
    """As if each of them had been written."""

    async def fill() -> None:
        config = ProducerConfig(bootstrap_servers=bootstrap_servers)
        cluster = Cluster(real_runtime(), config)
        driver = Driver(cluster.runtime, cluster, config, SinkSettings(prefix))
        try:
            await driver.take_over("filler", cluster.deadline())
            entries = tuple(DecidedEntry(name, 0, ("",), Purpose.WRITE, 1000 + n) for n, name in enumerate(names))
            await driver.journal.append(driver.journal.register.remembering(entries, 1))
        finally:
            await driver.close()
            await cluster.close()

    run(fill())


def test_a_write_id_is_known_after_any_number_of_others(server: TwofoldServer, write: Write) -> None:
    """With TWOFOLD_LONG=1 Spark writes each of the others too."""
    broker = Broker(server.bootstrap_servers)
    topic = broker.topic(1)
    days = [f"day{number}" for number in range(34)]
    write(topic, days[0], prefix="days")
    if LONG:
        for day in days[1:]:
            write(topic, day, prefix="days")
    else:
        fill_journal(server.bootstrap_servers, "days", days[1:])
    for day in ("day0", "day1", "day33"):
        write(topic, day, prefix="days")
    assert values(broker, topic) == Counter(days if LONG else days[:1])


def test_write_ids_that_the_version_before_dropped_are_known_while_its_records_are_there(
    left: TwofoldServer, write: Write
) -> None:
    """34 days, of which its register has the last 32."""
    broker = Broker(left.bootstrap_servers)
    days = [f"day{number}" for number in range(34)]
    assert values(broker, "days-out") == Counter(days)
    for day in ("day0", "day33", "day34", "day1"):
        write("days-out", day, "days", left.bootstrap_servers)
    assert values(broker, "days-out") == Counter([*days, "day34"])


def test_one_write_id_too_many_is_refused_until_older_ones_are_pruned_and_those_are_never_written_again(
    server: TwofoldServer, write: Write
) -> None:
    broker = Broker(server.bootstrap_servers)
    topic = broker.topic(1)
    fill_journal(server.bootstrap_servers, "many", [f"hour{number}" for number in range(MAX_WRITE_IDS)])
    with pytest.raises(Exception, match=r"twofold pipeline prune --prefix many --keep") as refused:
        write(topic, "one-more", prefix="many")
    assert f"({MAX_WRITE_IDS})" in str(refused.value)
    write(topic, "hour7", prefix="many")  # known, and not written
    assert values(broker, topic) == Counter()

    done = prune(server.bootstrap_servers, "--prefix", "many", "--keep", "100", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"prunes {MAX_WRITE_IDS - 100}, from hour0 " in done.stderr
    assert done.stdout == f"{MAX_WRITE_IDS - 100:,} writeIds of many pruned, 100 are remembered by name\n"
    write(topic, "one-more", prefix="many")
    for pruned in ("hour0", f"hour{MAX_WRITE_IDS - 101}"):
        with pytest.raises(Exception, match=f"'{pruned}' was written under .* and pruned at"):
            write(topic, pruned, prefix="many")
    write(topic, f"hour{MAX_WRITE_IDS - 1}", prefix="many")
    assert values(broker, topic) == Counter(["one-more"])
    again = prune(server.bootstrap_servers, "--prefix", "many", "--keep", "101", "--yes")
    assert again.stdout == "nothing to prune: many remembers no more than 101 writeIds by name\n"
