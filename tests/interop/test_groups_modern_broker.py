"""The broker of groups of the new protocol (KIP-848) is killed with -9 and started on its folder, or paused for longer
than the session: members go on by themselves, and what was acknowledged as committed is never lost.

A kill comes while members commit, or while the group reconciles because one joins or leaves. A pause of Twofold costs
no member its place: the time is granted. `make test` has a few rounds with one group of all clients; `make interop` has
more, a group for each client, and Apache Kafka too.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Protocol

import pytest

from interop.test_groups_clients import ownerships
from interop.test_groups_modern import KINDS, NEW, build, clients_of
from kits.groups.groups import MODERN, SESSION_S, SETTINGS, Crew, Feed, Member, create_topic, crew
from kits.groups.groups import Server as AnyServer
from kits.processes.server import TwofoldServer
from oracle.kafka import Oracle, jars_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1800)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
ROUNDS = {"twofold": 12, "oracle": 3} if LONG else {"twofold": 3}
PARTITIONS = 6
PATIENCE_S = 90.0
PAUSE_S = SESSION_S + 3
RECOVERY_S = SESSION_S + 10
WAYS = ("kill while it reconciles", "kill while it commits", "pause")


class Server(AnyServer, Protocol):
    @property
    def pid(self) -> int: ...
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


class Rounds:
    def __init__(self, server: Server, group: Crew, kind: str) -> None:
        self._server, self._group = server, group
        self._clients = clients_of(kind)
        self._visitor: Member | None = None
        self._leaving: threading.Thread | None = None
        self._reckoned = group.committed()
        self._ways: dict[str, Callable[[], None]] = {
            "kill while it reconciles": self._kill_while_it_reconciles,
            "kill while it commits": self._kill,
            "pause": self._pause,
        }

    def go(self, way: str) -> None:
        await_commits(self._group, 10)
        self._ways[way]()
        started = time.monotonic()
        if self._leaving is not None:
            self._leaving.join(40)
            self._leaving = None
        self._group.settle(PATIENCE_S)
        await_commits(self._group, 1)
        took = time.monotonic() - started
        assert took < RECOVERY_S, f"after a {way} members went on after {took:.1f} s"
        self._reckon()

    def _kill(self) -> None:
        self._server.kill()
        self._server.start()

    def _kill_while_it_reconciles(self) -> None:
        """A member comes, or leaves; its leave may be lost with the broker, and then its session has to end."""
        epoch = self._group.describe().epoch
        if self._visitor is None:
            self._visitor = self._group.add(next(self._clients), protocol=NEW)
        else:
            self._leaving = threading.Thread(target=self._group.leave, args=(self._visitor,))
            self._visitor = None
            self._leaving.start()
        deadline = time.monotonic() + 30
        while self._group.describe().epoch == epoch:
            assert time.monotonic() < deadline, "the group has not noticed a member that came or left"
        self._kill()

    def _pause(self) -> None:
        group = self._group
        before = {member: len(ownerships(member)) for member in group.present}
        os.kill(self._server.pid, SIGSTOP)
        try:
            time.sleep(PAUSE_S)
        finally:
            os.kill(self._server.pid, SIGCONT)
        group.settle(PATIENCE_S)
        if isinstance(self._server, TwofoldServer):
            lost = [member.name for member, seen in before.items() if len(ownerships(member)) > seen]
            assert not lost, f"a pause of the broker cost {lost} their place"

    def _reckon(self) -> None:
        acknowledged, committed = self._group.acknowledged(), self._group.committed()
        for at, offset in committed.items():
            assert offset >= self._reckoned[at], f"{at}: {self._reckoned[at]} was committed, {offset} is left"
            assert offset >= acknowledged.get(at, 0), f"{at}: {acknowledged[at]} was acknowledged, {offset} is left"
        self._reckoned = committed


def await_commits(group: Crew, more: int) -> None:
    wanted, deadline = group.commits() + more, time.monotonic() + PATIENCE_S
    while group.commits() < wanted:
        for member in group.present:
            member.check_running()
        assert time.monotonic() < deadline, "no commits came"
        time.sleep(0.01)


@pytest.mark.parametrize("kind", KINDS if LONG else ("mixed",))
def test_new_members_go_on_after_their_broker_was_killed_or_paused(
    server: Server, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    build(kind)
    create_topic(server, "work", PARTITIONS)
    feed = Feed(server, {("work", index) for index in range(PARTITIONS)})
    ways, clients = cycle(WAYS), clients_of(kind)
    with crew(server, tmp_path, f"broker-{kind}", ["work"], PARTITIONS) as group:
        for _ in range(len(MODERN) if kind == "mixed" else 3):
            group.add(next(clients), protocol=NEW)
        group.settle(PATIENCE_S)
        group.await_first_commits(PATIENCE_S)
        rounds = Rounds(server, group, kind)
        for _ in range(ROUNDS[request.node.callspec.params["server"]]):
            rounds.go(next(ways))
        group.await_committed(feed.finish(), PATIENCE_S)
        group.check()
