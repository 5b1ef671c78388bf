"""`twofold consume --group` as a user runs it: it commits what it has printed, leaves, and shares with others."""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kits.processes import commands
from kits.processes.commands import Done, cold
from kits.processes.server import TwofoldServer
from twofold import Admin, NewTopic, Producer, TopicPartition

pytestmark = pytest.mark.interop

PATIENCE_S = 40.0
long = pytest.mark.skipif(not os.environ.get("TWOFOLD_LONG"), reason="TWOFOLD_LONG=1 asks Apache Kafka too")
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("consume-group"), SETTINGS) as running:
        yield running


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=[pytest.mark.oracle, pytest.mark.slow, long])])
def server(request: pytest.FixtureRequest) -> str:
    node: Any = request.getfixturevalue("twofold_server" if request.param == "twofold" else "oracle")
    return str(node.bootstrap_servers)


@pytest.fixture
def admin(server: str) -> Iterator[Admin]:
    with Admin(bootstrap_servers=server) as asking:
        yield asking


@pytest.fixture
def topic(server: str, admin: Admin) -> str:
    """Two partitions; 0 to 4 in the first, 5 to 9 in the second."""
    name = f"lines-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 2)]).get()
    send(server, name, range(10))
    return name


def send(server: str, topic: str, numbers: range) -> None:
    with Producer(bootstrap_servers=server) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=number * 2 // len(numbers) % 2)


def consume(server: str, topic: str, group: str, *args: str, code: int = 0) -> list[int]:
    done: Done = commands.run("consume", topic, "--group", group, *args, server=server)
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    return [int(line) for line in done.stdout.split()]


def committed(admin: Admin, group: str, topic: str) -> list[int]:
    rows = admin.list_group_offsets([group]).get()[group].get()
    found = [rows.get(TopicPartition(topic, index)) for index in (0, 1)]
    return [0 if row is None else row.offset for row in found]


def members(admin: Admin, group: str) -> int:
    return len(admin.describe_groups([group]).get()[group].members)


def shares(admin: Admin, group: str) -> list[int]:
    """How many partitions each member has; none while there is no such group."""
    described = admin.describe_groups([group]).values.get(group)
    return [] if described is None else sorted(len(row.assignment or ()) for row in described.members)


class Running:
    """The command in an interpreter of its own, with its output in a file."""

    def __init__(self, server: str, topic: str, group: str, directory: Path, *args: str) -> None:
        self.output = directory / f"{uuid.uuid4().hex}.out"
        words = cold("consume", topic, "--group", group, "-b", server, *args)
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(words, stdout=stream, stderr=subprocess.PIPE)

    def lines(self) -> list[int]:
        return [int(line) for line in self.output.read_text().split()]

    def await_lines(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(self.lines()) < count:
            assert time.monotonic() < deadline and self.process.poll() is None, self.lines()
            time.sleep(0.02)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE_S) == 130
        assert self.process.stderr is not None
        with self.process.stderr as errors:
            assert errors.read() == b""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        if self.process.stderr is not None:
            self.process.stderr.close()


def test_what_was_printed_is_committed_and_not_printed_again(server: str, admin: Admin, topic: str) -> None:
    group = f"{topic}-readers"
    assert sorted(consume(server, topic, group, "--from-beginning", "--exit")) == list(range(10))
    assert committed(admin, group, topic) == [5, 5]
    assert members(admin, group) == 0, "it has left"
    assert consume(server, topic, group, "--from-beginning", "--exit") == [], "from where the group is"
    send(server, topic, range(10, 14))
    assert sorted(consume(server, topic, group, "--exit")) == [10, 11, 12, 13]


def test_a_count_commits_no_more_than_that(server: str, admin: Admin, topic: str) -> None:
    group = f"{topic}-readers"
    first = consume(server, topic, group, "--from-beginning", "-c", "3")
    assert len(first) == 3 and sum(committed(admin, group, topic)) == 3
    rest = consume(server, topic, group, "--from-beginning", "--exit")
    assert sorted(first + rest) == list(range(10))


def test_without_an_offset_it_starts_at_the_end(server: str, admin: Admin, topic: str, tmp_path: Path) -> None:
    group = f"{topic}-readers"
    running = Running(server, topic, group, tmp_path)
    try:
        number, deadline = 100, time.monotonic() + PATIENCE_S
        while not running.lines():  # it has joined when the first one comes
            assert time.monotonic() < deadline
            send(server, topic, range(number, number + 1))
            number += 1
            time.sleep(0.1)
        assert min(running.lines()) >= 100
        running.interrupt()
    finally:
        running.kill()


def test_ctrl_c_commits_what_was_printed_and_leaves(server: str, admin: Admin, topic: str, tmp_path: Path) -> None:
    group = f"{topic}-readers"
    running = Running(server, topic, group, tmp_path, "--from-beginning")
    try:
        running.await_lines(10)
        running.interrupt()
    finally:
        running.kill()
    assert sorted(running.lines()) == list(range(10))
    assert committed(admin, group, topic) == [5, 5] and members(admin, group) == 0


def test_two_share_and_the_rest_of_one_that_is_killed_comes_to_the_other(
    server: str, admin: Admin, topic: str, tmp_path: Path
) -> None:
    group, session = f"{topic}-readers", ("-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=500")
    one = Running(server, topic, group, tmp_path, "--from-beginning", *session)
    two = Running(server, topic, group, tmp_path, "--from-beginning", *session)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while shares(admin, group) != [1, 1]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        two.kill()
        seen = len(one.lines()), len(two.lines())
        send(server, topic, range(10, 30))
        deadline = time.monotonic() + PATIENCE_S
        while set(one.lines()) | set(two.lines()) != set(range(30)):
            assert time.monotonic() < deadline, (seen, one.lines(), two.lines())
            time.sleep(0.05)
        one.interrupt()
        assert committed(admin, group, topic) == [15, 15]
    finally:
        one.kill()
        two.kill()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-p", "1"], "--partition does not go with --group"),
        (["-o", "5"], "--offset does not go with --group"),
        (["-X", "session.timeout.ms=0"], "session_timeout_ms=0"),
    ],
)
def test_what_does_not_go_with_a_group_is_named(twofold_server: TwofoldServer, args: list[str], message: str) -> None:
    done = commands.run("consume", "t", "--group", "g", *args, server=twofold_server.bootstrap_servers)
    assert done.returncode == 2 and message in done.stderr, done.stderr
