"""The consumer: what it shows and hides, where it stands, and what it does when the broker objects."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.client.scripted_broker import PORT, FakeBroker, batch_of, hang_up
from twofold.client import Consumer, TopicPartition
from twofold.client.errors import NoOffset
from twofold.connections.errors import ClientClosed
from twofold.records.batch import iter_records, stamp
from twofold.records.control import end_transaction_marker
from twofold.records.filtering import visible_batches
from twofold.runtime.sim import Simulation
from twofold.wire.errors import (
    CorruptMessage,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownTopicId,
)
from twofold.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

T0 = TopicPartition("t", 0)
Story = Callable[[Simulation, FakeBroker, Consumer], Awaitable[None]]


def play(story: Story, **options: Any) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            broker = await FakeBroker(sim.runtime("broker"), "broker", topics={"t": 2}).start()
            settings = {"bootstrap_servers": f"broker:{PORT}", "runtime": sim.runtime("client"), **options}
            async with Consumer(**settings) as consumer:
                consumer.assign([T0])
                await story(sim, broker, consumer)

        sim.run(main(), timeout_s=3600)


def fill(broker: FakeBroker, count: int, *, partition: int = 0, per_batch: int = 3, start: int = 0) -> None:
    for first in range(start, start + count, per_batch):
        values = [b"%d" % number for number in range(first, min(first + per_batch, start + count))]
        broker.partition("t", partition).append(batch_of(*values))


async def read(consumer: Consumer, count: int) -> list[int]:
    seen: list[int] = []
    while len(seen) < count:
        seen += [int(record.value or b"") for record in await consumer.poll(60_000)]
    return seen


def refuse(error: type[Exception]) -> Callable[[FakeBroker, Any], FetchResponse]:
    def step(broker: FakeBroker, request: Any) -> FetchResponse:
        rows = [
            PartitionData(
                partition_index=row.partition,
                error_code=error.code,  # type: ignore[attr-defined]
                high_watermark=-1,
                aborted_transactions=None,
                records=b"",
            )
            for row in request.topics[0].partitions
        ]
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", topic_id=broker.ids["t"], partitions=rows)])

    return step


# Which batches are for the application


def log_of(*batches: bytes) -> bytes:
    """Batches one after the other, with their offsets."""
    out = bytearray()
    offset = 0
    for batch in batches:
        data = bytearray(batch)
        stamp(data, 0, base_offset=offset, leader_epoch=0)
        offset += len(list(iter_records(batch)))
        out += data
    return bytes(out)


def shown(log: bytes, aborted: list[tuple[int, int]] | None) -> list[bytes]:
    return [
        record.value or b""
        for position, _, visible in visible_batches(log, aborted)
        if visible
        for record in iter_records(log, position)
    ]


def transactional(pid: int, *values: bytes) -> bytes:
    return batch_of(*values, producer_id=pid, producer_epoch=0, base_sequence=0, transactional=True)


def marker(pid: int, *, commit: bool) -> bytes:
    return end_transaction_marker(commit=commit, producer_id=pid, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0)


def test_aborted_batches_and_markers_are_hidden() -> None:
    log = log_of(
        transactional(1, b"a"),
        transactional(2, b"b"),
        marker(1, commit=False),
        transactional(1, b"c"),
        marker(2, commit=True),
        marker(1, commit=True),
    )
    assert shown(log, [(0, 1)]) == [b"b", b"c"]


def test_plain_and_idempotent_batches_of_an_aborted_producer_are_shown() -> None:
    log = log_of(transactional(1, b"a"), batch_of(b"plain"), batch_of(b"idem", producer_id=1, base_sequence=3))
    assert shown(log, [(0, 1)]) == [b"plain", b"idem"]


def test_a_commit_marker_does_not_end_an_abort() -> None:
    # A fetch from the middle can see the commit of an earlier transaction after the entry of the aborted one.
    log = log_of(marker(1, commit=True), transactional(1, b"gone"), marker(1, commit=False), transactional(1, b"kept"))
    assert shown(log, [(0, 1)]) == [b"kept"]


def test_read_uncommitted_shows_all_but_markers() -> None:
    log = log_of(transactional(1, b"a"), marker(1, commit=False))
    assert shown(log, None) == [b"a"]


events = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.just("plain"), st.integers(0, 0), st.integers(1, 2)),
        st.tuples(st.just("commit"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("abort"), st.integers(1, 3), st.just(0)),
    ),
    max_size=40,
)


@given(events, st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_exactly_the_committed_records_from_any_batch_on_are_shown(
    history: list[tuple[str, int, int]], skip: int
) -> None:
    batches: list[bytes] = []
    open_since: dict[int, int] = {}
    pending: dict[int, list[bytes]] = {}
    visible: dict[bytes, int] = {}  # value -> index of its batch
    aborted: list[tuple[int, int, int]] = []  # first offset, producer, index of the marker
    offset = 0
    for kind, pid, count in history:
        index = len(batches)
        if kind == "plain":
            values = [b"%d/%d" % (index, number) for number in range(count)]
            batches.append(batch_of(*values))
            visible |= dict.fromkeys(values, index)
            offset += count
        elif kind == "write":
            values = [b"%d/%d" % (index, number) for number in range(count)]
            batches.append(transactional(pid, *values))
            open_since.setdefault(pid, offset)
            pending.setdefault(pid, []).extend(values)
            offset += count
        elif pid in open_since:
            batches.append(marker(pid, commit=kind == "commit"))
            first = open_since.pop(pid)
            if kind == "commit":
                visible |= {value: int(value.split(b"/")[0]) for value in pending.pop(pid)}
            else:
                aborted.append((first, pid, index))
                pending.pop(pid)
            offset += 1
    for pid in list(open_since):  # a reader of committed data stops at the first open transaction: end them all
        batches.append(marker(pid, commit=False))
        aborted.append((open_since.pop(pid), pid, len(batches) - 1))
    start = min(skip, len(batches))
    log = log_of(*batches)
    position = sum(len(batch) for batch in batches[:start])
    listed = [(first, pid) for first, pid, end in aborted if end >= start]
    expected = [value for value, index in sorted(visible.items(), key=_in_log) if index >= start]
    assert shown(log[position:], listed) == expected


def _in_log(item: tuple[bytes, int]) -> tuple[int, ...]:
    return tuple(int(part) for part in item[0].split(b"/"))


# Positions


def test_records_come_in_order_from_the_beginning() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 100)
        assert await read(consumer, 100) == list(range(100))
        assert await consumer.position(T0) == 100

    play(story, auto_offset_reset="earliest")


def test_by_default_reading_begins_at_the_end() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 10)
        assert await consumer.position(T0) == 10
        fill(broker, 5, start=10)
        assert await read(consumer, 5) == [10, 11, 12, 13, 14]

    play(story)


def test_a_seek_into_a_batch_leaves_out_what_is_before_it_and_drops_what_was_fetched() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 30, per_batch=10)
        await consumer.poll(60_000, max_records=2)
        consumer.seek(T0, 14)
        assert await read(consumer, 16) == list(range(14, 30))
        consumer.seek_to_beginning()
        assert (await read(consumer, 30))[0] == 0

    play(story, auto_offset_reset="earliest")


def test_the_position_follows_what_was_handed_out_not_what_was_fetched() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 30, per_batch=10)
        assert len(await consumer.poll(60_000, max_records=7)) == 7
        assert await consumer.position(T0) == 7

    play(story, auto_offset_reset="earliest")


def test_the_position_moves_over_what_is_hidden() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        partition = broker.partition("t")
        partition.append(transactional(9, b"1"))
        partition.append(marker(9, commit=False))
        partition.aborted = [(0, 9)]
        assert await consumer.poll(2_000) == []
        assert await consumer.position(T0) == 2

    play(story, auto_offset_reset="earliest", isolation_level="read_committed")


def test_a_position_beyond_the_stable_offset_stays_and_is_asked_for_now_and_then() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 10)
        broker.partition("t").stable = 3
        consumer.seek(T0, 5)
        assert await consumer.poll(10_000) == []
        assert await consumer.position(T0) == 5
        assert 10_000 / 200 < broker.seen["Fetch"] < 10_000 / 90  # retry_backoff_ms is 100
        broker.partition("t").stable = None
        assert await read(consumer, 5) == [5, 6, 7, 8, 9]

    play(story, isolation_level="read_committed")


def test_no_position_and_no_rule_is_an_error() -> None:
    async def story(_: Simulation, __: FakeBroker, consumer: Consumer) -> None:
        with pytest.raises(NoOffset, match="t-0 has no position"):
            await consumer.poll(1_000)

    play(story, auto_offset_reset="none")


def test_an_offset_out_of_range_goes_where_the_rule_says() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 10)
        consumer.seek(T0, 500)
        assert await read(consumer, 10) == list(range(10))

    play(story, auto_offset_reset="earliest")


def test_an_offset_out_of_range_without_a_rule_is_an_error() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 10)
        consumer.seek(T0, 500)
        with pytest.raises(OffsetOutOfRange, match="t-0 has no offset 500 and auto_offset_reset is none"):
            await consumer.poll(1_000)

    play(story, auto_offset_reset="none")


def test_partitions_take_turns() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 50)
        fill(broker, 50, partition=1)
        consumer.assign([T0, TopicPartition("t", 1)])
        seen: list[int] = []
        for _turn in range(20):
            seen += {record.partition for record in await consumer.poll(1_000, max_records=5)}
        assert seen.count(0) == seen.count(1)

    play(story, auto_offset_reset="earliest")


def test_a_paused_partition_gives_nothing_until_it_is_resumed() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 10)
        await consumer.poll(1_000, max_records=1)
        consumer.pause(T0)
        assert await consumer.poll(1_000) == []
        consumer.resume(T0)
        assert await read(consumer, 9) == list(range(1, 10))

    play(story, auto_offset_reset="earliest")


def test_a_partition_that_is_assigned_anew_keeps_its_position_and_another_is_forgotten() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 10)
        await consumer.poll(1_000, max_records=4)
        consumer.assign([T0, TopicPartition("t", 1)])
        assert await consumer.position(T0) == 4
        consumer.assign([TopicPartition("t", 1)])
        assert await consumer.poll(1_000) == []
        with pytest.raises(ValueError, match="t-0 is not assigned"):
            consumer.seek(T0, 1)

    play(story, auto_offset_reset="earliest")


# Trouble


@pytest.mark.parametrize("error", [NotLeaderOrFollower, FencedLeaderEpoch, UnknownTopicId])
def test_errors_that_pass_are_waited_out(error: type[Exception]) -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 10)
        broker.script("Fetch", refuse(error), refuse(error), hang_up)
        assert await read(consumer, 10) == list(range(10))

    play(story, auto_offset_reset="earliest")


def test_errors_that_stay_are_raised() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        broker.script("Fetch", refuse(TopicAuthorizationFailed))
        with pytest.raises(TopicAuthorizationFailed, match="Fetch of t-0 at offset 0"):
            await consumer.poll(1_000)

    play(story, auto_offset_reset="earliest")


def test_a_batch_that_does_not_match_its_crc_is_not_shown() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 10, per_batch=5)
        broker.partition("t").log[-1] ^= 1
        assert await read(consumer, 5) == list(range(5))
        with pytest.raises(CorruptMessage, match="the batch at offset 5 of t-0 does not match its CRC"):
            await consumer.poll(1_000)
        broker.partition("t").log[-1] ^= 1
        assert await read(consumer, 5) == list(range(5, 10))

    play(story, auto_offset_reset="earliest")


def test_damage_in_one_partition_costs_no_records_of_another() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 10)
        fill(broker, 10, partition=1)
        broker.partition("t", 1).log[-1] ^= 1
        consumer.assign([T0, TopicPartition("t", 1)])
        seen: list[int] = []
        for _turn in range(10):
            try:
                seen += [record.partition for record in await consumer.poll(1_000, max_records=100)]
            except CorruptMessage:
                continue
        assert (seen.count(0), seen.count(1)) == (10, 9)

    play(story, auto_offset_reset="earliest")


def test_memory_is_bounded_by_two_answers_of_a_partition() -> None:
    async def story(sim: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 1_000, per_batch=1)
        await consumer.poll(1_000, max_records=1)
        for _ in range(20):
            await consumer.poll(0, max_records=1)
            await sim.runtime("client").timers.sleep(0.1)
        assert broker.seen["Fetch"] <= 6

    play(story, auto_offset_reset="earliest", max_partition_fetch_bytes=1_000)


def test_topic_ids_are_used_where_the_broker_has_them_and_names_where_not() -> None:
    async def story(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        fill(broker, 3)
        await read(consumer, 3)
        assert {version for api, version, _ in broker.requests if api == "Fetch"} == {18}

    async def old(_: Simulation, broker: FakeBroker, consumer: Consumer) -> None:
        broker.versions[3] = (0, 9)  # Metadata without topic ids
        fill(broker, 3)
        await read(consumer, 3)
        assert {version for api, version, _ in broker.requests if api == "Fetch"} == {12}

    play(story, auto_offset_reset="earliest")
    play(old, auto_offset_reset="earliest")


def test_a_closed_consumer_says_so() -> None:
    async def story(_: Simulation, __: FakeBroker, consumer: Consumer) -> None:
        await consumer.close()
        with pytest.raises(ClientClosed):
            await consumer.poll(1_000)

    play(story)
