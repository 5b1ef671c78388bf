"""Members of groups in the hands of hostile applications and at the worst moments: cancelled, called from listeners, by
two tasks at once, after the partitions went."""

import asyncio
from typing import Any

import pytest

from kits.client.groups import COOPERATIVE, EAGER, PARTITIONS_OF_T, App, GroupWorld, play
from kits.client.transactions import TOPIC, refuse
from twofold.client import Consumer, RebalanceListener, TopicPartition
from twofold.client.errors import IllegalConsumerCall
from twofold.wire.errors import KafkaError, RebalanceInProgress, UnknownMemberId

ZERO, ONE, TWO = PARTITIONS_OF_T
BOTH = pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])


async def silence(*_: Any) -> Any:
    await asyncio.get_running_loop().create_future()


def never(_: Any, __: Any) -> Any:
    """A request that is not answered."""
    return silence()


async def joined(world: GroupWorld, node: str = "a", committing: str = "never", **options: Any) -> App:
    app = world.app(node, committing, **options)
    app.consumer.subscribe([TOPIC], listener=app)
    await world.until_polled(app.consumer, lambda: app.is_settled)
    return app


# Fencing of transactions


def test_the_group_metadata_of_a_member_that_was_dropped_is_refused_by_the_broker() -> None:
    """Without a member id and a generation TxnOffsetCommit is not fenced at all."""

    async def story(world: GroupWorld) -> None:
        await world.write(10)
        app = await joined(world, isolation_level="read_committed")
        producer = await world.world.ready(transactional_id="copy")
        # Another member takes over while this one works on its records.
        world.sim.pause("a")
        other = world.app("b", "sync").start()
        await world.until(lambda: other.owned == set(PARTITIONS_OF_T))
        await world.until_read()
        before = await world.committed(ZERO)
        world.sim.resume("a")
        await world.until(lambda: not app.membership.has_generation)
        with pytest.raises(KafkaError):
            async with producer.transaction() as txn:
                await txn.send_offsets({ZERO: 1}, app.consumer.group_metadata())
        assert await world.committed(ZERO) == before

    play(story)


def test_group_metadata_is_of_the_generation_whose_partitions_the_application_has() -> None:
    async def story(world: GroupWorld) -> None:
        app = await joined(world, partition_assignment_strategy=EAGER)
        first = app.consumer.group_metadata()
        other = world.app("b", partition_assignment_strategy=EAGER).start()
        while not app.told("revoked"):
            await app.consumer.poll(0)
            await world.sleep(0.001)
        await world.until(lambda: other.owned)
        assert app.owned == set()
        assert app.consumer.group_metadata() == first
        await world.until_polled(app.consumer, lambda: app.owned)
        assert app.consumer.group_metadata().generation_id > first.generation_id

    play(story)


def test_an_eager_member_cannot_commit_what_it_gave_up_before_poll_gave_it_its_share() -> None:
    async def story(world: GroupWorld) -> None:
        app = await joined(world, partition_assignment_strategy=EAGER)
        other = world.app("b", partition_assignment_strategy=EAGER).start()
        while not app.told("revoked"):
            await app.consumer.poll(0)
            await world.sleep(0.001)
        await world.until(lambda: other.owned)
        with pytest.raises(RebalanceInProgress):
            await app.consumer.commit(dict.fromkeys(PARTITIONS_OF_T, 5))
        assert await world.committed(ZERO) is None

    play(story)


# Two at once


@BOTH
def test_one_task_at_a_time_may_poll(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a", partition_assignment_strategy=strategy)
        app.consumer.subscribe([TOPIC], listener=app)
        polling = world.runtime("a").spawn(app.consumer.poll(5_000), name="first")
        await world.sleep(0)
        with pytest.raises(IllegalConsumerCall, match="another task"):
            await app.consumer.poll(5_000)
        await polling
        await world.until_polled(app.consumer, lambda: app.is_settled)
        assert [kind for kind, _ in app.events] == ["assigned"]

    play(story)


class Calling(RebalanceListener):
    """Calls the consumer from one of its methods."""

    def __init__(self, consumer: Consumer, when: str, call: str) -> None:
        self.consumer = consumer
        self.when = when
        self.call = call
        self.events: list[str] = []
        self.raised: list[Exception] = []

    async def _tell(self, kind: str) -> None:
        self.events.append(kind)
        if kind != self.when:
            return
        self.when = ""
        try:
            if self.call == "poll":
                await self.consumer.poll()
            elif self.call == "close":
                await self.consumer.close()
            elif self.call == "unsubscribe":
                await self.consumer.unsubscribe()
            else:
                self.consumer.subscribe(["other"], listener=self)
        except KafkaError as error:
            self.raised.append(error)

    async def on_partitions_revoked(self, partitions: Any) -> None:
        await self._tell("revoked")

    async def on_partitions_assigned(self, partitions: Any) -> None:
        await self._tell("assigned")

    async def on_partitions_lost(self, partitions: Any) -> None:
        await self._tell("lost")


@BOTH
@pytest.mark.parametrize("when", ["assigned", "revoked", "lost"])
@pytest.mark.parametrize("call", ["poll", "close", "unsubscribe", "subscribe"])
def test_a_listener_that_calls_what_it_must_not_is_refused_or_obeyed(strategy: str, when: str, call: str) -> None:
    async def story(world: GroupWorld) -> None:
        await world.create("other", 1)
        await world.write(5)
        app = world.app("a", partition_assignment_strategy=strategy)
        consumer = app.consumer
        listener = Calling(consumer, when, call)
        consumer.subscribe([TOPIC], listener=listener)
        await world.until_polled(consumer, lambda: consumer.assignment)
        if when == "revoked":
            other = world.app("b", partition_assignment_strategy=strategy).start()
            await world.until_polled(consumer, lambda: "revoked" in listener.events)
            await other.stop()
        elif when == "lost":
            world.script("Heartbeat", refuse(UnknownMemberId))
            await world.until_polled(consumer, lambda: "lost" in listener.events)
        if call == "subscribe":
            await world.until_polled(consumer, lambda: consumer.assignment == (TopicPartition("other", 0),))
            return
        (raised,) = listener.raised
        assert isinstance(raised, IllegalConsumerCall) and "listener" in str(raised)
        await world.until_polled(consumer, lambda: consumer.assignment == PARTITIONS_OF_T)

    play(story)


@BOTH
@pytest.mark.parametrize("call", ["unsubscribe", "close"])
def test_another_task_ends_the_membership_while_a_listener_takes_long(strategy: str, call: str) -> None:
    """What the listener was told is not told again, nothing is assigned afterwards, and the member has left."""

    async def story(world: GroupWorld) -> None:
        await world.write(5)
        app = await joined(world, partition_assignment_strategy=strategy)
        world.app("b", partition_assignment_strategy=strategy).start()
        release = asyncio.Event()
        told: list[Any] = []

        class Slow(RebalanceListener):
            async def on_partitions_revoked(self, partitions: Any) -> None:
                told.append(partitions)
                await release.wait()

        app.consumer.subscribe([TOPIC], listener=Slow())

        async def poll() -> None:
            while not told:
                await app.consumer.poll(1_000)

        polling = world.runtime("a").spawn(poll(), name="polls")
        await world.until(lambda: told)
        ending = world.runtime("a").spawn(getattr(app.consumer, call)(), name=call)
        await world.sleep(1)
        release.set()
        await ending
        await asyncio.wait((polling,))
        assert polling.exception() is None or "closed" in str(polling.exception())
        assert app.consumer.assignment == ()
        assert sorted(tp for part in told for tp in part) == list(PARTITIONS_OF_T)
        world.apps.remove(app)
        await world.settle()
        if call == "unsubscribe":
            assert await app.consumer.poll(1_000) == []
            await app.consumer.close()

    play(story)


# Cancelled


@BOTH
def test_polls_with_short_timeouts_of_asyncio_lose_and_repeat_nothing(strategy: str) -> None:
    """`asyncio.wait_for(poll)` is cancelled at many different places, over rebalances."""

    async def story(world: GroupWorld) -> None:
        await world.write(40)
        app = world.app("a", "auto", partition_assignment_strategy=strategy, max_poll_records=3)
        app.consumer.subscribe([TOPIC], listener=app)
        seen: list[tuple[TopicPartition, int]] = []
        other = None
        for turn in range(4_000):
            polling = world.runtime("a").spawn(app.consumer.poll(500), name="poll")
            for _ in range(turn % 23):
                await asyncio.sleep(0)
            if turn % 5 == 0:
                await world.sleep(0.003 * (turn % 7))
            polling.cancel()
            await asyncio.wait((polling,))
            if not polling.cancelled():
                for record in polling.result():
                    tp = TopicPartition(record.topic, record.partition)
                    assert tp in app.owned
                    seen.append((tp, record.offset))
            if turn == 300:
                other = world.app("b", "auto", partition_assignment_strategy=strategy, max_poll_records=1)
                other.start()
            if turn == 1_500 and other is not None:
                await other.stop()
                seen += other.seen
            if turn > 1_500 and len(set(seen)) == 120:
                break
        assert len(seen) == len(set(seen)), "a record came twice"
        assert len(seen) == 120
        world.apps.remove(app)
        await app.consumer.close()
        assert [await world.committed(tp) for tp in PARTITIONS_OF_T] == [40, 40, 40]

    play(story)


@BOTH
def test_an_async_listener_is_not_cut_short_by_a_poll_that_is_cancelled(strategy: str) -> None:
    """It takes longer than each poll may. It is called once and finishes before any record comes."""

    async def story(world: GroupWorld) -> None:
        await world.write(5)
        app = world.app("a", partition_assignment_strategy=strategy)
        events: list[str] = []

        class Slow(RebalanceListener):
            async def on_partitions_assigned(self, partitions: Any) -> None:
                events.append("begins")
                await world.sleep(3)
                app.consumer.seek(ZERO, 3)
                events.append("ends")

        app.consumer.subscribe([TOPIC], listener=Slow())
        records: list[Any] = []
        for _ in range(100):
            polling = world.runtime("a").spawn(app.consumer.poll(60_000), name="poll")
            await world.sleep(0.5)
            polling.cancel()
            await asyncio.wait((polling,))
            if not polling.cancelled():
                assert events == ["begins", "ends"]
                records += polling.result()
        assert events == ["begins", "ends"]
        assert sorted(row.offset for row in records if row.partition == 0) == [3, 4]
        assert len(records) == 12

    play(story)


@BOTH
@pytest.mark.parametrize("where", ["listener", "commit", "leave"])
@pytest.mark.parametrize("call", ["unsubscribe", "close"])
def test_a_cancelled_end_is_an_end(strategy: str, where: str, call: str) -> None:
    """Heartbeats stop, so that others get the partitions, and no record comes any more."""

    async def story(world: GroupWorld) -> None:
        await world.write(5)
        committing = "auto" if where == "commit" else "never"
        app = await joined(world, committing=committing, partition_assignment_strategy=strategy)

        class Endless(RebalanceListener):
            async def on_partitions_revoked(self, partitions: Any) -> None:
                if where == "listener":
                    await silence()

        app.consumer.subscribe([TOPIC], listener=Endless())
        if where == "commit":
            world.script("OffsetCommit", *[never] * 10)
        elif where == "leave":
            world.script("LeaveGroup", never)
        await app.consumer.poll()
        ending = world.runtime("a").spawn(getattr(app.consumer, call)(), name=call)
        await world.sleep(1)
        ending.cancel()
        await asyncio.wait((ending,))
        world.apps.remove(app)
        world.world._steps.clear()
        assert app.consumer.assignment == ()
        if call == "unsubscribe":
            assert await app.consumer.poll(1_000) == []
        other = world.app("b", partition_assignment_strategy=strategy).start()
        began = world.sim.now_s
        await world.until(lambda: other.owned == set(PARTITIONS_OF_T))
        assert world.sim.now_s - began < 60
        names = [task.get_name() for task in asyncio.all_tasks()]
        await app.consumer.close()
        assert not app.membership.has_generation, names

    play(story)


# Bounded time


@pytest.mark.parametrize("api", ["OffsetCommit", "LeaveGroup", "all"])
@pytest.mark.parametrize("committing", ["auto", "never"])
def test_close_ends_in_time_when_the_coordinator_does_not_answer(api: str, committing: str) -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(5)
        app = await joined(world, committing=committing)
        for name in ["OffsetCommit", "LeaveGroup", "FindCoordinator"] if api == "all" else [api]:
            world.script(name, *[never] * 50)
        heard: list[Any] = []
        app.consumer.commit_async({ZERO: 1}, lambda *told: heard.append(told))
        await world.sleep(0.1)
        began = world.sim.now_s
        await app.consumer.close(timeout_ms=1_000)
        assert world.sim.now_s - began < 2
        assert len(heard) == 1
        world.apps.remove(app)
        world.world._steps.clear()

    play(story)


def test_close_ends_in_time_when_the_broker_is_gone() -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(5)
        app = await joined(world, committing="auto")
        world.sim.crash("broker", power_cut=False)
        began = world.sim.now_s
        await app.consumer.close(timeout_ms=1_000)
        assert world.sim.now_s - began < 2
        world.apps.remove(app)
        await world.world.start()

    play(story)


def test_close_ends_in_time_when_the_broker_is_stopped() -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(5)
        app = await joined(world, committing="auto")
        await app.poll(1_000)
        world.sim.pause("broker")
        began = world.sim.now_s
        await app.consumer.close(timeout_ms=1_000)
        assert world.sim.now_s - began < 2
        world.apps.remove(app)
        world.sim.resume("broker")

    play(story)


def test_close_ends_in_time_when_a_listener_of_a_cancelled_poll_does_not_end() -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a")

        class Endless(RebalanceListener):
            async def on_partitions_assigned(self, partitions: Any) -> None:
                await silence()

        app.consumer.subscribe([TOPIC], listener=Endless())
        polling = world.runtime("a").spawn(app.consumer.poll(60_000), name="poll")
        await world.until(lambda: app.is_settled)
        polling.cancel()
        await asyncio.wait((polling,))
        began = world.sim.now_s
        await app.consumer.close(timeout_ms=1_000)
        assert world.sim.now_s - began < 2
        world.apps.remove(app)

    play(story)


@BOTH
def test_close_in_a_round_leaves_the_group(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        slow = world.app("b", partition_assignment_strategy=strategy).start()
        await world.settle()
        slow.hold = True
        app = world.app("a", partition_assignment_strategy=strategy)
        app.consumer.subscribe([TOPIC], listener=app)
        await world.until_polled(app.consumer, lambda: app.membership.is_in_round)
        began = world.sim.now_s
        await app.consumer.close()
        await app.consumer.close()
        assert world.sim.now_s - began < 5
        world.apps.remove(app)
        slow.hold = False
        await world.settle()

    play(story)


@BOTH
def test_a_poll_does_not_take_longer_than_it_may_when_the_coordinator_is_silent_in_a_rebalance(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(5)
        app = await joined(world, committing="auto", partition_assignment_strategy=strategy)
        await app.poll(1_000)
        world.script("OffsetCommit", *[never] * 50)
        app.consumer.enforce_rebalance()
        began = world.sim.now_s
        await app.consumer.poll(1_000)
        assert world.sim.now_s - began < 2
        world.world._steps.clear()

    play(story)


# Loops


def test_a_loop_that_takes_records_slowly_polls() -> None:
    """500 records of a second each are more than max_poll_interval_ms."""

    async def story(world: GroupWorld) -> None:
        await world.write(200)
        app = world.app("a", max_poll_interval_ms=30_000)
        app.consumer.subscribe([TOPIC], listener=app)
        seen: list[Any] = []
        async for record in app.consumer:
            seen.append((record.partition, record.offset))
            await world.sleep(1)
            if len(seen) == 300:
                break
        assert [kind for kind, _ in app.events] == ["assigned"]
        assert len(set(seen)) == 300

    play(story)


def test_a_loop_whose_body_takes_too_long_is_told_before_it_gets_another_record() -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(20)
        app = world.app("a", max_poll_interval_ms=30_000)
        app.consumer.subscribe([TOPIC], listener=app)
        seen = 0
        async for record in app.consumer:
            assert TopicPartition(record.topic, record.partition) in app.owned
            seen += 1
            if seen == 5:
                await world.sleep(40)
                successor = world.app("b", max_poll_interval_ms=30_000).start()
                while successor.owned != set(PARTITIONS_OF_T):
                    await world.sleep(1)
            if seen == 6:
                break
        assert [kind for kind, _ in app.events][:2] == ["assigned", "lost"]

    play(story)


# Arguments


@pytest.mark.parametrize("count", [0, -1])
def test_a_poll_for_no_records_is_refused(count: int) -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a")
        with pytest.raises(ValueError, match="max_records"):
            await app.consumer.poll(max_records=count)

    play(story)


@pytest.mark.parametrize("partitions", ["orders", ["ab"], [("t",)], TopicPartition("t", 0), ["orders"], [("t", "0")]])
def test_what_is_no_list_of_partitions_is_refused_with_its_form(partitions: Any) -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a")
        with pytest.raises((TypeError, ValueError), match="TopicPartition"):
            app.consumer.assign(partitions)
        assert app.consumer.assignment == ()

    play(story)


@BOTH
def test_a_topic_that_cannot_be_is_told_to_the_application(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a", partition_assignment_strategy=strategy).start("no such/topic", TOPIC)
        await world.until(lambda: app.errors, "an error of the topic")
        assert "no such/topic" in str(app.errors[0])
        await world.settle()

    play(story)
