"""AddOffsetsToTxn: API key 25, versions 0-4.

1. Without WRITE on the transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53); without READ on the group:
   GROUP_AUTHORIZATION_FAILED (30).
2. The partition of `__consumer_offsets` that owns the group becomes part of the transaction, as by AddPartitionsToTxn
   and with its errors. The group need not exist; the topic is created where it does not:
   COORDINATOR_NOT_AVAILABLE (15) until then.
3. Before version 2 PRODUCER_FENCED (90) is INVALID_PRODUCER_EPOCH (47).
"""

from collections.abc import Awaitable

from twofold.broker.coordinators.waiting import when_done
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.config.internal_topics import CONSUMER_OFFSETS, coordinator_partition
from twofold.types import ProducerEpoch, ProducerId, TopicPartition
from twofold.wire.errors import (
    NONE,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
)
from twofold.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

KEY = 25

FENCED_SINCE = 2
FIRST_PROTOCOL = 0


def handle(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
    transactional_id, group_id = request.transactional_id, request.group_id
    authorize = services.authorizer.authorize
    if not authorize(context, Operation.WRITE, AclResourceType.TRANSACTIONAL_ID, transactional_id):
        raise TransactionalIdAuthorizationFailed(f"no WRITE on the transactional id {transactional_id}")
    if not authorize(context, Operation.READ, AclResourceType.GROUP, group_id):
        raise GroupAuthorizationFailed(f"no READ on group {group_id}")
    decided = services.transactions.add_partitions(
        transactional_id,
        ProducerId(request.producer_id),
        ProducerEpoch(request.producer_epoch),
        frozenset({offsets_partition(services, group_id)}),
        FIRST_PROTOCOL,
        context.principal,
    )
    return when_done(decided, lambda _: AddOffsetsToTxnResponse(error_code=NONE))


def error_response(request: AddOffsetsToTxnRequest, error: KafkaError, version: int) -> AddOffsetsToTxnResponse:
    fenced = isinstance(error, ProducerFenced) and version < FENCED_SINCE
    return AddOffsetsToTxnResponse(error_code=InvalidProducerEpoch.code if fenced else error.code)


def offsets_partition(services: Services, group_id: str) -> TopicPartition:
    """The partition of `__consumer_offsets` that owns a group."""
    topic = services.image.topic(CONSUMER_OFFSETS)
    if topic is None:
        services.auto_topics.create([CONSUMER_OFFSETS])
        raise CoordinatorNotAvailable(f"{CONSUMER_OFFSETS} is being created")
    return TopicPartition(CONSUMER_OFFSETS, coordinator_partition(group_id, len(topic.partitions)))
