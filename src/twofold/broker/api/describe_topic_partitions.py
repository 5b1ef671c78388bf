"""DescribeTopicPartitions: API key 75, version 0.

1. Topics by name, each once, in the order of their names; all of them where none are named. At most as many partitions
   as the request and `max.request.partition.size.limit` allow, and at least one; what did not fit begins at the cursor
   of the answer, which a next request brings along.
2. A cursor leaves out topics before its own, and of that one the partitions before its own. Where topics are named
   the cursor's must be among them, and its partition must not be negative, else INVALID_REQUEST (42) for every topic.
3. A name that cannot exist: INVALID_TOPIC_EXCEPTION (17), one that does not: UNKNOWN_TOPIC_OR_PARTITION (3). They count
   for nothing.
4. Topics that may not be described: TOPIC_AUTHORIZATION_FAILED (29) where they were named, behind the others, else not
   there at all.
5. What may be done with a topic is always told.
"""

from twofold.broker.network.authorizer import AclResourceType, Operation, authorized_operations
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.broker.topics.rows import reachable_brokers
from twofold.config.internal_topics import is_internal
from twofold.config.names import is_valid_topic
from twofold.controller.image import PartitionState, TopicImage
from twofold.controller.records import NO_LEADER
from twofold.wire.errors import (
    NONE,
    InvalidRequest,
    InvalidTopicException,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.describe_topic_partitions import (
    CursorResult,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

KEY = 75


def handle(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    allowed, refused = _names(services, context, request)
    left = max(1, min(services.settings.int("max.request.partition.size.limit"), request.response_partition_limit))
    reachable = frozenset(found.broker_id for found, _ in reachable_brokers(services.image, context.listener))
    rows: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor = None
    for name in allowed:
        if not left:
            next_cursor = CursorResult(topic_name=name, partition_index=0)
            break
        topic = services.image.topic(name)
        operations = authorized_operations(services.authorizer, context, AclResourceType.TOPIC, name)
        if topic is None:
            code = UnknownTopicOrPartition.code if is_valid_topic(name) else InvalidTopicException.code
            rows.append(_missing(name, code, operations))
            continue
        start = request.cursor.partition_index if request.cursor and request.cursor.topic_name == name else 0
        end = min(len(topic.partitions), start + left)
        rows.append(_topic(topic, range(start, end), reachable, operations))
        if end < len(topic.partitions):
            next_cursor = CursorResult(topic_name=name, partition_index=end)
            break
        left -= max(0, end - start)
    rows += [_missing(name, TopicAuthorizationFailed.code) for name in refused]
    return DescribeTopicPartitionsResponse(topics=rows, next_cursor=next_cursor)


def error_response(
    request: DescribeTopicPartitionsRequest, error: KafkaError, version: int
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(topics=[_missing(topic.name, error.code) for topic in request.topics])


def _names(
    services: Services, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> tuple[list[str], list[str]]:
    """The topics from the cursor on, in order: those that may be described, and those that were named and may not."""
    cursor = request.cursor
    names = {topic.name for topic in request.topics} or set(services.image.topics)
    if cursor is not None:
        if request.topics and cursor.topic_name not in names:
            raise InvalidRequest(f"the topic of the cursor, {cursor.topic_name}, is not among those asked for")
        if cursor.partition_index < 0:
            raise InvalidRequest(f"a cursor at partition {cursor.partition_index}")
        names = {name for name in names if name >= cursor.topic_name}
    allowed: list[str] = []
    refused: list[str] = []
    for name in sorted(names):
        may = services.authorizer.authorize(
            context, Operation.DESCRIBE, AclResourceType.TOPIC, name, quiet=not request.topics
        )
        (allowed if may else refused).append(name)
    return allowed, refused if request.topics else []


def _topic(
    topic: TopicImage, indexes: range, reachable: frozenset[int], operations: int
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[_partition(index, topic.partitions[index], reachable) for index in indexes],
        topic_authorized_operations=operations,
    )


def _partition(
    index: int, state: PartitionState, reachable: frozenset[int]
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=NONE,
        partition_index=index,
        leader_id=state.leader if state.leader in reachable else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        eligible_leader_replicas=state.eligible_leader_replicas,
        last_known_elr=state.last_known_elr,
        offline_replicas=[replica for replica in state.replicas if replica not in reachable],
    )


def _missing(name: str, error_code: int, operations: int | None = None) -> DescribeTopicPartitionsResponseTopic:
    row = DescribeTopicPartitionsResponseTopic(
        error_code=error_code,
        name=name,
        topic_id=None,
        is_internal=error_code == UnknownTopicOrPartition.code and is_internal(name),
        partitions=(),
    )
    if operations is not None:
        row.topic_authorized_operations = operations
    return row
