"""Brokers from before transactions (KIP-98, Migration Plan): what a client lacks there is an error at once, and what it
can do all the same it does."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kits.client.scripted_broker import PORT, FakeBroker, batch_of
from twofold.client import Consumer, Producer, TopicPartition
from twofold.client.consumer.fetcher import ConsumerRecord
from twofold.client.producer.accumulator import RecordMetadata
from twofold.connections.errors import UnsupportedByBroker
from twofold.runtime.sim import Simulation
from twofold.wire.apis import KEYS
from twofold.wire.messages.find_coordinator import FindCoordinatorResponse

T0 = TopicPartition("t", 0)


def play(story: Callable[[FakeBroker, dict[str, Any]], Awaitable[None]]) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            broker = await FakeBroker(sim.runtime("broker"), "broker", topics={"t": 1}).start()
            await story(broker, {"bootstrap_servers": f"broker:{PORT}", "runtime": sim.runtime("client")})

        sim.run(main(), timeout_s=3600)


def test_an_idempotent_producer_is_refused_by_a_broker_without_producer_ids() -> None:
    async def story(broker: FakeBroker, settings: dict[str, Any]) -> None:
        del broker.versions[KEYS["InitProducerId"]]
        async with Producer(**settings) as producer:
            with pytest.raises(UnsupportedByBroker, match="does not serve InitProducerId"):
                await (await producer.send("t", b"x"))
        assert broker.partition("t").end == 0

    play(story)


def test_a_transactional_producer_is_refused_by_a_broker_without_transactions() -> None:
    async def story(broker: FakeBroker, settings: dict[str, Any]) -> None:
        for api in ("InitProducerId", "AddPartitionsToTxn", "EndTxn"):
            del broker.versions[KEYS[api]]
        broker.versions[KEYS["FindCoordinator"]] = (0, 0)
        found = FindCoordinatorResponse(error_code=0, node_id=broker.node_id, host=broker.host, port=PORT)
        broker.script("FindCoordinator", lambda *_: found)
        async with Producer(transactional_id="id", **settings) as producer:
            with pytest.raises(UnsupportedByBroker, match="does not serve InitProducerId"):
                await producer.init_transactions()

    play(story)


def test_a_broker_that_takes_only_older_message_formats_is_refused() -> None:
    async def story(broker: FakeBroker, settings: dict[str, Any]) -> None:
        broker.versions[KEYS["Produce"]] = (0, 2)
        async with Producer(enable_idempotence=False, **settings) as producer:
            with pytest.raises(UnsupportedByBroker, match="serves Produce 0 to 2, this client speaks 3 to"):
                await (await producer.send("t", b"x"))

    play(story)


def test_without_a_stable_offset_the_end_at_read_committed_is_the_end_of_the_log() -> None:
    async def story(broker: FakeBroker, settings: dict[str, Any]) -> None:
        broker.versions[KEYS["ListOffsets"]] = (0, 1)  # before the isolation level
        broker.partition("t").append(batch_of(b"a", b"b"))
        async with Consumer(isolation_level="read_committed", **settings) as consumer:
            assert await consumer.end_offsets([T0]) == {T0: 2}
        assert broker.requests[-1][:2] == ("ListOffsets", 1)

    play(story)


def test_records_carry_no_checksum_of_their_own() -> None:
    assert "checksum" not in RecordMetadata._fields + ConsumerRecord._fields
