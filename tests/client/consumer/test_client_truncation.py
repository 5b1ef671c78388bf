"""A leader whose log lacks what was read (KIP-320), and a replica that is nearer than the leader (KIP-392)."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kits.client.scripted_broker import PORT, FakeBroker, batch_of, hang_up
from twofold.client import Consumer, OffsetAndMetadata, TopicPartition
from twofold.client.errors import LogTruncated
from twofold.runtime.sim import Simulation
from twofold.wire.apis import KEYS
from twofold.wire.errors import FencedLeaderEpoch, NotLeaderOrFollower, OffsetOutOfRange, TopicAuthorizationFailed
from twofold.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from twofold.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

T0 = TopicPartition("t", 0)
Story = Callable[[Simulation, FakeBroker, Consumer], Awaitable[None]]


def play(story: Story, **options: Any) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            broker = await FakeBroker(sim.runtime("broker"), "broker", topics={"t": 1}).start()
            broker.partition("t").append(batch_of(*(b"%d" % number for number in range(10))))
            settings = {"bootstrap_servers": f"broker:{PORT}", "auto_offset_reset": "earliest", **options}
            async with Consumer(runtime=sim.runtime("client"), **settings) as consumer:
                consumer.assign([T0])
                await story(sim, broker, consumer)

        sim.run(main(), timeout_s=3600)


def answer(request: Any, broker: FakeBroker, **row: Any) -> FetchResponse:
    data = PartitionData(partition_index=0, high_watermark=-1, aborted_transactions=None, records=b"", **row)
    return FetchResponse(
        responses=[FetchableTopicResponse(topic="t", topic_id=broker.ids["t"], partitions=[data])],
        session_id=request.session_id,
    )


def refuse(error: type[Exception]) -> Callable[[FakeBroker, Any], FetchResponse]:
    return lambda broker, request: answer(request, broker, error_code=error.code)  # type: ignore[attr-defined]


def new_leader(broker: FakeBroker, epoch: int, ends: tuple[int, int] | None) -> None:
    """The next fetch is refused, and metadata has a leader of this epoch, in whose log epoch 0 ends there."""
    broker.leaders[T0] = (1, epoch)
    if ends is not None:
        broker.partition("t").epoch_ends[0] = ends
    broker.script("Fetch", refuse(FencedLeaderEpoch))


async def read(consumer: Consumer, count: int) -> list[int]:
    seen: list[int] = []
    while len(seen) < count:
        seen += [record.offset for record in await consumer.poll(60_000)]
    return seen


def asked(broker: FakeBroker) -> list[tuple[int, int]]:
    """The epochs that OffsetForLeaderEpoch was asked with: the leader's, and the position's."""
    rows = [request.topics[0].partitions[0] for api, _, request in broker.requests if api == "OffsetForLeaderEpoch"]
    return [(row.current_leader_epoch, row.leader_epoch) for row in rows]


def test_a_new_leader_whose_log_has_what_was_read_changes_nothing() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        await read(consumer, 10)
        assert asked(broker) == []
        new_leader(broker, 3, None)
        broker.partition("t").append(batch_of(b"10"))
        assert await read(consumer, 1) == [10]
        assert asked(broker) == [(3, 0)]

    play(story)


def test_a_position_beyond_a_cut_goes_back_to_it() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        consumer.seek(T0, 0)
        await read(consumer, 10)
        new_leader(broker, 3, (0, 4))
        assert (await read(consumer, 6))[0] == 4

    play(story, auto_offset_reset="latest")


def test_a_position_of_an_epoch_that_is_unknown_goes_where_reset_says() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        await read(consumer, 10)
        new_leader(broker, 3, (-1, -1))
        assert (await read(consumer, 10))[0] == 0

    play(story)


@pytest.mark.parametrize(("ends", "diverging"), [((0, 4), 4), ((-1, -1), -1)])
def test_a_cut_is_an_error_where_no_reset_is_wanted(ends: tuple[int, int], diverging: int) -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        consumer.seek(T0, 0)
        await read(consumer, 10)
        new_leader(broker, 3, ends)
        for _ in range(2):
            with pytest.raises(LogTruncated, match="t-0 was cut: the position is 10 in leader epoch 0") as caught:
                await consumer.poll(60_000)
            error = caught.value
            assert (error.partition, error.offset, error.diverging_offset) == (T0, 10, diverging)
            assert isinstance(error, OffsetOutOfRange)
        consumer.seek(T0, 4)
        assert (await read(consumer, 6))[0] == 4

    play(story, auto_offset_reset="none")


def test_what_was_fetched_before_a_cut_is_not_handed_out_after_it() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        consumer.seek(T0, 0)
        records = await consumer.poll(60_000, max_records=2)  # the other eight are here already
        assert [record.offset for record in records] == [0, 1]
        new_leader(broker, 3, (0, 1))
        consumer.pause(T0)
        await consumer.poll(2_000)  # time to learn of the new leader
        consumer.resume(T0)
        with pytest.raises(LogTruncated):
            await consumer.poll(60_000)

    play(story, auto_offset_reset="none")


def test_an_offset_that_comes_with_its_epoch_is_compared_before_it_is_read() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        broker.leaders[T0] = (1, 5)
        broker.partition("t").epoch_ends[2] = (2, 6)
        consumer.seek(T0, OffsetAndMetadata(8, "", 2))
        assert (await read(consumer, 4))[0] == 6
        assert asked(broker)[0] == (5, 2)

    play(story)


def test_metadata_that_is_older_than_the_position_is_refreshed_first() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        await read(consumer, 10)
        before = broker.seen["Metadata"]
        consumer.seek(T0, OffsetAndMetadata(5, "", 7))
        assert await consumer.poll(2_000) == []
        assert broker.seen["Metadata"] > before and asked(broker) == []
        broker.leaders[T0] = (1, 7)
        assert (await read(consumer, 5))[0] == 5
        assert asked(broker) == [(7, 7)]

    play(story)


def test_a_comparison_is_tried_again_after_what_passes_and_raises_what_does_not() -> None:
    def fail(error: type[Exception]) -> Callable[[FakeBroker, Any], OffsetForLeaderEpochResponse]:
        row = EpochEndOffset(error_code=error.code, partition=0)  # type: ignore[attr-defined]
        topic = OffsetForLeaderTopicResult(topic="t", partitions=[row])
        return lambda *_: OffsetForLeaderEpochResponse(topics=[topic])

    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        await read(consumer, 10)
        broker.script("OffsetForLeaderEpoch", fail(NotLeaderOrFollower), hang_up, fail(TopicAuthorizationFailed))
        new_leader(broker, 3, None)
        broker.partition("t").append(batch_of(b"10"))
        with pytest.raises(TopicAuthorizationFailed):
            await consumer.poll(60_000)
        assert await read(consumer, 1) == [10]

    play(story)


def test_a_broker_that_knows_no_epochs_is_read_without_comparing() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        del broker.versions[KEYS["OffsetForLeaderEpoch"]]
        await read(consumer, 10)
        new_leader(broker, 3, (0, 4))
        broker.partition("t").append(batch_of(b"10"))
        assert await read(consumer, 1) == [10]

    play(story)


# A nearer replica


def test_the_replica_that_the_leader_prefers_is_read_until_it_fails() -> None:
    async def story(sim: Simulation, leader: FakeBroker, consumer: Consumer) -> None:
        near = await FakeBroker(sim.runtime("near"), "near", topics={"t": 1}, node_id=2).start()
        near.ids = leader.ids
        near.partitions = leader.partitions
        leader.nodes[2] = ("near", PORT)
        leader.script("Fetch", lambda broker, request: answer(request, broker, error_code=0, preferred_read_replica=2))
        assert len(await read(consumer, 10)) == 10
        racks = {request.rack_id for broker in (leader, near) for api, _, request in broker.requests if api == "Fetch"}
        assert racks == {"here"}
        assert (leader.seen["Fetch"], near.seen["Fetch"] > 0) == (1, True)
        # One that lags behind says that the offset is out of range: it is not, and the leader is asked.
        near.script("Fetch", refuse(OffsetOutOfRange), refuse(OffsetOutOfRange))
        leader.partition("t").append(batch_of(b"10"))
        assert await read(consumer, 1) == [10]
        assert leader.seen["Fetch"] > 1

    play(story, client_rack="here")


def test_a_preference_ends_with_the_age_of_metadata() -> None:
    async def story(sim: Simulation, leader: FakeBroker, consumer: Consumer) -> None:
        near = await FakeBroker(sim.runtime("near"), "near", topics={"t": 1}, node_id=2).start()
        near.ids = leader.ids
        near.partitions = leader.partitions
        leader.nodes[2] = ("near", PORT)
        leader.script("Fetch", lambda broker, request: answer(request, broker, error_code=0, preferred_read_replica=2))
        await read(consumer, 10)
        assert await consumer.poll(2_000) == []
        assert leader.seen["Fetch"] > 1

    play(story, client_rack="here", metadata_max_age_ms=1_000, fetch_max_wait_ms=100)
