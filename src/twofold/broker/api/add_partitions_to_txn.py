"""AddPartitionsToTxn: API key 24, versions 0-5.

1. Versions 0 to 3 come from clients and have one transaction; 4 and 5 come from brokers, have many, and need
   CLUSTER_ACTION on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31) for the whole request.
2. A client needs WRITE on the transactional id, else TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53) everywhere, and WRITE
   on each topic; a topic that is not allowed or internal: TOPIC_AUTHORIZATION_FAILED (29). Brokers may name internal
   ones.
3. A partition that does not exist: UNKNOWN_TOPIC_OR_PARTITION (3). Where one partition is refused by this rule or the
   last, the others are OPERATION_NOT_ATTEMPTED (55) and nothing is written.
4. Otherwise one outcome for all partitions of a transaction; they belong to it when the answer goes out. With
   verify_only nothing is written, and each partition has an outcome: TRANSACTION_ABORTABLE (120) where it is not part.
5. A batch is answered when every transaction of it is. One transaction without partitions: INVALID_REQUEST (42) has no
   partition to stand on, so that an empty row says it.
6. From version 5 on a tagged field of ours tells the leader that asks whether the transaction is a two-phase one, whose
   batches are synced before they are acknowledged; leaders of other makers do not see it.
7. Before version 2 PRODUCER_FENCED (90) is INVALID_PRODUCER_EPOCH (47).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from twofold.broker.codec import transactions as txn_codec
from twofold.broker.coordinators.transactions.service import Admission
from twofold.broker.coordinators.waiting import is_done
from twofold.broker.network.authorizer import AclResourceType, Operation, cluster_allows
from twofold.broker.network.context import Frame, RequestContext
from twofold.broker.services import Services
from twofold.config.internal_topics import is_internal
from twofold.coordinator.transaction.coordinator import Decision
from twofold.types import ProducerEpoch, ProducerId, TopicPartition
from twofold.wire.errors import (
    NONE,
    ClusterAuthorizationFailed,
    InvalidProducerEpoch,
    KafkaError,
    OperationNotAttempted,
    ProducerFenced,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

KEY = 24

decode = txn_codec.decode_add_partitions

FENCED_SINCE = 2
BATCHES_SINCE = 4

Topics: TypeAlias = Sequence[AddPartitionsToTxnTopic]
Codes: TypeAlias = Callable[[TopicPartition], int]
Outcome: TypeAlias = tuple[Codes, bool]  # and whether the transaction is a two-phase one


def handle(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Frame | AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    if context.version < BATCHES_SINCE:
        return _handle_one(services, context, request)
    if not cluster_allows(services.authorizer, context, Operation.CLUSTER_ACTION):
        raise ClusterAuthorizationFailed("adding partitions for many transactions is for brokers: no CLUSTER_ACTION")
    return _handle_many(services, context.principal, request.transactions)


def error_response(request: AddPartitionsToTxnRequest, error: KafkaError, version: int) -> AddPartitionsToTxnResponse:
    code = _code(error, version)
    return AddPartitionsToTxnResponse(
        error_code=error.code,
        results_by_topic_v3_and_below=_rows(request.v3_and_below_topics, lambda _: code),
    )


def _code(error: KafkaError, version: int) -> int:
    return InvalidProducerEpoch.code if isinstance(error, ProducerFenced) and version < FENCED_SINCE else error.code


# --- one transaction of a client ---


def _handle_one(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> Frame | AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    transactional_id, topics = request.v3_and_below_transactional_id, request.v3_and_below_topics
    authorize = services.authorizer.authorize
    if not authorize(context, Operation.WRITE, AclResourceType.TRANSACTIONAL_ID, transactional_id):
        raise TransactionalIdAuthorizationFailed(f"no WRITE on the transactional id {transactional_id}")
    refused: dict[TopicPartition, int] = {}
    for topic in topics:
        if is_internal(topic.name) or not authorize(context, Operation.WRITE, AclResourceType.TOPIC, topic.name):
            for index in topic.partitions:
                refused[TopicPartition(topic.name, index)] = TopicAuthorizationFailed.code
    partitions = _partitions(services, topics, refused)
    if refused:
        return _response(_rows(topics, _attempted(refused)))
    decided = services.transactions.add_partitions(
        transactional_id,
        ProducerId(request.v3_and_below_producer_id),
        ProducerEpoch(request.v3_and_below_producer_epoch),
        partitions,
        _client_version(context.version),
        context.principal,
    )
    if not is_done(decided):
        return _one_later(decided, topics)
    if context.version < txn_codec.FLEXIBLE_SINCE and len(topics) == 1:
        return txn_codec.encode_added(context.correlation_id, topics[0])
    return _response(_rows(topics, _fine))


async def _one_later(decided: Awaitable[Decision], topics: Topics) -> AddPartitionsToTxnResponse:
    await decided
    return _response(_rows(topics, _fine))


def _response(rows: list[AddPartitionsToTxnTopicResult]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=rows)


# --- many transactions of a broker ---


def _handle_many(
    services: Services, principal: str, transactions: Sequence[AddPartitionsToTxnTransaction]
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    outcomes = [_start(services, principal, transaction) for transaction in transactions]
    if any(isinstance(outcome, Awaitable) for outcome in outcomes):
        return _many_later(transactions, outcomes)
    return _many(transactions, outcomes)  # type: ignore[arg-type]


async def _many_later(
    transactions: Sequence[AddPartitionsToTxnTransaction], outcomes: "Sequence[Outcome | Awaitable[Outcome]]"
) -> AddPartitionsToTxnResponse:
    waiting = [outcome for outcome in outcomes if isinstance(outcome, Awaitable)]
    done = iter(await asyncio.gather(*waiting))
    return _many(transactions, [next(done) if isinstance(outcome, Awaitable) else outcome for outcome in outcomes])


def _many(
    transactions: Sequence[AddPartitionsToTxnTransaction], outcomes: Sequence[Outcome]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=_rows(transaction.topics, codes),
                two_phase=two_phase,
            )
            for transaction, (codes, two_phase) in zip(transactions, outcomes, strict=True)
        ]
    )


def _start(
    services: Services, principal: str, transaction: AddPartitionsToTxnTransaction
) -> "Outcome | Awaitable[Outcome]":
    refused: dict[TopicPartition, int] = {}
    partitions = _partitions(services, transaction.topics, refused)
    if refused:
        return _attempted(refused), False
    outcome = services.transactions.admit(
        transaction.transactional_id,
        ProducerId(transaction.producer_id),
        ProducerEpoch(transaction.producer_epoch),
        partitions,
        principal,
        adds=not transaction.verify_only,
    )
    return _coded(outcome) if isinstance(outcome, Admission) else _coded_later(outcome)


async def _coded_later(outcome: Awaitable[Admission]) -> Outcome:
    return _coded(await outcome)


def _coded(admission: Admission) -> Outcome:
    return lambda partition: admission.codes.get(partition, NONE), admission.two_phase


# --- rows ---


def _partitions(services: Services, topics: Topics, refused: dict[TopicPartition, int]) -> frozenset[TopicPartition]:
    """All of them; those that do not exist are refused."""
    partitions = []
    for topic in topics:
        known = services.image.topics.get(topic.name)
        for index in topic.partitions:
            partition = TopicPartition(topic.name, index)
            partitions.append(partition)
            if known is None or index not in known.partitions:
                refused.setdefault(partition, UnknownTopicOrPartition.code)
    return frozenset(partitions)


def _attempted(refused: Mapping[TopicPartition, int]) -> Codes:
    return lambda partition: refused.get(partition, OperationNotAttempted.code)


def _fine(_: TopicPartition) -> int:
    return NONE


def _rows(topics: Topics, codes: Codes) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=codes(TopicPartition(topic.name, index))
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def _client_version(version: int) -> int:
    return 2 if version >= BATCHES_SINCE else 0
