"""API key 2, versions 1-11: ListOffsets.

1. -1 latest: the high watermark, or the last stable offset for read_committed, or the log end for a client whose
   replica id is not -1. -2 earliest and -4 earliest local: the log start. -3: the record with the greatest timestamp.
   -5 and -6 speak of tiered storage, which there is none of: NONE with offset -1.
2. A timestamp: the first record that is not older. What lies at or beyond the reader's bound is not found (-1, -1).
3. A special timestamp that the version does not know (-3 before 7, -4 before 8, -5 before 9, -6 before 11), or that
   is unknown: UNSUPPORTED_VERSION on the partition.
4. Leader epoch of the request older 74 or newer 75 than ours (from version 4 on).
5. A partition named twice: one row with INVALID_REQUEST. A topic without partitions: no row. An isolation level other
   than 0 and 1: UNKNOWN_SERVER_ERROR.
6. Unknown topic or partition 3, not allowed 29, led by another broker 6.
7. A leader of several replicas that has just been elected may have a high watermark behind what the leader before has
   told. Until its high watermark has reached the start of its epoch, consumers get OFFSET_NOT_AVAILABLE (78; before
   version 5 LEADER_NOT_AVAILABLE) for the latest offset, and for what is not found below the high watermark.
"""

from collections import Counter

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.partitions.partition import Partition
from twofold.broker.services import Services
from twofold.log.api import Bound
from twofold.wire.errors import (
    InvalidRequest,
    KafkaError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    TopicAuthorizationFailed,
    UnknownServerError,
    UnsupportedVersion,
)
from twofold.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

KEY = 2
CONSUMER = -1

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

FIRST_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
NOT_AVAILABLE_VERSION = 5
BOUNDS = {0: Bound.HIGH_WATERMARK, 1: Bound.LAST_STABLE}


def handle(services: Services, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    if request.isolation_level not in BOUNDS:
        error = UnknownServerError(f"isolation level {request.isolation_level}: 0 and 1 are known")
        return error_response(request, error, context.version)
    bound = BOUNDS[request.isolation_level] if request.replica_id == CONSUMER else Bound.LOG_END
    named = Counter((topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions)
    twice = {name for name, count in named.items() if count > 1}
    rows: dict[str, dict[int, ListOffsetsPartitionResponse]] = {}
    for topic in request.topics:
        for asked in topic.partitions:
            found = rows.setdefault(topic.name, {})
            if asked.partition_index not in found:
                found[asked.partition_index] = _row(services, context, topic, asked, bound, twice)
    return ListOffsetsResponse(
        topics=[ListOffsetsTopicResponse(name=name, partitions=list(found.values())) for name, found in rows.items()]
    )


def error_response(request: ListOffsetsRequest, error: KafkaError, version: int) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name, partitions=[_error(asked.partition_index, error) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _error(index: int, error: KafkaError) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=error.code)


def _row(
    services: Services,
    context: RequestContext,
    topic: ListOffsetsTopic,
    asked: ListOffsetsPartition,
    bound: Bound,
    twice: set[tuple[str, int]],
) -> ListOffsetsPartitionResponse:
    index = asked.partition_index
    try:
        if not services.authorizer.authorize(context, Operation.DESCRIBE, AclResourceType.TOPIC, topic.name):
            raise TopicAuthorizationFailed(f"{context.principal} may not describe {topic.name}")
        if (topic.name, index) in twice:
            raise InvalidRequest(f"{topic.name}-{index} is named more than once")
        if asked.timestamp < 0 and FIRST_VERSION.get(asked.timestamp, 99) > context.version:
            raise UnsupportedVersion(f"timestamp {asked.timestamp} is not known in version {context.version}")
        partition = services.replicas.leader(topic.name, index)
        partition.check_leader(asked.current_leader_epoch)
        offset, timestamp, leader_epoch = _look_up(partition, asked.timestamp, bound)
    except OffsetNotAvailable as error:
        too_old = context.version < NOT_AVAILABLE_VERSION
        return _error(index, LeaderNotAvailable(error.message) if too_old else error)
    except KafkaError as error:
        return _error(index, error)
    return ListOffsetsPartitionResponse(
        partition_index=index, error_code=0, timestamp=timestamp, offset=offset, leader_epoch=leader_epoch
    )


def _look_up(partition: Partition, timestamp: int, bound: Bound) -> tuple[int, int, int]:
    """Offset, timestamp and leader epoch; -1 for what there is none of."""
    log = partition.log
    if timestamp == LATEST:
        if bound is not Bound.LOG_END:
            _check_available(partition)
        return log.bound(bound), -1, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.log_start_offset, -1, log.epoch_for_offset(log.log_start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    if timestamp == MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp(bound)
    else:
        found = log.offset_for_timestamp(timestamp, bound)
    if found is None:
        if bound is not Bound.LOG_END:
            _check_available(partition)
        return -1, -1, -1
    return found.offset, found.timestamp, found.leader_epoch


def _check_available(partition: Partition) -> None:
    if not partition.knows_what_is_committed:
        raise OffsetNotAvailable(f"{partition}: its new leader does not know yet up to where it is committed")
