"""InitProducerId: API key 22, versions 0-5.

1. Without a transactional id: IDEMPOTENT_WRITE on the cluster or WRITE on any topic, else CLUSTER_AUTHORIZATION_FAILED
   (31). With one: WRITE on it, else TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53).
2. A producer id without an epoch, or an epoch without an id: INVALID_REQUEST (42).
3. Without a transactional id: the next producer id of this broker, epoch 0; timeout and the id given are ignored, and
   nothing is written. Where this broker has no block of ids, and none comes in a moment:
   COORDINATOR_LOAD_IN_PROGRESS (14).
4. An empty transactional id: INVALID_REQUEST (42).
5. With a transactional id: COORDINATOR_NOT_AVAILABLE (15), until this broker has a transaction coordinator.
6. Any error comes with producer id and epoch -1.
"""

from typing import TYPE_CHECKING

from twofold.broker.authorizer import Operation, ResourceType, cluster_allows
from twofold.broker.context import RequestContext
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from twofold.wire.errors import (
    NONE,
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    InvalidRequest,
    KafkaError,
    TransactionalIdAuthorizationFailed,
)
from twofold.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from twofold.broker.broker import Broker

KEY = 22


async def handle(broker: "Broker", context: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    transactional_id = request.transactional_id
    _authorize(broker, context, transactional_id)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        raise InvalidRequest(
            f"producer id {request.producer_id} and epoch {request.producer_epoch}: both or neither must be -1"
        )
    if transactional_id == "":
        raise InvalidRequest("the transactional id is empty; leave it out for a producer without transactions")
    if transactional_id is not None:
        raise CoordinatorNotAvailable(f"no coordinator for the transactional id {transactional_id}")
    return InitProducerIdResponse(error_code=NONE, producer_id=await broker.producer_ids.take_soon(), producer_epoch=0)


def error_response(request: InitProducerIdRequest, error: KafkaError, version: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error.code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH)


def _authorize(broker: "Broker", context: RequestContext, transactional_id: str | None) -> None:
    authorizer = broker.authorizer
    if transactional_id is not None:
        if not authorizer.authorize(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            raise TransactionalIdAuthorizationFailed(f"no WRITE on the transactional id {transactional_id}")
    elif not cluster_allows(authorizer, context, Operation.IDEMPOTENT_WRITE) and not authorizer.authorize_any(
        context, Operation.WRITE, ResourceType.TOPIC
    ):
        raise ClusterAuthorizationFailed("neither IDEMPOTENT_WRITE on the cluster nor WRITE on any topic")
