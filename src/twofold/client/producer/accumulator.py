"""Records on their way to a batch, and batches on their way to a broker."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from twofold.client.producer.sequences import PartitionSequences, ProducerIdentity
from twofold.connections.waiting import Deadline, done_within
from twofold.records.batch import HEADER_SIZE, BatchBuilder, RecordHeader, iter_records
from twofold.records.column_batch import EncodedBatch
from twofold.runtime.api import Runtime
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Generator

    from twofold.wire.errors import KafkaError

COMPLETE = 1 << 62
# What a record costs besides its key, value and headers: five varints and the attributes, rarely more.
RECORD_OVERHEAD = 21


class RecordMetadata(NamedTuple):
    """Where a record went. The offset is -1 when the broker did not tell (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class ProducerBatch:
    """Records of one partition that travel together."""

    __slots__ = (
        "append_time",
        "attempts",
        "base_offset",
        "base_sequence",
        "builder",
        "created",
        "done",
        "fill",
        "identity",
        "in_doubt",
        "on_wire",
        "parts",
        "reserved",
        "tp",
    )

    def __init__(
        self, tp: TopicPartition, builder: BatchBuilder | EncodedBatch, created: float, done: "asyncio.Future[None]"
    ) -> None:
        self.tp = tp
        self.builder = builder
        self.created = created
        self.done = done
        # The bytes that are in it, for the code that adds records; nothing is added to one that came complete.
        self.fill = HEADER_SIZE if isinstance(builder, BatchBuilder) else COMPLETE
        self.reserved = 0  # bytes of the producer's buffer
        self.attempts = 0
        self.base_offset = -1
        self.append_time = NO_TIMESTAMP
        # The smaller batches that took this one's place, each with the index of its first record.
        self.parts: list[tuple[int, ProducerBatch]] = []
        self.identity: ProducerIdentity | None = None
        self.base_sequence = NO_SEQUENCE
        self.on_wire = False
        self.in_doubt = False

    @property
    def count(self) -> int:
        return self.builder.count

    @property
    def size(self) -> int:
        return self.builder.size_estimate

    def build(self) -> bytes | bytearray:
        builder = self.builder
        identity = self.identity or ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        builder.producer_id, builder.producer_epoch = identity
        builder.base_sequence = self.base_sequence
        return builder.build()

    def halves(self) -> list["ProducerBatch"]:
        """The same records in two batches of about the same size; neither is empty."""
        middle = self.size // 2
        last = self.count - 1
        whole = self.builder
        parts: list[ProducerBatch] = []
        builder = BatchBuilder(whole.codec)
        for index, record in enumerate(iter_records(self.build())):
            if len(parts) == 0 or (len(parts) == 1 and (parts[0].size >= middle or index == last)):
                builder = BatchBuilder(whole.codec, transactional=whole.transactional, level=whole.level)
                part = ProducerBatch(self.tp, builder, self.created, self.done.get_loop().create_future())
                parts.append(part)
                self.parts.append((index, part))
            builder.add(record.key, record.value, record.timestamp, record.headers)
        for part in parts:
            part.reserved = self.reserved * part.count // self.count
        parts[-1].reserved += self.reserved - sum(part.reserved for part in parts)
        return parts

    def succeed(self, base_offset: int, append_time: int) -> None:
        self.base_offset = base_offset
        self.append_time = append_time
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: "KafkaError") -> None:
        if not self.done.done():
            self.done.set_exception(error)
            # The code that failed it reports it; a caller that keeps no handle is no reason for asyncio to complain.
            self.done.exception()

    async def finished(self) -> None:
        """When the fate of every record is known; failures are not raised."""
        await asyncio.wait((self.done,))
        for _, part in self.parts:
            await part.finished()


class Delivery:
    """A handle on one record: await it for the RecordMetadata, or the error that kept the record from its partition."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        batch, _ = self._locate()
        return batch.done.done()

    def result(self) -> RecordMetadata:
        """Of a delivery that is done."""
        batch, index = self._locate()
        batch.done.result()
        offset = -1 if batch.base_offset < 0 else batch.base_offset + index
        timestamp = self._timestamp if batch.append_time == NO_TIMESTAMP else batch.append_time
        return RecordMetadata(batch.tp.topic, batch.tp.partition, offset, timestamp)

    def __await__(self) -> "Generator[object, None, RecordMetadata]":
        yield from self.settled().__await__()
        return self.result()

    async def settled(self) -> None:
        """When the record's fate is known; a failure is not raised."""
        while True:
            batch, _ = self._locate()
            if batch.done.done():
                return
            # wait() and not the future itself: a caller that is cancelled must not cancel the batch.
            await asyncio.wait((batch.done,))

    def _locate(self) -> tuple[ProducerBatch, int]:
        batch, index = self._batch, self._index
        while batch.parts:
            start, part = max(entry for entry in batch.parts if entry[0] <= index)
            batch, index = part, index - start
        return batch, index


class OffsetRange(NamedTuple):
    """Where some records of a column went, in their order. The offset is -1 when the broker did not tell."""

    topic: str
    partition: int
    base_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here


class ColumnDelivery:
    """A handle on the records of a column: await it for where they went, or the first error that kept some back."""

    __slots__ = ("_batches", "count")

    def __init__(self, batches: list[ProducerBatch]) -> None:
        self._batches = batches
        self.count = sum(batch.count for batch in batches)

    def done(self) -> bool:
        return all(batch.done.done() for batch in self._parts())

    def result(self) -> list[OffsetRange]:
        """Of a delivery that is done; batches of a partition are in the order of its records."""
        ranges = []
        for batch in self._parts():
            batch.done.result()
            ranges.append(OffsetRange(batch.tp.topic, batch.tp.partition, batch.base_offset, batch.count))
        return ranges

    def __await__(self) -> "Generator[object, None, list[OffsetRange]]":
        yield from self.settled().__await__()
        return self.result()

    async def settled(self) -> None:
        """When the fate of all records is known; failures are not raised."""
        for batch in self._batches:
            await batch.finished()

    def _parts(self) -> list[ProducerBatch]:
        found: list[ProducerBatch] = []
        left = self._batches[::-1]
        while left:
            batch = left.pop()
            if batch.parts:
                left += [part for _, part in reversed(batch.parts)]
            else:
                found.append(batch)
        return found


class PartitionQueue:
    """Everything of one partition that is not acknowledged: batches never sent, and those in `sequences`."""

    __slots__ = ("failures", "last_acked_offset", "not_before", "sequences", "tp", "waiting")

    def __init__(self, tp: TopicPartition, *, idempotent: bool, max_unacked: int) -> None:
        self.tp = tp
        self.waiting: deque[ProducerBatch] = deque()
        self.sequences: PartitionSequences[ProducerBatch] = PartitionSequences(
            idempotent=idempotent, max_unacked=max_unacked
        )
        self.failures = 0
        self.last_acked_offset = -1
        self.not_before = 0.0

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.sequences.unacked

    def incomplete(self) -> list[ProducerBatch]:
        return [*self.sequences.unacked, *self.waiting]


def record_size(key: bytes | None, value: bytes | None, headers: Iterable[RecordHeader]) -> int:
    """At most what a record takes in a batch."""
    size = RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += 10 + 4 * len(name) + (len(content) if content else 0)
    return size


class BufferMemory:
    """The bytes that unacknowledged records may take; callers that find it full wait in line."""

    __slots__ = ("_limit", "_used", "_waiters")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used(self) -> int:
        return self._used

    def try_take(self, size: int) -> bool:
        if self._waiters or self._used + size > self._limit:
            return False
        self._used += size
        return True

    async def take(self, size: int, runtime: Runtime, deadline: Deadline) -> bool:
        """Whether there was room before the deadline."""
        if self.try_take(size):
            return True
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, granted)
        self._waiters.append(entry)
        try:
            return await done_within(runtime, granted, deadline.remaining_s())
        except asyncio.CancelledError:
            if granted.done():
                self.give_back(size)
            raise
        finally:
            if not granted.done():
                self._waiters.remove(entry)
                self._grant()

    def give_back(self, size: int) -> None:
        self._used -= size
        self._grant()

    def _grant(self) -> None:
        while self._waiters and self._used + self._waiters[0][0] <= self._limit:
            size, granted = self._waiters.popleft()
            self._used += size
            granted.set_result(None)
