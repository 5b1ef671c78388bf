"""Positions in what is not there any more: topics that were deleted, or made anew, and offsets that are gone."""

from typing import Any

import pytest

from kits.client.groups import COOPERATIVE, EAGER, PARTITIONS_OF_T, GroupWorld, play
from kits.client.transactions import ADDRESS, TOPIC
from twofold.client import Consumer, TopicPartition
from twofold.client.errors import NoOffset
from twofold.wire.errors import OffsetOutOfRange, TopicAlreadyExists

ZERO = PARTITIONS_OF_T[0]
BOTH = pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])


# Topics that go


@BOTH
def test_a_topic_that_is_deleted_does_not_keep_the_group_waiting(strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        await world.create("other", 2)
        others = tuple(TopicPartition("other", index) for index in range(2))
        await world.write(5, (*PARTITIONS_OF_T, *others))
        options: dict[str, Any] = {"partition_assignment_strategy": strategy, "metadata_max_age_ms": 1_000}
        apps = [world.app(node, "auto", **options).start(TOPIC, "other") for node in ("a", "b")]
        await world.settle((*PARTITIONS_OF_T, *others))
        await world.until_read()
        async with world.world.admin() as admin:
            (await admin.delete_topics(["other"])).get()
        began = world.sim.now_s
        await world.settle()
        assert world.sim.now_s - began < 15
        assert not [error for app in apps for error in app.errors]

    play(story, auto_create_topics_enable="false")


def test_a_topic_that_is_not_there_does_not_keep_others_from_being_read() -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(5)
        missing = TopicPartition("missing", 0)
        async with Consumer(
            bootstrap_servers=ADDRESS, runtime=world.runtime("a"), auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([missing, *PARTITIONS_OF_T])
            began, seen = world.sim.now_s, 0
            while seen < 15:
                seen += len(await consumer.poll(1_000))
                assert world.sim.now_s - began < 20, "nothing was read"

    play(story, auto_create_topics_enable="false")


@BOTH
def test_a_topic_that_was_made_anew_is_read(strategy: str) -> None:
    """Also after leader epochs that the new one has not reached."""

    async def story(world: GroupWorld) -> None:
        app = world.app("a", "auto", partition_assignment_strategy=strategy, metadata_max_age_ms=1_000).start()
        await world.settle()
        for _ in range(3):
            await world.world.restart()
            await world.write(3)
            await world.until_read()
        async with world.world.admin() as admin:
            (await admin.delete_topics([TOPIC])).get()
        while True:
            try:
                await world.create(TOPIC, 3)
                break
            except TopicAlreadyExists:
                await world.sleep(1)
        app.seen.clear()
        world.written.clear()
        await world.sleep(30)
        await world.write(20)
        await world.until(lambda: {tp for tp, _ in app.seen} == set(PARTITIONS_OF_T), "the new topic is read")

    play(story, auto_create_topics_enable="false")


# Errors of positions


def test_an_error_of_a_position_that_was_moved_since_is_no_news() -> None:
    """With "none" each partition has one; the application seeks all of them when it meets the first."""

    async def story(world: GroupWorld) -> None:
        await world.write(5)
        app = world.app("a", auto_offset_reset="none")
        app.consumer.subscribe([TOPIC], listener=app)
        with pytest.raises(NoOffset):
            await world.until_polled(app.consumer, lambda: False)
        for tp in PARTITIONS_OF_T:
            app.consumer.seek(tp, 3)
        seen: list[Any] = []
        while len(seen) < 6:
            seen += await app.consumer.poll(1_000)

    play(story)


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 2), ("latest", 0), ("none", 0)])
def test_an_offset_that_is_gone_is_reset_or_told(reset: str, expected: int) -> None:
    async def story(world: GroupWorld) -> None:
        await world.write(10)
        app = world.app("a", auto_offset_reset=reset)
        app.consumer.assign([ZERO])
        app.consumer.seek(ZERO, 3)
        async with world.world.admin() as admin:
            (await admin.delete_records({ZERO: 8})).get()
        if reset == "none":
            with pytest.raises(OffsetOutOfRange, match="t-0 has no offset 3"):
                await world.until_polled(app.consumer, lambda: False)
            app.consumer.seek(ZERO, 9)
            assert [row.offset for row in await app.consumer.poll(1_000)] == [9]
            return
        assert len(await app.consumer.poll(5_000)) == expected
        await world.write(1, (ZERO,))
        assert [row.offset for row in await app.consumer.poll(5_000)] == [10]

    play(story)
