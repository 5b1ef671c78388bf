"""API key 23, versions 2-4: OffsetForLeaderEpoch.

1. For an epoch that this log knows: where it ended, which is where the next known one began, or the log end for the
   current one. For an unknown older one: the largest known epoch below it. For one that is yet to come, and for -1:
   (-1, -1).
2. Leader epoch of the request older 74 or newer 75 than ours.
3. Unknown topic or partition 3, led by another broker 6. Needs DESCRIBE on the topic or CLUSTER_ACTION on the cluster,
   else TOPIC_AUTHORIZATION_FAILED (29).
"""

from twofold.broker.network.authorizer import AclResourceType, Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.wire.errors import KafkaError, TopicAuthorizationFailed
from twofold.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

KEY = 23


def handle(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_row(services, context, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def error_response(
    request: OffsetForLeaderEpochRequest, error: KafkaError, version: int
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[EpochEndOffset(error_code=error.code, partition=p.partition) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _row(services: Services, context: RequestContext, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        _check_allowed(services, context, topic)
        partition = services.replicas.leader(topic, asked.partition)
        partition.check_leader(asked.current_leader_epoch)
        epoch, end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=asked.partition)
    return EpochEndOffset(error_code=0, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)


def _check_allowed(services: Services, context: RequestContext, topic: str) -> None:
    authorizer = services.authorizer
    if cluster_allows(authorizer, context, Operation.CLUSTER_ACTION, quiet=True):
        return
    if not authorizer.authorize(context, Operation.DESCRIBE, AclResourceType.TOPIC, topic):
        raise TopicAuthorizationFailed(f"{context.principal} may not describe {topic}")
