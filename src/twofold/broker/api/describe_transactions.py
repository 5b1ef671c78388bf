"""DescribeTransactions: API key 65, version 0.

1. Each id has a row of its own, also where it is asked for twice. Without DESCRIBE on it:
   TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53); empty: INVALID_REQUEST (42); coordinated elsewhere: 16, loading: 14,
   stopping: 15; unknown or expired: TRANSACTIONAL_ID_NOT_FOUND (105). A row with an error holds nothing else.
2. What is committed is described: a decided transaction with the partitions that still lack their marker, a complete
   one with none. Topics that may not be described are left out.
3. In tagged fields: how the last two-phase transaction of the id ended, and which producer id and epoch it had while it
   was open (KIP-939). Without one they are not written.
4. A client that asks for outcomes (a tagged field) is told, in tagged fields, the transaction whose outcome the record
   of the id proves (`coordinator.transaction.proofs`), by the pair of producer id and epoch that wrote it.
"""

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.transaction.overview import Description, describe
from twofold.coordinator.transaction.proofs import Pair
from twofold.coordinator.transaction.records import Ended
from twofold.coordinator.transaction.refusals import check_id
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from twofold.wire.errors import NONE, KafkaError, TransactionalIdAuthorizationFailed
from twofold.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)

KEY = 65

_NONE_ENDED = Ended(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, 0)
NO_PAIR = Pair(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
NOT_DECIDED, COMMITTED, ABORTED = range(3)


def handle(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_row(services, context, name, request.outcomes) for name in request.transactional_ids]
    )


def error_response(
    request: DescribeTransactionsRequest, error: KafkaError, version: int
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_error_row(transactional_id, error) for transactional_id in request.transactional_ids]
    )


def _row(services: Services, context: RequestContext, transactional_id: str, outcomes: bool) -> TransactionState:
    try:
        found = _describe(services, context, transactional_id)
    except KafkaError as error:
        return _error_row(transactional_id, error)
    authorize = services.authorizer.authorize
    ended = found.last_two_phase or _NONE_ENDED
    decided = found.decided if outcomes else None
    pair, committed = decided or (NO_PAIR, False)
    return TransactionState(
        error_code=NONE,
        transactional_id=transactional_id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            TopicData(topic=topic, partitions=partitions)
            for topic, partitions in found.topics.items()
            if authorize(context, Operation.DESCRIBE, AclResourceType.TOPIC, topic, quiet=True)
        ],
        last_two_phase_producer_id=ended.producer_id,
        last_two_phase_epoch=ended.producer_epoch,
        last_two_phase_ending=ended.ending,
        decided_producer_id=pair.producer_id,
        decided_epoch=pair.producer_epoch,
        opened_by=found.opened_by,
        decided_outcome=NOT_DECIDED if decided is None else COMMITTED if committed else ABORTED,
    )


def _describe(services: Services, context: RequestContext, transactional_id: str) -> Description:
    if not services.authorizer.authorize(
        context, Operation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        raise TransactionalIdAuthorizationFailed(f"no DESCRIBE on the transactional id {transactional_id}")
    check_id(transactional_id)
    entry = services.transactions.shard(transactional_id).committed.entries.get(transactional_id)
    return describe(entry, transactional_id, services.transactions.markers.remaining(transactional_id))


def _error_row(transactional_id: str, error: KafkaError) -> TransactionState:
    return TransactionState(
        error_code=error.code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=(),
    )
