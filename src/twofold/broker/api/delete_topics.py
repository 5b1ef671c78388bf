"""DeleteTopics: API key 20, versions 1-6.

1. By name, or from version 6 on by name or id. A topic that the client may not describe looks like one it may not
   delete: TOPIC_AUTHORIZATION_FAILED (29), under the name or id it was asked by.
2. The rest is for the controller, which decides all rows together (`controller.topics`): unknown names (3) and ids
   (100), rows with both or neither (42), topics asked for twice (42, and kept).
3. `delete.topic.enable=false`: TOPIC_DELETION_DISABLED (73), INVALID_REQUEST (42) before version 3, which does not
   know that error.
4. A topic that holds records of an open two-phase transaction: POLICY_VIOLATION (44), with the transactional id
   (`broker.topic_deletion`).
5. A deleted topic is gone when the answer goes out. Where that takes longer than `timeout_ms`, the answer is
   REQUEST_TIMED_OUT (7) for every topic.
6. A client whose quota of changes is used up: THROTTLING_QUOTA_EXCEEDED (89) for every further topic, from version 5
   on. Older versions have all of them done, and the client waits.
"""

from uuid import UUID

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.network.forwarding import forward
from twofold.broker.quotas.charge import permits_of
from twofold.broker.services import Services
from twofold.broker.topics.deletion import TopicDeletion
from twofold.wire.errors import InvalidRequest, KafkaError, TopicAuthorizationFailed, TopicDeletionDisabled
from twofold.wire.message import replace
from twofold.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

KEY = 20
QUOTA_SINCE = 5  # THROTTLING_QUOTA_EXCEEDED

DELETION_DISABLED_SINCE = 3


async def handle(services: Services, context: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    names = [name for name in request.topic_names if _may_delete(services, context, name)]
    states = [state for state in request.topics if _may_delete(services, context, _name_of(services, state))]
    wanted = replace(request, topic_names=names, topics=states)
    guard = TopicDeletion(services.core, services.transactions)
    call = services.controller.delete_topics(wanted, guard, permits_of(context, strict_since=QUOTA_SINCE))
    response = await forward(services.runtime, call, timeout_ms=request.timeout_ms, name="DeleteTopics")
    allowed, allowed_names = set(states), set(names)  # there may be thousands
    refused = [
        _failed(state.name, state.topic_id, TopicAuthorizationFailed("no DELETE on the topic"))
        for state in dict.fromkeys(_all(request))
        if state not in allowed and state.name not in allowed_names
    ]
    return DeleteTopicsResponse(
        responses=[_in_version(row, context.version) for row in (*response.responses, *refused)]
    )


def error_response(request: DeleteTopicsRequest, error: KafkaError, version: int) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[_in_version(_failed(state.name, state.topic_id, error), version) for state in _all(request)]
    )


def _all(request: DeleteTopicsRequest) -> list[DeleteTopicState]:
    return [*request.topics, *(DeleteTopicState(name=name, topic_id=None) for name in request.topic_names)]


def _name_of(services: Services, state: DeleteTopicState) -> str | None:
    if state.name is not None or state.topic_id is None:
        return state.name
    topic = services.image.topic_by_id(state.topic_id)
    return None if topic is None else topic.name


def _may_delete(services: Services, context: RequestContext, name: str | None) -> bool:
    """A row that is no topic's is for the controller to refuse."""
    return name is None or all(
        services.authorizer.authorize(context, operation, AclResourceType.TOPIC, name)
        for operation in (Operation.DESCRIBE, Operation.DELETE)
    )


def _failed(name: str | None, topic_id: UUID | None, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error.code, error_message=error.message or None
    )


def _in_version(row: DeletableTopicResult, version: int) -> DeletableTopicResult:
    if row.error_code == TopicDeletionDisabled.code and version < DELETION_DISABLED_SINCE:
        return replace(row, error_code=InvalidRequest.code)
    return row
