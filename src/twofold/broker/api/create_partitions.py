"""CreatePartitions: API key 37, versions 0-3.

1. Needs ALTER on the topic, else TOPIC_AUTHORIZATION_FAILED (29).
2. The rest is for the controller, which decides all topics of the request together (`controller.topics`): unknown
   topics (3), duplicates (42), counts that are no increase (37), assignments (39), `validate_only`.
3. New partitions can be used when the answer goes out. Where that takes longer than `timeout_ms`, the answer is
   REQUEST_TIMED_OUT (7) for every topic.
4. A full disk: KAFKA_STORAGE_ERROR (56) for every topic, unless `validate_only`.
5. A client whose quota of changes is used up: THROTTLING_QUOTA_EXCEEDED (89) for every further topic, from version 3
   on. Older versions have all of them done, and the client waits.
"""

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.network.forwarding import forward
from twofold.broker.quotas.charge import permits_of
from twofold.broker.services import Services
from twofold.wire.errors import KafkaError, TopicAuthorizationFailed
from twofold.wire.message import replace
from twofold.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

KEY = 37
QUOTA_SINCE = 3  # THROTTLING_QUOTA_EXCEEDED


async def handle(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    def may_alter(name: str) -> bool:
        return services.authorizer.authorize(context, Operation.ALTER, AclResourceType.TOPIC, name)

    names = dict.fromkeys(topic.name for topic in request.topics)
    refused = [name for name in names if not may_alter(name)]
    allowed = [topic for topic in request.topics if topic.name not in refused]
    if not request.validate_only:
        services.logs.reserve.check()
    permits = permits_of(context, strict_since=QUOTA_SINCE)
    call = services.controller.create_partitions(replace(request, topics=allowed), permits)
    response = await forward(services.runtime, call, timeout_ms=request.timeout_ms, name="CreatePartitions")
    failed = [_failed(name, TopicAuthorizationFailed(f"no ALTER on topic {name}")) for name in refused]
    return CreatePartitionsResponse(results=[*response.results, *failed])


def error_response(request: CreatePartitionsRequest, error: KafkaError, version: int) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(results=[_failed(topic.name, error) for topic in request.topics])


def _failed(name: str, error: KafkaError) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message or None)
