"""The parts of the sender, each alone on a simulated clock."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from twofold.client.cluster.metadata import MetadataCache
from twofold.client.config import ProducerConfig
from twofold.client.producer.accumulator import ProducerBatch
from twofold.client.producer.backlog import Backlog
from twofold.client.producer.in_flight import InFlight
from twofold.client.producer.produce_request import ProduceRequests
from twofold.client.producer.waking import Waking
from twofold.runtime.api import Runtime
from twofold.runtime.sim import Simulation
from twofold.types import TopicPartition
from twofold.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def play(story: Callable[[Runtime], Coroutine[Any, Any, None]]) -> None:
    with Simulation(1) as sim:
        runtime = sim.runtime("client")

        async def main() -> None:
            await story(runtime)

        sim.run(main(), timeout_s=600)


def backlog_of(runtime: Runtime, **settings: Any) -> tuple[Backlog, Waking]:
    waking = Waking(runtime)
    config = ProducerConfig(**settings)
    return Backlog(runtime, config, waking, transactional=False, on_batch=lambda: None), waking


def names(backlog: Backlog) -> list[TopicPartition]:
    return [queue.tp for queue in backlog.ready()]


def test_the_earliest_moment_wakes() -> None:
    async def story(runtime: Runtime) -> None:
        waking = Waking(runtime)
        start = runtime.clock.monotonic()
        for delay_s in (5.0, 2.0, 9.0):
            waking.at(start + delay_s)
        await waking.wait()
        assert round(runtime.clock.monotonic() - start, 3) == 2.0
        waking.at(start + 9.0)
        await waking.wait()
        assert round(runtime.clock.monotonic() - start, 3) == 9.0

    play(story)


def test_after_its_end_no_moment_wakes() -> None:
    async def story(runtime: Runtime) -> None:
        waking = Waking(runtime)
        waking.at(runtime.clock.monotonic() + 1.0)
        waking.close()
        waking.at(runtime.clock.monotonic() + 2.0)
        waiting = runtime.spawn(waking.wait(), name="waits")
        await runtime.timers.sleep(60.0)
        assert not waiting.done()
        waiting.cancel()

    play(story)


def test_a_waiter_for_quiet_waits_for_every_broker() -> None:
    async def story(runtime: Runtime) -> None:
        in_flight = InFlight()
        await in_flight.none_left()
        for node_id in (1, 1, 2):
            in_flight.sent(node_id)
        assert (in_flight.count(1), in_flight.count(2), in_flight.count(3)) == (2, 1, 0)
        waiting = runtime.spawn(in_flight.none_left(), name="waits")
        for node_id in (1, 2, 1):
            await asyncio.sleep(0)
            assert not waiting.done()
            in_flight.answered(node_id)
        await waiting

    play(story)


def test_a_waiter_for_quiet_is_told_when_answers_no_longer_count() -> None:
    async def story(runtime: Runtime) -> None:
        in_flight = InFlight()
        in_flight.sent(1)
        waiting = runtime.spawn(in_flight.none_left(), name="waits")
        await asyncio.sleep(0)
        in_flight.clear()
        await waiting

    play(story)


def test_a_partition_is_ready_when_its_batch_has_lingered() -> None:
    async def story(runtime: Runtime) -> None:
        backlog, waking = backlog_of(runtime, linger_ms=50)
        queue = backlog.queue(ZERO)
        backlog.open_batch(queue)
        assert names(backlog) == [] and not backlog.is_due(queue)
        start = runtime.clock.monotonic()
        await waking.wait()
        assert round(runtime.clock.monotonic() - start, 3) == 0.05
        assert names(backlog) == [ZERO] and backlog.is_due(queue)

    play(story)


def test_a_second_batch_makes_the_first_one_due() -> None:
    async def story(runtime: Runtime) -> None:
        backlog, _ = backlog_of(runtime, linger_ms=50)
        queue = backlog.queue(ZERO)
        first = backlog.open_batch(queue)
        first.builder.add(b"k", b"v", 0)  # type: ignore[union-attr]
        backlog.open_batch(queue)
        assert backlog.complete_bytes == first.size
        assert names(backlog) == [ZERO] and backlog.is_due(queue)
        assert backlog.complete_bytes == 0, "the sender has looked"

    play(story)


def test_a_flush_makes_all_batches_due_and_ends_with_their_fates() -> None:
    async def story(runtime: Runtime) -> None:
        backlog, _ = backlog_of(runtime, linger_ms=50)
        batches = [backlog.open_batch(backlog.queue(tp)) for tp in (ZERO, ONE)]
        flushing = runtime.spawn(backlog.flush(), name="flush")
        await asyncio.sleep(0)
        assert names(backlog) == [ZERO, ONE]
        assert all(backlog.is_due(backlog.queue(tp)) for tp in (ZERO, ONE))
        for batch in batches:
            assert not flushing.done()
            batch.succeed(0, -1)
        await flushing

    play(story)


def test_a_partition_that_was_sent_is_the_last_in_line() -> None:
    async def story(runtime: Runtime) -> None:
        backlog, _ = backlog_of(runtime, linger_ms=0)
        for tp in (ZERO, ONE):
            backlog.open_batch(backlog.queue(tp))
        backlog.move_to_end(backlog.queue(ZERO))
        assert names(backlog) == [ONE, ZERO]
        backlog.unmark(backlog.queue(ONE))
        assert names(backlog) == [ZERO]

    play(story)


def test_pauses_grow_with_the_failures_in_a_row_and_wake_the_sender() -> None:
    async def story(runtime: Runtime) -> None:
        backlog, waking = backlog_of(runtime, retry_backoff_ms=100, retry_backoff_max_ms=1_000)
        queue = backlog.queue(ZERO)
        pauses = []
        for _ in range(5):
            start = runtime.clock.monotonic()
            backlog.pause(queue)
            assert backlog.is_pausing(queue)
            await waking.wait()
            assert not backlog.is_pausing(queue)
            pauses.append(runtime.clock.monotonic() - start)
        for pause_s, expected_s in zip(pauses, (0.1, 0.2, 0.4, 0.8, 1.0), strict=True):
            assert 0.79 * expected_s <= pause_s <= 1.21 * expected_s

    play(story)


def test_queues_of_another_identity_are_new_ones() -> None:
    async def story(runtime: Runtime) -> None:
        backlog, _ = backlog_of(runtime)
        queue, before = backlog.queue(ZERO), backlog.generation
        backlog.mark_ready(queue)
        backlog.start_anew()
        assert backlog.queue(ZERO) is not queue
        assert (backlog.generation, names(backlog)) == (before + 1, [])

    play(story)


def test_a_batch_that_the_answer_leaves_out_is_told_apart() -> None:
    async def story(runtime: Runtime) -> None:
        backlog, _ = backlog_of(runtime)
        batches: list[ProducerBatch] = [backlog.open_batch(backlog.queue(tp)) for tp in (ZERO, ONE)]
        rows = [PartitionProduceResponse(index=index, error_code=0, base_offset=7) for index in (1, 5)]
        response = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=rows)])
        requests = ProduceRequests(ProducerConfig(), MetadataCache(), None)
        matched, left_out = requests.match(response, batches)
        assert [(batch.tp, row.base_offset) for batch, row in matched] == [(ONE, 7)]
        assert [batch.tp for batch in left_out] == [ZERO]

    play(story)
