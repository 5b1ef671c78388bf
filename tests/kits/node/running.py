"""A whole broker on the test's own loop, and a client that asks it anything in any version."""

import asyncio
import dataclasses
import itertools
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from kits.node.sockets import TIMEOUT_S, Wire
from twofold.broker.broker import Broker
from twofold.config.settings import Settings
from twofold.log.log import PartitionLog
from twofold.records.batch import BatchBuilder
from twofold.runtime.api import Data, TimerHandle, Timers
from twofold.runtime.real import real_runtime
from twofold.wire import codec
from twofold.wire.apis import KEYS
from twofold.wire.messages import create_topics, fetch, list_offsets, produce

if TYPE_CHECKING:
    from twofold.broker.metrics.reading import BrokerCollector, Scraper

Topic: TypeAlias = str | UUID | None  # None: an id of zeros
FetchRow: TypeAlias = (
    tuple[Topic, int, int]
    | tuple[Topic, int, int, int]
    | tuple[Topic, int, int, int, int]
    | tuple[Topic, int, int, int, int, int]
)
ListRow: TypeAlias = tuple[str, int, int] | tuple[str, int, int, int]

PRODUCE, FETCH, LIST_OFFSETS = KEYS["Produce"], KEYS["Fetch"], KEYS["ListOffsets"]


class ManualTimers:
    """Timers that fire when the test says so, beside real ones for whatever else waits."""

    def __init__(self, real: Timers) -> None:
        self._real = real
        self.pending: list[_Timer] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        if delay_s <= 0:
            return self._real.call_later(delay_s, callback)
        timer = _Timer(delay_s, callback, self.pending)
        self.pending.append(timer)
        return timer

    async def sleep(self, delay_s: float) -> None:
        await self._real.sleep(delay_s)

    def fire(self, delay_s: float) -> int:
        """Fire everything that was set for this delay."""
        due = [timer for timer in self.pending if timer.delay_s == delay_s]
        for timer in due:
            timer.cancel()
            timer.callback()
        return len(due)


class _Timer:
    def __init__(self, delay_s: float, callback: Callable[[], None], pending: "list[_Timer]") -> None:
        self.delay_s = delay_s
        self.callback = callback
        self._pending = pending

    def cancel(self) -> None:
        if self in self._pending:
            self._pending.remove(self)


class Client(Wire):
    _ids = itertools.count(1)

    def ask(self, message: Any, key: int, version: int) -> int:
        """Send without waiting; returns the correlation id."""
        correlation_id = next(self._ids)
        self.send_raw(bytes(codec.encode_request(message, key, version, correlation_id, "test")))
        return correlation_id

    async def answer(self, key: int, version: int) -> tuple[int, Any]:
        return codec.decode_response(key, version, await self.receive())

    async def call(self, message: Any, key: int, version: int) -> Any:
        sent = self.ask(message, key, version)
        correlation_id, response = await self.answer(key, version)
        assert correlation_id == sent
        return response


class Node:
    """A running broker and what tests do with it most."""

    def __init__(self, broker: Broker, timers: Timers) -> None:
        self.broker = broker
        self._timers = timers
        self.clients: list[Client] = []

    @property
    def timers(self) -> ManualTimers:
        assert isinstance(self._timers, ManualTimers), "the test started the broker without manual_timers"
        return self._timers

    @property
    def address(self) -> tuple[str, int]:
        return self.broker.listeners[0].host, self.broker.listeners[0].port

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection(*self.address, limit=2**26)
        client = Client(reader, writer)
        self.clients.append(client)
        return client

    async def create(self, name: str, partitions: int = 1, **configs: object) -> UUID:
        response = await self.broker.controller.create_topics(
            create_topics.CreateTopicsRequest(
                topics=[
                    create_topics.CreatableTopic(
                        name=name,
                        num_partitions=partitions,
                        replication_factor=1,
                        assignments=(),
                        configs=[
                            create_topics.CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
                            for key, value in configs.items()
                        ],
                    )
                ],
                timeout_ms=1000,
            )
        )
        assert response.topics[0].error_code == 0, response
        return self.topic_id(name)

    def topic_id(self, name: str) -> UUID:
        found = self.broker.image.topic(name)
        assert found is not None, name
        return found.topic_id

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        return self.broker.replicas.leader(topic, partition).log


@asynccontextmanager
async def running(
    directory: str | Path, settings: Mapping[str, object] | None = None, *, manual_timers: bool = False
) -> AsyncIterator[Node]:
    runtime = real_runtime()
    timers = ManualTimers(runtime.timers) if manual_timers else runtime.timers
    texts = {"listeners": "PLAINTEXT://127.0.0.1:0"} | {k: str(v) for k, v in (settings or {}).items()}
    broker = Broker(dataclasses.replace(runtime, timers=timers), Settings.from_mapping(texts), str(directory))
    await broker.start()
    node = Node(broker, timers)
    try:
        yield node
    finally:
        for client in node.clients:
            client.close()
        await broker.stop(0.0 if manual_timers else TIMEOUT_S)


def collector_of(broker: Broker) -> "BrokerCollector":
    """The metrics of a running broker, as `twofold serve` collects them."""
    from twofold.broker.metrics.reading import BrokerCollector

    return BrokerCollector(broker.services, broker.server, broker.first_look, broker.listeners)


def scraper_of(broker: Broker) -> "Scraper":
    from twofold.broker.metrics.reading import Scraper

    return Scraper(collector_of(broker), broker.runtime)


# --- batches and requests ---


def batch(
    *values: bytes | None,
    codec_id: int = 0,
    producer: tuple[int, int, int] | None = None,
    timestamp: int | None = None,
    key: bytes | None = None,
    transactional: bool = False,
    **fields: Any,
) -> bytes:
    """A record batch; `producer` is (id, epoch, base sequence)."""
    from twofold.records.compression import Codec

    builder = BatchBuilder(Codec(codec_id), transactional=transactional, **fields)
    if producer is not None:
        builder.producer_id, builder.producer_epoch, builder.base_sequence = producer
    for number, value in enumerate(values or (b"value",)):
        builder.add(key, value, (1_700_000_000_000 if timestamp is None else timestamp) + number)
    return builder.build()


def produce_request(
    *rows: tuple[Topic, int, Data | None],
    acks: int = -1,
    transactional_id: str | None = None,
    timeout_ms: int = 30_000,
) -> produce.ProduceRequest:
    """Rows of (topic or topic id, partition, records)."""
    topics: dict[Topic, list[produce.PartitionProduceData]] = {}
    for topic, partition, records in rows:
        topics.setdefault(topic, []).append(produce.PartitionProduceData(index=partition, records=records))
    return produce.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            produce.TopicProduceData(
                name=topic if isinstance(topic, str) else "",
                topic_id=None if isinstance(topic, str) else topic,
                partition_data=data,
            )
            for topic, data in topics.items()
        ],
    )


def fetch_request(
    *rows: FetchRow,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 2**31 - 1,
    isolation_level: int = 0,
    **fields: Any,
) -> fetch.FetchRequest:
    """Rows of (topic or topic id, partition, offset[, partition max bytes[, leader epoch[, last fetched epoch]]])."""
    topics: dict[Topic, list[fetch.FetchPartition]] = {}
    for topic, partition, offset, *rest in rows:
        max_partition, leader_epoch, last_epoch = (*rest, *(1_048_576, -1, -1)[len(rest) :])
        topics.setdefault(topic, []).append(
            fetch.FetchPartition(
                partition=partition,
                fetch_offset=offset,
                partition_max_bytes=max_partition,
                current_leader_epoch=leader_epoch,
                last_fetched_epoch=last_epoch,
            )
        )
    return fetch.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        topics=[
            fetch.FetchTopic(
                topic=topic if isinstance(topic, str) else "",
                topic_id=None if isinstance(topic, str) else topic,
                partitions=partitions,
            )
            for topic, partitions in topics.items()
        ],
        **fields,
    )


def list_request(*rows: ListRow, isolation_level: int = 0, replica_id: int = -1) -> list_offsets.ListOffsetsRequest:
    """Rows of (topic, partition, timestamp[, leader epoch])."""
    topics: dict[str, list[list_offsets.ListOffsetsPartition]] = {}
    for topic, partition, timestamp, *rest in rows:
        topics.setdefault(topic, []).append(
            list_offsets.ListOffsetsPartition(
                partition_index=partition, timestamp=timestamp, current_leader_epoch=rest[0] if rest else -1
            )
        )
    return list_offsets.ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=[list_offsets.ListOffsetsTopic(name=name, partitions=found) for name, found in topics.items()],
    )


def produced(response: produce.ProduceResponse) -> list[produce.PartitionProduceResponse]:
    """The partition rows of a Produce response, in order."""
    return [row for topic in response.responses for row in topic.partition_responses]


def fetched(response: fetch.FetchResponse) -> list[fetch.PartitionData]:
    return [row for topic in response.responses for row in topic.partitions]


def records_of(row: fetch.PartitionData) -> bytes:
    assert row.records is not None
    return bytes(row.records)


def listed(response: list_offsets.ListOffsetsResponse) -> list[list_offsets.ListOffsetsPartitionResponse]:
    return [row for topic in response.topics for row in topic.partitions]


def raw_header(key: int, version: int, correlation_id: int = 1) -> bytes:
    return struct.pack(">hhih", key, version, correlation_id, -1)
