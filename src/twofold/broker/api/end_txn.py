"""EndTxn: API key 26, versions 0-5.

1. Without WRITE on the transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53). An empty one: INVALID_REQUEST
   (42).
2. Versions 0 to 4 follow the first protocol: the epoch stays, producer id and epoch of the answer are -1. From version
   5 on every end raises the epoch (KIP-890), and the answer has the pair to go on with; the server's
   transaction.version does not matter.
3. The answer goes out when the decision is in the log; the markers follow.
4. While the last decision is being carried out: CONCURRENT_TRANSACTIONS (51), after some waiting. What does not fit the
   state: INVALID_TXN_STATE (48); another producer id: INVALID_PRODUCER_ID_MAPPING (49); another epoch: PRODUCER_FENCED
   (90), before version 2 INVALID_PRODUCER_EPOCH (47).
5. A commit of a transaction of which an administrator has aborted a partition (KIP-664): TRANSACTION_ABORTABLE (120).
   Nothing is decided by that, and the rest can be aborted.
6. The broker's log names the client that decides about a two-phase transaction.
"""

from collections.abc import Awaitable

from twofold.broker.codec import transactions as txn_codec
from twofold.broker.coordinators.waiting import is_done, when_done
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import Frame, RequestContext
from twofold.broker.services import Services
from twofold.coordinator.transaction.coordinator import Decision
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.errors import (
    NONE,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
)
from twofold.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

KEY = 26

decode = txn_codec.decode_end_txn

FENCED_SINCE = 2
BUMPS_SINCE = 5


def handle(
    services: Services, context: RequestContext, request: EndTxnRequest
) -> Frame | EndTxnResponse | Awaitable[EndTxnResponse]:
    transactional_id = request.transactional_id
    if not services.authorizer.authorize(context, Operation.WRITE, AclResourceType.TRANSACTIONAL_ID, transactional_id):
        raise TransactionalIdAuthorizationFailed(f"no WRITE on the transactional id {transactional_id}")
    decided = services.transactions.end(
        transactional_id,
        ProducerId(request.producer_id),
        ProducerEpoch(request.producer_epoch),
        request.committed,
        2 if context.version >= BUMPS_SINCE else 1,
        context,
    )
    if context.version < txn_codec.FLEXIBLE_SINCE and is_done(decided):
        return txn_codec.encode_end_txn(context.correlation_id)
    return when_done(decided, _response)


def error_response(request: EndTxnRequest, error: KafkaError, version: int) -> EndTxnResponse:
    fenced = isinstance(error, ProducerFenced) and version < FENCED_SINCE
    return EndTxnResponse(error_code=InvalidProducerEpoch.code if fenced else error.code)


def _response(decision: Decision) -> EndTxnResponse:
    return EndTxnResponse(error_code=NONE, producer_id=decision.producer_id, producer_epoch=decision.producer_epoch)
