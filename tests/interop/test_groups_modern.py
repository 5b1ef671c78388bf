"""Members of the new protocol (KIP-848): confluent-kafka, Java's client, franz-go and our own, alone and mixed with
classic ones. They join, leave, crash, are paused for longer than their session, restart under their name, and follow a
pattern.

What must hold is what `test_groups_clients.py` demands: one owner per partition, nothing that was committed read again,
nothing left out, and no member that hangs. `make test` has small groups that all work at the same time; `make interop`
adds longer stories, groups of 20 members with random changes, and runs all of it against Apache Kafka as well.
"""

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import pytest

from interop.test_groups_clients import change_at_random, ownerships
from kits.groups.groups import (
    MODERN,
    OURS,
    REMOTE,
    SESSION_S,
    SETTINGS,
    Crew,
    Feed,
    Member,
    Server,
    configure_group,
    create_topic,
    crew,
)
from kits.processes.server import TwofoldServer
from oracle.kafka import running_oracle

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

LONG = bool(os.environ.get("TWOFOLD_LONG"))
SERVERS = ("twofold", "oracle") if LONG else ("twofold",)
PARTITIONS = 6
PATIENCE_S = 90.0  # all stories start at the same time
STATIC_SESSION_MS = 20_000  # long enough for a restart on a busy machine
STOCK = ("confluent-kafka", "java", "franz-go")
ALONE = ("ours", *STOCK)
KINDS = (*ALONE, "mixed")
LEAVE_FOR_A_WHILE = ("ours", "confluent-kafka", "java")
"""franz-go 1.22.2 names no instance when a static member leaves, so every broker refuses it: its session has to end."""
BOTH = "both"
"""Clients of all kinds, each by chance of the new or the classic protocol."""
NEW, CLASSIC = "consumer", "classic"

Story = Callable[[Server, Path, str], None]


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "oracle":
        with running_oracle(SETTINGS) as oracle:
            yield oracle
    else:
        with TwofoldServer(tmp_path_factory.mktemp("groups-modern"), SETTINGS) as running:
            yield running


def clients_of(kind: str) -> Iterator[str]:
    """The clients of a group, in turn."""
    return cycle({"ours": OURS, "mixed": MODERN}.get(kind, (kind,)))


def build(kind: str) -> None:
    """What the clients need; skips where it cannot be had."""
    for client in MODERN if kind == "mixed" else (kind,):
        REMOTE.get(client, list)()


class Outcomes(dict[str, BaseException | None]):
    """What became of each of the stories that were told at the same time; one that cannot be told here is skipped."""

    def check(self, name: str) -> None:
        error = self[name]
        if error is not None:
            raise error


def told_at_once(story: Story, names: tuple[str, ...], server: Server, directory: Path) -> Outcomes:
    def tell(name: str) -> None:
        build(name)
        story(server, directory, name)

    with ThreadPoolExecutor(len(names)) as pool:
        told = {name: pool.submit(tell, name) for name in names}
    return Outcomes({name: future.exception() for name, future in told.items()})


def pause_past_the_session(group: Crew, member: Member) -> None:
    """The others take over; when it goes on it hears that it has lost all, and joins again."""
    group.pause(member)
    group.settle(PATIENCE_S)
    before = len(member.events())
    group.go_on(member)
    group.settle(PATIENCE_S)
    woken = member.events()[before:]
    assert any(event["event"] == "owns" and event["lost"] for event in woken), (
        f"{member.name} has not heard of its loss"
    )


def come_and_go(server: Server, directory: Path, kind: str) -> None:
    """Members of one client, or of all of them."""
    topic, clients = f"come-and-go-{kind}", clients_of(kind)
    create_topic(server, topic, PARTITIONS)
    feed = Feed(server, {(topic, index) for index in range(PARTITIONS)})
    with crew(server, directory, topic, [topic], PARTITIONS) as group:
        first = group.add(next(clients), protocol=NEW)
        second = group.add(next(clients), protocol=NEW)
        group.settle(PATIENCE_S)
        group.await_first_commits(PATIENCE_S)
        pause_past_the_session(group, first)
        if LONG:
            third = group.add(next(clients), protocol=NEW)
            group.settle(PATIENCE_S)
            pause_past_the_session(group, third)
            group.leave(third)
            group.settle(PATIENCE_S)
        group.crash(second)
        group.settle(SESSION_S + 20)
        group.add(next(clients), protocol=NEW)
        group.settle(PATIENCE_S)
        group.leave(first)
        group.settle(PATIENCE_S)
        group.await_committed(feed.finish())
        group.check()


def both_protocols(server: Server, directory: Path, _: str) -> None:
    """A classic group turns with its first new member, and back when the last one is gone."""
    create_topic(server, "both", PARTITIONS)
    feed = Feed(server, {("both", index) for index in range(PARTITIONS)})
    with crew(server, directory, "both", ["both"], PARTITIONS) as group:
        classic = group.add("confluent-kafka", protocol=CLASSIC)
        group.settle(PATIENCE_S)
        group.await_first_commits(PATIENCE_S)
        java = group.add("java", protocol=NEW)
        group.settle(PATIENCE_S)
        new = [group.add(client, protocol=NEW) for client in ("franz-go", "confluent-kafka", "twofold")]
        if LONG:
            for client, protocol in (("kafka-python", CLASSIC), ("franz-go", CLASSIC), ("java", CLASSIC)):
                group.add(client, protocol=protocol)
        group.settle(PATIENCE_S)
        pause_past_the_session(group, new[1])
        group.crash(classic)
        group.settle(PATIENCE_S)
        group.add("twofold-aio", protocol=CLASSIC)
        group.settle(PATIENCE_S)
        for member in (java, *new):
            group.leave(member)
        group.settle(PATIENCE_S)
        group.await_committed(feed.finish())
        group.check()


def restart(server: Server, directory: Path, kind: str) -> None:
    """A member that comes back under its name before its session ends disturbs no other member; one that crashed comes
    back to a share once its session has ended."""
    topic = f"restart-{kind}"
    create_topic(server, topic, PARTITIONS)
    if kind in LEAVE_FOR_A_WHILE:
        configure_group(server, topic, consumer_session_timeout_ms=str(STATIC_SESSION_MS))
    feed = Feed(server, {(topic, index) for index in range(PARTITIONS)})
    clients = clients_of(kind)
    with crew(server, directory, topic, [topic], PARTITIONS) as group:
        one = group.add(next(clients), instance=f"{kind}-one", protocol=NEW)
        two = group.add(next(clients), instance=f"{kind}-two", protocol=NEW)
        group.settle(PATIENCE_S)
        group.await_first_commits(PATIENCE_S)
        if kind in LEAVE_FOR_A_WHILE:
            owned, undisturbed = one.owned(), len(ownerships(two))
            group.leave(one)
            one = group.add(next(clients), instance=f"{kind}-one", protocol=NEW)
            group.settle(PATIENCE_S)
            assert one.owned() == owned
            assert len(ownerships(two)) == undisturbed, "the other member was disturbed"
        if LONG or kind not in LEAVE_FOR_A_WHILE:
            group.crash(one)
            group.settle(PATIENCE_S)
            assert two.owned() == group.partitions
            group.add(next(clients), instance=f"{kind}-one", protocol=NEW)
            group.settle(PATIENCE_S)
        group.await_committed(feed.finish())
        group.check()


def pattern(server: Server, directory: Path, kind: str) -> None:
    prefix, clients = f"pattern-{kind}", clients_of(kind)
    create_topic(server, f"{prefix}-a", 4)
    members = len(MODERN) if kind == "mixed" else 2
    with crew(server, directory, prefix, [f"{prefix}-a"], 4, pattern=f"{prefix}-.*") as group:
        for _ in range(members - 1):
            group.add(next(clients), protocol=NEW)
        group.settle(PATIENCE_S)
        create_topic(server, f"{prefix}-b", 4)
        group.topics.append(f"{prefix}-b")
        group.settle(PATIENCE_S)
        feed = Feed(server, group.partitions)
        group.add(next(clients), protocol=NEW)
        group.settle(PATIENCE_S)
        group.leave(group.present[0])
        group.settle(PATIENCE_S)
        group.await_committed(feed.finish())
        group.check()


@pytest.fixture(scope="module")
def came_and_went(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return told_at_once(come_and_go, KINDS, server, tmp_path_factory.mktemp("come-and-go"))


@pytest.fixture(scope="module")
def restarted(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return told_at_once(restart, ALONE, server, tmp_path_factory.mktemp("restart"))


@pytest.mark.parametrize("kind", KINDS)
def test_one_owner_each_while_new_members_come_leave_crash_and_are_paused(came_and_went: Outcomes, kind: str) -> None:
    came_and_went.check(kind)


def test_one_owner_each_in_a_group_of_both_protocols(server: Server, tmp_path: Path) -> None:
    told_at_once(both_protocols, ("mixed",), server, tmp_path).check("mixed")


@pytest.mark.parametrize("kind", ALONE)
def test_a_static_member_that_restarts_disturbs_no_other_member(restarted: Outcomes, kind: str) -> None:
    restarted.check(kind)


@pytest.mark.parametrize("kind", KINDS if LONG else ("mixed",))
def test_a_pattern_on_the_broker_finds_topics_that_come_later(server: Server, tmp_path: Path, kind: str) -> None:
    told_at_once(pattern, (kind,), server, tmp_path).check(kind)


def newcomer(group: Crew, kind: str, chance: random.Random) -> Callable[[], Member]:
    clients = clients_of("mixed" if kind == BOTH else kind)
    protocols = (NEW, CLASSIC) if kind == BOTH else (NEW,)
    return lambda: group.add(next(clients), protocol=chance.choice(protocols))


if LONG:

    @pytest.mark.slow
    @pytest.mark.timeout(2400)
    @pytest.mark.parametrize("kind", [*KINDS, BOTH])
    def test_twenty_new_members_come_go_crash_and_are_paused(server: Server, tmp_path: Path, kind: str) -> None:
        chance, topic = random.Random(f"twenty new of {kind}"), f"twenty-{kind}"
        build("mixed" if kind == BOTH else kind)
        create_topic(server, topic, 24)
        feed = Feed(server, {(topic, index) for index in range(24)}, pause_s=0.05)
        with crew(server, tmp_path, topic, [topic], 24) as group:
            come = newcomer(group, kind, chance)
            for _ in range(20):
                come()
            group.settle(240)
            group.await_first_commits(240)
            for step in range(12):
                paused = chance.choice(group.present) if step % 4 == 3 else None
                if paused is not None:
                    group.pause(paused)
                change_at_random(group, come, chance)
                group.settle(240)
                if paused is not None:
                    group.go_on(paused)
                    group.settle(240)
            group.await_committed(feed.finish(), 240)
            group.check()
