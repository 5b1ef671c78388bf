"""Groups of stock clients: whoever comes, leaves, crashes or restarts, every partition gets one owner and no record
that was committed is skipped or read again.

Members are processes (`support.group_member`), several groups work at the same time on the same records. `make test`
has groups of up to 4 members; `make interop` adds groups of 20 with random changes, and runs all of it against Apache
Kafka as well, which shows that the tests demand nothing else than Kafka gives.
"""

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from kits.groups.groups import (
    CLIENTS,
    SESSION_S,
    SETTINGS,
    Crew,
    Feed,
    Server,
    check_one_owner,
    check_partition,
    create_topic,
    crew,
)
from kits.processes.server import TwofoldServer
from oracle.kafka import running_oracle

LONG = bool(os.environ.get("TWOFOLD_LONG"))
SERVERS = ("twofold", "oracle") if LONG else ("twofold",)
PARTITIONS = 6
STATIC_SESSION_MS = 20_000  # long enough for a restart on a busy machine

interop = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "oracle":
        with running_oracle(SETTINGS) as oracle:
            yield oracle
    else:
        with TwofoldServer(tmp_path_factory.mktemp("groups"), SETTINGS) as running:
            yield running


def at_the_same_time(story: Callable[[str, Barrier], None], names: tuple[str, ...]) -> None:
    """The same story of several groups, which may wait for each other at the barrier.

    A story that fails breaks the barrier, so that the others end as well; its reason is the one that is told.
    """
    barrier = Barrier(len(names))

    def tell(name: str) -> None:
        try:
            story(name, barrier)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(names)) as pool:
        told = [pool.submit(tell, name) for name in names]
        try:
            wait(told)
        finally:
            barrier.abort()
    failures = [error for one in told if (error := one.exception()) is not None]
    for error in sorted(failures, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error


def members_of(kind: str) -> Iterator[str]:
    """The clients of a group: one kind, or all in turn."""
    while True:
        yield from CLIENTS if kind == "mixed" else (kind,)


class TestStories:
    pytestmark = interop

    def test_one_owner_each_while_members_come_leave_and_crash(self, server: Server, tmp_path: Path) -> None:
        create_topic(server, "stories", PARTITIONS)
        feed = Feed(server, {("stories", index) for index in range(PARTITIONS)})

        def story(kind: str, barrier: Barrier) -> None:
            clients = members_of(kind)
            with crew(server, tmp_path, f"stories-{kind}", ["stories"], PARTITIONS) as group:
                first = group.add(next(clients))
                group.settle()
                second, third = group.add(next(clients)), group.add(next(clients))
                group.settle()
                group.leave(second)
                group.settle()
                group.add(next(clients))
                group.crash(third)
                took = group.settle()
                assert took < SESSION_S + 10, f"a crash was noticed after {took:.1f} s"
                group.leave(first)
                group.settle()
                barrier.wait()
                group.await_committed(feed.finish())
                group.check()

        kinds = (*CLIENTS, "mixed")
        at_the_same_time(story, kinds)

    def test_a_static_member_that_restarts_disturbs_no_other_member(self, server: Server, tmp_path: Path) -> None:
        create_topic(server, "static", PARTITIONS)
        feed = Feed(server, {("static", index) for index in range(PARTITIONS)})

        def story(client: str, _: Barrier) -> None:
            with crew(server, tmp_path, f"static-{client}", ["static"], PARTITIONS) as group:
                one = group.add(client, instance=f"{client}-one", session_ms=STATIC_SESSION_MS)
                two = group.add(client, instance=f"{client}-two", session_ms=STATIC_SESSION_MS)
                group.settle()
                for restarted, other in ((one, two), (two, one)):
                    owned, undisturbed = restarted.owned(), len(ownerships(other))
                    group.crash(restarted)
                    back = group.add(client, instance=restarted.client_id, session_ms=STATIC_SESSION_MS)
                    group.settle()
                    assert back.owned() == owned
                    assert len(ownerships(other)) == undisturbed, "the other member went through a rebalance"
                    one, two = (back, two) if restarted is one else (one, back)
                group.check()

        at_the_same_time(story, CLIENTS)
        feed.finish()

    def test_a_pattern_finds_topics_that_come_later(self, server: Server, tmp_path: Path) -> None:
        def story(client: str, _: Barrier) -> None:
            prefix = f"pattern-{client}"
            create_topic(server, f"{prefix}-a", 2)
            with crew(server, tmp_path, prefix, [f"{prefix}-a"], 2, pattern=f"{prefix}-.*") as group:
                group.add(client)
                group.add(client)
                group.settle()
                create_topic(server, f"{prefix}-b", 2)
                group.topics.append(f"{prefix}-b")
                group.settle()
                feed = Feed(server, group.partitions)
                group.leave(group.present[0])
                group.settle()
                group.await_committed(feed.finish())
                group.check()

        at_the_same_time(story, CLIENTS)

    def test_cooperative_members_give_up_only_what_moves(self, server: Server, tmp_path: Path) -> None:
        create_topic(server, "cooperative", PARTITIONS)
        feed = Feed(server, {("cooperative", index) for index in range(PARTITIONS)})
        with crew(server, tmp_path, "cooperative", ["cooperative"], PARTITIONS) as group:
            kept = [group.add("confluent-kafka", strategy="cooperative-sticky") for _ in range(2)]
            group.settle()
            assert [len(member.owned()) for member in kept] == [3, 3]
            before = [member.owned() for member in kept]
            seen = [len(ownerships(member)) for member in kept]
            third = group.add("confluent-kafka", strategy="cooperative-sticky")
            group.settle()
            for member, had, many in zip(kept, before, seen, strict=True):
                since = [event["owned"] for event in ownerships(member)[many:]]
                assert len(member.owned()) == 2
                assert set.intersection(had, *since) == member.owned(), "what stays is never given up"
            assert third.owned() == set.union(*before) - kept[0].owned() - kept[1].owned()
            group.crash(third)
            group.settle()
            group.leave(kept[0])
            group.settle()
            group.await_committed(feed.finish())
            group.check()


def ownerships(member: Any) -> list[dict[str, Any]]:
    return [event for event in member.events() if event["event"] == "owns"]


if LONG:

    @pytest.mark.interop
    @pytest.mark.slow
    @pytest.mark.timeout(1200)
    @pytest.mark.parametrize("kind", [*CLIENTS, "mixed"])
    def test_twenty_members_come_and_go(server: Server, tmp_path: Path, kind: str) -> None:
        partitions, steps, chance = 24, 12, random.Random(f"twenty {kind}")
        topic = f"twenty-{kind}"
        create_topic(server, topic, partitions)
        feed = Feed(server, {(topic, index) for index in range(partitions)}, pause_s=0.05)
        clients = members_of(kind)
        with crew(server, tmp_path, topic, [topic], partitions) as group:
            for _ in range(20):
                group.add(next(clients))
            group.settle(120)
            for _ in range(steps):
                change_at_random(group, lambda: group.add(next(clients)), chance)
                group.settle(120)
            group.await_committed(feed.finish(), 120)
            group.check()


def change_at_random(group: Crew, come: Callable[[], object], chance: random.Random) -> None:
    """One to three members come, leave or crash at once."""
    settled = list(group.present)
    for _ in range(chance.randint(1, 3)):
        kind = chance.choice(("come", "leave", "crash"))
        if kind == "come" and len(group.present) < 20:
            come()
        elif len(group.present) > 3 and settled:
            member = settled.pop(chance.randrange(len(settled)))
            group.leave(member) if kind == "leave" else group.crash(member)


class TestTheCheckItself:
    """What it is there for fails it."""

    def test_a_story_that_fails_ends_those_that_wait_for_it_and_tells_why(self) -> None:
        def story(name: str, barrier: Barrier) -> None:
            if name == "bad":
                raise ValueError("what went wrong")
            barrier.wait()

        with pytest.raises(ValueError, match="what went wrong"):
            at_the_same_time(story, ("good", "bad", "another"))

    AT = ("t", 0)

    def run(self, *events: tuple[str, str, Any]) -> tuple[int, int]:
        rows = []
        for name, kind, value in events:
            fields = {
                "owns": lambda at: {"gained": {at}},
                "processed": lambda span: {"at": self.AT, "first": span[0], "last": span[1]},
                "committed": lambda offset: {"at": self.AT, "offset": offset},
            }[kind](value)
            rows.append((name, {"event": kind, **fields}))
        return check_partition(self.AT, rows)

    def test_what_was_not_committed_may_be_read_again(self) -> None:
        events = [("a", "owns", self.AT), ("a", "processed", (0, 9)), ("a", "committed", 5)]
        events += [("b", "owns", self.AT), ("b", "processed", (5, 12)), ("b", "committed", 13)]
        assert self.run(*events) == (13, 13)

    def test_what_was_committed_may_not(self) -> None:
        events = [("a", "owns", self.AT), ("a", "processed", (0, 9)), ("a", "committed", 5)]
        with pytest.raises(AssertionError, match="5 was committed"):
            self.run(*events, ("b", "owns", self.AT), ("b", "processed", (4, 12)))

    def test_nothing_may_be_left_out(self) -> None:
        events = [("a", "owns", self.AT), ("a", "processed", (0, 9)), ("a", "committed", 10)]
        with pytest.raises(AssertionError, match="nobody has processed 10 to 10"):
            self.run(*events, ("b", "owns", self.AT), ("b", "processed", (11, 12)))

    def owned(self, *events: tuple[str, str]) -> None:
        kinds: dict[str, dict[str, Any]] = {
            "gains": {"gained": {self.AT}, "lost": set()},
            "gives up": {"gained": set(), "lost": {self.AT}, "expired": False},
            "hears of its loss": {"gained": set(), "lost": {self.AT}, "expired": True},
        }
        check_one_owner(self.AT, [(name, {"event": "owns", **kinds[kind]}) for name, kind in events], {"a", "b"})

    def test_a_member_gives_up_before_another_one_gains(self) -> None:
        self.owned(("a", "gains"), ("a", "gives up"), ("b", "gains"), ("b", "gives up"), ("a", "gains"))
        with pytest.raises(AssertionError, match=r"a was asked to give .* up when b had it already"):
            self.owned(("a", "gains"), ("b", "gains"), ("a", "gives up"))

    def test_a_member_that_was_paused_hears_of_its_loss_when_another_one_has_gained(self) -> None:
        self.owned(("a", "gains"), ("b", "gains"), ("a", "hears of its loss"), ("b", "gives up"), ("a", "gains"))
