"""IncrementalAlterConfigs: API key 44, versions 0-1.

1. One row a resource. Needs ALTER_CONFIGS on the topic, else TOPIC_AUTHORIZATION_FAILED (29); on the cluster for a
   broker or client metrics, else CLUSTER_AUTHORIZATION_FAILED (31); on a group, else GROUP_AUTHORIZATION_FAILED (30).
2. A broker's settings are changed at that broker: its id, or "" for all brokers; INVALID_REQUEST (42) for another's.
3. The rest is for the controller, which decides each resource on its own (`controller.configs`): duplicates and nulls
   (42), unknown types (42), operations on what is no list (40), values (40 for a topic, 42 for a broker), unknown
   topics (3), `validate_only`.
4. The change is in force when the answer goes out. The request carries no timeout: the broker's `request.timeout.ms`
   bounds the waiting, then the answer is REQUEST_TIMED_OUT (7).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from twofold.broker.api.describe_configs import authorize_other, check_own_id
from twofold.broker.network.authorizer import AclResourceType, Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.network.forwarding import forward
from twofold.broker.services import Services
from twofold.controller.image import BROKER_RESOURCE, CLUSTER_DEFAULT, TOPIC_RESOURCE
from twofold.wire.errors import ClusterAuthorizationFailed, InvalidRequest, KafkaError, TopicAuthorizationFailed
from twofold.wire.message import replace
from twofold.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

KEY = 44


class Resource(Protocol):
    """What both of the requests that alter configurations name."""

    resource_type: int
    resource_name: str


R = TypeVar("R", bound=Resource)


async def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    allowed, refused = authorized_alterations(services, context, request.resources)
    rows = [_failed(resource, error) for resource, error in refused]
    if allowed:
        call = services.controller.incremental_alter_configs(replace(request, resources=allowed))
        timeout_ms = services.settings.int("request.timeout.ms")
        response = await forward(services.runtime, call, timeout_ms=timeout_ms, name="IncrementalAlterConfigs")
        rows += response.responses
    return IncrementalAlterConfigsResponse(responses=rows)


def error_response(
    request: IncrementalAlterConfigsRequest, error: KafkaError, version: int
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(responses=[_failed(resource, error) for resource in request.resources])


def authorized_alterations(
    services: Services, context: RequestContext, resources: Sequence[R]
) -> tuple[list[R], list[tuple[R, KafkaError]]]:
    """The resources that are the controller's to change, and those that are refused before."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    allowed: list[R] = []
    refused: list[tuple[R, KafkaError]] = []
    for resource in resources:
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise InvalidRequest("a resource is named more than once")
            authorize_alteration(services, context, resource.resource_type, resource.resource_name)
        except KafkaError as error:
            refused.append((resource, error))
        else:
            allowed.append(resource)
    return allowed, refused


def authorize_alteration(services: Services, context: RequestContext, resource_type: int, name: str) -> None:
    """Whether the client may change a resource, and whether this is the broker to ask."""
    if resource_type == TOPIC_RESOURCE:
        if not services.authorizer.authorize(context, Operation.ALTER_CONFIGS, AclResourceType.TOPIC, name):
            raise TopicAuthorizationFailed(f"no ALTER_CONFIGS on topic {name}")
        return
    if resource_type != BROKER_RESOURCE:
        authorize_other(services, context, Operation.ALTER_CONFIGS, resource_type, name)
    elif not cluster_allows(services.authorizer, context, Operation.ALTER_CONFIGS):
        raise ClusterAuthorizationFailed("no ALTER_CONFIGS on the cluster")
    if resource_type == BROKER_RESOURCE and name != CLUSTER_DEFAULT:
        check_own_id(services, name, "this is broker {}, not {}")


def _failed(resource: AlterConfigsResource, error: KafkaError) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error.code,
        error_message=error.message or None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
