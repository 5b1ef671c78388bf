"""A node with one replica of one partition: its log, the fetchers that follow, and a small leader that followers ask.

The leader keeps the rules of a follower's fetch (epochs, divergence, offsets, sessions) and moves the high watermark
when all of `isr` have told that they have the records. The test plays the controller: it says who leads.

    a = await ReplicaNode(sim, 1).start()
    a.lead(epoch=1, isr={1, 2})
    b.follow(leader=1, epoch=1)

`node.script(api, step)` answers the next request of an API otherwise; `node.requests` lists what was asked.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import UUID

from kits.log.partition import data_batch
from twofold.broker.fetch.sessions import CachedPartition, FetchSessionCache
from twofold.broker.partitions.neighbours import Neighbours
from twofold.broker.partitions.partition import Partition
from twofold.broker.replication.fetchers import FetcherContext, ReplicaFetchers
from twofold.cluster.peers import Peers
from twofold.config.settings import Settings
from twofold.config.topic import LogConfig
from twofold.connections.connection import ConnectionLimits
from twofold.controller.image import BrokerRegistration, MetadataImage
from twofold.controller.records import EndPoint
from twofold.log.api import Bound
from twofold.log.manager import LogManager, LogOptions
from twofold.machine.maps import Map
from twofold.records.batch import iter_headers
from twofold.replication.follower import EARLIEST
from twofold.runtime.sim import Simulation
from twofold.types import TopicPartition
from twofold.wire import codec, errors
from twofold.wire.apis import APIS, KEYS
from twofold.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from twofold.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from twofold.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

TP = TopicPartition("t", 0)
TOPIC_ID = UUID(int=77)
LISTENER, PORT = "INTERNAL", 9092
SERVED = ("ApiVersions", "Fetch", "ListOffsets")
POLL_S = 0.005
SILENCE = object()
Script = Callable[[Any], Any]


def host_of(node_id: int) -> str:
    return f"node{node_id}"


def image_of(*node_ids: int) -> MetadataImage:
    brokers: dict[int, BrokerRegistration] = {
        node_id: BrokerRegistration(
            node_id, 100 + node_id, UUID(int=node_id), (EndPoint(LISTENER, host_of(node_id), PORT, 0),),
            (), None, False, False, (),
        )
        for node_id in node_ids
    }  # fmt: skip
    return MetadataImage(brokers=Map[int, BrokerRegistration]().update(brokers))


class ReplicaNode:
    def __init__(self, sim: Simulation, node_id: int, *, nodes: tuple[int, ...] = (1, 2, 3), **settings: Any):
        self.sim = sim
        self.node_id = node_id
        self.image = image_of(*nodes)
        texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.settings = Settings.from_mapping({"node.id": str(node_id), **texts})
        self.requests: list[tuple[str, Any]] = []
        self.scripts: dict[str, deque[Script]] = {}
        self.epoch = -1
        self.isr: set[int] = set()
        self.is_leader = False

    async def start(self) -> "ReplicaNode":
        """Also after a crash, on the same disk."""
        self.is_leader = False
        self.ends: dict[int, int] = {}
        runtime = self.runtime = self.sim.runtime(host_of(self.node_id))
        options = LogOptions(transaction_verification_enabled=False)
        config = LogConfig.resolve({}, self.settings)
        self.logs = LogManager(runtime, "/data", options, default_config=config)
        self.logs.load()
        partition_log = self.logs.get_or_create(TP, TOPIC_ID, config)
        neighbours = Neighbours(self.node_id, self.image.broker, lambda: 0, lambda: 30_000)
        self.partition = Partition(TP, TOPIC_ID, partition_log, runtime.spawn, neighbours)
        self.sessions: FetchSessionCache[CachedPartition] = FetchSessionCache(
            CachedPartition, runtime.random.randint, runtime.clock.monotonic, max_slots=10
        )
        limits = ConnectionLimits(connect_timeout_ms=1000, request_timeout_ms=3000)
        self.peers = Peers(runtime, lambda: self.image, listener=LISTENER, limits=limits)
        may_begin = asyncio.Event()
        may_begin.set()
        context = FetcherContext(runtime, self.node_id, lambda: self.settings, lambda: 100 + self.node_id, may_begin)
        self.fetchers = ReplicaFetchers(context, self.peers)
        await runtime.spawn(self._listen(), name="listen")
        return self

    async def _listen(self) -> None:
        await self.runtime.network.listen(lambda: _Session(self), host_of(self.node_id), PORT)

    def crash(self, *, power_cut: bool = False) -> None:
        self.sim.crash(host_of(self.node_id), power_cut=power_cut)
        self.is_leader = False

    def script(self, api: str, *steps: Script) -> None:
        self.scripts.setdefault(api, deque()).extend(steps)

    def seen(self, api: str) -> list[Any]:
        return [request for name, request in self.requests if name == api]

    # --- what the metadata says ---

    def lead(self, epoch: int, isr: set[int]) -> None:
        self.fetchers.stop(TP)
        self.isr = isr
        if epoch > self.epoch or not self.is_leader:
            self.ends = {}
            self.epoch = epoch
            self.log.assign_leader_epoch(epoch)
            self.start_of_epoch = self.log.log_end_offset
        self.is_leader = True
        self.advance()

    def follow(self, leader: int, epoch: int) -> None:
        self.is_leader = False
        self.epoch = epoch
        self.fetchers.follow(self.partition, leader, epoch)

    # --- the log ---

    @property
    def log(self) -> Any:
        return self.partition.log

    def append(self, count: int = 1, **batch: Any) -> int:
        """As a producer would; returns the end offset."""
        assert self.is_leader
        self.log.append(data_batch(count, **batch), leader_epoch=self.epoch, defer_flush=True)
        self.advance()
        return int(self.log.log_end_offset)

    def append_as_coordinator(self, records: bytes) -> None:
        from twofold.log.api import Origin

        self.log.append(records, origin=Origin.COORDINATOR, leader_epoch=self.epoch, transaction_version=0)
        self.advance()

    def advance(self) -> None:
        ends = [self.log.log_end_offset, *(self.ends.get(node, -1) for node in self.isr - {self.node_id})]
        self.log.advance_high_watermark(min(ends))
        self.partition.changes += 1

    def content(self) -> bytes:
        """All bytes of the log from its start."""
        records = b""
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            read = bytes(self.log.read(offset, 1 << 20, Bound.LOG_END).records)
            records += read
            offset = [header.next_offset for _, header in iter_headers(read)][-1]
        return records

    # --- answering followers ---

    async def answer(self, api: str, request: Any) -> Any:
        self.requests.append((api, request))
        steps = self.scripts.get(api)
        if steps:
            scripted = steps.popleft()(request)
            if scripted is not None:
                return scripted
        if api == "ApiVersions":
            served = sorted((APIS[KEYS[name]] for name in SERVED), key=lambda row: row.key)
            rows = [
                ApiVersion(api_key=row.key, min_version=row.min_version, max_version=row.max_version) for row in served
            ]
            return ApiVersionsResponse(error_code=0, api_keys=rows)
        return self._list_offsets(request) if api == "ListOffsets" else await self._fetch(request)

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        (topic,) = request.topics
        (asked,) = topic.partitions
        error = self._wrong_epoch(asked.current_leader_epoch)
        offset = self.log.log_start_offset if asked.timestamp == EARLIEST else self.log.log_end_offset
        row = ListOffsetsPartitionResponse(
            partition_index=0, error_code=error, offset=-1 if error else offset, timestamp=-1, leader_epoch=self.epoch
        )
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topic.name, partitions=[row])])

    def _wrong_epoch(self, epoch: int) -> int:
        if epoch < self.epoch:
            return errors.FencedLeaderEpoch.code
        if epoch > self.epoch:
            return errors.UnknownLeaderEpoch.code
        return 0 if self.is_leader else errors.NotLeaderOrFollower.code

    async def _fetch(self, request: FetchRequest) -> FetchResponse:
        assert request.replica_id == -1, "from version 15 on the replica state tells"
        named = [((topic.topic_id, row.partition), row) for topic in request.topics for row in topic.partitions]
        forgotten = [(topic.topic_id, index) for topic in request.forgotten_topics_data for index in topic.partitions]
        try:
            context = self.sessions.begin(
                request.session_id, request.session_epoch, named, forgotten, privileged=True, uses_topic_ids=True
            )
        except errors.KafkaError as error:
            return FetchResponse(error_code=error.code, responses=())
        until_s = self.runtime.clock.monotonic() + request.max_wait_ms / 1000
        is_first = True
        while True:
            rows = [
                (partition, self._row(partition.asked, request.replica_state.replica_id, is_first))
                for key, partition in context.partitions.items()
                if key == (TOPIC_ID, 0)
            ]
            is_first = False
            is_news = any(
                row.error_code
                or row.diverging_epoch.epoch >= 0
                or row.records
                or partition.high_watermark != row.high_watermark
                for partition, row in rows
            )
            if is_news or self.runtime.clock.monotonic() >= until_s:
                break
            await self.runtime.timers.sleep(POLL_S)
        told = self.sessions.answer(context, rows)  # type: ignore[arg-type]
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row for _, row in told.rows])  # type: ignore[misc]
        return FetchResponse(
            error_code=told.error_code, session_id=told.session_id, responses=[topic] if told.rows else []
        )

    def _row(self, asked: FetchPartition, replica_id: int, is_first: bool) -> "_Row":
        log = self.log
        error = self._wrong_epoch(asked.current_leader_epoch)
        if error:
            return _Row(error)
        diverging = EpochEndOffset()
        if asked.last_fetched_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(asked.last_fetched_epoch)
            if epoch < 0 or asked.fetch_offset < log.log_start_offset:
                return _Row(errors.OffsetOutOfRange.code)
            if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
                diverging = EpochEndOffset(epoch=epoch, end_offset=end)
        elif not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            return _Row(errors.OffsetOutOfRange.code)
        records = b""
        high_watermark = log.high_watermark
        if diverging.epoch < 0:
            records = log.read(asked.fetch_offset, asked.partition_max_bytes, Bound.LOG_END).records
            if is_first:
                self.ends[replica_id] = asked.fetch_offset
                self.advance()
        return _Row(0, high_watermark, log.log_start_offset, records, diverging)


class _Row(PartitionData):
    """With the fields that `FetchSessionCache` looks at."""

    __slots__ = ()

    def __init__(
        self,
        error_code: int,
        high_watermark: int = -1,
        log_start_offset: int = -1,
        records: bytes = b"",
        diverging_epoch: EpochEndOffset | None = None,
    ) -> None:
        super().__init__(
            partition_index=0,
            error_code=error_code,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
            aborted_transactions=None,
            records=records,
            diverging_epoch=diverging_epoch or EpochEndOffset(),
        )


class _Session(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self._buffer = bytearray()
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._task = self._node.runtime.spawn(self._serve(), name="replica session")

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
        while True:
            frame = await self._queue.get()
            header = codec.decode_request_header(frame)
            request = codec.decode_request(header.api_key, header.version, frame, header.body_offset)
            response = await self._node.answer(APIS[header.api_key].name, request)
            if response is not SILENCE:
                data = codec.encode_response(response, header.api_key, header.version, header.correlation_id)
                self._transport.write(data)
