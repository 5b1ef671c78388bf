"""The producer: records in, batches out, idempotent unless told otherwise."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Unpack

from twofold.client.accumulator import Delivery, ProducerBatch, RecordMetadata, record_size
from twofold.client.cluster import Cluster
from twofold.client.config import ProducerConfig, ProducerOptions, from_dotted, from_keywords
from twofold.client.errors import BufferExhausted, ClientClosed
from twofold.client.metadata import TopicMetadata
from twofold.client.partitioner import StickyPartitioner, partition_for_key
from twofold.client.sender import Sender
from twofold.client.waiting import Deadline
from twofold.records.batch import HEADER_SIZE, RecordHeader
from twofold.runtime.api import Runtime
from twofold.runtime.real import real_runtime
from twofold.types import TopicPartition
from twofold.wire.errors import MessageTooLarge, UnknownTopicOrPartition

__all__ = ["Delivery", "Producer", "RecordMetadata"]


class Producer:
    """`async with Producer(bootstrap_servers=...) as producer`; must be made while its loop runs.

    `send` returns as soon as the record is in the buffer; await what it returns for the offset. Leaving the block
    flushes, or drops what is buffered when the block was left by an exception.
    """

    def __init__(self, *, runtime: Runtime | None = None, **options: Unpack[ProducerOptions]) -> None:
        self._start(from_keywords(ProducerConfig, options), runtime)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, runtime: Runtime | None = None) -> "Producer":
        """With Kafka's own names: `{"bootstrap.servers": "...", "linger.ms": 5}`."""
        producer = cls.__new__(cls)
        producer._start(from_dotted(ProducerConfig, config), runtime)
        return producer

    def _start(self, config: ProducerConfig, runtime: Runtime | None) -> None:
        self.config = config
        self._runtime = runtime or real_runtime()
        self._cluster = Cluster(self._runtime, config, allow_auto_create=True)
        self._sender = Sender(self._runtime, config, self._cluster)
        self._sticky: dict[str, StickyPartitioner] = {}
        self._closed = False

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=error is None)

    async def send(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[RecordHeader] = (),
    ) -> Delivery:
        """Put a record into the buffer; waits (at most `max_block_ms`) for metadata and for room."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        headers = tuple(headers)
        size = record_size(key, value, headers)
        if size + HEADER_SIZE > self.config.max_request_size:
            raise MessageTooLarge(
                f"a record of {size} bytes for topic {topic!r} is above max_request_size={self.config.max_request_size}"
            )
        if self._sender.full_batches_wait:
            # A caller in a tight loop gives way once a batch, or nothing would leave before the buffer is full.
            await self._runtime.timers.sleep(0)
        deadline: Deadline | None = None
        metadata = self._cluster.peek(topic)
        if (
            metadata is None
            or not metadata.with_leader
            or (partition is not None and partition not in metadata.partitions)
        ):
            deadline = self._cluster.deadline(self.config.max_block_ms, "max_block_ms")
            metadata = await self._metadata(topic, partition, deadline)
        if not self._sender.memory.try_take(size):
            deadline = deadline or self._cluster.deadline(self.config.max_block_ms, "max_block_ms")
            await self._take_memory(size, deadline)
        if timestamp_ms is None:
            timestamp_ms = self._runtime.clock.wall_ms()
        if partition is None:
            partition = self._partition(metadata, key, size)
        # From here on nothing waits: the record enters its batch in the order of the calls.
        batch = self._batch_for(TopicPartition(topic, partition), size)
        batch.builder.add(key, value, timestamp_ms, headers)
        batch.reserved += size
        if batch.builder.size_estimate >= self.config.batch_size:
            self._sender.mark_ready(self._sender.queue(batch.tp))
        return Delivery(batch, batch.builder.count - 1, timestamp_ms)

    async def partitions_for(self, topic: str, *, timeout_ms: float | None = None) -> list[int]:
        """The partitions of a topic; waits for its metadata, at most `max_block_ms` unless told otherwise."""
        if timeout_ms is None:
            deadline = self._cluster.deadline(self.config.max_block_ms, "max_block_ms")
        else:
            deadline = self._cluster.deadline(timeout_ms, "timeout_ms")
        return list((await self._cluster.topic(topic, deadline)).partitions)

    async def flush(self) -> None:
        """Send what is buffered and wait until the fate of every record is known."""
        await self._sender.flush()

    async def close(self, *, flush: bool = True) -> None:
        if self._closed:
            return
        self._closed = True
        if flush:
            await self._sender.flush()
        await self._sender.close()
        await self._cluster.close()

    async def _metadata(self, topic: str, partition: int | None, deadline: Deadline) -> TopicMetadata:
        async def attempt() -> TopicMetadata:
            metadata = await self._cluster.topic(topic, deadline)
            if partition is not None and partition not in metadata.partitions:
                count = len(metadata.partitions)
                raise UnknownTopicOrPartition(
                    f"topic {topic!r} has partitions 0 to {count - 1}, there is no partition {partition}"
                )
            return metadata

        return await self._cluster.retry(f"looking up topic {topic!r}", attempt, deadline)

    async def _take_memory(self, size: int, deadline: Deadline) -> None:
        limit = self.config.buffer_memory
        if size > limit:
            raise BufferExhausted(f"a record of {size} bytes does not fit into buffer_memory={limit}")
        if not await self._sender.memory.take(size, self._runtime, deadline):
            raise BufferExhausted(
                f"no room for {size} bytes within max_block_ms={self.config.max_block_ms}: records come faster than "
                f"{self.config.bootstrap_servers} takes them (buffer_memory={limit})"
            )
        if self._closed:
            self._sender.memory.give_back(size)
            raise ClientClosed("the producer is closed")

    def _partition(self, metadata: TopicMetadata, key: bytes | None, size: int) -> int:
        if key is not None:
            return partition_for_key(key, len(metadata.partitions))
        sticky = self._sticky.get(metadata.name)
        if sticky is None:
            sticky = self._sticky[metadata.name] = StickyPartitioner(self._runtime.random, self.config.batch_size)
        return sticky.choose(metadata.with_leader or tuple(metadata.partitions), size)

    def _batch_for(self, tp: TopicPartition, size: int) -> ProducerBatch:
        queue = self._sender.queue(tp)
        batch = queue.open
        if batch is None or batch.builder.size_estimate + size > self.config.batch_size:
            batch = self._sender.open_batch(queue)
        return batch
