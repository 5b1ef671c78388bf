"""API key 1, versions 4-18: Fetch.

1. Consumers read below the high watermark, read_committed ones below the last stable offset and get the list of
   aborted transactions; other isolation levels: UNKNOWN_SERVER_ERROR.
2. At most max_bytes in all and partition_max_bytes of each partition, but the first batch that is found is given
   whatever its size, so that a reader never gets stuck.
3. With fewer than min_bytes there and nothing to report, the answer waits for more, max_wait_ms at most. An error of
   a partition that is here is reported at once; one that is not here at all does not end the wait for the others.
4. Unknown topic 3, unknown id 100, offset outside of the log 1, leader epoch of the request older 74 or newer 75 than
   ours, led by another broker 6. A topic that is deleted while the answer waits ends the wait: its rows have 3, the
   other partitions have theirs.
5. A last fetched epoch that our log knows to have ended before the fetch offset: the diverging epoch is returned.
6. A replica reads up to the log end, and acknowledges by its offset what is below it. A broker that is none of the
   replicas: 75 with a leader epoch in the request, else 6. One that has started again since the epoch in its request,
   as our metadata knows: 6. Both come after the checks of 4. What is read is read before the acknowledgement counts, so
   a follower hears of a high watermark that its own fetch has moved with a later answer. A parked fetch ends when the
   partition is led in another epoch, too. A replica id of -2 reads up to the log end and is no follower.
7. Sessions (`fetch_sessions.py`): the id not known 70, another epoch than its next 71, opened with names and continued
   with ids 106. An answer in a session has the partitions with news; what was told and has not moved is not read.
   A topic of a session that was named by its id and is gone: 3; if another has its name now: 103.
8. The same partition twice: the last entry counts. A topic without partitions has no row.
9. With a quota on what consumers read, no more is given than the quota allows a silent client at once. A client that
   has to wait gets an answer without rows; its session, if it had one, goes on.
"""

import asyncio
from uuid import UUID

from twofold.broker.codec import fetch as fetch_codec
from twofold.broker.codec.fetch import FetchRow
from twofold.broker.fetch.entry import Entry
from twofold.broker.fetch.sessions import NO_SESSION, FetchContext, PartitionKey, TopicKey
from twofold.broker.network.authorizer import AclResourceType, Operation, cluster_allows
from twofold.broker.network.context import Answer, Later, RequestContext
from twofold.broker.partitions.partition import Partition
from twofold.broker.services import Services
from twofold.log.api import Bound
from twofold.records.batch import iter_headers
from twofold.replication.leader import FollowerFetch
from twofold.wire.errors import (
    NONE,
    FencedLeaderEpoch,
    InconsistentTopicId,
    InvalidFetchSessionEpoch,
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
    PartitionData,
)

KEY = 1
CONSUMER = -1
REPLICA_STATE_VERSION = 15
LEADERS_VERSION = 16
TOP_LEVEL_ERROR_VERSION = 13
NO_EPOCH = -1  # of a leader; any other negative number counts as this one too

BOUNDS = {0: Bound.HIGH_WATERMARK, 1: Bound.LAST_STABLE}


def handle(services: Services, context: RequestContext, request: FetchRequest) -> Answer | FetchResponse | Later:
    by_id = context.version >= fetch_codec.TOPIC_IDS
    has_state = context.version >= REPLICA_STATE_VERSION
    replica_id = request.replica_state.replica_id if has_state else request.replica_id
    is_replica = replica_id >= 0
    try:
        asked = services.fetch_sessions.begin(
            request.session_id,
            request.session_epoch,
            _named(request, by_id),
            _forgotten(request, by_id) if request.forgotten_topics_data else (),
            privileged=is_replica,
            uses_topic_ids=by_id,
        )
    except KafkaError as error:
        return FetchResponse(error_code=error.code, responses=())
    if request.isolation_level not in BOUNDS:
        return error_response(
            request,
            UnknownServerError(f"isolation level {request.isolation_level}: 0 and 1 are known"),
            context.version,
        )
    if is_replica and context.charge is not None:
        context.charge.exempt()
    fetch = _Fetch(services, context, request, asked, replica_id)
    fetch.resolve()
    fetch.read()
    if is_replica:
        fetch.acknowledge()
    if fetch.is_due():
        return fetch.encode()
    return fetch.park()


def _named(request: FetchRequest, by_id: bool) -> list[tuple[PartitionKey, FetchPartition]]:
    return [
        (((topic.topic_id if by_id else topic.topic), asked.partition), asked)
        for topic in request.topics
        for asked in topic.partitions
    ]


def _forgotten(request: FetchRequest, by_id: bool) -> list[PartitionKey]:
    return [
        ((topic.topic_id if by_id else topic.topic), index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]


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
    return FetchResponse(error_code=error.code, session_id=request.session_id, responses=topics)


class _Fetch:
    """One request while it is carried out."""

    __slots__ = (
        "_answer", "_asked", "_bound", "_services", "_bytes", "_context", "_entries", "_failed", "_is_replica",
        "_max_bytes", "_replica_id", "_request", "_urgent",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        request: FetchRequest,
        asked: FetchContext[Entry],
        replica_id: int,
    ) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._asked = asked
        self._replica_id = replica_id
        self._is_replica = is_replica = replica_id >= 0
        self._entries = list(asked.partitions.values())
        self._bound = BOUNDS[request.isolation_level] if replica_id == CONSUMER else Bound.LOG_END
        self._bytes = 0
        self._urgent = False
        self._failed = False
        self._max_bytes = min(
            request.max_bytes, services.settings.int("fetch.max.bytes"), services.max_response_bytes()
        )
        if context.charge is not None and not is_replica:
            most = context.charge.most_fetch_bytes()
            if most is not None:
                self._max_bytes = min(self._max_bytes, most)
        self._answer: asyncio.Future[Answer] | None = None

    # --- which partitions ---

    def resolve(self) -> None:
        topic: TopicKey = ""
        known: str | None = ""
        name: str | None = None
        error: KafkaError | None = None
        bound = self._bound
        for entry in self._entries:
            # Those of a topic mostly follow each other: look it up once.
            if entry.key[0] is not topic or entry.name is not known:
                topic, known = entry.key[0], entry.name
                name, error = self._find_topic(topic, known)
            if entry.quiet and error is None and entry.bound is bound:
                assert entry.partition is not None
                if entry.partition.is_leader:
                    continue
            entry.name = name
            entry.row = None
            entry.quiet = False
            self._find(entry, error)

    def _find_topic(self, topic: TopicKey, known: str | None) -> tuple[str | None, KafkaError | None]:
        name = known
        try:
            if self._context.version < fetch_codec.TOPIC_IDS:
                assert isinstance(topic, str)
                name = topic
            else:
                name = self._name_of(topic, known)
            self._check_allowed(name)
        except KafkaError as refused:
            return name, refused
        return name, None

    def _name_of(self, topic_id: TopicKey, known: str | None) -> str:
        """The name behind an id; `known` is the one that the session has found before."""
        if not isinstance(topic_id, UUID):
            raise UnknownTopicId("the topic id is zero")
        if known is None:
            return self._services.replicas.topic_name(topic_id)
        image = self._services.image
        if image.topic_names.get(topic_id) == known:
            return known
        if image.topic(known) is None:
            raise UnknownTopicOrPartition(f"topic {known} with the id {topic_id} was deleted")
        raise InconsistentTopicId(f"topic {known} has not the id {topic_id} any more: it was deleted and made anew")

    def _check_allowed(self, name: str) -> None:
        authorizer = self._services.authorizer
        if self._is_replica:
            if not cluster_allows(authorizer, self._context, Operation.CLUSTER_ACTION):
                raise TopicAuthorizationFailed(f"{self._context.principal} may not fetch {name} as a replica")
        elif not authorizer.authorize(self._context, Operation.READ, AclResourceType.TOPIC, name):
            raise TopicAuthorizationFailed(f"{self._context.principal} may not read {name}")

    def _find(self, entry: Entry, error: KafkaError | None) -> None:
        try:
            if error is not None:
                raise error
            assert entry.name is not None
            partition = self._services.replicas.hosted(entry.name, entry.asked.partition)
            partition.check_leader(max(entry.asked.current_leader_epoch, NO_EPOCH))
            entry.partition = partition
        except KafkaError as refused:
            unknown = isinstance(refused, UnknownTopicOrPartition | UnknownTopicId | TopicAuthorizationFailed)
            self._urgent |= not unknown
            # The list of aborted transactions is empty where nothing was looked up and null where reading failed.
            self._fail(entry, refused, aborted=() if unknown else None)

    def _fail(self, entry: Entry, error: KafkaError, aborted: tuple[()] | None = None) -> None:
        leader = None
        self._failed = True
        if (
            error.code in (NotLeaderOrFollower.code, FencedLeaderEpoch.code)
            and self._context.version >= LEADERS_VERSION
        ):
            assert entry.name is not None
            _, state = self._services.replicas.state(entry.name, entry.asked.partition)
            leader = (state.leader, state.leader_epoch)
        entry.leave()
        entry.partition = None
        entry.bound = None
        entry.quiet = False
        entry.row = FetchRow(entry.asked.partition, error.code, aborted=aborted, current_leader=leader)

    # --- reading ---

    def read(self) -> None:
        """Make the rows that are missing, and anew those whose partition moved since."""
        stale = []
        kept = 0
        for entry in self._entries:
            partition = entry.partition
            if partition is None:
                continue
            row = entry.row
            if row is None or entry.seen != partition.changes:
                stale.append((entry, partition))
            elif not entry.quiet:
                kept += len(row.records)
            elif entry.log_start_offset != partition.log.log_start_offset:
                stale.append((entry, partition))
        self._bytes = kept
        for entry, partition in stale:
            try:
                self._read_one(entry, partition)
            except KafkaError as error:
                self._urgent = True
                self._fail(entry, error)
            else:
                assert entry.row is not None
                self._bytes += len(entry.row.records)

    def _read_one(self, entry: Entry, partition: Partition) -> None:
        asked = entry.asked
        epoch = max(asked.current_leader_epoch, NO_EPOCH)
        partition.check_leader(epoch)
        if self._is_replica:
            partition.check_follower(self._replica_id, epoch)
        entry.seen = partition.changes
        entry.quiet = False
        entry.bound = None
        log = partition.log
        diverging = None
        if asked.last_fetched_epoch >= 0:
            diverging = _diverging_epoch(partition, asked)
        room = min(asked.partition_max_bytes, self._max_bytes - self._bytes)
        if asked.partition_max_bytes < 0 or self._max_bytes < 0:
            raise UnknownServerError(f"a size limit of {min(asked.partition_max_bytes, self._max_bytes)} bytes")
        if diverging is not None or asked.fetch_offset == log.bound(self._bound):
            self._urgent |= diverging is not None
            entry.bound = self._bound if diverging is None else None
            aborted = () if self._bound is Bound.LAST_STABLE and diverging is None else None
            entry.row = FetchRow(
                asked.partition, 0, log.high_watermark, log.last_stable_offset, log.log_start_offset, aborted, b"",
                diverging,
            )  # fmt: skip
            return
        result = log.read(asked.fetch_offset, max(room, 0), self._bound, at_least_one=not self._bytes)
        entry.row = FetchRow(
            asked.partition, 0, result.high_watermark, result.last_stable_offset, result.log_start_offset,
            result.aborted, result.records,
        )  # fmt: skip

    def acknowledge(self) -> None:
        """Each partition hears how far this follower's log reaches. It is there also where it has nothing to read."""
        replica_id, broker_epoch = self._replica_id, self._request.replica_state.replica_epoch
        for entry in self._entries:
            partition, row, asked = entry.partition, entry.row, entry.asked
            if partition is None or row is None or row.diverging_epoch is not None:
                continue
            try:
                partition.followed(replica_id, FollowerFetch(asked.fetch_offset, asked.log_start_offset, broker_epoch))
            except KafkaError as error:
                self._urgent = True
                self._bytes -= len(row.records)
                self._fail(entry, error)

    # --- answering ---

    def is_due(self) -> bool:
        request = self._request
        return (
            self._urgent
            or request.max_wait_ms <= 0
            or self._bytes >= min(request.min_bytes, self._max_bytes)
            or not any(entry.partition for entry in self._entries)
            or self._services.replicas.purgatory.stopping
            or (self._bytes > 0 and self._is_full())
        )

    def _is_full(self) -> bool:
        """Whether more is there than fits: whole batches seldom add up to min_bytes when that is near the limits."""
        for entry in self._entries:
            if entry.quiet or entry.partition is None or entry.row is None or entry.row.diverging_epoch:
                continue
            end = entry.asked.fetch_offset
            for _, header in iter_headers(entry.row.records):
                end = header.next_offset
            if end < entry.partition.log.bound(self._bound):
                return True
        return False

    def park(self) -> Later:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answer = answer
        standing = self._asked.session is not None
        interests = [
            entry.wait(entry.partition, self._bound, standing=standing)
            for entry in self._entries
            if entry.partition is not None
        ]
        missing = min(self._request.min_bytes, self._max_bytes) - self._bytes
        purgatory = self._services.replicas.purgatory
        delayed = purgatory.park_fetch(interests, missing, self._request.max_wait_ms / 1000, self._finish)

        def done(answer: asyncio.Future[Answer]) -> None:
            delayed.cancel()
            if answer.cancelled() and not self._asked.is_superseded:
                for entry in self._entries:
                    entry.drop()  # its session may live on for long

        answer.add_done_callback(done)
        return Later(answer)

    def _finish(self) -> None:
        assert self._answer is not None
        if self._answer.done():
            return  # the client is gone
        try:
            if not self._asked.is_superseded:  # or else a later request reads these entries
                self.read()
            self._answer.set_result(self.encode())
        except Exception as error:
            self._answer.set_exception(error)

    def encode(self) -> Answer:
        rows = [(entry, entry.row) for entry in self._entries if entry.row is not None and not entry.quiet]
        charge = self._context.charge
        if charge is not None and not charge.fetched(self._size(rows)):
            return self._encode_throttled()
        told = self._services.fetch_sessions.answer(self._asked, rows)
        if self._bytes:
            for entry, row in told.rows:
                if entry.partition is not None:
                    entry.partition.bytes_out += len(row.records)
        topics: list[tuple[TopicKey, list[FetchRow]]] = []
        for entry, row in told.rows:
            topic = entry.key[0]
            if topics and (topic is topics[-1][0] or topic == topics[-1][0]):
                topics[-1][1].append(row)
            else:
                topics.append((topic, [row]))
        endpoints = []
        if self._urgent and self._context.version >= LEADERS_VERSION and not self._is_replica:
            leaders = {row.current_leader[0] for _, row in told.rows if row.current_leader is not None}
            for node in sorted(leaders):
                endpoint = self._services.endpoint(node, self._context.listener)
                if endpoint is not None:
                    endpoints.append(endpoint)
        if told.session_id and not told.error_code:
            for entry, _ in rows:
                entry.settle()
        frame = fetch_codec.encode_response(
            self._context.correlation_id,
            self._context.version,
            topics,
            error_code=told.error_code,
            session_id=told.session_id,
            endpoints=endpoints,
        )
        if not (self._failed or told.error_code):
            return frame
        codes = (told.error_code, *(row.error_code for _, row in told.rows))
        return frame._replace(errors=[code for code in codes if code])

    def _size(self, rows: list[tuple[Entry, FetchRow]]) -> int:
        """Of the answer with these rows, as Apache Kafka counts it: the body, and four bytes for its length."""
        by_topic: dict[TopicKey, list[FetchRow]] = {}
        for entry, row in rows:
            by_topic.setdefault(entry.key[0], []).append(row)
        frame = fetch_codec.encode_response(0, self._context.version, list(by_topic.items()))
        return sum(map(len, frame.parts)) - 4 - (self._context.version >= fetch_codec.FLEXIBLE)

    def _encode_throttled(self) -> Answer:
        """No rows: what was read is read again when the client may have it."""
        for entry in self._entries:
            entry.drop()
        session = self._asked.session
        error_code = InvalidFetchSessionEpoch.code if self._asked.is_superseded else NONE
        frame = fetch_codec.encode_response(
            self._context.correlation_id,
            self._context.version,
            (),
            error_code=error_code,
            session_id=NO_SESSION if session is None else session.id,
        )
        return frame._replace(errors=[error_code]) if error_code else frame


def _diverging_epoch(partition: Partition, asked: FetchPartition) -> tuple[int, int] | None:
    epoch, end_offset = partition.log.end_offset_for_epoch(asked.last_fetched_epoch)
    if epoch < 0 or end_offset < 0 or asked.fetch_offset < partition.log.log_start_offset:
        raise OffsetOutOfRange(
            f"{partition}: nothing is known of epoch {asked.last_fetched_epoch} at offset {asked.fetch_offset}"
        )
    if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
        return epoch, end_offset
    return None
