"""Apache Kafka's own ConsumerGroupCommand against Twofold: it prints what it prints against Apache Kafka.

The same groups and records are made on both, the same commands run on both, and what is printed must agree line by
line, apart from random ids, ports, the order of rows and the server's words for an error.
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kits.groups.groups import Server, create_topic
from oracle.kafka import Oracle, running_oracle
from oracle.twofold import running_twofold

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

PROGRAM = Path(__file__).parent / "java" / "GroupCommands.java"
START_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
STEP_MS = 10_000
RECORDS = 10

WITH_A_MEMBER = (
    "--list",
    "--list --state",
    "--list --state Stable",
    "--list --state empty,dead",
    "--list --type",
    "--list --type classic",
    "--list --type consumer",
    "--describe --group readers",
    "--describe --group readers --offsets --verbose",
    "--describe --group readers --members",
    "--describe --group readers --members --verbose",
    "--describe --group readers --state",
    "--describe --all-groups --state",
    "--describe --group nobody",
    "--describe --group nobody --members",
    "--describe --group nobody --state",
    "--reset-offsets --group readers --topic tools --to-earliest --dry-run",
    "--reset-offsets --group readers --topic tools --to-earliest --execute",
    "--delete-offsets --group readers --topic tools",
    "--delete-offsets --group nobody --topic tools",
    "--delete --group readers",
    "--delete --group nobody",
    "--describe --group readers",
)

WITHOUT = (
    "--describe --group readers",
    "--describe --group readers --members",
    "--describe --group readers --state",
    "--list --state",
    "--reset-offsets --group readers --topic tools --to-earliest --dry-run",
    "--describe --group readers",
    "--reset-offsets --group readers --topic tools --to-offset 2 --execute",
    "--describe --group readers",
    "--reset-offsets --group readers --topic tools --shift-by 3 --execute",
    "--reset-offsets --group readers --topic tools --shift-by -100 --dry-run",
    "--reset-offsets --group readers --topic tools --shift-by 100 --dry-run",
    "--reset-offsets --group readers --topic tools --to-datetime 2023-11-14T22:14:05.000 --execute",
    "--reset-offsets --group readers --topic tools --to-datetime 2033-11-14T22:14:05.000 --dry-run",
    "--reset-offsets --group readers --topic tools:1 --to-latest --execute",
    "--reset-offsets --group readers --all-topics --to-current --dry-run --export",
    "--reset-offsets --group readers --all-topics --from-file {plan} --execute",
    "--reset-offsets --group readers --topic nothing --to-earliest --dry-run",
    "--reset-offsets --group newcomers --topic tools --to-earliest --execute",
    "--reset-offsets --all-groups --topic tools --to-latest --dry-run",
    "--describe --all-groups",
    "--delete-offsets --group readers --topic tools:0",
    "--delete-offsets --group readers --topic tools:0 --topic nothing",
    "--describe --group readers",
    "--delete --group readers",
    "--delete --group readers",
    "--list --state",
    "--delete --all-groups",
    "--list",
)


def test_group_command_prints_what_it_prints_for_apache_kafka(tmp_path: Path) -> None:
    """On nodes of their own: some commands concern all groups."""
    with running_oracle() as oracle, running_twofold() as twofold:
        printed = {}
        for server in (oracle, twofold):
            fill(server)
            with member(server):
                first = run(oracle, server, WITH_A_MEMBER)
            plan = tmp_path / "plan.csv"
            plan.write_text("tools,0,4\ntools,1,5\n")
            commands = [command.format(plan=plan) for command in WITHOUT]
            printed[server.name] = first + run(oracle, server, commands)
    for theirs, ours in zip(printed["oracle"], printed["twofold"], strict=True):
        assert ours == theirs
    assert len(printed["twofold"]) == len(WITH_A_MEMBER) + len(WITHOUT)


def run(oracle: Oracle, server: Server, commands: list[str] | tuple[str, ...]) -> list[list[str]]:
    """What each command printed, comparable: the command itself and its lines, sorted."""
    done = oracle.java_program(PROGRAM, [server.bootstrap_servers, *commands])
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^\$ ", done.stdout, flags=re.MULTILINE)[1:]
    assert len(parts) == len(commands), done.stdout[-2000:]
    return [comparable(part) for part in parts]


def comparable(text: str) -> list[str]:
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uuid>", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "<address>", text)
    text = re.sub(r"(errors\.\w+Exception): .*", r"\1: <text>", text)
    command, *lines = [" ".join(line.split()) for line in text.splitlines()]
    return [command, *sorted(line for line in lines if line)]


def fill(server: Server) -> None:
    """Two partitions of ten records, ten seconds apart."""
    create_topic(server, "tools", 2)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    for number in range(RECORDS):
        for partition in (0, 1):
            producer.produce("tools", b"%d" % number, partition=partition, timestamp=START_MS + number * STEP_MS)
    assert producer.flush(20) == 0


@contextmanager
def member(server: Server) -> Iterator[None]:
    """One member of the group `readers` that has committed 3 and 4, and leaves in the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": "readers",
            "client.id": "reader",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
        }
    )
    consumer.subscribe(["tools"])
    deadline = time.monotonic() + 30
    while len(consumer.assignment()) < 2:
        assert time.monotonic() < deadline, "the member was assigned nothing"
        consumer.poll(0.05)
    consumer.commit(offsets=[TopicPartition("tools", 0, 3), TopicPartition("tools", 1, 4)], asynchronous=False)
    stopping = threading.Event()
    beating = threading.Thread(target=lambda: [consumer.poll(0.1) for _ in iter(stopping.is_set, True)])
    beating.start()
    try:
        yield
    finally:
        stopping.set()
        beating.join(10)
        consumer.close()
