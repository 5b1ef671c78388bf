"""Whole columns: what `send_batch` takes, where it puts the records, and what it says when it cannot."""

from collections.abc import Iterable
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.producer.test_client_producer import play as play_with_fake_broker
from kits.client.scripted_broker import FakeBroker
from kits.client.transactions import TOPIC, World, play
from twofold.client import Producer
from twofold.client.errors import TransactionAborted
from twofold.client.producer.columns import KeyPartitions, by_partition, column_of
from twofold.connections.errors import ClientClosed
from twofold.records.batch import iter_headers
from twofold.records.key_hash import partition_for_key
from twofold.runtime.sim import Simulation
from twofold.wire.errors import MessageTooLarge

ITEMS = st.lists(st.none() | st.binary(max_size=20), max_size=40)
TEXTS = st.lists(st.none() | st.text(max_size=10), max_size=40)


def plain(column: Iterable[Any]) -> list[bytes | None]:
    return [None if item is None else bytes(item) for item in column]


# What is taken


@given(items=ITEMS, kind=st.sampled_from([pyarrow.binary(), pyarrow.large_binary()]), data=st.data())
@settings(deadline=None)
def test_arrow_arrays_of_bytes_are_columns(items: list[bytes | None], kind: Any, data: Any) -> None:
    array = pyarrow.array(items, kind)
    assert plain(column_of(array)) == items
    start = data.draw(st.integers(0, len(items)))
    count = data.draw(st.integers(0, len(items) - start))
    assert plain(column_of(array.slice(start, count))) == items[start : start + count]


@given(items=TEXTS, kind=st.sampled_from([pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()]))
@settings(deadline=None)
def test_arrow_arrays_of_text_are_columns_of_utf8(items: list[str | None], kind: Any) -> None:
    expected = [None if item is None else item.encode() for item in items]
    assert plain(column_of(pyarrow.array(items, kind))) == expected


@given(items=st.lists(st.none() | st.binary(min_size=7, max_size=7), max_size=30))
@settings(deadline=None)
def test_arrow_arrays_of_fixed_size_are_columns(items: list[bytes | None]) -> None:
    array = pyarrow.array(items, pyarrow.binary(7))
    assert plain(column_of(array)) == items
    assert plain(column_of(array[2:])) == items[2:]


def test_chunked_and_dictionary_arrays_are_columns() -> None:
    chunked = pyarrow.chunked_array([[b"a", None], [], [b"ccc"]], pyarrow.binary())
    assert plain(column_of(chunked)) == [b"a", None, b"ccc"]
    words = pyarrow.array(["x", "y", None, "x"]).dictionary_encode()
    assert plain(column_of(words)) == [b"x", b"y", None, b"x"]


def test_bytes_of_an_array_are_not_copied() -> None:
    array = pyarrow.array([b"abc", b"def"], pyarrow.binary())
    first, second = column_of(array)
    assert isinstance(first, memoryview) and isinstance(second, memoryview)
    assert first.obj is second.obj


def test_other_sequences_and_iterables_are_columns() -> None:
    items = [b"a", None]
    assert column_of(items) is items
    assert list(column_of(tuple(items))) == items
    assert list(column_of(item for item in items)) == items


@pytest.mark.parametrize("data", [b"bytes", "text", bytearray(b"x")])
def test_one_value_is_not_a_column(data: object) -> None:
    with pytest.raises(TypeError, match="a column is a sequence of bytes, not a"):
        column_of(data)


def test_numbers_are_for_the_application_to_serialize() -> None:
    with pytest.raises(TypeError, match="an Arrow array of type int64 has no bytes to send: cast it"):
        column_of(pyarrow.array([1, 2]))


# Where it goes


@given(keys=st.lists(st.none() | st.binary(max_size=6)), count=st.integers(1, 10))
@settings(deadline=None)
def test_keys_go_where_single_records_go(keys: list[bytes | None], count: int) -> None:
    expected = [-1 if key is None else partition_for_key(key, count) for key in keys]
    partitions = KeyPartitions()
    assert partitions.of(keys, count) == expected
    views = [None if key is None else memoryview(key) for key in keys]
    assert partitions.of(views, count) == expected
    groups = by_partition(keys, list(range(len(keys))), expected)
    assert sorted(index for _, group in groups.values() for index in group) == list(range(len(keys)))
    for partition, (group_keys, indexes) in groups.items():
        assert indexes == sorted(indexes)
        assert [keys[index] for index in indexes] == group_keys
        assert all(expected[index] == partition for index in indexes)


def test_known_keys_do_not_grow_without_bound() -> None:
    partitions = KeyPartitions()
    partitions.LIMIT = 100
    partitions.of((b"%d" % number for number in range(1_000)), 7)
    assert len(partitions._known[7]) <= 100


def values_in(broker: FakeBroker, topic: str) -> list[list[bytes]]:
    return [broker.partition(topic, index).values() for index in range(broker.topics[topic])]


def test_columns_keep_their_order_and_say_where_they_went() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        before = await producer.send("t", b"before")
        delivery = await producer.send_batch("t", None, [b"%d" % number for number in range(1_000)])
        after = await producer.send("t", b"after")
        ranges = await delivery
        assert (delivery.count, delivery.done()) == (1_000, True)
        assert sum(part.count for part in ranges) == 1_000
        assert [part.base_offset for part in ranges] == [
            1 + sum(part.count for part in ranges[:index]) for index in range(len(ranges))
        ]
        assert len(ranges) > 5
        assert ((await before).offset, (await after).offset) == (0, 1_001)
        numbers = [b"%d" % number for number in range(1_000)]
        assert broker.partition("t").values() == [b"before", *numbers, b"after"]

    play_with_fake_broker(story, max_request_size=3_000, linger_ms=5)


def test_records_with_keys_are_grouped_by_partition() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        keys = [b"key-%d" % (number % 37) for number in range(500)]
        values = [b"%d" % number for number in range(500)]
        ranges = await (await producer.send_batch("many", keys, values))
        expected: list[list[bytes]] = [[], [], [], []]
        for key, value in zip(keys, values, strict=True):
            expected[partition_for_key(key, 4)].append(value)
        assert values_in(broker, "many") == expected
        assert sorted((part.partition, part.count) for part in ranges) == [
            (index, len(group)) for index, group in enumerate(expected)
        ]

    play_with_fake_broker(story)


def test_without_keys_every_batch_may_have_another_partition() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        await (await producer.send_batch("many", None, [b"x" * 100] * 2_000))
        assert sum(map(len, values_in(broker, "many"))) == 2_000
        assert sum(map(bool, values_in(broker, "many"))) > 1

    play_with_fake_broker(story, max_request_size=20_000)


def test_a_partition_and_a_timestamp_may_be_chosen_for_all() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        delivery = await producer.send_batch("many", [b"k"] * 10, [None] * 10, partition=3, timestamp_ms=77)
        (part,) = await delivery
        assert (part.topic, part.partition, part.count) == ("many", 3, 10)
        (header,) = (header for _, header in iter_headers(broker.partition("many", 3).log))
        assert (header.base_timestamp, header.max_timestamp) == (77, 77)

    play_with_fake_broker(story)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_columns_are_compressed(codec: str) -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        values = [b"again and again %d" % (number % 10) for number in range(5_000)]
        await (await producer.send_batch("t", None, values))
        assert broker.partition("t").values() == values
        assert len(broker.partition("t").log) < 60_000

    play_with_fake_broker(story, compression_type=codec)


def test_a_batch_that_is_too_large_for_the_topic_is_sent_in_halves() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        broker.max_message_bytes = 5_000
        values = [b"%d" % number for number in range(3_000)]
        delivery = await producer.send_batch("t", None, values)
        ranges = await delivery
        assert broker.partition("t").values() == values
        assert [part.base_offset for part in ranges] == sorted(part.base_offset for part in ranges)
        assert sum(part.count for part in ranges) == 3_000

    play_with_fake_broker(story)


def test_a_column_larger_than_the_buffer_waits_for_room() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        delivery = await producer.send_batch("many", None, [b"x" * 1_000] * 1_000)
        await delivery
        assert sum(map(len, values_in(broker, "many"))) == 1_000
        assert producer._sender.backlog.memory.used == 0

    play_with_fake_broker(story, max_request_size=20_000, buffer_memory=60_000)


def test_an_empty_column_is_delivered_at_once() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        assert await (await producer.send_batch("t", None, [])) == []
        assert await (await producer.send_batch("t", [], [])) == []

    play_with_fake_broker(story)


# What is refused


def test_columns_of_different_lengths_are_refused() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        with pytest.raises(ValueError, match="2 keys do not go with 3 values"):
            await producer.send_batch("t", [b"a", b"b"], [b"a", b"b", b"c"])

    play_with_fake_broker(story)


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        (None, [b"a", "b"], r"values\[1\] is of type str"),
        ([b"a", 5], [b"a", b"b"], r"keys\[1\] is of type int"),
        (None, [1.5], r"values\[0\] is of type float"),
    ],
)
def test_what_is_not_bytes_is_named(keys: Any, values: Any, message: str) -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        with pytest.raises(TypeError, match=message):
            await producer.send_batch("t", keys, values)
        await (await producer.send_batch("t", None, [b"fine"]))

    play_with_fake_broker(story)


def test_a_record_that_is_not_bytes_leaves_nothing_behind() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        wrong: list[dict[str, Any]] = [{"value": "text"}, {"value": b"x", "key": 5}]
        for arguments in wrong:
            with pytest.raises(TypeError):
                await producer.send("t", **arguments)
        assert producer._sender.backlog.memory.used == 0
        await producer.flush()
        assert (await (await producer.send("t", b"fine"))).offset == 0

    play_with_fake_broker(story)


def test_a_record_above_the_limit_is_refused() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        with pytest.raises(MessageTooLarge, match="max_request_size=10000"):
            await producer.send_batch("t", None, [b"x" * 10_000])

    play_with_fake_broker(story, max_request_size=10_000)


def test_a_closed_producer_takes_no_columns() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        await producer.close()
        with pytest.raises(ClientClosed):
            await producer.send_batch("t", None, [b"x"])

    play_with_fake_broker(story)


# In transactions


def test_columns_belong_to_the_transaction() -> None:
    async def story(world: World) -> None:
        producer = await world.ready()
        async with producer.transaction() as txn:
            await txn.send_batch(TOPIC, None, [b"%d" % number for number in range(100)], partition=1)
        await producer.begin_transaction()
        lost = await producer.send_batch(TOPIC, None, [b"lost"] * 100, partition=1)
        await producer.abort_transaction()
        with pytest.raises(TransactionAborted):
            await lost
        assert await world.read() == [b"%d" % number for number in range(100)]

    play(story)
