"""The producer: records in, batches out, idempotent unless told otherwise, in transactions when it has an id."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from types import TracebackType
from typing import Any, Unpack

from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.metadata import TopicMetadata
from twofold.client.config import ProducerConfig, ProducerOptions, from_dotted, from_keywords
from twofold.client.errors import BufferExhausted
from twofold.client.producer.accumulator import (
    ColumnDelivery,
    Delivery,
    PartitionQueue,
    ProducerBatch,
    RecordMetadata,
    record_size,
)
from twofold.client.producer.columns import NO_KEY, KeyPartitions, by_partition, check_items, column_of
from twofold.client.producer.partitioner import StickyPartitioner
from twofold.client.producer.sender import Sender
from twofold.client.producer.sequences import ProducerIdentity
from twofold.client.producer.serializing import Serializers
from twofold.client.transactions.block import Transaction
from twofold.client.transactions.manager import TransactionManager
from twofold.client.transactions.prepared import PreparedTxnState, TransactionOutcome
from twofold.connections.errors import ClientClosed
from twofold.connections.waiting import Deadline
from twofold.records.batch import HEADER_SIZE, RecordHeader
from twofold.records.column_batch import Column, ColumnBatch, EncodedBatch, shape_of, split
from twofold.records.key_hash import partition_for_key
from twofold.runtime.api import Runtime
from twofold.runtime.real import real_runtime
from twofold.types import TopicPartition
from twofold.wire.errors import MessageTooLarge, UnknownTopicOrPartition

__all__ = ["Delivery", "Producer", "RecordMetadata"]

GIVE_WAY_BATCHES = 4
GIVE_WAY_BYTES = 1 << 16
"""As much may wait in complete batches before a caller lets the loop have a turn: they travel in one request then."""
COLUMN_WINDOW = 1 << 16
"""How many records of a column are looked at before the loop gets a turn."""


class Producer:
    """`async with Producer(bootstrap_servers=...) as producer`; must be made while its loop runs.

    `send` returns as soon as the record is in the buffer; await what it returns for the offset. Keys and values are
    bytes, or what `key_serializer` and `value_serializer` make bytes of; None is sent as it is. Leaving the block
    flushes, or drops what is buffered when the block was left by an exception; a transaction that is open then, and
    not prepared, is aborted either way.
    """

    def __init__(self, *, runtime: Runtime | None = None, **options: Unpack[ProducerOptions]) -> None:
        self._start(from_keywords(ProducerConfig, options), runtime)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, runtime: Runtime | None = None) -> "Producer":
        """With Kafka's own names: `{"bootstrap.servers": "...", "linger.ms": 5}`."""
        return cls.of(from_dotted(ProducerConfig, config), runtime=runtime)

    @classmethod
    def of(cls, config: ProducerConfig, *, runtime: Runtime | None = None) -> "Producer":
        """With settings that were checked already."""
        producer = cls.__new__(cls)
        producer._start(config, runtime)
        return producer

    def _start(self, config: ProducerConfig, runtime: Runtime | None) -> None:
        self.config = config
        self._runtime = runtime or real_runtime()
        self._cluster = Cluster(self._runtime, config, allow_auto_create=True)
        self._transactions = TransactionManager(self._runtime, config, self._cluster)
        self._in_transactions = config.transactional_id is not None
        opened = self._transactions.open if self._in_transactions else None
        self._sender = self._transactions.sender = Sender(self._runtime, config, self._cluster, opened)
        self._backlog = self._sender.backlog
        self._targets: dict[str, _Target] = {}
        self._key_partitions = KeyPartitions()
        self._codec = config.codec
        self._level = config.compression_level
        self._batch_bytes = config.batch_size
        self._give_way_bytes = min(GIVE_WAY_BYTES, GIVE_WAY_BATCHES * config.batch_size)
        self._max_record_bytes = config.max_request_size - HEADER_SIZE
        self._ignore_keys = config.partitioner_ignore_keys
        self.wall_ms = self._runtime.clock.wall_ms
        self.spawn = self._runtime.spawn
        self._closed = False
        self._serializers = Serializers(config)
        if self._serializers:
            self.send = self._send_serialized  # type: ignore[method-assign] # others pay nothing for it

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=error is None)

    # Records

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[RecordHeader] = (),
    ) -> Delivery:
        """Put a record into the buffer; waits (at most `max_block_ms`) for metadata and for room."""
        if self._backlog.complete_bytes >= self._give_way_bytes:
            # A caller in a tight loop gives way now and then, or nothing would leave before the buffer is full.
            await self._runtime.timers.sleep(0)
        if headers:
            headers = tuple(headers)
        size = record_size(key, value, headers)
        if self._closed or size > self._max_record_bytes or self._in_transactions:
            self.check_send(topic, size)
        target = self._targets.get(topic)
        if (
            target is None
            or target.metadata is not self._cluster.cache.topic(topic)
            or (partition is not None and partition not in target.metadata.partitions)
            or not self._backlog.memory.try_take(size)
        ):
            target = await self._wait_for_target(topic, partition, size)
        return self._add(target, size, key, value, partition, timestamp_ms, headers)

    async def _send_serialized(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[RecordHeader] = (),
    ) -> Delivery:
        value, key = self._serializers.value(value), self._serializers.key(key)
        return await Producer.send(
            self, topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    async def _wait_for_target(self, topic: str, partition: int | None, size: int) -> "_Target":
        """What sending needs: metadata of today, and `size` bytes of the buffer. Waits only for what is missing."""
        metadata = self._known(topic, partition)
        if metadata is None or not self._backlog.memory.try_take(size):
            deadline = self._cluster.deadline(self.config.max_block_ms, "max_block_ms")
            metadata = metadata or await self._metadata(topic, partition, deadline)
            await self._take_memory(size, deadline)
        return self._target(metadata)

    def _add(
        self,
        target: "_Target",
        size: int,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Iterable[RecordHeader],
    ) -> Delivery:
        """The record enters its batch. Nothing waits here, so that records keep the order of the calls."""
        if timestamp_ms is None:
            timestamp_ms = self.wall_ms()
        sticky: StickyPartitioner | None = None
        if partition is None:
            if key is None or self._ignore_keys:
                sticky = target.sticky
                partition = sticky.current(target.available)
            else:
                partition = partition_for_key(key, target.count)
        backlog = self._backlog
        if target.generation != backlog.generation:
            target.generation = backlog.generation
            target.queues.clear()
        queue = target.queues.get(partition)
        if queue is None:
            queue = target.queues[partition] = backlog.queue(TopicPartition(target.metadata.name, partition))
        waiting = queue.waiting
        batch = waiting[-1] if waiting else None
        if batch is None or batch.fill + size > self._batch_bytes:
            self._cluster.peek(target.metadata.name)  # which fetches newer metadata when they are old
            batch = backlog.open_batch(queue)
        builder = batch.builder
        try:
            fill = batch.fill = builder.add(key, value, timestamp_ms, headers)  # type: ignore[union-attr]
        except BaseException:
            backlog.take_back(queue, batch, size)
            check_items("key", [key])
            check_items("value", [value])
            raise
        batch.reserved += size
        full = fill >= self._batch_bytes
        if full:
            backlog.mark_complete(queue, fill)
        if sticky is not None:
            sticky.on_added(size, batch_is_full=full)
        return Delivery(batch, builder.count - 1, timestamp_ms)

    def check_send(self, topic: str, size: int) -> None:
        """Raise what `send` of a record of about `size` bytes would raise at once; may be asked from any thread."""
        if self._closed:
            raise ClientClosed("the producer is closed")
        if self._in_transactions:
            self._transactions.check_send()
        if size > self._max_record_bytes:
            raise MessageTooLarge(
                f"a record of {size} bytes for topic {topic!r} is above max_request_size={self.config.max_request_size}"
            )

    def _known(self, topic: str, partition: int | None) -> TopicMetadata | None:
        """The topic's metadata when there is no need to wait for it."""
        metadata = self._cluster.peek(topic)
        if metadata is None or not metadata.with_leader:
            return None
        return metadata if partition is None or partition in metadata.partitions else None

    def _target(self, metadata: TopicMetadata) -> "_Target":
        known = self._targets.get(metadata.name)
        sticky = self._make_sticky(metadata.name) if known is None else known.sticky
        target = self._targets[metadata.name] = _Target(metadata, sticky, self._backlog.generation)
        return target

    async def send_batch(
        self,
        topic: str,
        keys: Any,
        values: Any,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> ColumnDelivery:
        """Send whole columns: lists of bytes, or Arrow arrays of binary or text; `keys` may be None. Returns when all
        records are in the buffer, which has them in batches of up to `max_request_size` and all under one timestamp.

        Records go where `send` would put them, but those without a key change the partition with every batch.
        """
        value_column = column_of(self._serializers.values(values))
        key_column = None if keys is None else column_of(self._serializers.keys(keys))
        if key_column is not None and len(key_column) != len(value_column):
            raise ValueError(f"{len(key_column)} keys do not go with {len(value_column)} values")
        self.check_send(topic, 0)
        metadata = self._known(topic, partition)
        if metadata is None:
            deadline = self._cluster.deadline(self.config.max_block_ms, "max_block_ms")
            metadata = await self._metadata(topic, partition, deadline)
        if timestamp_ms is None:
            timestamp_ms = self._runtime.clock.wall_ms()
        batches: list[ProducerBatch] = []
        try:
            for start in range(0, len(value_column), COLUMN_WINDOW):
                part = slice(start, start + COLUMN_WINDOW)
                some_keys = None if key_column is None else key_column[part]
                for target, group_keys, group_values in self._grouped(
                    metadata, partition, some_keys, value_column[part]
                ):
                    shape = shape_of(group_keys, group_values)
                    for low, high in pairwise(split(group_keys, group_values, self.config.max_request_size, shape)):
                        chosen = None if group_keys is None else group_keys[low:high]
                        columns = ColumnBatch(
                            chosen, group_values[low:high], timestamp_ms, self._codec, self._level, shape
                        )
                        batches.append(await self._add_columns(metadata, target, columns))
        except TypeError:
            check_items("keys", key_column)
            check_items("values", value_column)
            raise
        return ColumnDelivery(batches)

    def _grouped(
        self, metadata: TopicMetadata, partition: int | None, keys: Column | None, values: Column
    ) -> Iterator[tuple[int | None, Column | None, Column]]:
        """Keys and values by partition; None leaves the choice of one to the code that adds the batch."""
        if partition is not None or keys is None or self._ignore_keys:
            yield partition, keys, values
            return
        partitions = self._key_partitions.of(keys, len(metadata.partitions))
        for target, (group_keys, group_values) in by_partition(keys, values, partitions).items():
            yield (None if target == NO_KEY else target), group_keys, group_values

    async def _add_columns(
        self, metadata: TopicMetadata, partition: int | None, columns: EncodedBatch
    ) -> ProducerBatch:
        size = columns.size_estimate
        self.check_send(metadata.name, size - HEADER_SIZE if columns.count == 1 else 0)
        if self._backlog.complete_bytes >= self._give_way_bytes:
            await self._runtime.timers.sleep(0)
        if not self._backlog.memory.try_take(size):
            await self._take_memory(size, self._cluster.deadline(self.config.max_block_ms, "max_block_ms"))
        if partition is None:
            target = self._target(metadata)
            sticky = target.sticky
            partition = sticky.current(target.available)
            sticky.on_added(size, batch_is_full=True)
        batch = self._backlog.add_columns(self._backlog.queue(TopicPartition(metadata.name, partition)), columns)
        batch.reserved = size
        return batch

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
        """Records outside of transactions are sent first, unless `flush` is False; an open transaction is aborted, one
        that is prepared stays as it is."""
        if self._closed:
            return
        self._closed = True
        if flush and not self._in_transactions:
            await self._sender.flush()
        await self._transactions.close()
        await self._sender.close()
        await self._cluster.close()

    # Transactions

    @property
    def identity(self) -> ProducerIdentity | None:
        """Producer id and epoch of the transactional id, which name the open transaction; None before
        init_transactions."""
        return self._transactions.identity

    def transaction(self) -> Transaction:
        """`async with producer.transaction() as txn`: begins, and commits at the end. An exception aborts; once the
        transaction is prepared it does not: nothing is sent then, and InDoubt is raised."""
        return Transaction(self)

    async def init_transactions(self, keep_prepared_txn: bool = False) -> PreparedTxnState:
        """Take over the transactional id, once, before anything else: what another producer with the same id does from
        now on is refused, and what it left open is aborted.

        With `keep_prepared_txn` that is kept instead, so that it can be completed here; the result tells which it is
        (the empty state: there was none).
        """
        return await self._transactions.init(keep_prepared=keep_prepared_txn)

    async def begin_transaction(self) -> None:
        """Records sent from now on belong to the transaction."""
        await self._transactions.begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | ConsumerGroupMetadata
    ) -> None:
        """Commit a group's offsets as a part of the transaction; an offset is that of the next record to be read."""
        metadata = ConsumerGroupMetadata(group) if isinstance(group, str) else group
        await self._transactions.send_offsets(offsets, metadata)

    async def prepare_transaction(self) -> PreparedTxnState:
        """Wait until all records are in the log. From then on only the decision is missing: keep the state that this
        returns where the decision is made. Needs `transaction_two_phase_commit_enable`."""
        return await self._transactions.prepare()

    async def commit_transaction(self) -> None:
        """Wait until all records are in the log, and show them to readers."""
        await self._transactions.commit()

    async def abort_transaction(self) -> None:
        """Records that are still here fail at once, those on their way are waited for, and readers see none."""
        await self._transactions.abort()

    async def complete_transaction(self, state: PreparedTxnState | str | bytes) -> TransactionOutcome:
        """Commit if `state` is that of the prepared (or kept) transaction, abort if it is another's, and say which.

        When no transaction was left open, nothing is changed: the result says what became of the one that `state`
        names. Of one that was aborted it raises PreparedAborted, with the cause.
        """
        return await self._transactions.complete(PreparedTxnState.parse(state))

    async def resume(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        """Take up a transaction whose producer is gone, without a word to the coordinator; commit or abort it next.

        For brokers without two-phase commit: a process that kept id and epoch can still decide, before the
        transaction's timeout and before the transactional id is used again.
        """
        await self._transactions.resume(transactional_id, producer_id, epoch)

    # How

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
        if not await self._backlog.memory.take(size, self._runtime, deadline):
            raise BufferExhausted(
                f"no room for {size} bytes within max_block_ms={self.config.max_block_ms}: records come faster than "
                f"{self.config.bootstrap_servers} takes them (buffer_memory={limit})"
            )
        try:
            # What was allowed when the wait began may not be any more.
            self.check_send("", 0)
        except BaseException:
            self._backlog.memory.give_back(size)
            raise

    def _make_sticky(self, topic: str) -> StickyPartitioner:
        def load(partition: int) -> int:
            queue = self._backlog.queues.get(TopicPartition(topic, partition))
            return 0 if queue is None else len(queue.waiting)

        adaptive = self.config.partitioner_adaptive_partitioning_enable
        return StickyPartitioner(self._runtime.random, self.config.batch_size, load if adaptive else None)


class _Target:
    """What sending to a topic needs, as long as its metadata stay the same."""

    __slots__ = ("available", "count", "generation", "metadata", "queues", "sticky")

    def __init__(self, metadata: TopicMetadata, sticky: StickyPartitioner, generation: int) -> None:
        self.metadata = metadata
        self.available = metadata.with_leader or tuple(metadata.partitions)
        self.count = len(metadata.partitions)
        self.sticky = sticky
        self.generation = generation
        self.queues: dict[int, PartitionQueue] = {}
