"""ElectLeaders: API key 43, versions 0-2.

1. Each partition has one replica, which leads it: ELECTION_NOT_NEEDED (84), for the preferred leader (type 0) as for an
   unclean election (type 1). While no broker leads it: PREFERRED_LEADER_NOT_AVAILABLE (80) and
   ELIGIBLE_LEADERS_NOT_AVAILABLE (83).
2. A topic or partition that is not there: UNKNOWN_TOPIC_OR_PARTITION (3) in its row.
3. Topics null means all of them, and then only rows with something to tell are given: every topic, without partitions
   that need no election.
4. Another type: INVALID_REQUEST (42) for the request and in each row. A timeout of 0 or less: REQUEST_TIMED_OUT (7).
5. Needs ALTER on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31) for the request and in each row.
"""

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.controller.image import MetadataImage
from twofold.wire.errors import (
    ClusterAuthorizationFailed,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidRequest,
    KafkaError,
    PreferredLeaderNotAvailable,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

KEY = 43

PREFERRED, UNCLEAN = 0, 1
NOT_AVAILABLE = {PREFERRED: PreferredLeaderNotAvailable, UNCLEAN: EligibleLeadersNotAvailable}


def handle(services: Services, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    if not cluster_allows(services.authorizer, context, Operation.ALTER):
        raise ClusterAuthorizationFailed("no ALTER on the cluster")
    if request.timeout_ms <= 0:
        raise RequestTimedOut(f"a timeout of {request.timeout_ms} ms has passed before anything is done")
    image, kind = services.image, request.election_type
    if request.topic_partitions is None:
        _check_type(kind)
        return ElectLeadersResponse(replica_election_results=_all_topics(image, kind))
    if request.topic_partitions:
        _check_type(kind)
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[_row(index, _outcome(image, topic.topic, index, kind)) for index in topic.partitions],
            )
            for topic in request.topic_partitions
        ]
    )


def error_response(request: ElectLeadersRequest, error: KafkaError, version: int) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=error.code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic, partition_result=[_row(index, error) for index in topic.partitions]
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _check_type(kind: int) -> None:
    if kind not in NOT_AVAILABLE:
        raise InvalidRequest(f"there is no election of type {kind}: 0 is preferred, 1 is unclean")


def _all_topics(image: MetadataImage, kind: int) -> list[ReplicaElectionResult]:
    found = []
    for topic in image.topics_in_order():
        outcomes = ((index, _outcome(image, topic.name, index, kind)) for index, _ in topic.in_order())
        rows = [_row(index, error) for index, error in outcomes if not isinstance(error, ElectionNotNeeded)]
        found.append(ReplicaElectionResult(topic=topic.name, partition_result=rows))
    return found


def _outcome(image: MetadataImage, topic: str, index: int, kind: int) -> KafkaError:
    if image.topic(topic) is None:
        return UnknownTopicOrPartition(f"there is no topic {topic!r}")
    state = image.partition(topic, index)
    if state is None:
        return UnknownTopicOrPartition(f"topic {topic} has no partition {index}")
    if state.has_leader:
        return ElectionNotNeeded(f"the only replica of {topic}-{index} leads it")
    return NOT_AVAILABLE[kind](f"broker {state.replicas[0]}, the only replica of {topic}-{index}, is not there")


def _row(index: int, error: KafkaError) -> PartitionResult:
    return PartitionResult(partition_id=index, error_code=error.code, error_message=error.message or None)
