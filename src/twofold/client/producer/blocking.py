"""The producer for code without asyncio: the same producer on a loop thread of its own.

    with twofold.Producer(bootstrap_servers="127.0.0.1:9092") as producer:
        print(producer.send("topic", b"value").result().offset)

1. Batches, heartbeats and retries go on while the application's threads do something else.
2. `send` may be called from many threads. It puts the record into a box that the loop empties, and returns: one
   wake-up serves all records that came meanwhile. Records of one thread keep their order.
3. Everything else first lets the loop empty the box, so that a call sees what was sent before it.
4. The box has a bound; a caller that finds it full waits, at most `max_block_ms`.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, TypeVar, Unpack

from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.config import ProducerConfig, ProducerOptions, from_dotted, from_keywords
from twofold.client.errors import BufferExhausted, IllegalTransactionCall, TransactionAborted
from twofold.client.loop_thread import LoopThread
from twofold.client.producer import accumulator
from twofold.client.producer import producer as aio
from twofold.client.producer.accumulator import OffsetRange, RecordMetadata, record_size
from twofold.client.producer.sequences import ProducerIdentity
from twofold.client.producer.serializing import Serializers
from twofold.client.transactions.block import Transaction as AioTransaction
from twofold.client.transactions.prepared import PreparedTxnState, TransactionOutcome
from twofold.connections.errors import ClientClosed
from twofold.records.batch import RecordHeader
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

T = TypeVar("T")
BOX_BYTES = 1 << 20


class Delivery:
    """A handle on one record."""

    __slots__ = ("_delivery", "_error", "_producer")

    def __init__(self, producer: "Producer") -> None:
        self._producer = producer
        self._delivery: accumulator.Delivery | None = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._error is not None or (self._delivery is not None and self._delivery.done())

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record went, or the error that kept it from its partition; waits until either is known."""
        if not self.done():
            self._producer._run(self._settled(), timeout_s)
        if self._error is not None:
            raise self._error
        assert self._delivery is not None
        return self._delivery.result()

    async def _settled(self) -> None:
        if self._delivery is None and self._error is None:
            await self._producer._box_emptied()
        if self._delivery is not None:
            await self._delivery.settled()


class ColumnDelivery:
    """A handle on the records of a column."""

    __slots__ = ("_delivery", "_producer", "count")

    def __init__(self, producer: "Producer", delivery: accumulator.ColumnDelivery) -> None:
        self._producer = producer
        self._delivery = delivery
        self.count = delivery.count

    def done(self) -> bool:
        return self._delivery.done()

    def result(self, timeout_s: float | None = None) -> list[OffsetRange]:
        """Where the records went, or the first error that kept some back; waits until all is known."""
        if not self._delivery.done():
            self._producer._run(self._delivery.settled(), timeout_s)
        return self._delivery.result()


class _Item(NamedTuple):
    """A record in the box."""

    delivery: Delivery
    size: int
    topic: str
    value: bytes | None
    key: bytes | None
    partition: int | None
    timestamp_ms: int
    headers: tuple[RecordHeader, ...]


class _Mark(NamedTuple):
    """Set when everything before it has left the box."""

    reached: "asyncio.Future[None]"


class Producer:
    """`with Producer(bootstrap_servers=...) as producer`. Leaving the block flushes, or drops what is buffered when the
    block was left by an exception; a transaction that is open then, and not prepared, is aborted either way.

    Keys and values are bytes, or what `key_serializer` and `value_serializer` make bytes of, in the calling thread;
    None is sent as it is."""

    def __init__(self, **options: Unpack[ProducerOptions]) -> None:
        self._start(from_keywords(ProducerConfig, options))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Producer":
        """With Kafka's own names: `{"bootstrap.servers": "...", "linger.ms": 5}`."""
        return cls.of(from_dotted(ProducerConfig, config))

    @classmethod
    def of(cls, config: ProducerConfig) -> "Producer":
        """With settings that were checked already."""
        producer = cls.__new__(cls)
        producer._start(config)
        return producer

    def _start(self, config: ProducerConfig) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._box: list[_Item | _Mark] = []
        self._box_bytes = 0
        self._awake = False
        self._closed = False
        self._serializers = Serializers(config)
        if self._serializers:
            self.send = self._send_serialized  # type: ignore[method-assign] # others pay nothing for it
        self._thread = LoopThread("twofold-producer")
        self._thread.run(self._open())

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        # What comes to the core is serialized already.
        self._core = aio.Producer.of(replace(self.config, key_serializer=None, value_serializer=None))
        self._wake = asyncio.Event()
        self._pump = self._core.spawn(self._empty_box(), name="producer's box")

    def __enter__(self) -> "Producer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(flush=error is None)

    # Records

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[RecordHeader] = (),
    ) -> Delivery:
        """Hand a record over and return; what goes wrong after that, the delivery tells."""
        some_headers = tuple(headers) if headers else ()
        size = record_size(key, value, some_headers)
        if timestamp_ms is None:
            timestamp_ms = self._core.wall_ms()
        self._core.check_send(topic, size)
        delivery = Delivery(self)
        item = _Item(delivery, size, topic, value, key, partition, timestamp_ms, some_headers)
        with self._lock:
            if self._box_bytes > BOX_BYTES:
                self._wait_for_room()
            if self._closed:
                raise ClientClosed("the producer is closed")
            self._box.append(item)
            self._box_bytes += size
            asleep, self._awake = not self._awake, True
        if asleep:
            self._loop.call_soon_threadsafe(self._wake.set)
        return delivery

    def _send_serialized(
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
        return Producer.send(
            self, topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    def _wait_for_room(self) -> None:
        timeout_s = self.config.max_block_ms / 1000
        if not self._room.wait_for(lambda: self._box_bytes <= BOX_BYTES or self._closed, timeout_s):
            raise BufferExhausted(
                f"no room within max_block_ms={self.config.max_block_ms}: records come faster than "
                f"{self.config.bootstrap_servers} takes them (buffer_memory={self.config.buffer_memory})"
            )

    def send_batch(
        self, topic: str, keys: Any, values: Any, *, partition: int | None = None, timestamp_ms: int | None = None
    ) -> ColumnDelivery:
        """Send whole columns: lists of bytes, or Arrow arrays of binary or text; `keys` may be None. Returns when all
        records are in the buffer."""
        keys, values = self._serializers.keys(keys), self._serializers.values(values)
        delivery = self._call(
            self._core.send_batch(topic, keys, values, partition=partition, timestamp_ms=timestamp_ms)
        )
        return ColumnDelivery(self, delivery)

    def flush(self) -> None:
        """Send what is buffered and wait until the fate of every record is known."""
        self._call(self._core.flush())

    def partitions_for(self, topic: str, *, timeout_ms: float | None = None) -> list[int]:
        return self._run(self._core.partitions_for(topic, timeout_ms=timeout_ms))

    def close(self, *, flush: bool = True) -> None:
        """Records outside of transactions are sent first, unless `flush` is False; an open transaction is aborted, one
        that is prepared stays as it is."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._room.notify_all()
        try:
            self._thread.run(self._shut(flush=flush))
        finally:
            self._thread.close()

    async def _shut(self, *, flush: bool) -> None:
        if flush and self.config.transactional_id is None:
            await self._box_emptied()
        self._drop(ClientClosed("the producer was closed before the record was sent"))
        await self._core.close(flush=flush)
        self._pump.cancel()
        await asyncio.wait((self._pump,))
        self._drop(ClientClosed("the producer was closed before the record was sent"))

    # Transactions: see `twofold.aio.Producer`, whose methods these are

    @property
    def identity(self) -> ProducerIdentity | None:
        """Producer id and epoch of the transactional id, which name the open transaction; None before
        init_transactions."""
        return self._core.identity

    def transaction(self) -> "Transaction":
        """`with producer.transaction() as txn`: begins, and commits at the end. An exception aborts; once the
        transaction is prepared it does not: nothing is sent then, and InDoubt is raised."""
        return Transaction(self)

    def init_transactions(self, keep_prepared_txn: bool = False) -> PreparedTxnState:
        return self._call(self._core.init_transactions(keep_prepared_txn))

    def begin_transaction(self) -> None:
        self._call(self._core.begin_transaction())

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | ConsumerGroupMetadata
    ) -> None:
        self._call(self._core.send_offsets_to_transaction(offsets, group))

    def prepare_transaction(self) -> PreparedTxnState:
        return self._call(self._core.prepare_transaction())

    def commit_transaction(self) -> None:
        self._call(self._core.commit_transaction())

    def abort_transaction(self) -> None:
        self._run(self._abort())

    async def _abort(self) -> None:
        self._drop(_aborted())
        await self._core.abort_transaction()
        await self._box_emptied()  # those that were just being taken out

    def complete_transaction(self, state: PreparedTxnState | str | bytes) -> TransactionOutcome:
        """See `twofold.aio.Producer.complete_transaction`."""
        return self._call(self._core.complete_transaction(PreparedTxnState.parse(state)))

    def resume(self, transactional_id: str, producer_id: int, epoch: int) -> None:
        self._call(self._core.resume(transactional_id, producer_id, epoch))

    # The box

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a call of the core after what was sent before it."""
        if self._closed:
            coroutine.close()
            raise ClientClosed("the producer is closed")

        async def in_turn() -> T:
            try:
                await self._box_emptied()
            except BaseException:
                coroutine.close()
                raise
            return await coroutine

        return self._run(in_turn())

    def _run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        if self._closed:
            coroutine.close()
            raise ClientClosed("the producer is closed")
        return self._thread.run(coroutine, timeout_s)

    async def _box_emptied(self) -> None:
        reached: asyncio.Future[None] = self._loop.create_future()
        with self._lock:
            self._box.append(_Mark(reached))
            self._awake = True
        self._wake.set()
        await reached

    async def _empty_box(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while items := self._take():
                for position, item in enumerate(items):
                    try:
                        await self._put(item)
                    except asyncio.CancelledError:
                        self._put_back(items[position:])
                        raise

    def _take(self) -> list[_Item | _Mark]:
        with self._lock:
            items, self._box = self._box, []
            if not items:
                self._awake = False
            return items

    def _put_back(self, items: list[_Item | _Mark]) -> None:
        with self._lock:
            self._box[:0] = items

    async def _put(self, item: _Item | _Mark) -> None:
        if isinstance(item, _Mark):
            if not item.reached.done():
                item.reached.set_result(None)
            return
        delivery, size, topic, value, key, partition, timestamp_ms, headers = item
        try:
            delivery._delivery = await self._core.send(
                topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
        except IllegalTransactionCall:
            # It was in a transaction when it was sent; that has ended since.
            delivery._error = _aborted()
        except Exception as error:
            delivery._error = error
        self._release(size)

    def _release(self, size: int) -> None:
        with self._lock:
            was_full = self._box_bytes > BOX_BYTES
            self._box_bytes -= size
            if was_full and self._box_bytes <= BOX_BYTES:
                self._room.notify_all()

    def _drop(self, error: KafkaError) -> None:
        """Fail what is in the box; marks are reached."""
        for item in self._take():
            if isinstance(item, _Mark):
                if not item.reached.done():
                    item.reached.set_result(None)
            else:
                item.delivery._error = error
                self._release(item.size)


def _aborted() -> TransactionAborted:
    return TransactionAborted("the transaction was aborted before the record was sent")


class Transaction:
    """See `twofold.client.transactions.block`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._core = AioTransaction(producer._core)

    @property
    def prepared_state(self) -> PreparedTxnState:
        """Empty until `prepare` returned."""
        return self._core.prepared_state

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[RecordHeader] = (),
    ) -> Delivery:
        return self._producer.send(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    def send_batch(
        self, topic: str, keys: Any, values: Any, *, partition: int | None = None, timestamp_ms: int | None = None
    ) -> ColumnDelivery:
        return self._producer.send_batch(topic, keys, values, partition=partition, timestamp_ms=timestamp_ms)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | ConsumerGroupMetadata
    ) -> None:
        self._producer.send_offsets_to_transaction(offsets, group)

    def prepare(self) -> PreparedTxnState:
        return self._producer.prepare_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def __enter__(self) -> "Transaction":
        self._producer._call(self._core.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._producer._call(self._core.__aexit__(None, None, None))
        else:
            self._producer._run(self._leave(kind, error, trace))

    async def _leave(self, kind: type[BaseException] | None, error: BaseException, trace: TracebackType | None) -> None:
        if self._core.aborts_on_error:
            self._producer._drop(_aborted())
        try:
            await self._core.__aexit__(kind, error, trace)
        finally:
            await self._producer._box_emptied()
