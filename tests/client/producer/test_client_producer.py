"""The producer: what it promises about order, doubles, time and memory, whatever the broker and the network do."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from kits.client.scripted_broker import PORT, FakeBroker, act_then_hang_up, hang_up, silence
from twofold.client import Delivery, Producer
from twofold.client.errors import BufferExhausted, DeliveryTimeout
from twofold.connections.errors import ClientClosed
from twofold.records.batch import iter_headers
from twofold.runtime.sim import Simulation
from twofold.types import TopicPartition
from twofold.wire.errors import (
    ClusterAuthorizationFailed,
    InvalidRecord,
    KafkaError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    TopicAuthorizationFailed,
    UnknownProducerId,
)

Story = Callable[[Simulation, FakeBroker, Producer], Awaitable[None]]


def play(story: Story, *, seed: int = 1, link: dict[str, Any] | None = None, **options: Any) -> None:
    with Simulation(seed) as sim:
        sim.network.set_default_link(**(link or {}))

        async def main() -> None:
            broker = await FakeBroker(sim.runtime("broker"), "broker", topics={"t": 1, "many": 4}).start()
            settings = {"bootstrap_servers": f"broker:{PORT}", "runtime": sim.runtime("client"), **options}
            async with Producer(**settings) as producer:
                await story(sim, broker, producer)

        sim.run(main(), timeout_s=7200)


def numbers(values: list[bytes]) -> list[int]:
    return [int(value) for value in values]


async def send_numbers(producer: Producer, count: int, start: int = 0) -> list[Delivery]:
    return [await producer.send("t", b"%d" % number) for number in range(start, start + count)]


def test_records_arrive_in_order_with_their_offsets() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        deliveries = await send_numbers(producer, 1_000)
        await producer.flush()
        assert [(await delivery).offset for delivery in deliveries] == list(range(1_000))
        assert numbers(broker.partition("t").values()) == list(range(1_000))

    play(story, batch_size=512)


def test_linger_collects_records_into_one_batch_and_no_longer() -> None:
    async def story(sim: Simulation, broker: FakeBroker, producer: Producer) -> None:
        await producer.send("t", b"warm up")
        await producer.flush()
        start = sim.now_s
        deliveries = []
        for number in range(10):
            deliveries.append(await producer.send("t", b"%d" % number))
            await sim.runtime("client").timers.sleep(0.004)
        await deliveries[-1]
        batches = [header.count for _, header in iter_headers(broker.partition("t").log)]
        assert batches == [1, 10]
        assert 0.05 <= sim.now_s - start < 0.1

    play(story, linger_ms=50)


def test_a_full_batch_does_not_linger() -> None:
    async def story(sim: Simulation, _: FakeBroker, producer: Producer) -> None:
        await producer.send("t", b"warm up")
        await producer.flush()
        start = sim.now_s
        deliveries = [await producer.send("t", b"x" * 400) for _ in range(3)]
        await deliveries[1]
        assert sim.now_s - start < 0.5

    play(story, linger_ms=5_000, batch_size=1_000)


def test_a_caller_in_a_tight_loop_does_not_keep_full_batches_from_leaving() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        await (await producer.send("t", b"warm up"))
        for number in range(2_000):
            await producer.send("t", b"%d" % number)
        assert len(producer._sender.backlog.queue(TopicPartition("t", 0)).sequences.unacked) == 5

    play(story, batch_size=200)


def test_five_requests_are_in_flight_and_no_more() -> None:
    async def story(sim: Simulation, broker: FakeBroker, producer: Producer) -> None:
        await producer.send("t", b"first")
        await producer.flush()
        broker.delay_s = 1.0
        for number in range(20):
            await producer.send("t", b"%d" % number)
        await sim.runtime("client").timers.sleep(0.5)
        link = producer._cluster.link(1)
        assert link.connection is not None and link.connection.in_flight == 5
        await producer.flush()
        assert numbers(broker.partition("t").values()[1:]) == list(range(20))

    play(story, linger_ms=0, batch_size=1)


@pytest.mark.parametrize("seed", range(12))
def test_idempotent_records_are_neither_lost_nor_doubled_nor_reordered_on_a_bad_network(seed: int) -> None:
    async def story(sim: Simulation, broker: FakeBroker, producer: Producer) -> None:
        client = sim.runtime("client")
        deliveries: list[Delivery] = []
        for number in range(400):
            deliveries.append(await producer.send("t", b"%d" % number))
            await client.timers.sleep(client.random.uniform(0, 0.05))
            if client.random.random() < 0.03:
                sim.network.reset("broker", "client")
            if client.random.random() < 0.02:
                broker.script("Produce", client.random.choice([act_then_hang_up, hang_up, silence]))
            if client.random.random() < 0.02:
                broker.script(
                    "Produce", broker.refuse_produce(client.random.choice([NotLeaderOrFollower, NotEnoughReplicas]))
                )
        await producer.flush()
        offsets = [(await delivery).offset for delivery in deliveries]
        assert numbers(broker.partition("t").values()) == list(range(400))
        assert offsets == list(range(400))

    play(
        story,
        seed=seed,
        link={"drop": 0.005, "duplicate": 0.0},
        linger_ms=0,
        batch_size=20,
        request_timeout_ms=2_000,
        retry_backoff_ms=10,
        delivery_timeout_ms=3_000_000,
    )


@pytest.mark.parametrize("seed", range(8))
def test_records_that_fail_leave_the_others_whole_and_in_order(seed: int) -> None:
    async def story(sim: Simulation, broker: FakeBroker, producer: Producer) -> None:
        client = sim.runtime("client")
        deliveries: list[Delivery] = []
        for number in range(300):
            deliveries.append(await producer.send("t", b"%d" % number))
            await client.timers.sleep(client.random.uniform(0, 0.02))
            if client.random.random() < 0.04:
                broker.script("Produce", broker.refuse_produce(InvalidRecord))
            if client.random.random() < 0.02:
                broker.script("Produce", client.random.choice([act_then_hang_up, hang_up]))
        await producer.flush()
        acknowledged = []
        for number, delivery in enumerate(deliveries):
            try:
                await delivery
                acknowledged.append(number)
            except InvalidRecord:
                pass
        stored = numbers(broker.partition("t").values())
        assert len(stored) == len(set(stored))
        assert stored == sorted(stored)
        assert set(acknowledged) <= set(stored)
        assert 0 < len(acknowledged) < 300

    play(story, seed=seed, linger_ms=0, batch_size=20, retry_backoff_ms=10)


def test_a_batch_the_broker_finds_too_large_is_sent_in_halves() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        broker.max_message_bytes = 700
        deliveries = [await producer.send("t", b"%d" % number + b" " * 100) for number in range(40)]
        await producer.flush()
        assert numbers(broker.partition("t").values()) == list(range(40))
        assert [(await delivery).offset for delivery in deliveries] == list(range(40))
        with pytest.raises(MessageTooLarge):
            await (await producer.send("t", b"x" * 800))
        assert (await (await producer.send("t", b"40"))).offset == 40

    play(story, batch_size=100_000, linger_ms=5)


def test_a_record_that_is_too_large_fails_alone_whatever_it_travelled_with() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        broker.max_message_bytes = 700
        for sizes in ([10, 900], [900, 10], [10, 10, 900, 10], [900, 900, 10]):
            deliveries = [await producer.send("t", b"x" * size) for size in sizes]
            await producer.flush()
            for size, delivery in zip(sizes, deliveries, strict=True):
                if size > 700:
                    with pytest.raises(MessageTooLarge):
                        await delivery
                else:
                    await delivery
        assert len(broker.partition("t").values()) == 6

    play(story, batch_size=100_000, linger_ms=5)


def test_a_leader_that_moves_is_followed() -> None:
    async def story(sim: Simulation, broker: FakeBroker, producer: Producer) -> None:
        other = await FakeBroker(sim.runtime("other"), "other", topics=broker.topics, node_id=2).start()
        for node in (broker, other):
            node.nodes = {1: ("broker", PORT), 2: ("other", PORT)}
            node.partitions = broker.partitions
        await send_numbers(producer, 10)
        await producer.flush()

        def move(_: FakeBroker, request: Any) -> Any:
            for node in (broker, other):
                node.leaders[TopicPartition("t", 0)] = (2, 1)
            return broker.refuse_produce(NotLeaderOrFollower)(broker, request)

        broker.script("Produce", move, *[broker.refuse_produce(NotLeaderOrFollower)] * 4)
        await send_numbers(producer, 50, start=10)
        await producer.flush()
        assert numbers(broker.partition("t").values()) == list(range(60))
        assert other.seen["Produce"] > 0

    play(story, linger_ms=0, batch_size=20)


def test_a_record_that_stays_unacknowledged_fails_at_its_delivery_timeout() -> None:
    async def story(sim: Simulation, broker: FakeBroker, producer: Producer) -> None:
        broker.script("Produce", *[silence] * 1_000)
        start = sim.now_s
        delivery = await producer.send("t", b"lost")
        with pytest.raises(DeliveryTimeout, match=r"1 records for t-0 \(its leader is broker 1\).*delivery_timeout_ms"):
            await delivery
        assert 5.0 <= sim.now_s - start <= 7.0
        broker.scripts.clear()
        assert (await (await producer.send("t", b"next"))).offset >= 0

    play(story, delivery_timeout_ms=5_000, request_timeout_ms=1_000, linger_ms=0)


def test_retries_are_counted_when_they_are_limited() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        broker.script("Produce", *[broker.refuse_produce(NotEnoughReplicas)] * 100)
        with pytest.raises(NotEnoughReplicas):
            await (await producer.send("t", b"x"))
        assert broker.seen["Produce"] == 4

    play(story, retries=3, linger_ms=0)


def test_an_unexplained_gap_fails_the_batch_and_starts_a_new_epoch() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        await (await producer.send("t", b"0"))
        entry = next(iter(broker.partition("t").producers.values()))
        entry.batches.append((50, 50, 0))  # the broker remembers other batches than were sent
        with pytest.raises(OutOfOrderSequenceNumber):
            await (await producer.send("t", b"1"))
        await (await producer.send("t", b"2"))
        header = [header for _, header in iter_headers(broker.partition("t").log)][-1]
        assert (header.producer_epoch, header.base_sequence) == (1, 0)

    play(story, linger_ms=0)


@pytest.mark.parametrize("keep_records", [False, True])
def test_a_broker_that_forgot_the_producer_gets_the_records_under_a_new_epoch(keep_records: bool) -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        partition = broker.partition("t")
        partition.is_strict = True
        await send_numbers(producer, 3)
        await producer.flush()
        partition.forget(keep_records=keep_records)
        results = [await delivery for delivery in await send_numbers(producer, 20, start=3)]
        assert numbers(partition.values()) == list(range(23))
        assert [result.offset for result in results] == list(range(3, 23))
        headers = [header for _, header in iter_headers(partition.log)][3:]
        assert {(header.producer_id, header.producer_epoch) for header in headers} == {(101, 1)}
        assert [header.base_sequence for header in headers] == list(range(20))

    play(story, linger_ms=0, batch_size=1)


def test_a_record_in_doubt_is_not_doubled_on_a_broker_that_forgot_the_producer() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        partition = broker.partition("t")
        partition.is_strict = True
        await send_numbers(producer, 3)
        await producer.flush()

        def append_and_forget(fake: FakeBroker, request: Any) -> object:
            fake.on_produce(request)
            partition.forget()
            return hang_up(fake, request)

        broker.script("Produce", append_and_forget)
        with pytest.raises(UnknownProducerId, match="acknowledged up to offset 2, and the log begins at 4"):
            await (await producer.send("t", b"3"))
        await (await producer.send("t", b"4"))
        assert numbers(partition.values()) == [0, 1, 2, 3, 4]

    play(story, linger_ms=0)


def test_a_leader_that_is_moving_is_asked_again_under_the_same_number() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        await send_numbers(producer, 3)
        await producer.flush()
        broker.script("Produce", broker.refuse_produce(UnknownProducerId))  # without a log start offset
        await (await producer.send("t", b"3"))
        header = [header for _, header in iter_headers(broker.partition("t").log)][-1]
        assert (header.producer_epoch, header.base_sequence) == (0, 3)

    play(story, linger_ms=0, batch_size=1)


def test_a_full_buffer_waits_and_then_says_so() -> None:
    async def story(sim: Simulation, broker: FakeBroker, producer: Producer) -> None:
        broker.script("Produce", *[silence] * 3)
        for _ in range(4):
            await producer.send("t", b"x" * 200)
        start = sim.now_s
        with pytest.raises(BufferExhausted, match=r"max_block_ms=1000.*buffer_memory=1000"):
            await producer.send("t", b"x" * 200)
        assert sim.now_s - start == pytest.approx(1.0, abs=0.05)
        await producer.flush()
        await producer.send("t", b"x" * 200)
        with pytest.raises(BufferExhausted, match="does not fit into buffer_memory=1000"):
            await producer.send("t", b"x" * 2_000)

    play(story, buffer_memory=1_000, max_block_ms=1_000, request_timeout_ms=2_000, linger_ms=0)


def test_memory_returns_when_records_are_acknowledged_split_or_failed() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        broker.max_message_bytes = 500
        for number in range(100):
            await producer.send("t", b"%d" % number + b"x" * (number * 6))
        await producer.flush()
        assert producer._sender.backlog.memory.used == 0

    play(story, batch_size=4_000)


def test_waiting_sends_get_memory_in_order() -> None:
    async def story(sim: Simulation, broker: FakeBroker, producer: Producer) -> None:
        client = sim.runtime("client")
        tasks = [client.spawn(producer.send("t", b"%d" % number), name=str(number)) for number in range(50)]
        await asyncio.wait(tasks)
        await producer.flush()
        assert numbers(broker.partition("t").values()) == list(range(50))

    play(story, buffer_memory=100, linger_ms=0)


def test_a_record_above_the_request_size_is_refused_at_once() -> None:
    async def story(_: Simulation, __: FakeBroker, producer: Producer) -> None:
        with pytest.raises(MessageTooLarge, match="max_request_size=1048576"):
            await producer.send("t", b"x" * 1_048_576)

    play(story)


@pytest.mark.parametrize("error", [TopicAuthorizationFailed, InvalidRecord])
def test_an_error_that_is_final_is_given_to_the_caller(error: type[KafkaError]) -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        broker.script("Produce", broker.refuse_produce(error))
        with pytest.raises(error):
            await (await producer.send("t", b"x"))
        assert broker.seen["Produce"] == 1

    play(story)


def test_a_producer_id_that_is_refused_fails_the_records() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        from twofold.wire.messages.init_producer_id import InitProducerIdResponse

        refusal = InitProducerIdResponse(error_code=ClusterAuthorizationFailed.code, producer_id=-1, producer_epoch=-1)
        broker.script("InitProducerId", lambda *_: refusal)
        with pytest.raises(ClusterAuthorizationFailed):
            await (await producer.send("t", b"x"))
        assert (await (await producer.send("t", b"y"))).offset == 0

    play(story)


def test_partitions_without_an_explicit_choice_follow_the_key() -> None:
    async def story(_: Simulation, __: FakeBroker, producer: Producer) -> None:
        from twofold.records.key_hash import partition_for_key

        for key in (b"a", b"b", b"key-17", b""):
            chosen = await (await producer.send("many", b"v", key=key))
            assert chosen.partition == partition_for_key(key, 4)
        assert (await (await producer.send("many", b"v", key=b"a", partition=3))).partition == 3

    play(story)


def test_a_partition_that_does_not_exist_is_named() -> None:
    async def story(_: Simulation, __: FakeBroker, producer: Producer) -> None:
        with pytest.raises(KafkaError, match="topic 't' has partitions 0 to 0, there is no partition 7"):
            await producer.send("t", b"x", partition=7)

    play(story, max_block_ms=1_000)


def test_without_acknowledgements_records_are_written_and_have_no_offset() -> None:
    async def story(sim: Simulation, broker: FakeBroker, producer: Producer) -> None:
        deliveries = await send_numbers(producer, 100)
        await producer.flush()
        assert {(await delivery).offset for delivery in deliveries} == {-1}
        await sim.runtime("client").timers.sleep(5)
        assert numbers(broker.partition("t").values()) == list(range(100))

    play(story, acks=0)


def test_an_idle_producer_does_nothing() -> None:
    async def story(sim: Simulation, broker: FakeBroker, producer: Producer) -> None:
        await send_numbers(producer, 10)
        await producer.flush()
        before = len(broker.requests)
        await sim.runtime("client").timers.sleep(200)
        assert len(broker.requests) == before

    play(story)


def test_leaving_the_block_by_an_exception_drops_what_is_buffered() -> None:
    deliveries: list[Delivery] = []

    async def story(_: Simulation, __: FakeBroker, producer: Producer) -> None:
        deliveries.extend(await send_numbers(producer, 3))
        raise KeyError("the caller's own")

    with pytest.raises(KeyError):
        play(story, linger_ms=1_000)
    with pytest.raises(ClientClosed):
        deliveries[0].result()


def test_a_closed_producer_refuses_records() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        await send_numbers(producer, 3)
        await producer.close()
        assert len(broker.partition("t").values()) == 3
        with pytest.raises(ClientClosed):
            await producer.send("t", b"late")

    play(story)


def test_plain_batches_carry_no_producer_id() -> None:
    async def story(_: Simulation, broker: FakeBroker, producer: Producer) -> None:
        await (await producer.send("t", b"x"))
        assert "InitProducerId" not in broker.seen
        headers = [header for _, header in iter_headers(broker.partition("t").log)]
        assert all(not header.has_producer_id and header.base_sequence == -1 for header in headers)

    play(story, enable_idempotence=False)


def test_retries_back_off() -> None:
    moments: list[float] = []

    async def story(sim: Simulation, broker: FakeBroker, producer: Producer) -> None:
        def refuse(_: FakeBroker, request: Any) -> Any:
            moments.append(sim.now_s)
            return broker.refuse_produce(NotEnoughReplicas)(broker, request)

        broker.script("Produce", *[refuse] * 8)
        await (await producer.send("t", b"x"))

    play(story)
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert pauses[0] < 0.2 and all(0.7 < pause < 1.3 for pause in pauses[-3:])
