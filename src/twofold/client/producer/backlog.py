"""What the producer was given and is not acknowledged: the queues of all partitions, and which of them want a look."""

import asyncio
from collections import deque
from collections.abc import Callable

from twofold.client.config import ProducerConfig
from twofold.client.producer.accumulator import BufferMemory, PartitionQueue, ProducerBatch
from twofold.client.producer.waking import Waking
from twofold.records.batch import BatchBuilder
from twofold.records.column_batch import EncodedBatch
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition


class Backlog:
    """A partition is marked ready when it may have something to send. Nothing is lost by a mark too many."""

    def __init__(
        self,
        runtime: Runtime,
        config: ProducerConfig,
        waking: Waking,
        *,
        transactional: bool,
        on_batch: Callable[[], None],
    ) -> None:
        self.memory = BufferMemory(config.buffer_memory)
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.generation = 0  # of the queues: with a new identity there are new ones
        self.complete_bytes = 0  # of batches that became complete since the sender last looked
        self._runtime = runtime
        self._config = config
        self._waking = waking
        self._transactional = transactional
        self._on_batch = on_batch
        self._linger_s = config.linger_ms / 1000
        self._level = config.compression_level
        self._ready: dict[TopicPartition, None] = {}
        self._lingering: deque[tuple[float, PartitionQueue]] = deque()
        self._flushing = 0

    # Records come in

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        queue = self.queues.get(tp)
        if queue is None:
            limit = self._config.max_in_flight_requests_per_connection
            queue = self.queues[tp] = PartitionQueue(tp, idempotent=self._config.idempotent, max_unacked=limit)
        return queue

    def open_batch(self, queue: PartitionQueue) -> ProducerBatch:
        """A new batch at the end of the queue; the one before it, if any, is complete."""
        builder = BatchBuilder(self._config.codec, transactional=self._transactional, level=self._level)
        batch = self._append(queue, builder)
        if self._linger_s and not self._flushing:
            self._lingering.append((batch.created + self._linger_s, queue))
            self._waking.at(batch.created + self._linger_s)
        else:
            self.mark_ready(queue)
        return batch

    def add_columns(self, queue: PartitionQueue, columns: EncodedBatch) -> ProducerBatch:
        """A batch that is complete from the start."""
        columns.transactional = self._transactional
        batch = self._append(queue, columns)
        self.mark_complete(queue, columns.size_estimate)
        return batch

    def _append(self, queue: PartitionQueue, builder: BatchBuilder | EncodedBatch) -> ProducerBatch:
        if queue.waiting:
            self.mark_complete(queue, queue.waiting[-1].builder.size_estimate)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch = ProducerBatch(queue.tp, builder, self._runtime.clock.monotonic(), done)
        queue.waiting.append(batch)
        self._on_batch()
        return batch

    def take_back(self, queue: PartitionQueue, batch: ProducerBatch, size: int) -> None:
        """A record could not be added: neither its bytes stay reserved nor the batch that was opened for it."""
        self.memory.give_back(size)
        if batch.count == 0:
            queue.waiting.remove(batch)

    def mark_complete(self, queue: PartitionQueue, size: int) -> None:
        """The last batch of the queue takes no more records."""
        self.complete_bytes += size
        self.mark_ready(queue)

    # What may be sent

    def mark_ready(self, queue: PartitionQueue) -> None:
        self._ready[queue.tp] = None
        self._waking.now()

    def mark_ready_unless_idle(self, queue: PartitionQueue) -> None:
        if not queue.idle:
            self.mark_ready(queue)

    def unmark(self, queue: PartitionQueue) -> None:
        del self._ready[queue.tp]

    def move_to_end(self, queue: PartitionQueue) -> None:
        """A partition that was sent now goes to the end of the line: a request too small for all is fair to all."""
        self._ready.pop(queue.tp, None)
        self._ready[queue.tp] = None

    def ready(self) -> list[PartitionQueue]:
        """Those that are marked, after those whose time to linger is over were."""
        self.complete_bytes = 0
        now = self._runtime.clock.monotonic()
        while self._lingering and self._lingering[0][0] <= now:
            _, queue = self._lingering.popleft()
            if queue.waiting:
                self._ready[queue.tp] = None
        if self._lingering:
            self._waking.at(self._lingering[0][0])
        return [self.queues[tp] for tp in self._ready]

    def is_due(self, queue: PartitionQueue) -> bool:
        """Whether the first batch that waits need not wait for more records."""
        if self._flushing or len(queue.waiting) > 1 or not self._linger_s:
            return True
        batch = queue.waiting[0]
        if batch.fill >= self._config.batch_size:
            return True
        return self._runtime.clock.monotonic() >= batch.created + self._linger_s

    def pause(self, queue: PartitionQueue) -> None:
        """Nothing is sent for a while, which grows with the failures in a row."""
        queue.failures += 1
        self.pause_for(queue, self._config.retry_backoff.delay_s(queue.failures, self._runtime.random))

    def pause_for(self, queue: PartitionQueue, delay_s: float) -> None:
        queue.not_before = self._runtime.clock.monotonic() + delay_s
        self._waking.at(queue.not_before)

    def is_pausing(self, queue: PartitionQueue) -> bool:
        """Whether the pause goes on; the sender is woken when it ends."""
        if self._runtime.clock.monotonic() >= queue.not_before:
            return False
        self._waking.at(queue.not_before)
        return True

    # All of them

    def is_idle(self) -> bool:
        return all(queue.idle for queue in self.queues.values())

    async def flush(self) -> None:
        """Send everything that was given before this call, and wait for its fate."""
        self._flushing += 1
        try:
            batches = [batch for queue in self.queues.values() for batch in queue.incomplete()]
            for queue in self.queues.values():
                self.mark_ready_unless_idle(queue)
            for batch in batches:
                await batch.finished()
        finally:
            self._flushing -= 1

    def start_anew(self) -> None:
        """New queues, for another identity. Everything in the old ones has its fate."""
        assert self.is_idle()
        self.queues.clear()
        self.generation += 1
        self._ready.clear()
        self._lingering.clear()
