"""InitProducerId: API key 22, versions 0-7.

1. Without a transactional id: IDEMPOTENT_WRITE on the cluster or WRITE on any topic, else CLUSTER_AUTHORIZATION_FAILED
   (31). With one: WRITE on it, else TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53).
2. A producer id without an epoch, or an epoch without an id: INVALID_REQUEST (42).
3. Without a transactional id: the next producer id of this broker, epoch 0; timeout and the id given are ignored, and
   nothing is written. Where this broker has no block of ids, and none comes in a moment:
   COORDINATOR_LOAD_IN_PROGRESS (14).
4. An empty transactional id: INVALID_REQUEST (42). A timeout that is not within 1 and transaction.max.timeout.ms:
   INVALID_TRANSACTION_TIMEOUT (50).
5. With a transactional id: a new epoch, or a new producer id where the epochs are used up, durable before it is
   answered. An open transaction is aborted first: CONCURRENT_TRANSACTIONS (51), after some waiting for that. A producer
   that names an id and epoch that are not current: PRODUCER_FENCED (90), before version 4 INVALID_PRODUCER_EPOCH (47).
6. From version 6 on (KIP-939) enable2Pc makes the id a two-phase one, whose transactions only an outside decision ends:
   it needs TWO_PHASE_COMMIT on the id and transaction.two.phase.commit.enable, else 53, and its timeout is not
   looked at. keepPreparedTxn leaves the open transaction as it is and gives the caller an identity that can only end
   it; the answer names the pair of the transaction too, and waits until all that it wrote is on disk if it is a
   two-phase one. It names no producer (42) and needs transaction.version 2 (UNSUPPORTED_VERSION, 35).
7. From version 7 on (KIP-1309) an interval asks for heartbeats: 42 where it is negative, longer than the timeout or
   beside enable2Pc. Served unless transaction.heartbeat.enable is false.
8. The broker's log names the client that ends an open transaction this way.
9. Any error comes with producer id and epoch -1.
10. With the tagged fields ExpectedProducerId, ExpectedProducerEpoch and ExpectedStartMs (Twofold's own, for
    administrators) the request acts only if that transaction is open under the id, or with a start of -1 only if none
    is open. Otherwise nothing is done: INVALID_TXN_STATE (48), for an unknown id TRANSACTIONAL_ID_NOT_FOUND (105).
    Success means that this request has aborted that transaction; its markers follow. The answer has the tag
    ExpectedChecked, also with an error.
"""

from twofold.broker.network.authorizer import AclResourceType, Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.transaction.coordinator import Expected, InitRequest, check_identity
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId
from twofold.wire.errors import (
    NONE,
    ClusterAuthorizationFailed,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
)
from twofold.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

KEY = 22

FENCED_SINCE = 4


async def handle(services: Services, context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    transactional_id = request.transactional_id
    _authorize(services, context, transactional_id, request.enable2_pc)
    check_identity(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
    if transactional_id is None:
        producer_id = await services.producer_ids.take_soon()
        return InitProducerIdResponse(error_code=NONE, producer_id=producer_id, producer_epoch=0)
    await services.producer_ids.arrive()
    decision = await services.transactions.init_producer_id(
        InitRequest(
            transactional_id,
            request.transaction_timeout_ms,
            ProducerId(request.producer_id),
            ProducerEpoch(request.producer_epoch),
            request.enable2_pc,
            request.keep_prepared_txn,
            request.transaction_heartbeat_interval_ms,
            _expected(request),
        ),
        context,
    )
    return InitProducerIdResponse(
        error_code=NONE,
        producer_id=decision.producer_id,
        producer_epoch=decision.producer_epoch,
        ongoing_txn_producer_id=decision.ongoing_producer_id,
        ongoing_txn_producer_epoch=decision.ongoing_producer_epoch,
        expected_checked=_expected(request) is not None,
    )


def error_response(request: InitProducerIdRequest, error: KafkaError, version: int) -> InitProducerIdResponse:
    fenced = isinstance(error, ProducerFenced) and version < FENCED_SINCE
    return InitProducerIdResponse(
        error_code=InvalidProducerEpoch.code if fenced else error.code,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        expected_checked=_expected(request) is not None,
    )


def _expected(request: InitProducerIdRequest) -> Expected | None:
    if request.expected_producer_id == NO_PRODUCER_ID:
        return None
    return Expected(
        ProducerId(request.expected_producer_id),
        ProducerEpoch(request.expected_producer_epoch),
        request.expected_start_ms,
    )


def _authorize(services: Services, context: RequestContext, transactional_id: str | None, two_phase: bool) -> None:
    authorizer = services.authorizer
    if transactional_id is not None:
        needed = [Operation.WRITE, Operation.TWO_PHASE_COMMIT] if two_phase else [Operation.WRITE]
        for operation in needed:
            if not authorizer.authorize(context, operation, AclResourceType.TRANSACTIONAL_ID, transactional_id):
                raise TransactionalIdAuthorizationFailed(
                    f"no {operation.name} on the transactional id {transactional_id}"
                )
    elif not cluster_allows(
        authorizer, context, Operation.IDEMPOTENT_WRITE, quiet=True
    ) and not authorizer.authorize_any(context, Operation.WRITE, AclResourceType.TOPIC):
        raise ClusterAuthorizationFailed("neither IDEMPOTENT_WRITE on the cluster nor WRITE on any topic")
