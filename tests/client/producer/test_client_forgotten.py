"""A transactional producer that a partition's broker does not know any more (UNKNOWN_PRODUCER_ID)."""

from collections.abc import Callable
from typing import Any

import pytest

from kits.client.transactions import TOPIC, Step, World, identity_of, play
from twofold.broker.api import produce
from twofold.client import Producer, TopicPartition
from twofold.client.errors import TransactionFailed
from twofold.wire.errors import UnknownProducerId

pytestmark = pytest.mark.slow  # hours pass in each

ZERO = TopicPartition(TOPIC, 0)


def forget(log_start: int) -> Step:
    """What a broker before Apache Kafka 2.5 answers to a producer whose state it has not."""

    def step(_: Callable[[], Any], request: Any) -> Any:
        response = produce.error_response(request, UnknownProducerId(), 7)
        for topic in response.responses:
            for row in topic.partition_responses:
                row.log_start_offset = log_start
        return response

    return step


async def forgotten_after_a_transaction(world: World) -> Producer:
    """A producer of the first protocol that has committed two records, which were deleted, and is known no more."""
    producer = await world.ready()
    async with producer.transaction() as txn:
        for value in (b"0", b"1"):
            await (await txn.send(TOPIC, value, partition=0))
    async with world.admin() as admin:
        (await admin.delete_records({ZERO: 3})).get()
        await world.sleep(3 * 3600)
        assert (await admin.describe_producers([ZERO])).get()[ZERO] == ()
    return producer


def test_a_transaction_goes_on_where_the_broker_forgot_the_producer_with_its_deleted_records() -> None:
    async def story(world: World) -> None:
        producer = await forgotten_after_a_transaction(world)
        world.script("Produce", forget(log_start=3))
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"2", partition=0)
            await txn.send(TOPIC, b"3", partition=0)
        assert await world.read() == [b"2", b"3"]
        assert identity_of(producer) == (0, 0)

    play(story, level=1, producer_id_expiration_ms=3_600_000)


def test_a_transaction_fails_where_acknowledged_records_may_be_lost_and_the_next_has_a_new_epoch() -> None:
    async def story(world: World) -> None:
        producer = await forgotten_after_a_transaction(world)
        world.script("Produce", forget(log_start=1))
        await producer.begin_transaction()
        with pytest.raises(UnknownProducerId, match="acknowledged up to offset 1, and the log begins at 1"):
            await (await producer.send(TOPIC, b"2", partition=0))
        with pytest.raises(TransactionFailed, match=r"Call abort_transaction\(\)"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        async with producer.transaction() as txn:
            await txn.send(TOPIC, b"3", partition=0)
        assert await world.read() == [b"3"]
        assert identity_of(producer) == (0, 1)

    play(story, level=1, producer_id_expiration_ms=3_600_000)
