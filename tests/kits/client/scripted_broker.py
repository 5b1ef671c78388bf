"""A broker of a few lines for the client's tests: real frames on a simulated network, answers that a test scripts.

It keeps the producer rules that matter to a client (epochs, sequence numbers, a memory of five batches), so that a
client that doubles, drops or reorders is caught by the log that it leaves.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from twofold.records.batch import BatchBuilder, iter_headers, iter_records, read_header, stamp
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire import codec, errors
from twofold.wire.apis import APIS, KEYS
from twofold.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from twofold.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from twofold.wire.messages.init_producer_id import InitProducerIdResponse
from twofold.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from twofold.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from twofold.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from twofold.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

PORT = 9092
SILENCE = object()
"""What a script returns for a request that is never answered."""
HANG_UP = object()
"""... and for one on which the connection is closed."""

Script = Callable[["FakeBroker", Any], Any]


@dataclass
class ProducerEntry:
    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))  # first, last, offset


@dataclass
class FakePartition:
    log: bytearray = field(default_factory=bytearray)
    end: int = 0
    start: int = 0
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    stable: int | None = None  # the LSO, where a transaction is open
    is_strict: bool = False  # an unknown producer begins with 0, as before Apache Kafka 2.5
    aborted: list[tuple[int, int]] = field(default_factory=list)
    epoch_ends: dict[int, tuple[int, int]] = field(default_factory=dict)  # where an epoch ends, if not at the log end

    def append(self, batch: bytes) -> tuple[int, int]:
        """(error code, base offset), by the rules of idempotent producers."""
        header = read_header(batch)
        numbered = header.has_producer_id and not header.is_control
        entry = self.producers.get(header.producer_id) if numbered else None
        if entry is not None:
            if header.producer_epoch < entry.epoch:
                return errors.InvalidProducerEpoch.code, -1
            if header.producer_epoch == entry.epoch:
                for first, last, offset in entry.batches:
                    if (first, last) == (header.base_sequence, header.last_sequence):
                        return 0, offset
                expected = entry.batches[-1][1] + 1
            else:
                expected = 0
            if header.base_sequence != expected:
                return errors.OutOfOrderSequenceNumber.code, -1
        elif numbered and self.is_strict and header.base_sequence != 0:
            return errors.UnknownProducerId.code, -1
        data = bytearray(batch)
        stamp(data, 0, base_offset=self.end, leader_epoch=0)
        self.log += data
        base, self.end = self.end, self.end + header.last_offset_delta + 1
        if numbered:
            if entry is None or entry.epoch != header.producer_epoch:
                entry = self.producers[header.producer_id] = ProducerEntry(header.producer_epoch)
            entry.batches.append((header.base_sequence, header.last_sequence, base))
        return 0, base

    def forget(self, *, keep_records: bool = False) -> None:
        """Retention removes all records, and the producers with them, as before Apache Kafka 2.5."""
        self.producers.clear()
        if not keep_records:
            self.start = self.end

    def values(self) -> list[bytes]:
        return [
            record.value or b""
            for position, header in iter_headers(self.log)
            if not header.is_control
            for record in iter_records(self.log, position)
        ]


class FakeBroker:
    """`scripts[api]` holds functions for the next requests of that API: each returns a response, None for the usual
    answer, SILENCE or HANG_UP. `seen` counts requests."""

    def __init__(self, runtime: Runtime, host: str, *, topics: dict[str, int], node_id: int = 1) -> None:
        self.runtime = runtime
        self.host = host
        self.node_id = node_id
        self.topics = dict(topics)
        self.ids = {name: UUID(int=number + 1) for number, name in enumerate(topics)}
        self.partitions: dict[TopicPartition, FakePartition] = {}
        self.nodes = {node_id: (host, PORT)}
        self.leaders: dict[TopicPartition, tuple[int, int]] = {}
        self.scripts: dict[str, deque[Script]] = {}
        self.seen: dict[str, int] = {}
        self.requests: list[tuple[str, int, Any]] = []
        self.connections = 0
        self.versions = {key: (api.min_version, api.max_version) for key, api in APIS.items()}
        self.next_producer_id = 100
        self.max_message_bytes = 1 << 20
        self.delay_s = 0.001
        self.listener: Any = None

    async def start(self) -> "FakeBroker":
        self.listener = await self.runtime.network.listen(lambda: _Session(self), self.host, PORT)
        return self

    def script(self, api: str, *steps: Script) -> None:
        self.scripts.setdefault(api, deque()).extend(steps)

    def partition(self, topic: str, partition: int = 0) -> FakePartition:
        return self.partitions.setdefault(TopicPartition(topic, partition), FakePartition())

    def answer(self, api: str, version: int, request: Any) -> Any:
        self.seen[api] = self.seen.get(api, 0) + 1
        self.requests.append((api, version, request))
        steps = self.scripts.get(api)
        if steps:
            scripted = steps.popleft()(self, request)
            if scripted is not None:
                return scripted
        usual: Any = getattr(self, f"on_{APIS[KEYS[api]].module}")
        return usual(request)

    def on_api_versions(self, _: Any) -> ApiVersionsResponse:
        rows = [
            ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in self.versions.items()
        ]
        return ApiVersionsResponse(error_code=0, api_keys=rows)

    def on_metadata(self, request: Any) -> MetadataResponse:
        names = list(self.topics) if request.topics is None else [row.name for row in request.topics]
        brokers = [MetadataResponseBroker(node_id=i, host=h, port=p) for i, (h, p) in self.nodes.items()]
        return MetadataResponse(
            brokers=brokers, topics=[self._topic(name) for name in names], controller_id=self.node_id, cluster_id="fake"
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name not in self.topics:
            code = errors.UnknownTopicOrPartition.code
            return MetadataResponseTopic(error_code=code, name=name, partitions=[])
        rows = []
        for index in range(self.topics[name]):
            leader, epoch = self.leaders.get(TopicPartition(name, index), (self.node_id, 0))
            rows.append(
                MetadataResponsePartition(
                    error_code=0,
                    partition_index=index,
                    leader_id=leader,
                    leader_epoch=epoch,
                    replica_nodes=[leader],
                    isr_nodes=[leader],
                )
            )
        return MetadataResponseTopic(error_code=0, name=name, topic_id=self.ids[name], partitions=rows)

    def on_init_producer_id(self, _: Any) -> InitProducerIdResponse:
        self.next_producer_id += 1
        return InitProducerIdResponse(error_code=0, producer_id=self.next_producer_id, producer_epoch=0)

    def name_of(self, row: Any) -> str:
        name: str = getattr(row, "name", "") or getattr(row, "topic", "")
        return name or next(name for name, topic_id in self.ids.items() if topic_id == row.topic_id)

    def on_produce(self, request: Any) -> ProduceResponse:
        topics = []
        for topic in request.topic_data:
            name = self.name_of(topic)
            rows = [self._append(name, row) for row in topic.partition_data]
            topics.append(TopicProduceResponse(name=name, topic_id=self.ids[name], partition_responses=rows))
        return ProduceResponse(responses=topics)

    def _append(self, name: str, row: Any) -> PartitionProduceResponse:
        batch = bytes(row.records)
        if len(batch) > self.max_message_bytes:
            code, offset = errors.MessageTooLarge.code, -1
        else:
            code, offset = self.partition(name, row.index).append(batch)
        start = self.partition(name, row.index).start
        return PartitionProduceResponse(index=row.index, error_code=code, base_offset=offset, log_start_offset=start)

    def refuse_produce(self, error: type[errors.KafkaError]) -> Script:
        """A script: every partition of the request gets this error and nothing is appended."""

        def step(_: "FakeBroker", request: Any) -> ProduceResponse:
            topics = []
            for topic in request.topic_data:
                name = self.name_of(topic)
                rows = [
                    PartitionProduceResponse(index=row.index, error_code=error.code, base_offset=-1)
                    for row in topic.partition_data
                ]
                topics.append(TopicProduceResponse(name=name, topic_id=self.ids[name], partition_responses=rows))
            return ProduceResponse(responses=topics)

        return step

    def on_list_offsets(self, request: Any) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                offset = {-1: self.partition(topic.name, row.partition_index).end, -2: 0}.get(row.timestamp, -1)
                rows.append(
                    ListOffsetsPartitionResponse(partition_index=row.partition_index, error_code=0, offset=offset)
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        return ListOffsetsResponse(topics=topics)

    def on_offset_for_leader_epoch(self, request: Any) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                partition = self.partition(topic.topic, row.partition)
                epoch, end = partition.epoch_ends.get(row.leader_epoch, (row.leader_epoch, partition.end))
                rows.append(EpochEndOffset(error_code=0, partition=row.partition, leader_epoch=epoch, end_offset=end))
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=rows))
        return OffsetForLeaderEpochResponse(topics=topics)

    def on_fetch(self, request: Any) -> FetchResponse:
        topics = []
        for topic in request.topics:
            name = self.name_of(topic)
            rows = [self._read(name, row, request.isolation_level) for row in topic.partitions]
            topics.append(FetchableTopicResponse(topic=name, topic_id=self.ids[name], partitions=rows))
        return FetchResponse(responses=topics)

    def _read(self, name: str, row: Any, isolation: int) -> PartitionData:
        partition = self.partition(name, row.partition)
        if row.fetch_offset > partition.end:
            return PartitionData(
                partition_index=row.partition,
                error_code=errors.OffsetOutOfRange.code,
                high_watermark=-1,
                aborted_transactions=None,
                records=b"",
            )
        stable = partition.end if partition.stable is None else partition.stable
        start = next((p for p, h in iter_headers(partition.log) if h.last_offset >= row.fetch_offset), None)
        if isolation and row.fetch_offset >= stable:
            start = None
        records = b""
        if start is not None:
            size = max(row.partition_max_bytes, read_header(partition.log, start).size)
            records = bytes(partition.log[start : start + size])
        from twofold.wire.messages.fetch import AbortedTransaction

        aborted = [AbortedTransaction(first_offset=first, producer_id=pid) for first, pid in partition.aborted]
        return PartitionData(
            partition_index=row.partition,
            error_code=0,
            high_watermark=partition.end,
            last_stable_offset=stable,
            aborted_transactions=aborted if isolation else None,
            records=records,
        )


class _Session(asyncio.Protocol):
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._buffer = bytearray()
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._broker.connections += 1
        self._task = self._broker.runtime.spawn(self._serve(), name="fake broker session")

    def connection_lost(self, exc: Exception | None) -> None:
        self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < 4 + size:
                return
            self._queue.put_nowait(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]

    async def _serve(self) -> None:
        broker = self._broker
        while True:
            frame = await self._queue.get()
            header = codec.decode_request_header(frame)
            key, version = header.api_key, header.version
            low, high = broker.versions[key]
            if key == KEYS["ApiVersions"] and version > high:
                rows = [ApiVersion(api_key=key, min_version=low, max_version=high)]
                response: Any = ApiVersionsResponse(error_code=errors.UnsupportedVersion.code, api_keys=rows)
                self._transport.write(codec.encode_response(response, key, 0, header.correlation_id))
                continue
            assert low <= version <= high, f"{APIS[key].name} v{version} was not advertised"
            request = codec.decode_request(key, version, frame, header.body_offset)
            await broker.runtime.timers.sleep(broker.delay_s)
            response = broker.answer(APIS[key].name, version, request)
            if response is HANG_UP:
                self._transport.close()
                return
            if response is SILENCE or (key == KEYS["Produce"] and request.acks == 0):
                continue
            self._transport.write(codec.encode_response(response, key, version, header.correlation_id))


def silence(_: FakeBroker, __: Any) -> object:
    return SILENCE


def hang_up(_: FakeBroker, __: Any) -> object:
    return HANG_UP


def act_then_hang_up(broker: FakeBroker, request: Any) -> object:
    """The worst kind of failure for a producer: it happened, and nobody says so."""
    broker.on_produce(request)
    return HANG_UP


def batch_of(*values: bytes, **fields: Any) -> bytes:
    builder = BatchBuilder(**fields)
    for index, value in enumerate(values):
        builder.add(None, value, 1_000 + index)
    return builder.build()
