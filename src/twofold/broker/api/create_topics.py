"""CreateTopics: API key 19, versions 2-7.

1. Needs CREATE on the cluster or on the topic, else TOPIC_AUTHORIZATION_FAILED (29) for that topic.
2. The rest is for the controller, which decides all topics of the request together (`controller.topics`): names,
   duplicates, configurations, assignments, counts, `validate_only`.
3. A topic that was created can be used when the answer goes out. Where that takes longer than `timeout_ms`, the answer
   is REQUEST_TIMED_OUT (7) for every topic.
4. Version 5 on tells partitions, replication factor and configurations of a new topic; without DESCRIBE_CONFIGS on it
   the code for that (29) instead.
5. A full disk: KAFKA_STORAGE_ERROR (56) for every topic, and nothing is created; what is left of the disk is for the
   end of transactions. `validate_only` is answered as ever.
6. A client whose quota of changes is used up: THROTTLING_QUOTA_EXCEEDED (89) for every further topic, from version 6
   on. Older versions have all of them done, and the client waits.
"""

from twofold.broker.network.authorizer import AclResourceType, Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.network.forwarding import forward
from twofold.broker.quotas.charge import permits_of
from twofold.broker.services import Services
from twofold.wire.errors import NONE, KafkaError, TopicAuthorizationFailed
from twofold.wire.message import replace
from twofold.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

KEY = 19
QUOTA_SINCE = 6  # THROTTLING_QUOTA_EXCEEDED


async def handle(services: Services, context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    may_all = cluster_allows(services.authorizer, context, Operation.CREATE, quiet=True)
    allowed = [topic for topic in request.topics if may_all or _may(services, context, Operation.CREATE, topic.name)]
    if not request.validate_only:
        services.logs.reserve.check()
    permits = permits_of(context, strict_since=QUOTA_SINCE)
    call = services.controller.create_topics(replace(request, topics=allowed), permits)
    response = await forward(services.runtime, call, timeout_ms=request.timeout_ms, name="CreateTopics")
    results = [_without_hidden_configs(services, context, result) for result in response.topics]
    known = {topic.name for topic in allowed}
    refused = dict.fromkeys(topic.name for topic in request.topics if topic.name not in known)
    results += [_failed(name, TopicAuthorizationFailed(f"no CREATE on topic {name}")) for name in refused]
    return CreateTopicsResponse(topics=results)


def error_response(request: CreateTopicsRequest, error: KafkaError, version: int) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[_failed(topic.name, error) for topic in request.topics])


def _may(services: Services, context: RequestContext, operation: Operation, topic: str) -> bool:
    return services.authorizer.authorize(context, operation, AclResourceType.TOPIC, topic)


def _failed(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message or None, configs=())


def _without_hidden_configs(
    services: Services, context: RequestContext, result: CreatableTopicResult
) -> CreatableTopicResult:
    if result.error_code != NONE or services.authorizer.authorize(
        context, Operation.DESCRIBE_CONFIGS, AclResourceType.TOPIC, result.name, quiet=True
    ):
        return result
    return replace(
        result,
        topic_config_error_code=TopicAuthorizationFailed.code,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
    )
