"""Commits: awaited, not awaited, automatic; in order, in their generation, and in transactions."""

from typing import Any

import pytest

from kits.client.groups import COOPERATIVE, EAGER, GROUP, PARTITIONS_OF_T, App, GroupWorld, play
from kits.client.transactions import ADDRESS, TOPIC, hang_up, refuse
from twofold.client import Consumer, ConsumerGroupMetadata, OffsetAndMetadata, Producer, TopicPartition
from twofold.client.consumer.group.states import MembershipState
from twofold.client.errors import CommitFailed, InstanceFenced
from twofold.connections.errors import ClientClosed, GaveUp
from twofold.wire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupAuthorizationFailed,
    IllegalGeneration,
    KafkaError,
    NotCoordinator,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    TopicAuthorizationFailed,
    UnknownMemberId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)

ZERO, ONE, TWO = PARTITIONS_OF_T


async def joined(world: GroupWorld, node: str = "a", committing: str = "never", **options: Any) -> App:
    """A member that has all partitions and polls when the test says so."""
    app = world.app(node, committing, **options)
    app.consumer.subscribe([TOPIC], listener=app)
    while not app.owned:
        await app.poll(1_000)
    return app


async def read_all(app: App, count: int) -> None:
    while len(app.seen) < count:
        await app.poll(1_000)


def test_a_commit_without_offsets_has_what_was_handed_out_with_its_leader_epoch() -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(10)
        app = await joined(world, max_poll_records=4)
        await read_all(app, 4)
        ((tp, count),) = {tp: sum(row[0] == tp for row in app.seen) for tp, _ in app.seen}.items()
        await app.consumer.commit()
        found = await app.consumer.committed(PARTITIONS_OF_T)
        assert found[tp] == OffsetAndMetadata(count, "", 0)
        assert [found[other] for other in PARTITIONS_OF_T if other != tp] == [OffsetAndMetadata(0, "", -1)] * 2

    play(story)


def test_offsets_that_are_named_are_committed_with_their_metadata() -> None:
    async def story(world: GroupWorld) -> None:
        app = await joined(world)
        await app.consumer.commit({ZERO: OffsetAndMetadata(3, "note", 0), ONE: 4})
        assert await app.consumer.committed([ZERO, ONE, TopicPartition(TOPIC, 9)]) == {
            ZERO: OffsetAndMetadata(3, "note", 0),
            ONE: OffsetAndMetadata(4),
            TopicPartition(TOPIC, 9): None,
        }
        with pytest.raises(ValueError, match="-1 is not an offset of t-0"):
            await app.consumer.commit({ZERO: -1})

    play(story)


def test_the_next_owner_goes_on_where_the_last_one_has_committed() -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(10)
        app = await joined(world)
        await app.consumer.commit({ZERO: 7, ONE: 8, TWO: 9})
        await app.consumer.close()
        world.apps.clear()
        following = await joined(world, "b")
        await read_all(following, 6)
        assert sorted(following.seen) == [(ZERO, 7), (ZERO, 8), (ZERO, 9), (ONE, 8), (ONE, 9), (TWO, 9)]

    play(story)


def test_commits_that_are_not_awaited_keep_their_order_and_their_callbacks_run_in_poll() -> None:
    told: list[tuple[int, KafkaError | None]] = []

    async def callback(offsets: Any, error: KafkaError | None) -> None:
        told.append((offsets[ZERO].offset, error))

    async def story(world: GroupWorld) -> None:
        app = await joined(world)
        for offset in range(5):
            app.consumer.commit_async({ZERO: offset}, callback)
        assert told == []
        await world.sleep(5)
        assert told == []  # only inside a call
        await app.poll()
        assert told == [(offset, None) for offset in range(5)]
        assert await world.committed(ZERO) == 4

    play(story)


def test_a_commit_that_is_awaited_comes_after_those_that_are_not() -> None:
    told: list[int] = []

    async def story(world: GroupWorld) -> None:
        app = await joined(world)
        world.script("OffsetCommit", hang_up)  # the first fails, and takes its time
        app.consumer.commit_async({ZERO: 1}, lambda offsets, error: told.append(offsets[ZERO].offset))
        app.consumer.commit_async({ZERO: 2}, lambda offsets, error: told.append(offsets[ZERO].offset))
        await app.consumer.commit({ZERO: 3})
        assert told == [1, 2]
        assert await world.committed(ZERO) == 3

    play(story)


def test_a_commit_that_fails_without_a_callback_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: GroupWorld) -> None:
        app = await joined(world)
        world.script("OffsetCommit", refuse(TopicAuthorizationFailed))
        app.consumer.commit_async({ZERO: 1})
        await app.consumer.commit({ONE: 1})

    play(story)
    assert "offsets t-0: 1 were not committed: TOPIC_AUTHORIZATION_FAILED" in caplog.text


def test_automatic_commits_have_what_earlier_polls_returned() -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(10, (ZERO,))
        app = await joined(world, committing="auto", max_poll_records=5, auto_commit_interval_ms=2_000)
        await read_all(app, 5)
        await world.sleep(3)
        await app.poll()
        await world.sleep(1)
        assert await world.committed(ZERO) == 5  # not what this poll has returned
        assert len(app.seen) == 10

    play(story)


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_a_rebalance_commits_before_partitions_go(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        options: dict[str, Any] = {"partition_assignment_strategy": strategy, "auto_commit_interval_ms": 3_600_000}
        first = world.app("a", "auto", **options).start()
        await world.settle()
        await world.write(10)
        await world.until_read()
        second = world.app("b", "auto", **options).start()
        await world.settle()
        await world.sleep(10)
        assert second.seen == []
        await first.stop()
        await world.settle()
        await world.sleep(10)
        assert second.seen == []

    play(story)


def test_close_commits_and_leaving_a_block_by_an_exception_does_not() -> None:
    async def read_and(world: GroupWorld, error: bool) -> None:
        options: dict[str, Any] = {"bootstrap_servers": ADDRESS, "group_id": GROUP, "auto_offset_reset": "earliest"}
        async with Consumer(runtime=world.runtime("a"), **options) as consumer:
            consumer.subscribe([TOPIC])
            seen = 0
            while not seen:
                seen += len(await consumer.poll(1_000))
            if error:
                raise LookupError

    async def story(world: GroupWorld) -> None:
        await world.write(3, (ZERO,))
        with pytest.raises(LookupError):
            await read_and(world, True)
        assert await world.committed(ZERO) is None
        await read_and(world, False)
        assert await world.committed(ZERO) == 3

    play(story)


def test_a_loop_that_is_left_has_read_what_it_got_and_no_more() -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(10, (ZERO,))
        app = world.app("a", "auto")
        app.consumer.subscribe([TOPIC])
        seen = []
        async for record in app.consumer:
            seen.append(record.offset)
            if len(seen) == 4:
                await app.consumer.commit()
                assert await world.committed(ZERO) == 4
            if len(seen) == 6:
                break
        assert await app.consumer.position(ZERO) == 6
        await app.consumer.close()
        world.apps.clear()
        assert await world.committed(ZERO) == 6

    play(story)


def test_assigned_partitions_are_committed_without_joining_the_group() -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(5, (ZERO,))
        app = world.app("a")
        app.consumer.assign([ZERO])
        assert app.consumer.group_metadata() == ConsumerGroupMetadata(GROUP)
        app.owned = {ZERO}
        await read_all(app, 5)
        await app.consumer.commit()
        assert await world.committed(ZERO) == 5
        assert world.count("JoinGroup") == 0
        # A group with members does not take them.
        await joined(world, "b")
        with pytest.raises(CommitFailed, match="has members, and only they may commit"):
            await app.consumer.commit()

    play(story)


# What the coordinator may say


@pytest.mark.parametrize(
    "error", [CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator, UnknownTopicOrPartition]
)
def test_a_commit_is_tried_again_after_what_passes(error: type[KafkaError]) -> None:
    async def story(world: GroupWorld) -> None:
        app = await joined(world)
        world.script("OffsetCommit", refuse(error), refuse(error))
        await app.consumer.commit({ZERO: 5})
        assert await world.committed(ZERO) == 5
        world.script("OffsetCommit", *[refuse(error)] * 1_000)
        with pytest.raises(GaveUp, match=r"OffsetCommit of group 'g' did not succeed within 60000 ms"):
            await app.consumer.commit({ZERO: 6})

    play(story)


@pytest.mark.parametrize("error", [GroupAuthorizationFailed, TopicAuthorizationFailed, OffsetMetadataTooLarge])
def test_a_commit_raises_what_does_not_pass(error: type[KafkaError]) -> None:
    async def story(world: GroupWorld) -> None:
        app = await joined(world)
        world.script("OffsetCommit", refuse(error))
        with pytest.raises(error):
            await app.consumer.commit({ZERO: 5})
        await app.consumer.commit({ZERO: 6})

    play(story)


@pytest.mark.parametrize(
    ("error", "raised", "forgets"),
    [(UnknownMemberId, CommitFailed, True), (IllegalGeneration, CommitFailed, False)],
)
def test_a_commit_of_a_lost_generation_says_so_and_the_member_joins_again(
    error: type[KafkaError], raised: type[KafkaError], forgets: bool
) -> None:
    async def story(world: GroupWorld) -> None:
        app = await joined(world)
        member_id = app.membership.member_id
        world.script("OffsetCommit", refuse(error))
        with pytest.raises(raised, match="max_poll_interval_ms=300000"):
            await app.consumer.commit({ZERO: 5})
        assert app.membership.state is MembershipState.UNJOINED
        assert app.membership.member_id == ("" if forgets else member_id)
        with pytest.raises(CommitFailed):
            await app.consumer.commit({ZERO: 5})
        while not app.owned or not app.told("lost"):
            await app.poll(1_000)
        assert [kind for kind, _ in app.events] == ["assigned", "lost", "assigned"]
        await app.consumer.commit({ZERO: 5})

    play(story)


def test_a_commit_in_a_rebalance_says_so_and_the_member_stays() -> None:
    async def story(world: GroupWorld) -> None:
        app = await joined(world)
        world.script("OffsetCommit", refuse(RebalanceInProgress))
        with pytest.raises(RebalanceInProgress):
            await app.consumer.commit({ZERO: 5})
        assert app.membership.rejoin_reason
        await app.poll(1_000)
        assert app.told("lost") == []
        await app.consumer.commit({ZERO: 5})

    play(story)


def test_a_commit_while_the_group_is_joined_is_refused_here() -> None:
    async def story(world: GroupWorld) -> None:
        app = await joined(world, partition_assignment_strategy=COOPERATIVE)
        app.consumer.enforce_rebalance()
        await app.poll()  # JoinGroup is on its way
        assert app.membership.is_in_round
        before = world.count("OffsetCommit")
        with pytest.raises(RebalanceInProgress, match="poll until it is done"):
            await app.consumer.commit({ZERO: 5})
        assert world.count("OffsetCommit") == before
        await app.poll(1_000)
        await app.consumer.commit({ZERO: 5})

    play(story)


def test_a_commit_of_a_fenced_instance_is_fatal() -> None:
    async def story(world: GroupWorld) -> None:
        app = await joined(world, group_instance_id="one")
        world.script("OffsetCommit", refuse(FencedInstanceId))
        for _ in range(2):
            with pytest.raises(InstanceFenced, match="close this one"):
                await app.consumer.commit({ZERO: 5})
        with pytest.raises(InstanceFenced):
            await app.poll()
        assert app.events[-1][0] == "lost"

    play(story)


def test_committed_offsets_wait_for_transactions() -> None:
    async def story(world: GroupWorld) -> None:
        world.script("OffsetFetch", refuse(UnstableOffsetCommit), refuse(UnstableOffsetCommit))
        app = await joined(world)
        assert await app.consumer.committed([ZERO]) == {ZERO: None}

    play(story)


def test_a_group_that_may_not_be_read_is_told_to_the_application() -> None:
    async def story(world: GroupWorld) -> None:
        app = world.app("a")
        world.script("OffsetFetch", refuse(GroupAuthorizationFailed))
        app.consumer.assign([ZERO])
        with pytest.raises(GroupAuthorizationFailed, match="needs READ"):
            await app.consumer.poll(1_000)
        assert await app.consumer.poll(1_000) == []

    play(story)


def test_a_closed_consumer_refuses() -> None:
    async def story(world: GroupWorld) -> None:
        app = await joined(world)
        await app.consumer.close()
        world.apps.clear()
        for call in (app.consumer.commit(), app.consumer.poll(), app.consumer.committed([ZERO])):
            with pytest.raises(ClientClosed):
                await call
        with pytest.raises(ClientClosed):
            app.consumer.subscribe([TOPIC])

    play(story)


# In transactions


async def copy(app: App, producer: Producer, count: int) -> None:
    """Consume, transform, produce: offsets and records in one transaction, `count` of them."""
    await producer.init_transactions()
    for _ in range(count):
        records = await app.consumer.poll(1_000)
        if not records:
            continue
        async with producer.transaction() as txn:
            for record in records:
                await txn.send("out", record.value, partition=0)
            ends = {TopicPartition(row.topic, row.partition): row.offset + 1 for row in records}
            await txn.send_offsets(ends, app.consumer.group_metadata())


@pytest.mark.parametrize("death", ["kill", "pause"])
def test_consume_transform_produce_is_exactly_once_across_a_takeover(death: str) -> None:
    async def story(world: GroupWorld) -> None:
        await world.create("out", 1)
        await world.write(20)
        options = {"bootstrap_servers": ADDRESS, "linger_ms": 0}

        def start(node: str) -> App:
            app = world.app(node, isolation_level="read_committed", max_poll_records=3)
            producer = Producer(transactional_id=f"copy-{node}", runtime=world.runtime(node), **options)
            app.consumer.subscribe([TOPIC], listener=app)
            app.task = world.runtime(node).spawn(run(app, producer), name=node)
            return app

        async def run(app: App, producer: Producer) -> None:
            while not app.stopping:
                try:
                    await copy(app, producer, 1_000_000 if not app.stopping else 1)
                except KafkaError as error:
                    app.errors.append(error)
                    await producer.close(flush=False)
                    producer = Producer(transactional_id=f"copy-{app.node}", runtime=world.runtime(app.node), **options)
            await producer.close()

        first = start("a")
        while len(await world.world.read(topic="out")) < 10:
            await world.sleep(0.01)
        if death == "kill":
            world.kill(first)
        else:
            world.sim.pause("a")
        second = start("b")
        await world.until(lambda: second.owned == set(PARTITIONS_OF_T))
        await world.write(5)
        if death == "pause":
            world.sim.resume("a")
        expected = sorted(b"%d" % number for number in range(25) for _ in range(3))
        while len(found := await world.world.read(topic="out")) < len(expected):
            await world.sleep(1)
        await world.sleep(60)
        found = await world.world.read(topic="out")
        assert sorted(found) == expected
        for app in list(world.apps):
            app.task.cancel()
            await app.consumer.close()
        world.apps.clear()

    play(story)
