"""FindCoordinator: API key 10, versions 0-6.

1. One key before version 4, a list of them from then on: one row a key, in order, duplicates and empty keys included.
2. Key types: 0 a group, 1 a transactional id. 2, share groups, are not served: INVALID_REQUEST (42) for each key. Any
   other type fails the whole request with 42. An error comes with node -1, host "" and port -1.
3. Without DESCRIBE on the group: GROUP_AUTHORIZATION_FAILED (30); on the transactional id:
   TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53).
4. The coordinator is the leader of the partition of `__consumer_offsets` or `__transaction_state` that the key's hash
   chooses. Where the topic is missing it is created, whatever `auto.create.topics.enable` says, and the answer waits a
   moment for that; it is COORDINATOR_NOT_AVAILABLE (15) where that takes longer, and while the partition has no leader
   that the client can reach.
5. NONE means that the partition has a leader; the coordinator behind it may still be loading.
6. Versions 1 to 3 carry a text with every answer ("NONE" with success), later ones only with a failed request.
"""

from collections.abc import Awaitable
from typing import NamedTuple

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.config.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE, coordinator_partition
from twofold.wire.errors import (
    NONE,
    CoordinatorNotAvailable,
    GroupAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    TransactionalIdAuthorizationFailed,
    error_for,
)
from twofold.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

KEY = 10

GROUP, TRANSACTION, SHARE = 0, 1, 2
BATCHES_SINCE = 4


class Found(NamedTuple):
    error_code: int = NONE
    node_id: int = -1
    host: str = ""
    port: int = -1


TOPICS = {GROUP: CONSUMER_OFFSETS, TRANSACTION: TRANSACTION_STATE}


def handle(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    if request.key_type not in (GROUP, TRANSACTION, SHARE):
        raise InvalidRequest(f"key type {request.key_type} is neither 0 (group) nor 1 (transactional id)")
    topic = TOPICS.get(request.key_type)
    if topic is not None and services.image.topic(topic) is None:
        return _answer_later(services, context, request, topic)
    return _answer(services, context, request)


async def _answer_later(
    services: Services, context: RequestContext, request: FindCoordinatorRequest, topic: str
) -> FindCoordinatorResponse:
    await services.auto_topics.created(topic)
    return _answer(services, context, request)


def _answer(services: Services, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if context.version >= BATCHES_SINCE:
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(key=key, error_message="", **_find(services, context, request.key_type, key)._asdict())
                for key in request.coordinator_keys
            ]
        )
    found = _find(services, context, request.key_type, request.key)
    message = "NONE" if found.error_code == NONE else error_for(found.error_code).name
    return FindCoordinatorResponse(error_message=message, **found._asdict())


def error_response(request: FindCoordinatorRequest, error: KafkaError, version: int) -> FindCoordinatorResponse:
    nowhere = Found(error.code)._asdict()
    message = error.message or error.name
    return FindCoordinatorResponse(
        error_message=message,
        coordinators=[Coordinator(key=key, error_message=message, **nowhere) for key in request.coordinator_keys],
        **nowhere,
    )


def _find(services: Services, context: RequestContext, key_type: int, key: str) -> Found:
    authorize = services.authorizer.authorize
    if key_type == GROUP:
        if not authorize(context, Operation.DESCRIBE, AclResourceType.GROUP, key):
            return Found(GroupAuthorizationFailed.code)
        return _leader(services, context, CONSUMER_OFFSETS, key)
    if key_type == TRANSACTION:
        if not authorize(context, Operation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, key):
            return Found(TransactionalIdAuthorizationFailed.code)
        return _leader(services, context, TRANSACTION_STATE, key)
    return Found(InvalidRequest.code)


def _leader(services: Services, context: RequestContext, topic_name: str, key: str) -> Found:
    topic = services.image.topic(topic_name)
    if topic is None:
        return Found(CoordinatorNotAvailable.code)
    leader = topic.partitions[coordinator_partition(key, len(topic.partitions))].leader
    registration = services.image.broker(leader)
    end_point = registration.end_point(context.listener) if registration and registration.is_active else None
    if end_point is None:
        return Found(CoordinatorNotAvailable.code)
    return Found(NONE, leader, end_point.host, end_point.port)
