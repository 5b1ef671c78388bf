"""Deserializers: plain callables from bytes, called for each record that a poll returns."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kits.client.scripted_broker import PORT, FakeBroker
from twofold.client import Consumer, TopicPartition
from twofold.client.errors import DeserializationFailed
from twofold.records.batch import BatchBuilder
from twofold.runtime.sim import Simulation

T0 = TopicPartition("t", 0)
Story = Callable[[FakeBroker, Consumer], Awaitable[None]]


def play(story: Story, *pairs: tuple[bytes | None, bytes | None], **options: Any) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            broker = await FakeBroker(sim.runtime("broker"), "broker", topics={"t": 1}).start()
            builder = BatchBuilder()
            for key, value in pairs:
                builder.add(key, value, 0)
            broker.partition("t").append(builder.build())
            settings = {"bootstrap_servers": f"broker:{PORT}", "auto_offset_reset": "earliest", **options}
            async with Consumer(runtime=sim.runtime("client"), **settings) as consumer:
                consumer.assign([T0])
                await story(broker, consumer)

        sim.run(main(), timeout_s=3600)


def test_keys_and_values_are_what_the_deserializers_return_and_none_stays_none() -> None:
    async def story(_: FakeBroker, consumer: Consumer) -> None:
        records = await consumer.poll(1_000)
        assert [(row.key, row.value) for row in records] == [("a", {"n": 1}), (None, None), ("c", [])]

    pairs = ((b"a", b'{"n": 1}'), (None, None), (b"c", b"[]"))
    play(story, *pairs, key_deserializer=bytes.decode, value_deserializer=json.loads)


def test_without_deserializers_they_are_bytes() -> None:
    async def story(_: FakeBroker, consumer: Consumer) -> None:
        (record,) = await consumer.poll(1_000)
        assert (record.key, record.value) == (b"a", b"1")

    play(story, (b"a", b"1"))


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_record_that_is_refused_names_itself_and_the_caller_passes_over_it(part: str) -> None:
    async def story(_: FakeBroker, consumer: Consumer) -> None:
        assert [row.offset for row in await consumer.poll(1_000)] == [0, 1]  # those before it are not lost
        for _ in range(2):
            with pytest.raises(DeserializationFailed, match=f"the {part} of the record at offset 2 of t-0") as caught:
                await consumer.poll(1_000)
            assert (caught.value.partition, caught.value.offset) == (T0, 2)
            assert isinstance(caught.value.__cause__, ValueError)
            assert await consumer.position(T0) == 2
        consumer.seek(caught.value.partition, caught.value.offset + 1)
        assert [row.offset for row in await consumer.poll(1_000)] == [3]

    rows = [(b"%d" % number, b"%d" % number) for number in range(4)]
    rows[2] = (b"x", b"2") if part == "key" else (b"2", b"x")
    play(story, *rows, key_deserializer=int, value_deserializer=int)


def test_a_loop_over_records_meets_the_same_error_at_the_same_place() -> None:
    async def story(_: FakeBroker, consumer: Consumer) -> None:
        seen: list[int] = []

        async def loop() -> None:
            async for record in consumer:
                seen.append(record.value)

        with pytest.raises(DeserializationFailed):
            await loop()
        assert seen == [0, 1]

    play(story, (None, b"0"), (None, b"1"), (None, b"x"), value_deserializer=int)
