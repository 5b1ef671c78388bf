"""IncrementalAlterConfigs: API key 44, versions 0-1.

1. One row a resource. Needs ALTER_CONFIGS on the topic, else TOPIC_AUTHORIZATION_FAILED (29); on the cluster for a
   broker, else CLUSTER_AUTHORIZATION_FAILED (31).
2. A broker's settings are changed at that broker: its id, or "" for all brokers; INVALID_REQUEST (42) for another's.
3. The rest is for the controller, which decides each resource on its own (`controller.configs`): duplicates and nulls
   (42), unknown types (42), operations on what is no list (40), values (40 for a topic, 42 for a broker), unknown
   topics (3), `validate_only`.
4. The change is in force when the answer goes out. The request carries no timeout: the broker's `request.timeout.ms`
   bounds the waiting, then the answer is REQUEST_TIMED_OUT (7).
"""

from collections import Counter
from typing import TYPE_CHECKING

from twofold.broker.api.describe_configs import check_own_id
from twofold.broker.authorizer import Operation, ResourceType, cluster_allows
from twofold.broker.context import RequestContext
from twofold.broker.forwarding import forward
from twofold.controller.image import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE
from twofold.wire.errors import ClusterAuthorizationFailed, InvalidRequest, KafkaError, TopicAuthorizationFailed
from twofold.wire.message import replace
from twofold.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from twofold.broker.broker import Broker

KEY = 44


async def handle(
    broker: "Broker", context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    rows: list[AlterConfigsResourceResponse] = []
    allowed: list[AlterConfigsResource] = []
    for resource in request.resources:
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise InvalidRequest("a resource is named more than once")
            _check(broker, context, resource)
        except KafkaError as error:
            rows.append(_failed(resource, error))
        else:
            allowed.append(resource)
    if allowed:
        call = broker.controller.incremental_alter_configs(replace(request, resources=allowed))
        timeout_ms = broker.settings.int("request.timeout.ms")
        response = await forward(broker, call, timeout_ms=timeout_ms, name="IncrementalAlterConfigs")
        rows += response.responses
    return IncrementalAlterConfigsResponse(responses=rows)


def error_response(
    request: IncrementalAlterConfigsRequest, error: KafkaError, version: int
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(responses=[_failed(resource, error) for resource in request.resources])


def _check(broker: "Broker", context: RequestContext, resource: AlterConfigsResource) -> None:
    name = resource.resource_name
    if resource.resource_type == TOPIC_RESOURCE:
        if not broker.authorizer.authorize(context, Operation.ALTER_CONFIGS, ResourceType.TOPIC, name):
            raise TopicAuthorizationFailed(f"no ALTER_CONFIGS on topic {name}")
        return
    if not cluster_allows(broker.authorizer, context, Operation.ALTER_CONFIGS):
        raise ClusterAuthorizationFailed("no ALTER_CONFIGS on the cluster")
    if resource.resource_type == BROKER_RESOURCE and name != CLUSTER_DEFAULT:
        check_own_id(broker, name, "this is broker {}, not {}")


def _failed(resource: AlterConfigsResource, error: KafkaError) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error.code,
        error_message=error.message or None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
