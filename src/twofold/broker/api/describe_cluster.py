"""DescribeCluster: API key 60, versions 0-2.

1. Brokers that a client of this listener can reach; with `include_fenced_brokers` (version 2) those that are fenced as
   well, marked so.
2. The endpoint type (version 1 on) must be 1, brokers: 2, controllers, is MISMATCHED_ENDPOINT_TYPE (114) because this
   is not a controller's listener, anything else UNSUPPORTED_ENDPOINT_TYPE (115).
3. Needs no permission but shows the mask of authorized operations only where asked for, and 0 to clients that may not
   describe the cluster.
4. The controller is any living broker: all of them forward.
"""

from twofold.broker.api.metadata import any_living_broker
from twofold.broker.network.authorizer import (
    CLUSTER_NAME,
    OPERATIONS_NOT_ASKED,
    AclResourceType,
    Operation,
    authorized_operations,
    cluster_allows,
)
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.broker.topics.rows import reachable_brokers
from twofold.controller.image import BrokerRegistration
from twofold.controller.records import EndPoint
from twofold.wire.errors import NONE, KafkaError, MismatchedEndpointType, UnsupportedEndpointType
from twofold.wire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

KEY = 60

BROKERS, CONTROLLERS = 1, 2


def handle(services: Services, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        raise MismatchedEndpointType("controllers were asked for at a listener of brokers")
    if request.endpoint_type != BROKERS:
        raise UnsupportedEndpointType(f"endpoints of type {request.endpoint_type} are not described here")
    alive = reachable_brokers(services.image, context.listener)
    rows = [_row(registration, end_point) for registration, end_point in alive]
    if request.include_fenced_brokers:
        rows += _fenced(services, context.listener)
    return DescribeClusterResponse(
        error_code=NONE,
        cluster_id=services.cluster_id,
        controller_id=any_living_broker(services, alive),
        brokers=sorted(rows, key=lambda row: row.broker_id),
        cluster_authorized_operations=_operations(services, context, request),
    )


def error_response(request: DescribeClusterRequest, error: KafkaError, version: int) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=error.code, error_message=error.message, cluster_id="", brokers=())


def _row(registration: BrokerRegistration, end_point: EndPoint) -> DescribeClusterBroker:
    return DescribeClusterBroker(
        broker_id=registration.broker_id,
        host=end_point.host,
        port=end_point.port,
        rack=registration.rack,
        is_fenced=registration.fenced,
    )


def _fenced(services: Services, listener: str) -> list[DescribeClusterBroker]:
    return [
        _row(registration, end_point)
        for registration in services.image.brokers.values()
        if registration.fenced and (end_point := registration.end_point(listener)) is not None
    ]


def _operations(services: Services, context: RequestContext, request: DescribeClusterRequest) -> int:
    if not request.include_cluster_authorized_operations:
        return OPERATIONS_NOT_ASKED
    if not cluster_allows(services.authorizer, context, Operation.DESCRIBE, quiet=True):
        return 0
    return authorized_operations(services.authorizer, context, AclResourceType.CLUSTER, CLUSTER_NAME)
