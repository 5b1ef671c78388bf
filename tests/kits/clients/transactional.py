"""Transactional producers of stock clients behind one interface, so that each of them tells the same stories.

All methods block, and none for ever. What a library refuses comes out as `Refused`, with the name that the library
gives it and what the library says that one may do next: nothing (`fenced`, `fatal`) or abort (`abortable`).

A client that is opened with a `Source` also reads: as a member of a group where the library can hand the membership
to the transaction (KIP-447), with partitions assigned by hand where it cannot (aiokafka).
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

PATIENCE_S = 15.0
SESSION_MS = 2500
"""A broker that starts again gives every member a full session: shorter than the time between two kills."""
# librdkafka 2.16 starts from the bootstrap servers again when all brokers (here: one) are away, and then waits for ever
# for the broker that it remembers as a group's coordinator.
REMEMBER = {"metadata.recovery.strategy": "none"}
LIMIT = 100
"""Records of a poll, so of a transaction of the loop."""


class Row(NamedTuple):
    partition: int
    offset: int
    value: str


class Source(NamedTuple):
    group: str
    topic: str
    partitions: int
    protocol: str = "classic"
    """Of the group: "consumer" is that of KIP-848."""


class Refused(Exception):
    def __init__(self, kind: str, name: str, text: str = "") -> None:
        super().__init__(f"{kind}: {name} {text}")
        self.kind, self.name = kind, name


class TransactionalClient(Protocol):
    """One producer with a transactional id, and what it reads from."""

    def open(self, transactional_id: str, timeout_ms: int, source: Source | None = None) -> None: ...
    def reopen(self) -> None:
        """A new producer of the same id; reading goes on at the committed offsets."""

    def begin(self) -> None: ...
    def send(self, topic: str, rows: Sequence[tuple[int, str]]) -> None: ...
    def flush(self) -> None:
        """All that was sent is acknowledged, or this raises."""

    def send_offsets(self, group: str, topic: str, positions: Mapping[int, int]) -> None: ...
    def commit(self) -> bool:
        """False: the client itself has aborted instead."""

    def abort(self) -> None: ...
    def poll(self, wait_s: float) -> list[Row]: ...
    def rewind(self, positions: Mapping[int, int]) -> None: ...
    def read(self, topic: str, partitions: int, *, committed: bool) -> list[Row]:
        """A whole topic, by an isolation level, to what is its end now."""

    def close(self) -> None: ...


def bounded(story: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """For calls that their library does not bound; what does not end is left behind in a daemon thread."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((story(), None))
        except BaseException as error:
            outcome.extend((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(patience_s)
    if not outcome:
        raise Refused("fatal", "Timeout", f"no end within {patience_s} s")
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


class Confluent:
    """librdkafka through confluent-kafka."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._producer: Any = None
        self._consumer: Any = None
        self._failures: list[Any] = []

    def open(self, transactional_id: str, timeout_ms: int, source: Source | None = None) -> None:
        self._settings = {
            "bootstrap.servers": self.address,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 2,
            "retry.backoff.ms": 50,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 300,
            "log_level": 0,
            **REMEMBER,
        }
        self._open_producer()
        if source is not None:
            self._source = source
            self._consumer = self._new_consumer(source.group, committed=True, protocol=source.protocol)
            self._consumer.subscribe([source.topic])

    def _open_producer(self) -> None:
        from confluent_kafka import Producer

        self._failures.clear()
        self._producer = Producer(self._settings)
        self._do(self._producer.init_transactions)

    def _new_consumer(self, group: str, *, committed: bool, protocol: str = "classic") -> Any:
        from confluent_kafka import Consumer

        own = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 300} if protocol == "classic" else {}
        return Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "group.protocol": protocol,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 300,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
                **own,
                **REMEMBER,
            }
        )

    def _do(self, call: Callable[..., Any], *arguments: Any) -> None:
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                call(*arguments, deadline - time.monotonic())
                return
            except KafkaException as error:
                cause = error.args[0]
                if not (cause.retriable() and time.monotonic() < deadline):
                    raise self._refused(cause) from error

    def _refused(self, cause: Any) -> Refused:
        from confluent_kafka import KafkaError

        fenced = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
        kind = "abortable" if cause.txn_requires_abort() else "fenced" if cause.code() in fenced else "fatal"
        return Refused(kind, cause.name(), cause.str())

    def reopen(self) -> None:
        self._close_producer()
        self._open_producer()
        if self._consumer is not None:
            committed = self._consumer.committed(self._consumer.assignment(), PATIENCE_S)
            self.rewind({row.partition: max(row.offset, 0) for row in committed})

    def begin(self) -> None:
        from confluent_kafka import KafkaException

        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._refused(error.args[0]) from error

    def send(self, topic: str, rows: Sequence[tuple[int, str]]) -> None:
        from confluent_kafka import KafkaException

        for partition, value in rows:
            try:
                self._producer.produce(topic, value, partition=partition, on_delivery=self._delivered)
            except KafkaException as error:
                raise self._refused(error.args[0]) from error

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failures.append(error)

    def flush(self) -> None:
        try:
            left = self._producer.flush(PATIENCE_S)
        except SystemError as error:  # a fatal error while deliveries are told; the next call has the reason
            raise Refused("abortable", "SystemError", str(error)) from error
        failures, self._failures = self._failures, []
        if failures:
            raise Refused("abortable", failures[0].name(), failures[0].str())
        if left:
            raise Refused("abortable", "Timeout", f"{left} records are not delivered")

    def send_offsets(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        from confluent_kafka import TopicPartition

        consumer = self._consumer or self._new_consumer(group, committed=True)
        rows = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
        self._do(self._producer.send_offsets_to_transaction, rows, consumer.consumer_group_metadata())
        if self._consumer is None:
            consumer.close()

    def commit(self) -> bool:
        self._do(self._producer.commit_transaction)
        return True

    def abort(self) -> None:
        self._failures.clear()
        self._do(self._producer.abort_transaction)
        self._failures.clear()

    def poll(self, wait_s: float) -> list[Row]:
        rows = self._consumer.consume(LIMIT, wait_s)
        return [Row(row.partition(), row.offset(), row.value().decode()) for row in rows if row.error() is None]

    def rewind(self, positions: Mapping[int, int]) -> None:
        from confluent_kafka import TopicPartition

        owned = {row.partition for row in self._consumer.assignment()}
        for partition, offset in positions.items():
            if partition in owned:
                self._consumer.seek(TopicPartition(self._source.topic, partition, offset))

    def read(self, topic: str, partitions: int, *, committed: bool) -> list[Row]:
        from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

        reader = self._new_consumer("reader", committed=committed)
        reader.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        rows, open_ends, deadline = [], set(range(partitions)), time.monotonic() + 4 * PATIENCE_S
        while open_ends:
            assert time.monotonic() < deadline, f"{topic}: the end of {open_ends} was not reached"
            for row in reader.consume(10_000, 0.2):
                if row.error() is None:
                    rows.append(Row(row.partition(), row.offset(), row.value().decode()))
                elif row.error().code() == KafkaError._PARTITION_EOF:
                    open_ends.discard(row.partition())
        reader.close()
        return rows

    def _close_producer(self) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def close(self) -> None:
        self._close_producer()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


class KafkaPython:
    def __init__(self, address: str) -> None:
        self.address = address
        self._producer: Any = None
        self._consumer: Any = None
        self._futures: list[Any] = []

    def open(self, transactional_id: str, timeout_ms: int, source: Source | None = None) -> None:
        self._id, self._timeout_ms = transactional_id, timeout_ms
        self._open_producer()
        if source is not None:
            self._source = source
            self._consumer = self._new_consumer(source.group, committed=True)
            self._consumer.subscribe([source.topic])

    def _open_producer(self) -> None:
        from kafka import KafkaProducer

        self._futures.clear()
        self._producer = self._do(
            lambda: KafkaProducer(
                bootstrap_servers=self.address,
                transactional_id=self._id,
                transaction_timeout_ms=self._timeout_ms,
                max_block_ms=int(PATIENCE_S * 1000),
                delivery_timeout_ms=int(PATIENCE_S * 1000),
                request_timeout_ms=10_000,
                linger_ms=2,
                retry_backoff_ms=50,
                reconnect_backoff_ms=50,
                reconnect_backoff_max_ms=300,
            )
        )
        self._do(self._producer.init_transactions)

    def _new_consumer(self, group: str | None, *, committed: bool) -> Any:
        from kafka import KafkaConsumer
        from kafka.coordinator.assignors.range import RangePartitionAssignor

        return KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed" if committed else "read_uncommitted",
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            reconnect_backoff_ms=50,
            reconnect_backoff_max_ms=300,
            fetch_max_wait_ms=100,
            max_poll_records=LIMIT,
        )

    def _do(self, call: Callable[[], Any]) -> Any:
        from kafka.errors import KafkaError

        try:
            return bounded(call)
        except KafkaError as error:
            # Its producer wraps the reason for its state in a plain KafkaError, as text.
            fenced = "ProducerFenced" in f"{type(error).__name__} {error}"
            raise Refused("fenced" if fenced else "abortable", type(error).__name__, str(error)) from error

    def reopen(self) -> None:
        from kafka import TopicPartition

        self._close_producer()
        self._open_producer()
        if self._consumer is not None:
            owned = [TopicPartition(self._source.topic, row.partition) for row in self._consumer.assignment()]
            committed = {row.partition: self._do(partial(self._consumer.committed, row)) for row in owned}
            self.rewind({partition: offset or 0 for partition, offset in committed.items()})

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, topic: str, rows: Sequence[tuple[int, str]]) -> None:
        def story() -> None:
            for partition, value in rows:
                self._futures.append(self._producer.send(topic, value.encode(), partition=partition))

        self._do(story)

    def flush(self) -> None:
        self._do(lambda: self._producer.flush(PATIENCE_S))
        futures, self._futures = self._futures, []
        self._do(lambda: [future.get(PATIENCE_S) for future in futures])

    def send_offsets(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        from kafka import OffsetAndMetadata, TopicPartition

        rows = {TopicPartition(topic, at): OffsetAndMetadata(offset, "", -1) for at, offset in positions.items()}
        member = self._consumer.group_metadata() if self._consumer is not None else group
        self._do(lambda: self._producer.send_offsets_to_transaction(rows, member))

    def commit(self) -> bool:
        self._do(self._producer.commit_transaction)
        return True

    def abort(self) -> None:
        self._futures.clear()
        self._do(self._producer.abort_transaction)

    def poll(self, wait_s: float) -> list[Row]:
        if not self._consumer.assignment():
            # kafka-python 3.0.12 forgets a join that a new topic has caused when the poll that started it ends first.
            wait_s = 5.0
        batches = self._do(lambda: self._consumer.poll(timeout_ms=int(wait_s * 1000)))
        return [Row(row.partition, row.offset, row.value.decode()) for batch in batches.values() for row in batch]

    def rewind(self, positions: Mapping[int, int]) -> None:
        owned = {row.partition: row for row in self._consumer.assignment()}
        for partition, offset in positions.items():
            if partition in owned:
                self._consumer.seek(owned[partition], offset)

    def read(self, topic: str, partitions: int, *, committed: bool) -> list[Row]:
        from kafka import TopicPartition

        reader = self._new_consumer(None, committed=committed)
        where = [TopicPartition(topic, index) for index in range(partitions)]
        reader.assign(where)
        reader.seek_to_beginning(*where)
        ends, rows, deadline = reader.end_offsets(where), [], time.monotonic() + 4 * PATIENCE_S
        while any(reader.position(at) < end for at, end in ends.items()):
            assert time.monotonic() < deadline, f"the end {ends} was not reached"
            for batch in reader.poll(timeout_ms=200).values():
                rows += [Row(row.partition, row.offset, row.value.decode()) for row in batch]
        reader.close()
        return rows

    def _close_producer(self) -> None:
        if self._producer is not None:
            with suppress(Refused):
                self._do(lambda: self._producer.close(timeout=0))
            self._producer = None

    def close(self) -> None:
        self._close_producer()
        if self._consumer is not None:
            with suppress(Refused):
                self._do(self._consumer.close)
            self._consumer = None


class AioKafka:
    """Its loop runs in a thread of its own, as in a service that does other things as well."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._producer: Any = None
        self._consumer: Any = None
        self._futures: list[Any] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)  # its tasks end with what its calls have raised already
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def _do(self, story: Callable[[], Coroutine[Any, Any, Any]], patience_s: float = PATIENCE_S) -> Any:
        from aiokafka.errors import KafkaError, ProducerFenced

        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(story(), patience_s), self._loop)
        try:
            return future.result(patience_s + 5)
        except ProducerFenced as error:
            raise Refused("fenced", type(error).__name__, str(error)) from error
        except (KafkaError, AssertionError) as error:
            # An assertion: the state of its producer does not allow the call, after an error of a task of its own.
            fenced = "ProducerFenced" in repr(error.__cause__)
            raise Refused("fenced" if fenced else "abortable", type(error).__name__, str(error)) from error
        except TimeoutError as error:
            raise Refused("fatal", "Timeout", f"no end within {patience_s} s") from error

    def open(self, transactional_id: str, timeout_ms: int, source: Source | None = None) -> None:
        self._id, self._timeout_ms = transactional_id, timeout_ms
        self._do(self._open_producer)
        if source is not None:
            self._source = source
            self._do(self._open_consumer)

    async def _open_producer(self) -> None:
        from aiokafka import AIOKafkaProducer

        self._futures.clear()
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self.address,
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
            request_timeout_ms=10_000,
            retry_backoff_ms=50,
            linger_ms=2,
        )
        await self._producer.start()

    def _new_consumer(self, group: str | None, *, committed: bool) -> Any:
        from aiokafka import AIOKafkaConsumer

        return AIOKafkaConsumer(
            bootstrap_servers=self.address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed" if committed else "read_uncommitted",
            retry_backoff_ms=50,
            fetch_max_wait_ms=100,
            max_poll_records=LIMIT,
        )

    async def _open_consumer(self) -> None:
        from aiokafka import TopicPartition

        self._consumer = self._new_consumer(self._source.group, committed=True)
        await self._consumer.start()
        self._consumer.assign([TopicPartition(self._source.topic, index) for index in range(self._source.partitions)])

    def reopen(self) -> None:
        self._close_producer()
        self._do(self._open_producer)
        if self._consumer is not None:

            async def story() -> None:
                for at in self._consumer.assignment():
                    self._consumer.seek(at, await self._consumer.committed(at) or 0)

            self._do(story)

    def begin(self) -> None:
        self._do(lambda: self._producer.begin_transaction())

    def send(self, topic: str, rows: Sequence[tuple[int, str]]) -> None:
        async def story() -> None:
            for partition, value in rows:
                self._futures.append(await self._producer.send(topic, value.encode(), partition=partition))

        self._do(story)

    def flush(self) -> None:
        futures, self._futures = self._futures, []

        async def story() -> None:
            for result in await asyncio.gather(*futures, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

        self._do(story)

    def send_offsets(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        from aiokafka import TopicPartition

        rows = {TopicPartition(topic, partition): offset for partition, offset in positions.items()}
        self._do(lambda: self._producer.send_offsets_to_transaction(rows, group))

    def commit(self) -> bool:
        self._do(lambda: self._producer.commit_transaction())
        return True

    def abort(self) -> None:
        self._futures.clear()
        self._do(lambda: self._producer.abort_transaction())

    def poll(self, wait_s: float) -> list[Row]:
        batches = self._do(lambda: self._consumer.getmany(timeout_ms=int(wait_s * 1000)))
        return [Row(row.partition, row.offset, row.value.decode()) for batch in batches.values() for row in batch]

    def rewind(self, positions: Mapping[int, int]) -> None:
        from aiokafka import TopicPartition

        async def story() -> None:
            for partition, offset in positions.items():
                self._consumer.seek(TopicPartition(self._source.topic, partition), offset)

        self._do(story)

    def read(self, topic: str, partitions: int, *, committed: bool) -> list[Row]:
        from aiokafka import TopicPartition

        async def story() -> list[Row]:
            reader = self._new_consumer(None, committed=committed)
            await reader.start()
            try:
                where = [TopicPartition(topic, index) for index in range(partitions)]
                reader.assign(where)
                await reader.seek_to_beginning(*where)
                rows: list[Row] = []
                while True:
                    for batch in (await reader.getmany(timeout_ms=200)).values():
                        rows += [Row(row.partition, row.offset, row.value.decode()) for row in batch]
                    ends = [reader.last_stable_offset(at) if committed else reader.highwater(at) for at in where]
                    positions = [await reader.position(at) for at in where]
                    if all(end is not None and at >= end for at, end in zip(positions, ends, strict=True)):
                        break
                return rows
            finally:
                await reader.stop()

        rows: list[Row] = self._do(story, 4 * PATIENCE_S)
        return rows

    def _close_producer(self) -> None:
        if self._producer is not None:
            with suppress(Refused):
                self._do(lambda: self._producer.stop(), 3)
            self._producer = None

    def close(self) -> None:
        self._close_producer()
        if self._consumer is not None:
            with suppress(Refused):
                self._do(lambda: self._consumer.stop(), 5)
            self._consumer = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


STOCK: dict[str, Callable[[str], TransactionalClient]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}
