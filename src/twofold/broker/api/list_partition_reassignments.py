"""ListPartitionReassignments: API key 46, version 0.

1. Every partition stays where it is, on the one node: the list is empty, whatever is asked for.
2. The timeout is not looked at: the answer is known at once.
3. Needs DESCRIBE on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31).
"""

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.wire.errors import NONE, ClusterAuthorizationFailed, KafkaError
from twofold.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

KEY = 46


def handle(
    services: Services, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    if not cluster_allows(services.authorizer, context, Operation.DESCRIBE):
        raise ClusterAuthorizationFailed("no DESCRIBE on the cluster")
    return ListPartitionReassignmentsResponse(error_code=NONE, error_message=None, topics=())


def error_response(
    request: ListPartitionReassignmentsRequest, error: KafkaError, version: int
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message or None, topics=())
