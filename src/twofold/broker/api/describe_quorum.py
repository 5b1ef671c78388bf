"""DescribeQuorum: API key 55, versions 0-2.

1. Exactly one partition may be asked for, the one of `__cluster_metadata`: its leader, epoch, high watermark and
   voters. This node is the only voter and leads; it does not fetch, so both of its times are now.
2. Any other set of partitions, two of them too: UNKNOWN_TOPIC_OR_PARTITION (3) in each row. No partition: no row.
3. The voter's directory and the nodes come with version 2. The nodes have the listeners that the log names for its
   voters: those of a folder that Apache Kafka formatted. A folder of Twofold names none, because nothing listens there.
4. Needs DESCRIBE on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31) for all.
"""

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.config.internal_topics import CLUSTER_METADATA
from twofold.quorum.controller import QuorumOfOne
from twofold.wire.errors import NONE, ClusterAuthorizationFailed, KafkaError, UnknownTopicOrPartition
from twofold.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionDataResult,
    ReplicaState,
    TopicDataResult,
)

KEY = 55


def handle(services: Services, context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    if not cluster_allows(services.authorizer, context, Operation.DESCRIBE):
        raise ClusterAuthorizationFailed("no DESCRIBE on the cluster")
    asked = [(topic.topic_name, row.partition_index) for topic in request.topics for row in topic.partitions]
    if asked != [(CLUSTER_METADATA, 0)]:
        return _unknown(request)
    quorum = services.controller.describe_quorum()
    row = _partition(quorum, services.runtime.clock.wall_ms())
    return DescribeQuorumResponse(
        error_code=NONE,
        error_message="",
        topics=[TopicDataResult(topic_name=CLUSTER_METADATA, partitions=[row])],
        nodes=[_node(quorum)],
    )


def error_response(request: DescribeQuorumRequest, error: KafkaError, version: int) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=error.code, error_message=error.message, topics=())


def _partition(quorum: QuorumOfOne, now_ms: int) -> PartitionDataResult:
    voter = ReplicaState(
        replica_id=quorum.voter.voter_id,
        replica_directory_id=quorum.voter.directory_id,
        log_end_offset=quorum.end_offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    return PartitionDataResult(
        partition_index=0,
        error_code=NONE,
        error_message="",
        leader_id=quorum.voter.voter_id,
        leader_epoch=quorum.epoch,
        high_watermark=quorum.high_watermark,
        current_voters=[voter],
        observers=(),
    )


def _node(quorum: QuorumOfOne) -> Node:
    return Node(
        node_id=quorum.voter.voter_id,
        listeners=[Listener(name=at.name, host=at.host, port=at.port) for at in quorum.voter.end_points],
    )


def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        error_code=NONE,
        error_message="",
        topics=[
            TopicDataResult(
                topic_name=topic.topic_name,
                partitions=[
                    PartitionDataResult(
                        partition_index=row.partition_index,
                        error_code=UnknownTopicOrPartition.code,
                        error_message=f"only partition 0 of {CLUSTER_METADATA} has a quorum, and is asked for alone",
                        leader_id=0,
                        leader_epoch=0,
                        high_watermark=0,
                        current_voters=(),
                        observers=(),
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
