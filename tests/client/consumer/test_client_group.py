"""Members of a group: the partitions of each, what their listeners hear, and what happens if one dies or sleeps."""

import asyncio
import contextlib
from importlib.util import find_spec
from typing import Any

import pytest

from kits.client.groups import COOPERATIVE, EAGER, PARTITIONS_OF_T, SESSION_MS, GroupWorld, play
from kits.client.transactions import ADDRESS, TOPIC
from twofold.client import Consumer, RebalanceListener, TopicPartition
from twofold.client.consumer.group.states import MembershipState
from twofold.client.errors import CommitFailed, IllegalConsumerCall, InstanceFenced
from twofold.extras import MissingExtra
from twofold.wire.errors import InvalidGroupId, InvalidRegularExpression, InvalidTopicException

ZERO = PARTITIONS_OF_T[0]
needs_re2 = pytest.mark.skipif(find_spec("re2") is None, reason="patterns need the extra [re2]")
STRATEGIES = pytest.mark.parametrize("strategy", [EAGER, "roundrobin", COOPERATIVE, "range,cooperative-sticky"])


@STRATEGIES
@pytest.mark.parametrize("members", [1, 2, 4])
def test_every_partition_has_one_owner_and_all_records_are_read(strategy: str, members: int) -> None:
    async def story(world: GroupWorld) -> None:
        for number in range(members):
            world.app(f"m{number}", "sync", partition_assignment_strategy=strategy).start()
        await world.write()
        await world.settle()
        await world.until_read()

    play(story)


# What the listener hears


def test_an_eager_member_gives_everything_up_and_gets_its_share() -> None:
    async def story(world: GroupWorld) -> None:
        first = world.app("a", partition_assignment_strategy=EAGER).start()
        await world.settle()
        world.app("b", partition_assignment_strategy=EAGER).start()
        await world.settle()
        assert [kind for kind, _ in first.events] == ["assigned", "revoked", "assigned"]
        assert first.told("revoked") == [PARTITIONS_OF_T]
        assert set(first.told("assigned")[1]) == first.owned

    play(story)


def test_a_cooperative_member_gives_up_only_what_it_loses_and_keeps_reading_the_rest() -> None:
    async def story(world: GroupWorld) -> None:
        first = world.app("a", partition_assignment_strategy=COOPERATIVE).start()
        await world.settle()
        second = world.app("b", partition_assignment_strategy=COOPERATIVE).start()
        await world.settle()
        (revoked,) = first.told("revoked")
        assert set(revoked) == second.owned and len(revoked) == 1
        assert first.told("lost") == []
        # What it kept was never assigned again: its position stayed.
        assert [set(tps) for tps in first.told("assigned")] == [set(PARTITIONS_OF_T), set(), set()]

    play(story)


def test_a_cooperative_member_reads_what_it_keeps_while_others_join() -> None:
    async def story(world: GroupWorld) -> None:
        first = world.app("a", partition_assignment_strategy=COOPERATIVE).start()
        await world.settle()
        slow = world.app("b", partition_assignment_strategy=COOPERATIVE).start()
        await world.settle()
        await world.stop_polling(slow)  # so that the round waits for it
        third = world.app("c", partition_assignment_strategy=COOPERATIVE).start()
        await world.until(lambda: first.membership.state is MembershipState.JOINING)
        kept = sorted(first.owned)[0]
        await world.write(5, (kept,))
        await world.until(lambda: (kept, 4) in first.seen)
        assert first.membership.state is MembershipState.JOINING
        assert third.owned == set()
        slow.hold = False
        await world.settle()

    play(story)


@STRATEGIES
def test_one_that_leaves_hands_over_at_once(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        first = world.app("a", partition_assignment_strategy=strategy).start()
        world.app("b", partition_assignment_strategy=strategy).start()
        await world.settle()
        owned = first.owned.copy()
        started = world.sim.now_s
        await first.stop()
        assert set(first.events[-1][1]) == owned and first.events[-1][0] == "revoked"
        await world.settle()
        assert world.sim.now_s - started < SESSION_MS / 1000 / 2

    play(story)


def test_what_a_listener_raises_comes_out_of_poll_after_the_rebalance() -> None:
    class Raises(RebalanceListener):
        def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
            raise LookupError(f"{len(partitions)} partitions")

    async def story(world: GroupWorld) -> None:
        consumer = world.app("a").consumer
        consumer.subscribe([TOPIC], listener=Raises())
        with pytest.raises(LookupError, match="3 partitions"):
            await consumer.poll(60_000)
        assert set(consumer.assignment) == set(PARTITIONS_OF_T)
        await world.write(1)
        assert await consumer.poll(60_000)

    play(story)


def test_a_listener_may_be_a_coroutine_that_seeks_commits_and_asks_for_positions() -> None:
    told: list[str] = []

    class Async(RebalanceListener):
        def __init__(self, consumer: Consumer) -> None:
            self.consumer = consumer

        async def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
            told.append(f"at {await self.consumer.position(ZERO)}")
            self.consumer.seek(ZERO, 7)

        async def on_partitions_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
            await self.consumer.commit()
            told.append("committed")

    async def story(world: GroupWorld) -> None:
        await world.write(10)
        consumer = world.app("a", partition_assignment_strategy=EAGER).consumer
        consumer.subscribe([TOPIC], listener=Async(consumer))
        seen: list[int] = []
        while len(seen) < 3:
            seen += [row.offset for row in await consumer.poll(60_000) if row.partition == 0]
        assert seen == [7, 8, 9]
        consumer.enforce_rebalance("for the test")
        await world.until_polled(consumer, lambda: told == ["at 0", "committed", "at 10"])
        assert await world.committed(ZERO) == 10

    play(story)


# Those that die, sleep, or do not poll


@STRATEGIES
def test_a_member_that_dies_is_replaced_after_its_session(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        dying = world.app("a", "sync", partition_assignment_strategy=strategy).start()
        living = world.app("b", "sync", partition_assignment_strategy=strategy).start()
        await world.settle()
        await world.write()
        await world.until_read()
        world.kill(dying)
        started = world.sim.now_s
        await world.settle()
        assert world.sim.now_s - started <= SESSION_MS / 1000 + 2
        # Nothing is read twice that the dead one has committed.
        assert len(living.seen) == len(set(living.seen))

    play(story)


@STRATEGIES
@pytest.mark.parametrize("committing", ["sync", "auto", "never"])
def test_a_member_that_was_stopped_hears_that_its_partitions_are_lost_before_it_reads(
    strategy: str, committing: str
) -> None:
    """SIGSTOP, another one takes over and commits, SIGCONT. `App` fails if a record comes of what is not owned."""

    async def story(world: GroupWorld) -> None:
        sleeper = world.app("a", committing, partition_assignment_strategy=strategy, max_poll_records=1)
        sleeper.pace_s = 0.5
        sleeper.start()
        await world.settle()
        await world.write(20)
        await world.until(lambda: len(sleeper.seen) > 5)  # and more was fetched
        world.sim.pause("a")
        other = world.app("b", "sync", partition_assignment_strategy=strategy).start()
        await world.until(lambda: other.owned == set(PARTITIONS_OF_T))
        await world.write(5)
        await world.until(lambda: sum(offset == 24 for _, offset in other.seen) == 3)
        ends = {tp: await world.committed(tp) for tp in PARTITIONS_OF_T}
        assert set(ends.values()) == {25}
        before, events = len(sleeper.seen), len(sleeper.events)
        assert before < 50
        world.sim.resume("a")
        await world.until(lambda: len(sleeper.events) > events)
        assert sleeper.events[events] == ("lost", PARTITIONS_OF_T)
        assert len(sleeper.seen) == before
        await world.settle()
        assert {tp: await world.committed(tp) for tp in PARTITIONS_OF_T} == ends

    play(story)


def test_a_member_that_was_stopped_cannot_commit_over_its_successor() -> None:
    async def story(world: GroupWorld) -> None:
        sleeper = world.app("a")
        consumer = sleeper.consumer
        consumer.subscribe([TOPIC], listener=sleeper)
        await world.write(10)
        while not sleeper.seen:
            await sleeper.poll(1_000)
        world.sim.pause("a")
        other = world.app("b", "sync").start()
        await world.until(lambda: other.owned == set(PARTITIONS_OF_T))
        await world.until(lambda: sum(offset == 9 for _, offset in other.seen) == 3)
        world.sim.resume("a")
        with pytest.raises(CommitFailed, match="other members may have its partitions"):
            await world.runtime("a").spawn(consumer.commit({ZERO: 3}), name="a late commit")
        assert await world.committed(ZERO) == 10
        await sleeper.poll(1_000)
        assert [kind for kind, _ in sleeper.events][:2] == ["assigned", "lost"]

    play(story)


def test_a_member_that_does_not_poll_leaves_and_hears_of_it_at_its_next_poll(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: GroupWorld) -> None:
        idle = world.app("a", max_poll_interval_ms=20_000).start()
        await world.settle()
        await world.stop_polling(idle)
        other = world.app("b", max_poll_interval_ms=60_000).start()
        started = world.sim.now_s
        await world.until(lambda: other.owned == set(PARTITIONS_OF_T))
        # Heartbeats went on: not the session has ended, and the other one does not wait for it either.
        assert 15 < world.sim.now_s - started < 25
        assert idle.events[-1][0] == "assigned"
        idle.hold = False
        await world.until(lambda: idle.told("lost"))
        assert idle.told("lost") == [PARTITIONS_OF_T]
        await world.settle()

    play(story)
    assert "has not polled for max_poll_interval_ms=20000" in caplog.text


def test_a_poll_that_waits_longer_than_the_interval_is_a_poll() -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a", max_poll_interval_ms=5_000)
        app.consumer.subscribe([TOPIC], listener=app)
        await app.poll(60_000)
        assert app.owned == set(PARTITIONS_OF_T) and not app.told("lost")

    play(story)


# Static members


@STRATEGIES
def test_a_static_member_that_comes_back_in_time_has_what_it_had(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        options = {"partition_assignment_strategy": strategy}
        first = world.app("a", group_instance_id="one", **options).start()
        second = world.app("b", group_instance_id="two", **options).start()
        await world.settle()
        owned, generation, heard = first.owned.copy(), first.membership.generation, len(second.events)
        await first.stop()
        back = world.app("a2", group_instance_id="one", **options).start()
        await world.settle()
        assert back.owned == owned
        assert back.membership.generation == generation
        assert len(second.events) == heard

    play(story)


def test_a_static_member_that_stays_away_is_replaced() -> None:
    async def story(world: GroupWorld) -> None:
        first = world.app("a", group_instance_id="one").start()
        world.app("b", group_instance_id="two").start()
        await world.settle()
        world.kill(first)
        await world.settle()

    play(story)


def test_a_second_consumer_with_an_instance_id_fences_the_first() -> None:
    async def story(world: GroupWorld) -> None:
        first = world.app("a", group_instance_id="one").start()
        await world.settle()
        second = world.app("b", group_instance_id="one").start()
        await world.until(lambda: first.errors and second.owned)
        assert isinstance(first.errors[0], InstanceFenced) and first.errors[0].fatal
        assert "group_instance_id='one'" in str(first.errors[0])
        assert first.events[-1] == ("lost", PARTITIONS_OF_T)
        with pytest.raises(InstanceFenced):
            await first.consumer.commit({ZERO: 1})
        await first.stop()
        assert second.owned == set(PARTITIONS_OF_T)

    play(story)


# Subscriptions


def test_subscribe_and_assign_exclude_each_other_until_unsubscribe() -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a")
        consumer = app.consumer
        consumer.subscribe([TOPIC], listener=app)
        with pytest.raises(IllegalConsumerCall, match="topics were subscribed"):
            consumer.assign([ZERO])
        await app.poll(5_000)
        await consumer.unsubscribe()
        assert (consumer.subscription, consumer.assignment) == (frozenset(), ())
        assert app.events[-1] == ("revoked", PARTITIONS_OF_T)
        consumer.assign([ZERO])
        with pytest.raises(IllegalConsumerCall, match="partitions were assigned"):
            consumer.subscribe([TOPIC])
        with pytest.raises(IllegalConsumerCall, match="subscribe first"):
            consumer.enforce_rebalance()
        await consumer.unsubscribe()
        consumer.subscribe([TOPIC], listener=app)
        await app.poll(5_000)
        assert app.owned == set(PARTITIONS_OF_T)

    play(story)


def test_what_is_no_subscription_is_refused() -> None:
    async def story(world: GroupWorld) -> None:
        consumer = world.app("a").consumer
        with pytest.raises(TypeError, match=r"write subscribe\(\['t'\]\)"):
            consumer.subscribe("t")
        with pytest.raises(ValueError, match="neither was given"):
            consumer.subscribe([])
        with pytest.raises(ValueError, match="not both"):
            consumer.subscribe(["t"], pattern="t.*")
        with pytest.raises(InvalidTopicException):
            consumer.subscribe([" "])
        async with Consumer(bootstrap_servers=ADDRESS, runtime=world.runtime("x")) as lonely:
            for call in (lambda: lonely.subscribe(["t"]), lonely.group_metadata, lonely.commit_async):
                with pytest.raises(InvalidGroupId, match="set group_id"):
                    call()

    play(story)


@STRATEGIES
def test_another_subscription_changes_what_is_read(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        await world.create("u", 2)
        app = world.app("a", partition_assignment_strategy=strategy).start()
        await world.settle()
        app.consumer.subscribe(["u"], listener=app)
        u = (TopicPartition("u", 0), TopicPartition("u", 1))
        await world.settle(u)
        await world.write(3, u)
        await world.until(lambda: (u[1], 2) in app.seen)

    play(story)


@needs_re2
def test_a_pattern_finds_topics_that_come_later_and_no_internal_ones() -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a", metadata_max_age_ms=5_000).start(pattern=".*t.*")
        await world.settle()  # and not __consumer_offsets, which matches
        await world.create("later", 2)
        later = (TopicPartition("later", 0), TopicPartition("later", 1))
        await world.settle((*PARTITIONS_OF_T, *later))
        assert app.consumer.subscription == {"t", "later"}
        await world.write(2, later)
        await world.until_read()

    play(story)


@needs_re2
def test_a_pattern_that_is_none_is_refused_with_its_reason() -> None:
    async def story(world: GroupWorld) -> None:
        with pytest.raises(InvalidRegularExpression, match=r"missing \)"):
            world.app("a").consumer.subscribe(pattern="(")

    play(story)


def test_a_pattern_without_re2_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: GroupWorld) -> None:
        monkeypatch.setattr("twofold.extras.missing", lambda extra: ["re2"])
        with pytest.raises(MissingExtra, match=r"the pattern 't\.\*' needs re2: .*\[re2\]"):
            world.app("a").consumer.subscribe(pattern="t.*")

    play(story)


def test_partitions_that_are_added_get_an_owner() -> None:
    async def story(world: GroupWorld) -> None:
        world.app("a", metadata_max_age_ms=5_000).start()
        world.app("b", metadata_max_age_ms=5_000).start()
        await world.settle()
        async with world.world.admin() as admin:
            await admin.create_partitions({TOPIC: 5})
        await world.settle(tuple(TopicPartition(TOPIC, index) for index in range(5)))

    play(story)


# Calls that are interrupted


def test_a_member_that_is_stopped_in_a_round_reads_nothing_before_it_knows_what_became_of_it() -> None:
    async def story(world: GroupWorld) -> None:
        options: dict[str, Any] = {
            "partition_assignment_strategy": COOPERATIVE,
            "max_poll_interval_ms": 3_600_000,
        }
        sleeper = world.app("a", max_poll_records=1, **options)
        sleeper.pace_s = 0.5
        sleeper.start()
        slow = world.app("b", **options).start()
        await world.settle()
        await world.write(30)
        await world.stop_polling(slow)
        third = world.app("c", "sync", **options).start()
        await world.until(lambda: sleeper.membership.state is MembershipState.JOINING)
        world.sim.pause("a")
        slow.hold = False  # the round is done, and its answer waits for the one that is stopped
        await world.until(lambda: slow.owned | third.owned == set(PARTITIONS_OF_T))
        before, events = len(sleeper.seen), len(sleeper.events)
        assert before < 40
        world.sim.resume("a")
        await world.until(lambda: len(sleeper.events) > events)
        assert sleeper.events[events][0] == "lost"
        assert len(sleeper.seen) == before
        await world.settle()

    play(story)


@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_a_poll_that_is_cancelled_anywhere_leaves_a_member_that_goes_on(turns: int) -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a", "auto")
        app.consumer.subscribe([TOPIC], listener=app)
        world.app("b", "auto").start()
        await world.write(5)
        polling = world.runtime("a").spawn(app.consumer.poll(60_000), name="a poll")
        for _ in range(turns):
            await world.sleep(0.001)
        polling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            for record in await polling:
                app.seen.append((TopicPartition(record.topic, record.partition), record.offset))
        app.task = world.runtime("a").spawn(app._run(), name="app a")
        await world.settle()
        await world.until_read()

    play(story)


def test_a_poll_without_a_timeout_gets_into_the_group_in_the_end() -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a")
        app.consumer.subscribe([TOPIC], listener=app)
        await world.write(1)
        while len(app.seen) < 3:
            await app.poll(0)
            await world.sleep(0.01)

    play(story)
