"""DescribeConfigs: API key 32, versions 1-4.

1. One result a resource, in the order asked for. Keys: null or none means all, unknown ones are left out, each once.
2. A topic (type 2): INVALID_TOPIC_EXCEPTION (17) for an illegal name, UNKNOWN_TOPIC_OR_PARTITION (3) if it does not
   exist. Needs DESCRIBE_CONFIGS on it, else TOPIC_AUTHORIZATION_FAILED (29).
3. A broker (type 4): this one by its id, or "" for what was set for all brokers while they run. Any other name is
   INVALID_REQUEST (42). Needs DESCRIBE_CONFIGS on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31).
4. A group (type 32), which need not exist. Needs DESCRIBE_CONFIGS on it, else GROUP_AUTHORIZATION_FAILED (30); "" is
   INVALID_REQUEST (42). Loggers of a broker (8) and client metrics (16) need it on the cluster, else 31. These two and
   any other type: INVALID_REQUEST (42).
5. Synonyms, documentation (version 3 on) only where asked for. A sensitive value is null.
6. A success has the message "", as Kafka's has.
"""

from collections.abc import Iterable, Sequence

from twofold.broker.network.authorizer import AclResourceType, Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.config.describe import (
    ConfigRow,
    describe_broker,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
)
from twofold.config.names import check_topic_name
from twofold.controller.image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigOwner,
)
from twofold.machine.maps import Map
from twofold.wire.errors import (
    NONE,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

KEY = 32

BROKER_LOGGER_RESOURCE = 8
_NOTHING: Map[str, str] = Map()
CLUSTER_RESOURCES = (BROKER_LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE)


def handle(services: Services, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_result(services, context, request, resource) for resource in request.resources]
    )


def error_response(request: DescribeConfigsRequest, error: KafkaError, version: int) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_failed(resource, error) for resource in request.resources])


def _result(
    services: Services, context: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    try:
        rows = _rows(services, context, resource)
    except KafkaError as error:
        return _failed(resource, error)
    wanted = resource.configuration_keys
    return DescribeConfigsResult(
        error_code=NONE,
        error_message="",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_shown(row, request) for row in rows if not wanted or row.name in wanted],
    )


def _failed(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=(),
    )


def _rows(services: Services, context: RequestContext, resource: DescribeConfigsResource) -> Iterable[ConfigRow]:
    if resource.resource_type == TOPIC_RESOURCE:
        return _topic_rows(services, context, resource.resource_name, resource.configuration_keys or None)
    if resource.resource_type == BROKER_RESOURCE:
        return _broker_rows(services, context, resource.resource_name)
    authorize_other(services, context, Operation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
    if resource.resource_type == GROUP_RESOURCE:
        if not resource.resource_name:
            raise InvalidRequest("a group has to be named")
        own = services.image.configs.get(ConfigOwner(GROUP_RESOURCE, resource.resource_name), _NOTHING)
        return describe_group(own, services.settings)
    raise InvalidRequest(f"resources of type {resource.resource_type} have no configurations here")


def _topic_rows(
    services: Services, context: RequestContext, name: str, keys: Sequence[str] | None
) -> Iterable[ConfigRow]:
    if not services.authorizer.authorize(context, Operation.DESCRIBE_CONFIGS, AclResourceType.TOPIC, name):
        raise TopicAuthorizationFailed(f"no DESCRIBE_CONFIGS on topic {name}")
    check_topic_name(name)
    if services.image.topic(name) is None:
        raise UnknownTopicOrPartition
    return describe_topic(services.image.topic_configs(name), services.settings, keys)


def _broker_rows(services: Services, context: RequestContext, name: str) -> Iterable[ConfigRow]:
    if not cluster_allows(services.authorizer, context, Operation.DESCRIBE_CONFIGS):
        raise ClusterAuthorizationFailed("no DESCRIBE_CONFIGS on the cluster")
    if name == "":
        return describe_cluster_defaults(services.image.broker_configs())
    check_own_id(services, name, "this is broker {}, not {}; the empty name stands for all brokers")
    return describe_broker(services.settings)


def authorize_other(
    services: Services, context: RequestContext, operation: Operation, resource_type: int, name: str
) -> None:
    """Groups, and what has no configurations here: a client without the right learns no more than that."""
    if resource_type == GROUP_RESOURCE:
        if not services.authorizer.authorize(context, operation, AclResourceType.GROUP, name):
            raise GroupAuthorizationFailed(f"no {operation.name} on group {name}")
    elif resource_type in CLUSTER_RESOURCES and not cluster_allows(services.authorizer, context, operation):
        raise ClusterAuthorizationFailed(f"no {operation.name} on the cluster")


def check_own_id(services: Services, name: str, expectation: str) -> None:
    """Refuse the name of a broker resource that is not this broker's id."""
    try:
        broker_id = int(name)
    except ValueError:
        raise InvalidRequest(f"a broker is named by its number, not by {name!r}") from None
    if broker_id != services.node_id:
        raise InvalidRequest(expectation.format(services.node_id, broker_id))


def _shown(row: ConfigRow, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=row.name,
        value=row.value,
        read_only=row.read_only,
        config_source=row.source,
        is_sensitive=row.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in row.synonyms
        ]
        if request.include_synonyms
        else (),
        config_type=row.type,
        documentation=row.doc if request.include_documentation else None,
    )
