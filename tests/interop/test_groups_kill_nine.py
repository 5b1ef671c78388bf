"""kill -9 of the broker while groups rebalance and commit: members recover by themselves within the session timeout,
and what was acknowledged as committed is never lost.

5 rounds in `make test`, 20 in `make interop`, where Apache Kafka goes through 3 as well. Every other round hits a group
that is rebalancing (the kill comes when the broker says so), the others one that commits. Where a member was leaving,
its leave may be lost with the broker: then its partitions are free when its session ends, which starts anew with the
broker.
"""

import os
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Protocol

import pytest

from kits.groups.groups import CLIENTS, SESSION_S, SETTINGS, Crew, Feed, Member, create_topic, crew
from kits.groups.groups import Server as AnyServer
from kits.processes.server import TwofoldServer
from oracle.kafka import Oracle, jars_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(900)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
ROUNDS = {"twofold": 20, "oracle": 3} if LONG else {"twofold": 5}
PARTITIONS = 6


class Server(AnyServer, Protocol):
    def start(self) -> None: ...
    def kill(self) -> None: ...


class KafkaServer(Oracle):
    def kill(self) -> None:
        self.stop()


@pytest.fixture(params=ROUNDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    running: Server
    if request.param == "oracle":
        (tmp_path / "oracle").mkdir()
        running = KafkaServer(jars_or_skip(), tmp_path / "oracle", SETTINGS)
    else:
        running = TwofoldServer(tmp_path / "server", SETTINGS)
    running.start()
    try:
        yield running
    finally:
        running.kill()


class Visitor:
    """A member that comes and goes; each time the others rebalance."""

    def __init__(self, group: Crew) -> None:
        self._group = group
        self._clients = cycle(CLIENTS)
        self._member: Member | None = None

    def start_a_rebalance(self) -> threading.Thread | None:
        """Returns, when it leaves, what ends when it is gone; that may need the broker."""
        if self._member is None:
            self._member = self._group.add(next(self._clients))
            return None
        leaving = threading.Thread(target=self._group.leave, args=(self._member,))
        self._member = None
        leaving.start()
        return leaving


def await_rebalance(group: Crew) -> None:
    deadline = time.monotonic() + 20
    while group.describe().state not in ("PreparingRebalance", "CompletingRebalance"):
        assert time.monotonic() < deadline, "no rebalance came"


def await_commits(group: Crew, more: int) -> None:
    wanted, deadline = group.commits() + more, time.monotonic() + 20
    while group.commits() < wanted:
        assert time.monotonic() < deadline, "no commits came"
        time.sleep(0.01)


def test_members_recover_and_committed_offsets_never_move_back(
    server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    create_topic(server, "work", PARTITIONS)
    feed = Feed(server, {("work", index) for index in range(PARTITIONS)})
    rounds = ROUNDS[request.node.callspec.params["server"]]
    slow: list[str] = []
    with crew(server, tmp_path, "kill-nine", ["work"], PARTITIONS) as group:
        for client in CLIENTS:
            group.add(client)
        group.settle()
        visitor, before = Visitor(group), group.committed()
        for number in range(rounds):
            leaving = None
            await_commits(group, 10)
            if number % 2 == 0:
                leaving = visitor.start_a_rebalance()
                await_rebalance(group)
            server.kill()
            acknowledged = group.acknowledged()
            server.start()
            started = time.monotonic()
            if leaving is not None:
                leaving.join(30)
            group.settle()
            await_commits(group, 1)
            took, limit = time.monotonic() - started, SESSION_S if leaving is None else SESSION_S + 3
            if took > limit:
                slow.append(f"round {number}: {took:.1f} s of {limit} s")
            committed = group.committed()
            for at, offset in committed.items():
                assert offset >= acknowledged.get(at, 0), f"{at}: {acknowledged[at]} was acknowledged, {offset} is left"
                assert offset >= before[at], f"{at}: {before[at]} was committed, {offset} is left"
            before = committed
        group.await_committed(feed.finish())
        group.check()
    assert not slow, f"members were slow to recover: {slow}"
