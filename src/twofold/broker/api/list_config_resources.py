"""ListConfigResources: API key 74, versions 0-1; version 0 was called ListClientMetricsResources.

1. Names of what has configurations, of the types asked for (version 1), of all types where none are. Version 0 asks for
   subscriptions of client metrics (16), of which there are none here.
2. Topics (2) all of them; brokers (4) and their loggers (8) those that a client of this listener can reach; groups (32)
   those with configurations of their own, whether they exist or not.
3. A type that has no list: UNSUPPORTED_VERSION (35) for all.
4. Needs DESCRIBE_CONFIGS on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31).
"""

from collections.abc import Callable, Iterable, Mapping

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.broker.topics.rows import reachable_brokers
from twofold.controller.image import BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from twofold.wire.errors import NONE, ClusterAuthorizationFailed, KafkaError, UnsupportedVersion
from twofold.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

KEY = 74

BROKER_LOGGER_RESOURCE = 8


def handle(
    services: Services, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    if not cluster_allows(services.authorizer, context, Operation.DESCRIBE_CONFIGS):
        raise ClusterAuthorizationFailed("no DESCRIBE_CONFIGS on the cluster")
    if context.version == 0:
        kinds: Iterable[int] = (CLIENT_METRICS_RESOURCE,)
    else:
        kinds = dict.fromkeys(request.resource_types) or _LISTS
    if unknown := [kind for kind in kinds if kind not in _LISTS]:
        raise UnsupportedVersion(f"there is no list of resources of type {unknown[0]}")
    return ListConfigResourcesResponse(
        error_code=NONE,
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in kinds
            for name in _LISTS[kind](services, context)
        ],
    )


def error_response(request: ListConfigResourcesRequest, error: KafkaError, version: int) -> ListConfigResourcesResponse:
    return ListConfigResourcesResponse(error_code=error.code, config_resources=())


def _topics(services: Services, context: RequestContext) -> Iterable[str]:
    return services.image.topics


def _brokers(services: Services, context: RequestContext) -> Iterable[str]:
    return [str(found.broker_id) for found, _ in reachable_brokers(services.image, context.listener)]


def _groups(services: Services, context: RequestContext) -> Iterable[str]:
    return sorted(owner.name for owner, own in services.image.configs.items() if owner.type == GROUP_RESOURCE and own)


def _none(services: Services, context: RequestContext) -> Iterable[str]:
    return ()


_LISTS: Mapping[int, Callable[[Services, RequestContext], Iterable[str]]] = {
    TOPIC_RESOURCE: _topics,
    BROKER_RESOURCE: _brokers,
    BROKER_LOGGER_RESOURCE: _brokers,
    CLIENT_METRICS_RESOURCE: _none,
    GROUP_RESOURCE: _groups,
}
