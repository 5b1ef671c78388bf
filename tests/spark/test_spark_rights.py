"""A real Spark over SASL_SSL against our broker with access control: the rights that the guide prints, and no others.

The query reads in a group and writes exactly once with `exactlyOnce=2pc`, as the user `shop` of the guide.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from connector import LONG, when_long
from pyspark.errors import StreamingQueryException
from sink_kit import App, Orders

from kits.processes import commands
from kits.security.secure_server import ADMIN, ADMINS_PASSWORD, PASSWORD, USER, SecureServer, commands_of_the_guide
from twofold import Admin, Consumer, NewTopic, Producer, TopicPartition

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PREFIX, GROUP, SOURCE, TARGET = "shop", "shop-reports", "orders", "copies"
SINK = {"exactlyOnce": "2pc", "transactionalIdPrefix": PREFIX, "consumerGroup": GROUP}
BATCH = 10
PATIENCE_S = 90
# What an administrator makes before: the pipeline has no right to make anything.
TOPICS = [
    NewTopic(SOURCE, 2),
    NewTopic(TARGET, 2),
    NewTopic(f"{PREFIX}.decisions", 1, configs={"cleanup.policy": "compact", "flush.messages": "1"}),
]


class Pipeline:
    """One query with its checkpoint, run again and again."""

    def __init__(self, spark: Any, server: SecureServer, folder: Path) -> None:
        self.spark, self.server, self.folder = spark, server, folder
        self.sent: list[str] = []
        (folder / "password").write_text(PASSWORD + "\n")
        settings = server.client(USER, f"${{file:{folder / 'password'}}}")
        self.options = {f"kafka.{name}": value for name, value in settings.items()}
        self.as_admin = server.client(ADMIN, ADMINS_PASSWORD)
        self.config = folder / "admin.properties"
        self.config.write_text("".join(f"{name}={value}\n" for name, value in self.as_admin.items()))
        with Admin.from_config(self.as_admin) as admin:
            admin.create_topics(TOPICS).get()

    def send(self) -> None:
        rows = [f"order {len(self.sent) + number}" for number in range(BATCH)]
        with Producer.from_config(self.as_admin) as producer:
            for row in rows:
                producer.send(SOURCE, row.encode())
        self.sent += rows

    def run(self) -> None:
        frame = self.spark.readStream.format("twofold").options(**self.options)
        frame = frame.options(subscribe=SOURCE, startingOffsets="earliest", transactionalIdPrefix=PREFIX).load()
        sink = frame.select("key", "value").writeStream.format("twofold").options(**self.options)
        sink = sink.options(topic=TARGET, **SINK).option("checkpointLocation", str(self.folder / "checkpoint"))
        query = sink.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_S), "the query did not end"
        finally:
            query.stop()

    def visible(self) -> list[str]:
        """What a reader of committed records has, in full."""
        found: list[str] = []
        options = {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        with Consumer.from_config(self.as_admin | options) as consumer:
            where = [TopicPartition(TARGET, partition) for partition in consumer.partitions_for(TARGET)]
            consumer.assign(where)
            ends = consumer.end_offsets(where)
            while any(consumer.position(place) < end for place, end in ends.items()):
                found += [(record.value or b"").decode() for record in consumer.poll(200)]
        return found

    def acl(self, verb: str, right: "Right") -> None:
        """An entry is added to the running broker, or removed from it."""
        who = (f"User:{USER}", right.operation)
        named = who if verb == "add" else ("--principal", who[0], "--operation", who[1], "--yes")
        where = ("--command-config", str(self.config))
        done = commands.run("acl", verb, *named, *right.resource, *where, server=self.server.bootstrap_servers)
        assert done.returncode == 0, done.stderr


class Right(NamedTuple):
    operation: str
    resource: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.operation} {' '.join(self.resource)}"


def rights_of_the_guide() -> list[Right]:
    """One for each operation of each command."""
    found = []
    for command in commands_of_the_guide():
        words = shlex.split(command)[4:-2]  # without `twofold acl add PRINCIPAL` and `--data FOLDER`
        first = next(at for at, word in enumerate(words) if word.startswith("--"))
        found += [Right(operation, tuple(words[first:])) for operation in words[:first]]
    return found


RIGHTS = rights_of_the_guide()
# Asked for only where something went wrong before.
OF_RECOVERY = [right for right in RIGHTS if right == ("READ", ("--topic", TARGET))]
NEEDED = [right for right in RIGHTS if right not in OF_RECOVERY]


@pytest.fixture(scope="module")
def pipeline(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    folder = tmp_path_factory.mktemp("rights")
    server = SecureServer(folder / "server")
    server.prepare()
    with server:
        yield Pipeline(spark, server, folder)


def refusals(server: SecureServer) -> list[str]:
    """Those of the broker's log, without the one that the guide names."""
    lines = [line for line in server.log_text().splitlines() if " refused: " in line]
    return [line for line in lines if "may not DESCRIBE_CONFIGS the CLUSTER 'kafka-cluster'" not in line]


def test_a_pipeline_with_the_rights_of_the_guide_writes_exactly_once_and_asks_for_no_others(pipeline: Pipeline) -> None:
    pipeline.send()
    pipeline.run()
    assert sorted(pipeline.visible()) == sorted(pipeline.sent)
    assert refusals(pipeline.server) == []
    assert PASSWORD not in pipeline.server.log_text()


@pytest.mark.parametrize("right", NEEDED if LONG else NEEDED[-2:-1], ids=str)
def test_a_pipeline_stops_where_a_right_is_missing_and_goes_on_when_it_is_given(
    pipeline: Pipeline, right: Right
) -> None:
    pipeline.acl("remove", right)
    pipeline.send()
    with pytest.raises(StreamingQueryException, match="AUTHORIZATION_FAILED"):
        pipeline.run()
    assert len(pipeline.visible()) in (len(pipeline.sent) - BATCH, len(pipeline.sent)), "all of a batch or nothing"
    pipeline.acl("add", right)
    pipeline.run()
    assert sorted(pipeline.visible()) == sorted(pipeline.sent)


@when_long
@pytest.mark.timeout(900)
def test_what_dead_drivers_have_left_is_recovered_with_the_rights_of_the_guide(tmp_path: Path) -> None:
    """Before the decision, after it, and when a part of the transactions has ended."""
    server = SecureServer(tmp_path / "server")
    server.prepare()
    with server:
        pipeline = Pipeline(None, server, tmp_path)
        pipeline.send()
        folder = tmp_path / "app"
        folder.mkdir()
        read, steps = pipeline.options | {"transactionalIdPrefix": PREFIX}, Orders(tmp_path / "steps")
        where = (server.bootstrap_servers, SOURCE, TARGET, folder, steps)
        app = App(*where, read=read, write=pipeline.options | SINK)
        try:
            for step in ("task: prepared", "commit: decided", "commit: one ended"):
                app.orders.give(step, "kill-driver")
                assert app.run() != 0, f"the driver passed {step!r}"
                pipeline.send()
            app.run_to_end()
        finally:
            app.kill()
        assert sorted(pipeline.visible()) == sorted(pipeline.sent)
        assert refusals(server) == []
