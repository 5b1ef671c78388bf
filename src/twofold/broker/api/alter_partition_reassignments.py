"""AlterPartitionReassignments: API key 45, versions 0-1.

1. A partition may be sent to where it is, and that is done at once. Any other list of replicas, because it names a
   broker that is not this one, one broker twice or none: INVALID_REPLICA_ASSIGNMENT (39) in its row.
2. Replicas null cancels: NO_REASSIGNMENT_IN_PROGRESS (85), because nothing ever moves.
3. A topic or partition that is not there: UNKNOWN_TOPIC_OR_PARTITION (3) in its row.
4. A timeout of 0 or less: REQUEST_TIMED_OUT (7) for the request and in each row. A request without topics waits for
   nothing.
5. Needs ALTER on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31) for the request and in each row.
"""

from collections import Counter
from collections.abc import Sequence

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.wire.errors import (
    NONE,
    ClusterAuthorizationFailed,
    InvalidReplicaAssignment,
    KafkaError,
    NoReassignmentInProgress,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

KEY = 45


def handle(
    services: Services, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not cluster_allows(services.authorizer, context, Operation.ALTER):
        raise ClusterAuthorizationFailed("no ALTER on the cluster")
    if not request.topics:
        return AlterPartitionReassignmentsResponse(error_code=NONE, error_message="", responses=())
    if request.timeout_ms <= 0:
        raise RequestTimedOut(f"a timeout of {request.timeout_ms} ms has passed before anything is done")
    return AlterPartitionReassignmentsResponse(
        error_code=NONE,
        error_message=None,
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _row(row.partition_index, _problem(services, topic.name, row.partition_index, row.replicas))
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def error_response(
    request: AlterPartitionReassignmentsRequest, error: KafkaError, version: int
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        error_code=error.code,
        error_message=error.message or None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name, partitions=[_row(row.partition_index, error) for row in topic.partitions]
            )
            for topic in request.topics
        ],
    )


def _problem(services: Services, topic: str, index: int, wanted: Sequence[int] | None) -> KafkaError | None:
    if services.image.topic(topic) is None:
        return UnknownTopicOrPartition(f"there is no topic {topic!r}")
    if services.image.partition(topic, index) is None:
        return UnknownTopicOrPartition(f"topic {topic} has no partition {index}")
    if wanted is None:
        return NoReassignmentInProgress(f"{topic}-{index} is not being moved")
    if not wanted:
        return InvalidReplicaAssignment("the list of replicas is empty")
    if twice := [broker for broker, count in Counter(wanted).items() if count > 1]:
        return InvalidReplicaAssignment(f"the list of replicas names broker {twice[0]} more than once")
    if others := [broker for broker in wanted if broker != services.node_id]:
        return InvalidReplicaAssignment(f"there is no broker {others[0]}: Twofold runs node {services.node_id} alone")
    return None


def _row(index: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    if error is None:
        return ReassignablePartitionResponse(partition_index=index, error_code=NONE, error_message=None)
    return ReassignablePartitionResponse(
        partition_index=index, error_code=error.code, error_message=error.message or None
    )
