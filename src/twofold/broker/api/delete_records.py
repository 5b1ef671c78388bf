"""DeleteRecords: API key 21, versions 0-2.

1. The log start of each partition moves up to the offset asked for, or to the high watermark for -1. It never moves
   down: an offset below it changes nothing and is no error. The answer tells where the log starts now.
2. Needs DELETE on the topic, else TOPIC_AUTHORIZATION_FAILED (29). Unknown topic or partition: 3. An internal topic:
   INVALID_TOPIC_EXCEPTION (17). A topic that is compacted and not also `delete`d: POLICY_VIOLATION (44). Led by another
   broker: 6. An offset beyond the high watermark, or below -1: OFFSET_OUT_OF_RANGE (1). Error rows have -1.
3. What an open transaction has written may be deleted, as in Kafka, unless the transaction is a two-phase one: what is
   prepared must be there when it is committed. Then -1 goes up to the last stable offset, and an offset beyond it is
   OFFSET_OUT_OF_RANGE.
4. The answer goes out when the new log start is on disk: unlike Kafka's it survives a kill that follows. A disk that
   fails at that: KAFKA_STORAGE_ERROR (56). The request's timeout bounds the waiting for replicas, of which there are
   none.
5. A partition that is named twice has one row, and the offset that was named last.
"""

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.partitions.partition import Partition
from twofold.broker.services import Services
from twofold.config.internal_topics import is_internal
from twofold.log.log import PartitionLog
from twofold.types import TopicPartition
from twofold.wire.errors import (
    NONE,
    InvalidTopicException,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    PolicyViolation,
    TopicAuthorizationFailed,
)
from twofold.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

KEY = 21

UP_TO_HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


async def handle(services: Services, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    outcomes: dict[TopicPartition, PartitionLog | KafkaError] = {}
    for name, offset in _wanted(request).items():
        try:
            outcomes[name] = _delete(services, context, name, offset)
        except KafkaError as error:
            outcomes[name] = error
    moved = [outcome for outcome in outcomes.values() if isinstance(outcome, PartitionLog)]
    try:
        await services.logs.keep_log_starts([log for log in moved if log.exists])
    except OSError as error:
        raise KafkaStorageError(f"the log starts cannot be written: {error}") from error
    return _response({name: _row(name, outcome) for name, outcome in outcomes.items()})


def error_response(request: DeleteRecordsRequest, error: KafkaError, version: int) -> DeleteRecordsResponse:
    return _response({name: _failed(name, error) for name in _wanted(request)})


def _wanted(request: DeleteRecordsRequest) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, asked.partition_index): asked.offset
        for topic in request.topics
        for asked in topic.partitions
    }


def _delete(services: Services, context: RequestContext, name: TopicPartition, offset: int) -> PartitionLog:
    if not services.authorizer.authorize(context, Operation.DELETE, AclResourceType.TOPIC, name.topic):
        raise TopicAuthorizationFailed(f"{context.principal} may not delete from {name.topic}")
    services.replicas.state(*name)
    if is_internal(name.topic):
        raise InvalidTopicException(f"records of the internal topic {name.topic} are not deleted by hand")
    partition = services.replicas.leader(*name)
    config = partition.log.config
    if config.is_compacted and not config.deletes_old_segments:
        raise PolicyViolation(f"{name}: cleanup.policy of the topic is compact, without delete")
    limit = _limit(services, partition)
    if offset == UP_TO_HIGH_WATERMARK:
        offset = limit
    elif not 0 <= offset <= limit:
        raise OffsetOutOfRange(f"{name}: {offset} is outside of [0, {limit}]")
    partition.delete_records(offset)
    return partition.log


def _limit(services: Services, partition: Partition) -> int:
    """The highest log start that costs no two-phase transaction its records."""
    log = partition.log
    stable, high_watermark = log.last_stable_offset, log.high_watermark
    if stable < high_watermark and services.transactions.may_be_prepared(partition.topic_partition):
        return stable
    return high_watermark


def _row(name: TopicPartition, outcome: PartitionLog | KafkaError) -> DeleteRecordsPartitionResult:
    if isinstance(outcome, KafkaError):
        return _failed(name, outcome)
    if outcome.failure is not None:
        return _failed(name, KafkaStorageError(outcome.failure))
    return DeleteRecordsPartitionResult(
        partition_index=name.partition, low_watermark=outcome.log_start_offset, error_code=NONE
    )


def _failed(name: TopicPartition, error: KafkaError) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=name.partition, low_watermark=NO_LOW_WATERMARK, error_code=error.code
    )


def _response(rows: dict[TopicPartition, DeleteRecordsPartitionResult]) -> DeleteRecordsResponse:
    topics: dict[str, list[DeleteRecordsPartitionResult]] = {}
    for name, row in rows.items():
        topics.setdefault(name.topic, []).append(row)
    return DeleteRecordsResponse(
        topics=[DeleteRecordsTopicResult(name=topic, partitions=found) for topic, found in topics.items()]
    )
