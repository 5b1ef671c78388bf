"""Groups with our own consumer: alone, and mixed with stock clients and Apache Kafka's own, under kill -9 and pauses.

What must hold is what `test_groups_clients.py` demands of the stock clients: one owner per partition, nothing that was
committed read again, nothing left out. `make test` has three groups that work at the same time against Twofold;
`make interop` adds groups of 20 members, and runs all of it against Apache Kafka as well.
"""

import os
import random
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from interop.test_groups_clients import at_the_same_time, change_at_random
from kits.groups.groups import CLIENTS, OURS, SESSION_S, SETTINGS, Crew, Feed, Server, create_topic, crew
from kits.processes.server import TwofoldServer
from oracle.kafka import running_oracle

LONG = bool(os.environ.get("TWOFOLD_LONG"))
SERVERS = ("twofold", "oracle") if LONG else ("twofold",)
PARTITIONS = 6
STATIC_SESSION_MS = 20_000  # long enough for a restart on a busy machine
COOPERATIVE = "cooperative-sticky"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "oracle":
        with running_oracle(SETTINGS) as oracle:
            yield oracle
    else:
        with TwofoldServer(tmp_path_factory.mktemp("groups-twofold"), SETTINGS) as running:
            yield running


def ours_alone(group: Crew) -> None:
    """Members come, leave, crash, and are paused for longer than their session."""
    first = group.add("twofold")
    group.settle()
    second, third = group.add("twofold-aio"), group.add("twofold")
    group.settle()
    group.crash(third)
    took = group.settle()
    assert took < SESSION_S + 20, f"a crash was noticed after {took:.1f} s"
    for paused in (first, second) if LONG else (first,):
        group.pause(paused)
        group.settle()  # the other has taken over all of it
        before = len(paused.events())
        group.go_on(paused)
        group.settle()
        woken = paused.events()[before:]
        assert any(event["event"] == "owns" and event["lost"] for event in woken), "it has not heard of its loss"
    group.leave(first)
    group.settle()


def mixed(group: Crew) -> None:
    """Any client may be the leader, so that each of them reads what the others have assigned."""
    (first, *_) = [group.add(client) for client in ("twofold", *CLIENTS)]
    group.settle()
    java, last = group.add("java"), group.add("twofold-aio")
    group.settle()
    group.leave(first)
    group.settle()
    for stock in [member for member in group.present if member is not last]:
        group.leave(stock) if stock is not java else group.crash(stock)
    group.settle()


def cooperative(group: Crew) -> None:
    """What stays with a member is never given up, whichever member leads: ours, confluent-kafka or Java."""
    kept = [group.add("twofold", strategy=COOPERATIVE), group.add("confluent-kafka", strategy=COOPERATIVE)]
    group.settle()
    assert [len(member.owned()) for member in kept] == [3, 3]
    for newcomer in ("java", "twofold-aio"):
        before = [(member, member.owned(), len(ownerships(member))) for member in group.present]
        group.add(newcomer, strategy=COOPERATIVE)
        group.settle()
        for member, had, seen in before:
            if missed_a_round(member):
                continue
            since = [event["owned"] for event in ownerships(member)[seen:]]
            assert set.intersection(had, *since) == member.owned(), f"{member.name} gave up what it kept"
    sizes = sorted(len(member.owned()) for member in group.present)
    assert sizes == [1, 1, 2, 2]
    group.crash(kept[0])
    group.settle()


def static(group: Crew) -> None:
    """A member that restarts under its name disturbs nobody."""
    one = group.add("twofold", instance="one", session_ms=STATIC_SESSION_MS)
    two = group.add("twofold-aio", instance="two", session_ms=STATIC_SESSION_MS)
    group.settle()
    owned, undisturbed = one.owned(), len(ownerships(two))
    group.crash(one)
    back = group.add("twofold-aio", instance="one", session_ms=STATIC_SESSION_MS)
    group.settle()
    assert back.owned() == owned
    assert len(ownerships(two)) == undisturbed, "the other member went through a rebalance"


def missed_a_round(member: Any) -> bool:
    """Whether a member of ours was so late that the next round had begun: as Kafka's clients, it loses all then."""
    return "it joins again, and what it had is lost" in member.output.read_text()


def ownerships(member: Any) -> list[dict[str, Any]]:
    return [event for event in member.events() if event["event"] == "owns"]


STORIES: dict[str, Callable[[Crew], None]] = {
    "ours-alone": ours_alone,
    "mixed": mixed,
    "cooperative": cooperative,
    "static": static,
}


def test_one_owner_each_whatever_happens_to_our_members(server: Server, tmp_path: Path) -> None:
    create_topic(server, "ours", PARTITIONS)
    feed = Feed(server, {("ours", index) for index in range(PARTITIONS)})

    def story(name: str, barrier: Barrier) -> None:
        with crew(server, tmp_path, name, ["ours"], PARTITIONS) as group:
            STORIES[name](group)
            barrier.wait()
            group.await_committed(feed.finish())
            group.check()

    at_the_same_time(story, tuple(STORIES))


def test_a_pattern_finds_topics_that_come_later(server: Server, tmp_path: Path) -> None:
    create_topic(server, "found-a", 2)
    with crew(server, tmp_path, "found", ["found-a"], 2, pattern="found-.*") as group:
        group.add("twofold")
        group.add("twofold-aio")
        group.settle()
        create_topic(server, "found-b", 2)
        group.topics.append("found-b")
        group.settle()
        feed = Feed(server, group.partitions)
        group.await_committed(feed.finish())
        group.check()


if LONG:

    @pytest.mark.slow
    @pytest.mark.timeout(1200)
    @pytest.mark.parametrize("kind", ["ours", "mixed"])
    def test_twenty_members_come_go_and_crash(server: Server, tmp_path: Path, kind: str) -> None:
        partitions, steps, chance = 24, 12, random.Random(f"twenty of {kind}")
        topic = f"twenty-{kind}"
        create_topic(server, topic, partitions)
        feed = Feed(server, {(topic, index) for index in range(partitions)}, pause_s=0.05)
        clients = cycle(OURS if kind == "ours" else (*OURS, *CLIENTS, "java"))
        with crew(server, tmp_path, topic, [topic], partitions) as group:
            for _ in range(20):
                group.add(next(clients))
            group.settle(120)
            for step in range(steps):
                if step % 4 == 3:
                    paused = chance.choice([member for member in group.present if "twofold" in member.name])
                    group.pause(paused)
                    group.settle(120)
                    group.go_on(paused)
                else:
                    change_at_random(group, lambda: group.add(next(clients)), chance)
                group.settle(120)
            group.await_committed(feed.finish(), 120)
            group.check()
