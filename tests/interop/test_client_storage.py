"""Deleting records, describing log directories and replacing configurations with our client and our command line,
against Twofold and Apache Kafka."""

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from kits.client.topics import becomes, create_topic
from kits.processes import commands
from kits.processes.commands import Done
from kits.processes.server import TwofoldServer
from twofold.client import (
    ALL_RECORDS,
    Admin,
    ConfigResource,
    LoopThread,
    OffsetSpec,
    Producer,
    ResourceType,
    TopicPartition,
)
from twofold.runtime.real import run
from twofold.wire.errors import (
    BrokerNotAvailable,
    InvalidConfig,
    OffsetOutOfRange,
    PolicyViolation,
    UnknownTopicOrPartition,
)

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("storage")) as running:
        yield running


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=pytest.mark.oracle)])
def server(request: pytest.FixtureRequest) -> str:
    node: Any = request.getfixturevalue("twofold_server" if request.param == "twofold" else "oracle")
    return str(node.bootstrap_servers)


def on_admin(server: str, story: Callable[[Admin], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Admin(bootstrap_servers=server) as admin:
            await story(admin)

    run(main())


async def filled(admin: Admin, server: str, records: int = 6, **configs: str) -> str:
    """A topic with two partitions, and so many records in the first."""
    name = await create_topic(admin, 2, **configs)
    async with Producer(bootstrap_servers=server) as producer:
        for number in range(records):
            await (await producer.send(name, b"%d" % number, partition=0))
    return name


async def starts(admin: Admin, *partitions: TopicPartition) -> list[int]:
    found = await admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    return [found[tp].offset for tp in partitions]


def test_records_are_deleted_and_what_cannot_be_says_why(server: str) -> None:
    async def story(admin: Admin) -> None:
        topic, compacted = await filled(admin, server), await filled(admin, server, 0, cleanup_policy="compact")
        one, two, none = (TopicPartition(topic, index) for index in (0, 1, 9))
        missing, other = TopicPartition("storage-none", 0), TopicPartition(compacted, 0)
        results = await admin.delete_records({one: 4, two: ALL_RECORDS, none: 0, missing: 0, other: 0})
        assert results.values == {one: 4, two: 0}
        kinds = {tp: type(error) for tp, error in results.errors.items()}
        assert kinds == {none: UnknownTopicOrPartition, missing: UnknownTopicOrPartition, other: PolicyViolation}
        assert await starts(admin, one, two) == [4, 0]
        results = await admin.delete_records({one: 99})
        assert [type(error) for error in results.errors.values()] == [OffsetOutOfRange]
        assert (await admin.delete_records({one: ALL_RECORDS})).get() == {one: 6}

    on_admin(server, story)


def test_log_directories_are_described(server: str) -> None:
    async def story(admin: Admin) -> None:
        topic = await filled(admin, server)
        one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
        (directory,) = (await admin.describe_log_dirs()).get()[1]
        assert directory.error is None and directory.path.startswith("/")
        assert directory.total_bytes > directory.usable_bytes > 0
        assert directory.replicas[one].size_bytes > directory.replicas[two].size_bytes == 0
        assert directory.replicas[one][1:] == (0, False)
        results = await admin.describe_log_dirs([one], brokers=[1, 7])
        (directory,) = results.values[1]
        assert list(directory.replicas) == [one]
        assert [type(error) for error in results.errors.values()] == [BrokerNotAvailable]

    on_admin(server, story)


def test_configurations_are_replaced_as_a_whole(server: str) -> None:
    async def story(admin: Admin) -> None:
        topic = await filled(admin, server, 0, flush_ms="77")
        resource = ConfigResource(ResourceType.TOPIC, topic)
        wanted = {"retention.ms": "1234567"}
        assert (await admin.alter_configs({resource: {}}, validate_only=True)).errors == {}
        refused = await admin.alter_configs({resource: {"retention.ms": "soon"}})
        assert [type(error) for error in refused.errors.values()] == [InvalidConfig]
        (await admin.alter_configs({resource: wanted})).get()

        async def own() -> dict[str, str | None]:
            entries = (await admin.describe_configs([resource])).get()[resource]
            return {entry.name: entry.value for entry in entries if entry.source == "DYNAMIC_TOPIC_CONFIG"}

        await becomes(own, dict[str, str | None](wanted))

    on_admin(server, story)


def test_code_without_asyncio_deletes_on_a_loop_thread(twofold_server: TwofoldServer) -> None:
    server = twofold_server.bootstrap_servers
    with LoopThread() as thread:

        async def connect() -> Admin:
            return Admin(bootstrap_servers=server)

        admin = thread.run(connect())
        topic = thread.run(filled(admin, server))
        partition = TopicPartition(topic, 0)
        assert thread.run(admin.delete_records({partition: 2})).get() == {partition: 2}
        thread.run(admin.close())


# The command line


def twofold(server: str, *args: str, code: int = 0) -> Done:
    done = commands.run(*args, server=server)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def made(server: str) -> str:
    names: list[str] = []

    async def story(admin: Admin) -> None:
        names.append(await filled(admin, server))

    on_admin(server, story)
    return names[0]


def test_commands_delete_records_and_show_log_directories(server: str) -> None:
    topic = made(server)
    done = twofold(server, "topic", "delete-records", topic, "--before", "0=4", "--yes", "--format", "json")
    assert json.loads(done.stdout) == {"topic": topic, "partitions": [{"partition": 0, "start_offset": 4}]}
    done = twofold(server, "topic", "delete-records", topic, "--all", "--yes")
    assert [line.split() for line in done.stdout.splitlines()] == [["PARTITION", "START"], ["0", "6"], ["1", "0"]]
    done = twofold(server, "cluster", "log-dirs", "--topic", topic, "--format", "json")
    (row,) = json.loads(done.stdout)
    assert (row["broker_id"], row["error"]) == (1, None)
    assert [(replica["topic"], replica["partition"]) for replica in row["replicas"]] == [(topic, 0), (topic, 1)]
    lines = twofold(server, "cluster", "log-dirs", "--broker", "1", "--topic", topic).stdout.splitlines()
    assert lines[0] == "broker      1" and lines[1].startswith("directory   /")
    assert lines[-1].split() == [topic, "1", "0", "0"]


def test_commands_that_cannot_be(twofold_server: TwofoldServer) -> None:
    server = twofold_server.bootstrap_servers
    topic = made(server)
    for code, args in (
        (2, ["--all", "--before", "0=1", "--yes"]),
        (2, ["--before", "zero=1", "--yes"]),
        (2, ["--before", "0=-1"]),
        (1, ["--before", "0=99", "--yes"]),
    ):
        done = twofold(server, "topic", "delete-records", topic, *args, code=code)
        assert done.stderr.startswith("twofold: ")
    assert twofold(server, "topic", "delete-records", "storage-none", "--all", "--yes", code=1).stderr
    assert "broker 7" in twofold(server, "cluster", "log-dirs", "--broker", "7", code=1).stderr
