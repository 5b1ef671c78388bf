"""Our own clients, `twofold.Producer` and `twofold.Consumer`, as one of the transactional clients."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from kits.clients.transactional import LIMIT, PATIENCE_S, SESSION_MS, Refused, Row, Source
from twofold import Consumer, Producer, TopicPartition
from twofold.client.producer.blocking import Delivery
from twofold.errors import Fenced, KafkaError

T = TypeVar("T")
PATIENCE_MS = int(PATIENCE_S * 1000)


class Twofold:
    """It reads as a member of the group, whose membership goes into the transaction (KIP-447)."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._deliveries: list[Delivery] = []

    def open(self, transactional_id: str, timeout_ms: int, source: Source | None = None) -> None:
        self._id, self._timeout_ms = transactional_id, timeout_ms
        self._open_producer()
        if source is not None:
            self._source = source
            self._consumer = self._new_consumer(committed=True, group_id=source.group, group_protocol=source.protocol)
            self._consumer.subscribe([source.topic])

    def _open_producer(self) -> None:
        self._deliveries.clear()
        self._producer = Producer(
            bootstrap_servers=self.address,
            transactional_id=self._id,
            transaction_timeout_ms=self._timeout_ms,
            max_block_ms=PATIENCE_MS,
            delivery_timeout_ms=PATIENCE_MS,
            default_api_timeout_ms=PATIENCE_MS,
            request_timeout_ms=10_000,
            linger_ms=2,
            retry_backoff_ms=50,
        )
        self._do(self._producer.init_transactions)

    def _new_consumer(self, *, committed: bool, **group: Any) -> Consumer:
        if group:
            group |= {"session_timeout_ms": SESSION_MS, "enable_auto_commit": False}
            group |= {"heartbeat_interval_ms": 300} if group["group_protocol"] == "classic" else {}
        return Consumer(
            bootstrap_servers=self.address,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if committed else "read_uncommitted",
            default_api_timeout_ms=PATIENCE_MS,
            fetch_max_wait_ms=100,
            max_poll_records=LIMIT,
            retry_backoff_ms=50,
            **group,
        )

    def _do(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Fenced as error:
            raise Refused("fenced", type(error).__name__, str(error)) from error
        except KafkaError as error:
            raise Refused("fatal" if error.fatal else "abortable", type(error).__name__, str(error)) from error

    def reopen(self) -> None:
        self._close_producer()
        self._open_producer()
        if self._consumer is not None:
            consumer = self._consumer
            committed = self._do(lambda: consumer.committed(consumer.assignment))
            self.rewind({tp.partition: 0 if found is None else found.offset for tp, found in committed.items()})

    def begin(self) -> None:
        self._do(self._own.begin_transaction)

    @property
    def _own(self) -> Producer:
        assert self._producer is not None
        return self._producer

    def send(self, topic: str, rows: Sequence[tuple[int, str]]) -> None:
        def story() -> None:
            for partition, value in rows:
                self._deliveries.append(self._own.send(topic, value.encode(), partition=partition))

        self._do(story)

    def flush(self) -> None:
        deliveries, self._deliveries = self._deliveries, []
        self._do(lambda: [delivery.result(PATIENCE_S) for delivery in deliveries])

    def send_offsets(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        offsets = {TopicPartition(topic, partition): offset for partition, offset in positions.items()}
        consumer = self._consumer
        member = group if consumer is None else consumer.group_metadata()
        self._do(lambda: self._own.send_offsets_to_transaction(offsets, member))

    def commit(self) -> bool:
        self._do(self._own.commit_transaction)
        return True

    def abort(self) -> None:
        self._deliveries.clear()
        self._do(self._own.abort_transaction)

    def poll(self, wait_s: float) -> list[Row]:
        assert self._consumer is not None
        consumer = self._consumer
        return rows_of(self._do(lambda: consumer.poll(wait_s * 1000)))

    def rewind(self, positions: Mapping[int, int]) -> None:
        assert self._consumer is not None
        owned = {tp.partition: tp for tp in self._consumer.assignment}
        for partition, offset in positions.items():
            if partition in owned:
                self._consumer.seek(owned[partition], offset)

    def read(self, topic: str, partitions: int, *, committed: bool) -> list[Row]:
        where = [TopicPartition(topic, index) for index in range(partitions)]
        rows, deadline = [], time.monotonic() + 4 * PATIENCE_S
        with self._new_consumer(committed=committed) as reader:
            reader.assign(where)
            ends = reader.end_offsets(where)
            while any(reader.position(tp) < end for tp, end in ends.items()):
                assert time.monotonic() < deadline, f"the end {ends} was not reached"
                rows += rows_of(reader.poll(200))
        return rows

    def _close_producer(self) -> None:
        if self._producer is not None:
            with suppress(KafkaError):
                self._producer.close(flush=False)
            self._producer = None

    def close(self) -> None:
        self._close_producer()
        if self._consumer is not None:
            with suppress(KafkaError):
                self._consumer.close(5_000)
            self._consumer = None


def rows_of(records: Sequence[Any]) -> list[Row]:
    return [Row(record.partition, record.offset, record.value.decode()) for record in records]
