"""TxnOffsetCommit: API key 28, versions 0-5.

1. Without WRITE on the transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53); without READ on the group:
   GROUP_AUTHORIZATION_FAILED (30), both everywhere.
2. Partition by partition: TOPIC_AUTHORIZATION_FAILED (29), UNKNOWN_TOPIC_OR_PARTITION (3), OFFSET_METADATA_TOO_LARGE
   (12). The others are committed together; when nothing is left, the answer goes out without further questions.
3. An empty group id: INVALID_GROUP_ID (24). An empty transactional id: INVALID_REQUEST (42). A group that does not
   exist is created, except for a member of one of its generations: ILLEGAL_GENERATION (22).
4. From version 3 on a generation, member id or instance id, where one is given, must be that of the group: 22,
   UNKNOWN_MEMBER_ID (25), FENCED_INSTANCE_ID (82). A client that gives none of them is not fenced; a
   rebalance refuses no client.
5. The partition of `__consumer_offsets` must be part of the transaction: up to version 3 INVALID_TXN_STATE (48) where
   it is not, in version 4 TRANSACTION_ABORTABLE (120), from version 5 on it becomes part of it.
6. The offsets are pending until the transaction ends; the answer waits until they are safe, not for that end.
7. Errors of the log and of the transaction coordinator are rewritten to what clients know (`coordinator.group.state`);
   before version 2 COORDINATOR_LOAD_IN_PROGRESS (14) is COORDINATOR_NOT_AVAILABLE (15).
"""

import asyncio
from collections.abc import Awaitable, Callable

from twofold.broker.coordinators.groups.committed_topics import CommitRows
from twofold.broker.coordinators.groups.shard import GroupShard
from twofold.broker.coordinators.transactions import verification
from twofold.broker.coordinators.transactions.verification import Verdicts
from twofold.broker.coordinators.waiting import guarded
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.group.offsets import Committer
from twofold.coordinator.group.state import as_coordinator_error
from twofold.coordinator.transaction.refusals import check_id
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    KafkaError,
    TransactionalIdAuthorizationFailed,
)
from twofold.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

KEY = 28

LOADING_SINCE = 2
ABORTABLE_SINCE = 4
ADDS_SINCE = 5


def handle(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Awaitable[TxnOffsetCommitResponse]:
    _authorize(services, context, request)
    rows = CommitRows(services.core, context, request.topics)
    answer = _answer(request, rows)
    if not rows.commits:
        return answer([])
    producer_id, producer_epoch = ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)
    committer = Committer(request.group_id, request.generation_id, request.member_id, request.group_instance_id)

    def write(shard: GroupShard, guard: int | None) -> "asyncio.Future[list[int]]":
        now = shard.now()
        return shard.write_in_transaction(
            lambda state, _: shard.offsets.commit_in_transaction(
                state, committer, rows.commits, producer_id, producer_epoch, now
            ),
            guard,
            durable=shard.partition.two_phase.get(producer_id, False),
        )

    async def write_verified(shard: GroupShard, verdicts: Awaitable[Verdicts]) -> list[int]:
        guard = _guard(shard, await verdicts)
        shard.check_active()
        return await write(shard, guard)

    def commit() -> "Awaitable[list[int]]":
        shard = services.groups.shard(request.group_id)
        check_id(request.transactional_id)
        services.groups.check_room()
        verdicts = _verify(services, context, request, shard)
        if isinstance(verdicts, Awaitable):
            return write_verified(shard, verdicts)
        return write(shard, _guard(shard, verdicts))

    return guarded(commit, answer, lambda error: answer([_code(error, context.version)] * len(rows.commits)))


def error_response(request: TxnOffsetCommitRequest, error: KafkaError, version: int) -> TxnOffsetCommitResponse:
    code = _code(error, version)
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code)
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _authorize(services: Services, context: RequestContext, request: TxnOffsetCommitRequest) -> None:
    authorize = services.authorizer.authorize
    if not authorize(context, Operation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id):
        raise TransactionalIdAuthorizationFailed(f"no WRITE on the transactional id {request.transactional_id}")
    if not authorize(context, Operation.READ, AclResourceType.GROUP, request.group_id):
        raise GroupAuthorizationFailed(f"no READ on group {request.group_id}")


def _verify(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest, shard: GroupShard
) -> Verdicts | Awaitable[Verdicts]:
    """Whether the group's partition is part of the transaction; from version 5 on it becomes that."""
    operation = verification.SupportedOperation.of(
        context.version, abortable_since=ABORTABLE_SINCE, adds_since=ADDS_SINCE
    )
    batch = verification.Batch(
        shard.partition, ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch), 0
    )
    if operation is not verification.SupportedOperation.ADD and not services.settings.bool(
        "transaction.partition.verification.enable"
    ):
        verification.remember(services.transactions, request.transactional_id, [batch])
        return {}
    return verification.verify(services.transactions, request.transactional_id, context.principal, [batch], operation)


def _guard(shard: GroupShard, verdicts: Verdicts) -> int | None:
    verdict = verdicts.get(shard.partition.topic_partition)
    if isinstance(verdict, KafkaError):
        raise verdict
    return verdict


def _code(error: KafkaError, version: int) -> int:
    error = as_coordinator_error(error)
    if isinstance(error, CoordinatorLoadInProgress) and version < LOADING_SINCE:
        return CoordinatorNotAvailable.code
    return error.code


def _answer(request: TxnOffsetCommitRequest, rows: CommitRows) -> Callable[[list[int]], TxnOffsetCommitResponse]:
    def answer(codes: list[int]) -> TxnOffsetCommitResponse:
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code)
                        for row, code in zip(topic.partitions, codes_of_topic, strict=True)
                    ],
                )
                for topic, codes_of_topic in zip(request.topics, rows.merged(codes), strict=True)
            ]
        )

    return answer
