"""API key 0, versions 3-13: Produce.

1. acks is -1, 0 or 1, else INVALID_REQUIRED_ACKS on every partition.
2. A transactional batch needs a transactional id in the request and WRITE on it, else the whole request is refused
   with TRANSACTIONAL_ID_AUTHORIZATION_FAILED; two producers in one request: INVALID_PRODUCER_ID_MAPPING. The first
   batch of a transaction in a partition is verified (`broker.verification`): up to version 10 a partition that is not
   part of the transaction is INVALID_TXN_STATE, in version 11 TRANSACTION_ABORTABLE, and from 12 on it becomes part of
   it. A coordinator that cannot be asked now is NOT_ENOUGH_REPLICAS, which makes clients try again.
3. Each partition is on its own: unknown topic 3, unknown id 100, not allowed 29, internal topic 17, no records 87,
   zstd before version 7 76, and whatever the log refuses. The others are appended.
4. A duplicate is a success with the offsets of the first time.
5. The same partition twice: the last one is appended, and there is one row.
6. acks=0 is never answered; if anything failed the connection is closed, which is all that such a producer notices.
7. acks=-1 and 1 are answered when the records are as safe as the topic's settings ask for; acks=-1 when all replicas in
   sync have them: fewer than min.insync.replicas before the append 19, after it 20, another leader meanwhile 6, and
   after timeout_ms REQUEST_TIMED_OUT.
8. A full disk: KAFKA_STORAGE_ERROR (56), before the room that is kept for the end of transactions is used up.
9. A batch of another codec than the topic's compression.type is compressed anew.
10. A plain batch under a producer id that was transactional in the partition: INVALID_TXN_STATE (48), and a line in the
    broker's log. Apache Kafka takes it, and a stranger that may write fences the owner of the id with its epoch.
"""

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from typing import TypeAlias
from uuid import UUID

from twofold.broker.codec import produce as produce_codec
from twofold.broker.codec.produce import Partitions, ProduceRequest, ProduceRow, TopicKey, Topics
from twofold.broker.coordinators.transactions import verification
from twofold.broker.coordinators.transactions.verification import Verdicts
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import NO_RESPONSE, Answer, Buffer, CloseConnection, Frame, Later, RequestContext
from twofold.broker.partitions.append_fate import append_fate
from twofold.broker.partitions.partition import ALL_REPLICAS, Partition
from twofold.broker.partitions.preparation import must_prepare, prepare_batch
from twofold.broker.partitions.purgatory import DelayedProduce, Until
from twofold.broker.services import Services
from twofold.config.internal_topics import is_internal
from twofold.log.producers.entry import ForeignBatch
from twofold.records.batch import CODEC_MASK, TRANSACTIONAL, attributes_of, producer_of
from twofold.records.client_batch_checks import NotOneBatch
from twofold.records.compression import Codec
from twofold.wire.apis import APIS
from twofold.wire.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    CorruptMessage,
    InvalidProducerIdMapping,
    InvalidRequiredAcks,
    InvalidTopicException,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RecordListTooLarge,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedCompressionType,
)
from twofold.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

KEY = 0
ZSTD_VERSION = 7
LEADERS_VERSION = 10
ABORTABLE_VERSION = 11
ADDS_PARTITIONS_VERSION = 12

# What the log never saw has no log start to report.
_WITHOUT_LOG_START = (
    UnknownTopicOrPartition, UnknownTopicId, NotLeaderOrFollower, MessageTooLarge, RecordListTooLarge, CorruptMessage,
    KafkaStorageError, InvalidTopicException, InvalidRequiredAcks, UnsupportedCompressionType, NotOneBatch,
)  # fmt: skip

_COORDINATOR_UNREACHABLE = (NetworkException, CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)

_OPERATIONS = tuple(
    verification.SupportedOperation.of(version, abortable_since=ABORTABLE_VERSION, adds_since=ADDS_PARTITIONS_VERSION)
    for version in range(APIS[KEY].max_version + 1)
)

log = logging.getLogger(__name__)

decode = produce_codec.decode_request


_Target: TypeAlias = tuple[int, Buffer | KafkaError | None, Partition | KafkaError]
"""One partition of a request: its index, what to append, and the leader to append it to or why there is none."""
_Targets: TypeAlias = list[tuple[TopicKey, list[_Target]]]


def handle(services: Services, context: RequestContext, request: ProduceRequest) -> Answer | Later | Awaitable[Answer]:
    topics = request.topics
    if _names_twice(topics):
        topics = _last_of_each(topics)
    try:
        is_transactional = _check_request(services, context, request, topics)
    except KafkaError as error:
        return _refuse(context, request, topics, error)
    produce = _Produce(services, context, request)
    targets = produce.resolve(topics)
    verdicts = produce.verify(targets) if is_transactional else None
    if (verdicts is not None and type(verdicts) is not dict) or produce.must_prepare:
        return produce.run_later(topics, verdicts)
    produce.append(targets, verdicts)
    return produce.answer()


def error_response(request: ProduceRequest, error: KafkaError, version: int) -> ProduceResponse:
    """The same error on every partition."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=key if isinstance(key, str) else "",
                topic_id=None if isinstance(key, str) else UUID(bytes=key),
                partition_responses=[
                    PartitionProduceResponse(
                        index=index, error_code=error.code, base_offset=-1, error_message=error.message or None
                    )
                    for index, _ in partitions
                ],
            )
            for key, partitions in request.topics
        ]
    )


class _Produce:
    """One request while it is carried out."""

    __slots__ = (
        "_answer", "_context", "_failed", "_request", "_rows", "_services", "_verdicts", "_waiting", "must_prepare",
    )  # fmt: skip

    def __init__(self, services: Services, context: RequestContext, request: ProduceRequest) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._rows: list[tuple[TopicKey, list[ProduceRow]]] = []
        # Appended, but not yet as safe as asked for: partition -> (last offset, its rows, its place in them)
        self._waiting: dict[Partition, tuple[int, list[ProduceRow], int]] = {}
        self._failed = False
        self._verdicts: Verdicts | None = None  # of the partitions with transactional batches
        self._answer: asyncio.Future[Answer] | None = None
        self.must_prepare = False  # `resolve` has found a batch that a thread has to prepare

    def resolve(self, topics: Topics) -> _Targets:
        """Find the leader of each partition: once per request, and once more after each wait, because leadership,
        topics and permissions may have changed meanwhile."""
        found: _Targets = []
        self.must_prepare = False
        leader_of = self._services.replicas.leader
        for key, partitions in topics:
            if not partitions:
                continue
            targets: list[_Target] = []
            found.append((key, targets))
            try:
                name = self._writable_topic(key)
            except KafkaError as error:
                refused = error.with_traceback(None)  # its trace would hold this request until the next collection
                targets.extend((index, records, refused) for index, records in partitions)
                continue
            for index, records in partitions:
                try:
                    leader = leader_of(name, index)
                except KafkaError as error:
                    targets.append((index, records, error.with_traceback(None)))
                    continue
                targets.append((index, records, leader))
                config = leader.log.config
                if config.compression_type != "producer" or config.is_compacted:
                    self.must_prepare |= must_prepare(records, config)
        return found

    def _writable_topic(self, key: TopicKey) -> str:
        services = self._services
        name = key if isinstance(key, str) else services.replicas.topic_name(UUID(bytes=key))
        if not services.authorizer.authorize(self._context, Operation.WRITE, AclResourceType.TOPIC, name):
            raise TopicAuthorizationFailed(f"{self._context.principal} may not write to {name}")
        if is_internal(name) and services.replicas.image.topic(name) is not None:
            raise InvalidTopicException(f"{name} is written by the broker only")
        services.logs.reserve.check()
        return name

    # --- verifying ---

    def verify(self, targets: _Targets) -> Verdicts | Awaitable[Verdicts] | None:
        """What the transaction coordinator and the logs say of the transactional batches."""
        operation = _OPERATIONS[self._context.version]
        transactions = self._services.transactions
        enabled = self._services.settings.bool("transaction.partition.verification.enable")
        transactional_id = self._request.transactional_id
        assert transactional_id is not None
        batches = self._transactional_batches(targets)
        if operation is verification.SupportedOperation.ADD or enabled:
            return verification.verify(transactions, transactional_id, self._context.principal, batches, operation)
        verification.remember(transactions, transactional_id, batches)
        return None

    def _transactional_batches(self, targets: _Targets) -> Iterator[verification.Batch]:
        """Those that have a leader here; `append` reports the errors of the others."""
        for _, partitions in targets:
            for _, records, leader in partitions:
                if records is None or isinstance(records, KafkaError) or isinstance(leader, KafkaError):
                    continue
                if not attributes_of(records) & TRANSACTIONAL:
                    continue
                producer_id, epoch, sequence = producer_of(records)
                if producer_id >= 0:
                    yield verification.Batch(leader, producer_id, epoch, sequence)

    # --- appending ---

    def append(self, targets: _Targets, verdicts: Verdicts | None = None) -> None:
        self._verdicts = verdicts
        for key, partitions in targets:
            rows: list[ProduceRow] = []
            self._rows.append((key, rows))
            for index, records, leader in partitions:
                if isinstance(leader, KafkaError):
                    rows.append(self._error_row(index, leader, None))
                    continue
                guard = None
                if verdicts is not None:
                    try:
                        guard = self._guard(leader)
                    except KafkaError as error:
                        rows.append(self._error_row(index, error, None))
                        continue
                self._append_one(leader, index, records, guard, rows)

    def _append_one(
        self,
        partition: Partition,
        index: int,
        records: Buffer | KafkaError | None,
        guard: int | None,
        rows: list[ProduceRow],
    ) -> None:
        acks = self._request.acks
        try:
            if records is None:
                raise NotOneBatch("the partition has no records: exactly one batch is expected")
            if isinstance(records, KafkaError):
                raise records
            if self._context.version < ZSTD_VERSION:
                self._check_codec(records)
            durable = bool(partition.two_phase) and _is_two_phase(partition, records)
            result = partition.append(records, acks, guard=guard, durable=durable)
        except KafkaError as error:
            if isinstance(error, ForeignBatch):
                self._services.core.quiet.warning(
                    "foreign batch", "refused a batch of %s (%s, client id %s) to %s: %s",
                    self._context.principal, self._context.peer, self._context.client_id, partition, error,
                )  # fmt: skip
            rows.append(self._error_row(index, error, partition))
            return
        except Exception as error:
            log.error("append to %s for %s failed", partition, self._context.peer, exc_info=error)
            rows.append(self._error_row(index, UnknownServerError(repr(error)), partition))
            return
        base_offset, last_offset, time_ms, log_start_offset, _, _ = result
        rows.append(ProduceRow(index, 0, base_offset, time_ms, log_start_offset))
        if (
            acks
            and last_offset >= partition.log.high_watermark
            and (acks == ALL_REPLICAS or partition.is_syncing)  # acks=1 waits for no follower
        ):
            self._waiting[partition] = (last_offset, rows, len(rows) - 1)

    def _check_codec(self, records: Buffer) -> None:
        if attributes_of(records) & CODEC_MASK == Codec.ZSTD:
            raise UnsupportedCompressionType(
                f"zstd needs Produce version {ZSTD_VERSION}, this is {self._context.version}"
            )

    def _guard(self, partition: Partition) -> int | None:
        assert self._verdicts is not None
        verdict = self._verdicts.get(partition.topic_partition)
        if isinstance(verdict, KafkaError):
            raise self._as_partition_error(verdict)
        return verdict

    def _as_partition_error(self, error: KafkaError) -> KafkaError:
        """What the client hears of the coordinator's error: one that cannot be asked now must not make the client look
        for another leader of the partition."""
        if isinstance(error, _COORDINATOR_UNREACHABLE) or (
            isinstance(error, ConcurrentTransactions) and self._context.version < ADDS_PARTITIONS_VERSION
        ):
            return NotEnoughReplicas(error.message)
        return error

    def _error_row(self, index: int, error: KafkaError, partition: Partition | None) -> ProduceRow:
        self._failed = True
        log_start_offset = -1
        if partition is not None and not isinstance(error, _WITHOUT_LOG_START):
            log_start_offset = partition.log.log_start_offset
        return ProduceRow(
            index,
            error.code,
            log_start_offset=log_start_offset,
            record_errors=getattr(error, "record_errors", ()),
            error_message=error.message or None,
        )

    # --- answering ---

    def answer(self) -> Answer | Later:
        if not self._request.acks:
            if self._failed:
                raise CloseConnection("a Produce with acks=0 failed, and closing is the only way to say so")
            return NO_RESPONSE
        if not self._waiting:
            return self._encode()
        self._answer = asyncio.get_running_loop().create_future()
        required = [(partition, offset) for partition, (offset, _, _) in self._waiting.items()]
        timeout_s = max(0, self._request.timeout_ms) / 1000
        until = Until.REPLICATED if self._request.acks == ALL_REPLICAS else Until.SYNCED
        self._services.replicas.purgatory.park_produce(required, timeout_s, self._finish, until)
        return Later(self._answer, overlaps=True)

    def _finish(self, delayed: DelayedProduce) -> None:
        assert self._answer is not None
        if self._answer.done():
            return  # the client is gone
        for partition, (_, rows, place) in self._waiting.items():
            error = append_fate(
                partition,
                passed=partition not in delayed.waiting,
                needs_in_sync=self._request.acks == ALL_REPLICAS,
                what="records",
                time_limit=f"timeout_ms={self._request.timeout_ms}",
            )
            if error is not None:
                rows[place] = self._error_row(rows[place].partition, error, partition)
        self._answer.set_result(self._encode())

    def _encode(self) -> Frame:
        version = self._context.version
        leaders: set[int] = set()
        if self._failed and version >= LEADERS_VERSION:
            self._name_leaders(leaders)
        endpoints = [
            found for node in sorted(leaders) if (found := self._services.endpoint(node, self._context.listener))
        ]
        frame = produce_codec.encode_response(self._context.correlation_id, version, self._rows, endpoints)
        return _with_errors(frame, self._rows) if self._failed else frame

    def _name_leaders(self, leaders: set[int]) -> None:
        """Tell a client that came to the wrong broker where to go."""
        replicas = self._services.replicas
        for key, rows in self._rows:
            for place, row in enumerate(rows):
                if row.error_code == NotLeaderOrFollower.code:
                    try:
                        name = key if isinstance(key, str) else replicas.topic_name(UUID(bytes=key))
                        _, state = replicas.state(name, row.partition)
                    except (UnknownTopicId, UnknownTopicOrPartition):
                        continue  # deleted while the records waited to be safe: no broker leads it any more
                    rows[place] = row._replace(current_leader=(state.leader, state.leader_epoch))
                    leaders.add(state.leader)

    # --- after a wait ---

    async def run_later(self, topics: Topics, verdicts: Verdicts | Awaitable[Verdicts] | None) -> Answer:
        """Append after waiting for the coordinator or for a thread; the connection's next request waits, so that order
        is kept."""
        if isinstance(verdicts, Awaitable):
            verdicts = await verdicts
        targets = self.resolve(topics)
        if self.must_prepare:
            targets = self.resolve(await self._prepared(targets))
        self.append(targets, verdicts)
        answer = self.answer()
        return await answer.answer if isinstance(answer, Later) else answer

    async def _prepared(self, targets: _Targets) -> Topics:
        ready: Topics = []
        for key, partitions in targets:
            rows: Partitions = []
            for index, records, leader in partitions:
                if isinstance(records, bytes | bytearray | memoryview) and isinstance(leader, Partition):
                    config = leader.log.config
                    if must_prepare(records, config):
                        # A copy: the thread must not share the frame with the loop.
                        now_ms = self._services.runtime.clock.wall_ms()
                        records = await self._services.aside(prepare_batch, bytes(records), config, now_ms)
                rows.append((index, records))
            ready.append((key, rows))
        return ready


def _is_two_phase(partition: Partition, records: Buffer) -> bool:
    if not attributes_of(records) & TRANSACTIONAL:
        return False
    return partition.two_phase.get(producer_of(records)[0], False)


def _check_request(services: Services, context: RequestContext, request: ProduceRequest, topics: Topics) -> bool:
    """Whether there are transactional batches."""
    if request.acks not in (-1, 0, 1):
        raise InvalidRequiredAcks(f"acks={request.acks}: -1, 0 and 1 are known")
    producers = set()
    for _, partitions in topics:
        for _, records in partitions:
            if records is None or isinstance(records, KafkaError):
                continue
            if attributes_of(records) & TRANSACTIONAL:
                producers.add(producer_of(records)[:2])
    if not producers:
        return False
    name = request.transactional_id
    if name is None or not services.authorizer.authorize(
        context, Operation.WRITE, AclResourceType.TRANSACTIONAL_ID, name
    ):
        raise TransactionalIdAuthorizationFailed(f"{context.principal} may not write with transactional id {name}")
    if len(producers) > 1:
        raise InvalidProducerIdMapping(f"batches of {len(producers)} transactional producers in one request")
    return True


def _refuse(context: RequestContext, request: ProduceRequest, topics: Topics, error: KafkaError) -> Answer:
    if not request.acks:
        raise CloseConnection(f"a Produce with acks=0 failed: {error}")
    asked = [(key, rows) for key, rows in topics if rows]
    rows = [
        (key, [ProduceRow(index, error.code, error_message=error.message) for index, _ in rows]) for key, rows in asked
    ]
    return _with_errors(produce_codec.encode_response(context.correlation_id, context.version, rows), rows)


def _with_errors(frame: Frame, rows: list[tuple[TopicKey, list[ProduceRow]]]) -> Frame:
    return frame._replace(errors=[row.error_code for _, found in rows for row in found if row.error_code])


def _names_twice(topics: Topics) -> bool:
    for _, partitions in topics:
        if len(partitions) > 1 and len({index for index, _ in partitions}) < len(partitions):
            return True
    return len(topics) > 1 and len({key for key, _ in topics}) < len(topics)


def _last_of_each(topics: Topics) -> Topics:
    merged: dict[TopicKey, dict[int, Buffer | KafkaError | None]] = {}
    for key, partitions in topics:
        merged.setdefault(key, {}).update(partitions)
    return [(key, list(partitions.items())) for key, partitions in merged.items()]
