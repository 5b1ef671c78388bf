"""The producer: records in, batches out, idempotent unless told otherwise, in transactions when it has an id."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Unpack

from twofold.client.accumulator import Delivery, ProducerBatch, RecordMetadata, record_size
from twofold.client.cluster import Cluster
from twofold.client.config import ProducerConfig, ProducerOptions, from_dotted, from_keywords
from twofold.client.errors import BufferExhausted, ClientClosed
from twofold.client.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.metadata import TopicMetadata
from twofold.client.partitioner import StickyPartitioner, partition_for_key
from twofold.client.prepared import PreparedTxnState
from twofold.client.sender import Sender
from twofold.client.transaction_block import Transaction
from twofold.client.transactions import Transactions
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
    flushes, or drops what is buffered when the block was left by an exception; a transaction that is open then, and
    not prepared, is aborted either way.
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
        self._transactions = Transactions(self._runtime, config, self._cluster)
        self._in_transactions = config.transactional_id is not None
        opened = self._transactions.open if self._in_transactions else None
        self._sender = self._transactions.sender = Sender(self._runtime, config, self._cluster, opened)
        self._sticky: dict[str, StickyPartitioner] = {}
        self._closed = False

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
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[RecordHeader] = (),
    ) -> Delivery:
        """Put a record into the buffer; waits (at most `max_block_ms`) for metadata and for room."""
        if headers:
            headers = tuple(headers)
        size = record_size(key, value, headers)
        self._check_send(topic, size)
        if self._sender.full_batches_wait:
            # A caller in a tight loop gives way once a batch, or nothing would leave before the buffer is full.
            await self._runtime.timers.sleep(0)
        metadata = self._known(topic, partition)
        if metadata is None or not self._sender.memory.try_take(size):
            deadline = self._cluster.deadline(self.config.max_block_ms, "max_block_ms")
            metadata = metadata or await self._metadata(topic, partition, deadline)
            await self._take_memory(size, deadline)
        # From here on nothing waits: the record enters its batch in the order of the calls.
        return self._add(metadata, size, key, value, partition, timestamp_ms, headers)

    def _check_send(self, topic: str, size: int) -> None:
        if self._closed:
            raise ClientClosed("the producer is closed")
        if self._in_transactions:
            self._transactions.check_send()
        if size + HEADER_SIZE > self.config.max_request_size:
            raise MessageTooLarge(
                f"a record of {size} bytes for topic {topic!r} is above max_request_size={self.config.max_request_size}"
            )

    def _known(self, topic: str, partition: int | None) -> TopicMetadata | None:
        """The topic's metadata when there is no need to wait for it."""
        metadata = self._cluster.peek(topic)
        if metadata is None or not metadata.with_leader:
            return None
        return metadata if partition is None or partition in metadata.partitions else None

    def _add(
        self,
        metadata: TopicMetadata,
        size: int,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Iterable[RecordHeader],
    ) -> Delivery:
        if timestamp_ms is None:
            timestamp_ms = self._runtime.clock.wall_ms()
        sticky: StickyPartitioner | None = None
        if partition is None:
            if key is None or self.config.partitioner_ignore_keys:
                sticky = self._sticky_for(metadata.name)
                partition = sticky.current(metadata.with_leader or tuple(metadata.partitions))
            else:
                partition = partition_for_key(key, len(metadata.partitions))
        batch = self._batch_for(TopicPartition(metadata.name, partition), size)
        builder = batch.builder
        builder.add(key, value, timestamp_ms, headers)
        batch.reserved += size
        full = builder.size_estimate >= self.config.batch_size
        if full:
            self._sender.mark_ready(self._sender.queue(batch.tp))
        if sticky is not None:
            sticky.on_added(size, batch_is_full=full)
        return Delivery(batch, builder.count - 1, timestamp_ms)

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

    async def complete_transaction(self, state: PreparedTxnState | str) -> None:
        """Commit if `state` is that of the prepared (or kept) transaction, abort if it is another; when no transaction
        was left open there is nothing to do."""
        await self._transactions.complete(PreparedTxnState(state) if isinstance(state, str) else state)

    async def resume(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        """Take up a transaction whose producer is gone, without a word to the coordinator; commit or abort it next.

        For brokers without two-phase commit: whoever kept id and epoch can still decide, before the transaction's
        timeout and before the transactional id is used again.
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
        if not await self._sender.memory.take(size, self._runtime, deadline):
            raise BufferExhausted(
                f"no room for {size} bytes within max_block_ms={self.config.max_block_ms}: records come faster than "
                f"{self.config.bootstrap_servers} takes them (buffer_memory={limit})"
            )
        try:
            # What was allowed when the wait began may not be any more.
            self._check_send("", 0)
        except BaseException:
            self._sender.memory.give_back(size)
            raise

    def _sticky_for(self, topic: str) -> StickyPartitioner:
        sticky = self._sticky.get(topic)
        if sticky is None:
            queues = self._sender.queues

            def load(partition: int) -> int:
                queue = queues.get(TopicPartition(topic, partition))
                return 0 if queue is None else len(queue.waiting)

            adaptive = self.config.partitioner_adaptive_partitioning_enable
            sticky = StickyPartitioner(self._runtime.random, self.config.batch_size, load if adaptive else None)
            self._sticky[topic] = sticky
        return sticky

    def _batch_for(self, tp: TopicPartition, size: int) -> ProducerBatch:
        queue = self._sender.queue(tp)
        batch = queue.open
        if batch is None or batch.builder.size_estimate + size > self.config.batch_size:
            batch = self._sender.open_batch(queue)
        return batch
