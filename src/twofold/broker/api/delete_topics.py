"""DeleteTopics: API key 20, versions 1-6.

1. By name, or from version 6 on by name or id. Needs DELETE on the cluster, or DESCRIBE and DELETE on the topic, else
   TOPIC_AUTHORIZATION_FAILED (29). A topic that is missing looks the same to a client that may not describe it. By id,
   only a client that may describe the topic is told its name.
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

from collections import Counter
from uuid import UUID

from twofold.broker.network.authorizer import AclResourceType, Operation, cluster_allows
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
    counts = Counter((state.name, state.topic_id) for state in _all(request))
    refused = {
        state: _refused(services, context, state)
        for state in dict.fromkeys(_all(request))
        if counts[state.name, state.topic_id] == 1 and not _may_delete(services, context, state)
    }
    states = [state for state in request.topics if state not in refused]
    names = [name for name in request.topic_names if DeleteTopicState(name=name, topic_id=None) not in refused]
    wanted = replace(request, topic_names=names, topics=states)
    guard = TopicDeletion(services.core, services.transactions)
    call = services.controller.delete_topics(wanted, guard, permits_of(context, strict_since=QUOTA_SINCE))
    response = await forward(services.runtime, call, timeout_ms=request.timeout_ms, name="DeleteTopics")
    return DeleteTopicsResponse(
        responses=[_in_version(row, context.version) for row in (*response.responses, *refused.values())]
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


def _may_delete(services: Services, context: RequestContext, state: DeleteTopicState) -> bool:
    """A row that is no topic's, or is named in two ways, is for the controller to refuse."""
    name = _name_of(services, state)
    if name is None or (state.name is not None and state.topic_id is not None):
        return True
    if cluster_allows(services.authorizer, context, Operation.DELETE, quiet=True):
        return True
    return all(
        services.authorizer.authorize(context, operation, AclResourceType.TOPIC, name)
        for operation in (Operation.DESCRIBE, Operation.DELETE)
    )


def _refused(services: Services, context: RequestContext, state: DeleteTopicState) -> DeletableTopicResult:
    name = _name_of(services, state)
    if state.name is None and name is not None:
        may_see = services.authorizer.authorize(context, Operation.DESCRIBE, AclResourceType.TOPIC, name, quiet=True)
        name = name if may_see else None
    return _failed(name, state.topic_id, TopicAuthorizationFailed("no DELETE on the topic"))


def _failed(name: str | None, topic_id: UUID | None, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error.code, error_message=error.message or None
    )


def _in_version(row: DeletableTopicResult, version: int) -> DeletableTopicResult:
    if row.error_code == TopicDeletionDisabled.code and version < DELETION_DISABLED_SINCE:
        return replace(row, error_code=InvalidRequest.code)
    return row
