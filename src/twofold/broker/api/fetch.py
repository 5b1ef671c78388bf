"""API key 1, versions 4-18: Fetch.

1. Consumers read below the high watermark, read_committed ones below the last stable offset and get the list of
   aborted transactions; other isolation levels: UNKNOWN_SERVER_ERROR.
2. At most max_bytes in all and partition_max_bytes of each partition, but the first batch that is found is given
   whatever its size, so that a reader never gets stuck.
3. With fewer than min_bytes there and nothing to report, the answer waits for more, max_wait_ms at most. An error of
   a partition that is here is reported at once; one that is not here at all does not end the wait for the others.
4. Unknown topic 3, unknown id 100, offset outside of the log 1, leader epoch of the request older 74 or newer 75 than
   ours, led by another broker 6.
5. A last fetched epoch that our log knows to have ended before the fetch offset: the diverging epoch is returned.
6. A replica id: this broker leads with the only replica, so whoever asks is none (6).
7. No session is ever made: the answers carry session id 0 and clients send their full list again. A request that
   continues a session is told FETCH_SESSION_ID_NOT_FOUND.
8. The same partition twice: the last entry counts. A topic without partitions has no row.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from twofold.broker import fetch_codec
from twofold.broker.authorizer import Operation, ResourceType, cluster_allows
from twofold.broker.context import Answer, Later, RequestContext
from twofold.broker.fetch_codec import Row
from twofold.broker.partition import Partition
from twofold.broker.purgatory import Interest
from twofold.log.api import Bound
from twofold.records.batch import iter_headers
from twofold.wire.errors import (
    ClusterAuthorizationFailed,
    FencedLeaderEpoch,
    FetchSessionIdNotFound,
    KafkaError,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

if TYPE_CHECKING:
    from twofold.broker.broker import Broker

KEY = 1
LEADERS_VERSION = 16
TOP_LEVEL_ERROR_VERSION = 13
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
NO_EPOCH = -1  # of a leader; any other negative number counts as this one too

BOUNDS = {0: Bound.HIGH_WATERMARK, 1: Bound.LAST_STABLE}


def handle(broker: "Broker", context: RequestContext, request: FetchRequest) -> Answer | FetchResponse | Later:
    if request.session_epoch not in (FINAL_EPOCH, INITIAL_EPOCH):
        error = FetchSessionIdNotFound(f"there is no fetch session {request.session_id}")
        return FetchResponse(error_code=error.code, responses=())
    if request.isolation_level not in BOUNDS:
        return error_response(
            request,
            UnknownServerError(f"isolation level {request.isolation_level}: 0 and 1 are known"),
            context.version,
        )
    fetch = _Fetch(broker, context, request)
    fetch.resolve()
    fetch.read()
    if fetch.is_due():
        return fetch.encode()
    return fetch.park()


def error_response(request: FetchRequest, error: KafkaError, version: int) -> FetchResponse:
    """The error at the top and, for clients that do not look there, on every partition."""
    topics: list[FetchableTopicResponse] = []
    if version < TOP_LEVEL_ERROR_VERSION:
        topics = [
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=entry.partition,
                        error_code=error.code,
                        high_watermark=-1,
                        aborted_transactions=(),
                        records=b"",
                    )
                    for entry in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    return FetchResponse(error_code=error.code, responses=topics)


class _Entry:
    """One partition of a fetch, and its row once it is known."""

    __slots__ = ("asked", "name", "partition", "row", "seen")

    def __init__(self, asked: FetchPartition, name: str) -> None:
        self.asked = asked
        self.name = name
        self.partition: Partition | None = None
        self.row: Row | None = None
        self.seen = -1  # the partition's count of changes when the row was made


class _Fetch:
    """One request while it is carried out."""

    __slots__ = ("_answer", "_bound", "_broker", "_context", "_request", "_topics", "_urgent", "_bytes", "_max_bytes")

    def __init__(self, broker: "Broker", context: RequestContext, request: FetchRequest) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._bound = BOUNDS[request.isolation_level]
        self._topics: list[tuple[str | UUID | None, list[_Entry]]] = []
        self._bytes = 0
        self._urgent = False
        self._max_bytes = min(
            request.max_bytes, broker.settings.int("fetch.max.bytes"), broker.server.max_response_bytes()
        )
        self._answer: asyncio.Future[Answer] | None = None

    # --- which partitions ---

    def resolve(self) -> None:
        for topic in _last_of_each(self._request.topics, by_id=self._context.version >= TOP_LEVEL_ERROR_VERSION):
            key: str | UUID | None = topic.topic
            error: KafkaError | None = None
            name = topic.topic
            try:
                if self._context.version >= fetch_codec.TOPIC_IDS:
                    key = topic.topic_id
                    name = self._name_of(topic.topic_id)
                self._check_allowed(name)
            except KafkaError as refused:
                error = refused
            entries = [_Entry(asked, name) for asked in topic.partitions]
            if not entries:
                continue
            self._topics.append((key, entries))
            for entry in entries:
                self._find(entry, error)

    def _name_of(self, topic_id: UUID | None) -> str:
        if topic_id is None:
            raise UnknownTopicId("the topic id is zero")
        return self._broker.replicas.topic_name(topic_id)

    def _check_allowed(self, name: str) -> None:
        authorizer = self._broker.authorizer
        if self._is_replica:
            if not cluster_allows(authorizer, self._context, Operation.CLUSTER_ACTION):
                raise ClusterAuthorizationFailed(f"{self._context.principal} may not fetch as a replica")
        elif not authorizer.authorize(self._context, Operation.READ, ResourceType.TOPIC, name):
            raise TopicAuthorizationFailed(f"{self._context.principal} may not read {name}")

    @property
    def _is_replica(self) -> bool:
        request = self._request
        return request.replica_id >= 0 or request.replica_state.replica_id >= 0

    def _find(self, entry: _Entry, error: KafkaError | None) -> None:
        try:
            if error is not None:
                raise error
            partition = self._broker.replicas.leader(entry.name, entry.asked.partition)
            partition.check_leader(max(entry.asked.current_leader_epoch, NO_EPOCH))
            if self._is_replica:
                raise NotLeaderOrFollower(f"{partition}: the broker that asks holds no replica")
            entry.partition = partition
        except KafkaError as refused:
            self._fail(entry, refused)

    def _fail(self, entry: _Entry, error: KafkaError) -> None:
        unknown = isinstance(error, UnknownTopicOrPartition | UnknownTopicId | TopicAuthorizationFailed)
        self._urgent |= not unknown
        leader = None
        if (
            error.code in (NotLeaderOrFollower.code, FencedLeaderEpoch.code)
            and self._context.version >= LEADERS_VERSION
        ):
            _, state = self._broker.replicas.state(entry.name, entry.asked.partition)
            leader = (state.leader, state.leader_epoch)
        # The list of aborted transactions is empty where nothing was looked up and null where reading failed.
        entry.partition = None
        entry.row = Row(entry.asked.partition, error.code, aborted=() if unknown else None, current_leader=leader)

    # --- reading ---

    def read(self) -> None:
        """Make the rows that are missing, and anew those whose partition moved since."""
        stale = []
        kept = 0
        for _, entries in self._topics:
            for entry in entries:
                if entry.partition is None:
                    continue
                if entry.row is None or entry.seen != entry.partition.changes:
                    stale.append(entry)
                else:
                    kept += len(entry.row.records)
        self._bytes = kept
        for entry in stale:
            assert entry.partition is not None
            try:
                self._read_one(entry, entry.partition)
            except KafkaError as error:
                self._fail(entry, error)
            else:
                assert entry.row is not None
                self._bytes += len(entry.row.records)

    def _read_one(self, entry: _Entry, partition: Partition) -> None:
        asked = entry.asked
        partition.check_leader(max(asked.current_leader_epoch, NO_EPOCH))
        entry.seen = partition.changes
        log = partition.log
        diverging = None
        if asked.last_fetched_epoch >= 0:
            diverging = _diverging_epoch(partition, asked)
        room = min(asked.partition_max_bytes, self._max_bytes - self._bytes)
        if asked.partition_max_bytes < 0 or self._max_bytes < 0:
            raise UnknownServerError(f"a size limit of {min(asked.partition_max_bytes, self._max_bytes)} bytes")
        if diverging is not None or asked.fetch_offset == log.bound(self._bound):
            self._urgent |= diverging is not None
            aborted = () if self._bound is Bound.LAST_STABLE and diverging is None else None
            entry.row = Row(
                asked.partition, 0, log.high_watermark, log.last_stable_offset, log.log_start_offset, aborted, b"",
                diverging,
            )  # fmt: skip
            return
        result = log.read(asked.fetch_offset, max(room, 0), self._bound, at_least_one=not self._bytes)
        entry.row = Row(
            asked.partition, 0, result.high_watermark, result.last_stable_offset, result.log_start_offset,
            result.aborted, result.records,
        )  # fmt: skip

    # --- answering ---

    def is_due(self) -> bool:
        request = self._request
        return (
            self._urgent
            or request.max_wait_ms <= 0
            or self._bytes >= min(request.min_bytes, self._max_bytes)
            or not any(entry.partition for _, entries in self._topics for entry in entries)
            or self._broker.replicas.purgatory.stopping
            or (self._bytes > 0 and self._is_full())
        )

    def _is_full(self) -> bool:
        """Whether more is there than fits: whole batches seldom add up to min_bytes when that is near the limits."""
        for _, entries in self._topics:
            for entry in entries:
                if entry.partition is not None and entry.row is not None and not entry.row.diverging_epoch:
                    end = entry.asked.fetch_offset
                    for _, header in iter_headers(entry.row.records):
                        end = header.next_offset
                    if end < entry.partition.log.bound(self._bound):
                        return True
        return False

    def park(self) -> Later:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answer = answer
        interests = []
        for _, entries in self._topics:
            for entry in entries:
                if entry.partition is None:
                    continue
                assert entry.row is not None
                room = entry.asked.partition_max_bytes - len(entry.row.records)
                interests.append(Interest(entry.partition, self._bound, room))
        missing = min(self._request.min_bytes, self._max_bytes) - self._bytes
        purgatory = self._broker.replicas.purgatory
        delayed = purgatory.park_fetch(interests, missing, self._request.max_wait_ms / 1000, self._finish)
        answer.add_done_callback(lambda _: delayed.cancel())
        return Later(answer)

    def _finish(self) -> None:
        assert self._answer is not None
        if self._answer.done():
            return  # the client is gone
        try:
            self.read()
            self._answer.set_result(self.encode())
        except Exception as error:
            self._answer.set_exception(error)

    def encode(self) -> Answer:
        topics = [(key, [entry.row for entry in entries if entry.row is not None]) for key, entries in self._topics]
        for _, entries in self._topics if self._bytes else ():
            for entry in entries:
                if entry.partition is not None and entry.row is not None:
                    entry.partition.bytes_out += len(entry.row.records)
        endpoints = []
        if self._urgent and self._context.version >= LEADERS_VERSION and not self._is_replica:
            leaders = {row.current_leader[0] for _, rows in topics for row in rows if row.current_leader is not None}
            for node in sorted(leaders):
                endpoint = self._broker.endpoint(node, self._context.listener)
                if endpoint is not None:
                    endpoints.append(endpoint)
        return fetch_codec.encode_response(
            self._context.correlation_id, self._context.version, topics, endpoints=endpoints
        )


def _diverging_epoch(partition: Partition, asked: FetchPartition) -> tuple[int, int] | None:
    epoch, end_offset = partition.log.end_offset_for_epoch(asked.last_fetched_epoch)
    if epoch < 0 or end_offset < 0 or asked.fetch_offset < partition.log.log_start_offset:
        raise OffsetOutOfRange(
            f"{partition}: nothing is known of epoch {asked.last_fetched_epoch} at offset {asked.fetch_offset}"
        )
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return epoch, end_offset
    return None


def _last_of_each(topics: Sequence[FetchTopic], *, by_id: bool) -> Sequence[FetchTopic]:
    """The topics as they came, unless a partition is named twice."""
    pairs = [((t.topic_id if by_id else t.topic), p.partition) for t in topics for p in t.partitions]
    if len(set(pairs)) == len(pairs):
        return topics
    merged: dict[str | UUID | None, dict[int, FetchPartition]] = {}
    named: dict[str | UUID | None, FetchTopic] = {}
    for topic in topics:
        key = topic.topic_id if by_id else topic.topic
        named.setdefault(key, topic)
        merged.setdefault(key, {}).update({asked.partition: asked for asked in topic.partitions})
    return [
        FetchTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=tuple(merged[key].values()))
        for key, topic in named.items()
    ]
