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
   fails at that: KAFKA_STORAGE_ERROR (56). The answer waits for all replicas that live, and its low watermark is the
   lowest of their log starts. After timeout_ms: REQUEST_TIMED_OUT (7); another leader meanwhile: 6. What was begun goes
   on.
5. A partition that is named twice has one row, and the offset that was named last.
"""

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.partitions.partition import Partition
from twofold.broker.partitions.purgatory import DelayedProduce
from twofold.broker.services import Services
from twofold.config.internal_topics import is_internal
from twofold.types import TopicPartition
from twofold.wire.errors import (
    NONE,
    InvalidTopicException,
    KafkaError,
    KafkaStorageError,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
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


class _Deletion(NamedTuple):
    """What the leader's log has deleted; the followers may be behind."""

    partition: Partition
    offset: int  # where the log is to start

    @property
    def is_done(self) -> bool:
        return self.partition.low_watermark >= self.offset


async def handle(services: Services, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    outcomes: dict[TopicPartition, _Deletion | KafkaError] = {}
    for name, offset in _wanted(request).items():
        try:
            outcomes[name] = _delete(services, context, name, offset)
        except KafkaError as error:
            outcomes[name] = error
    begun = [outcome for outcome in outcomes.values() if isinstance(outcome, _Deletion)]
    logs = [deletion.partition.log for deletion in begun]
    try:
        await services.logs.keep_log_starts([log for log in logs if log.exists])
    except OSError as error:
        raise KafkaStorageError(f"the log starts cannot be written: {error}") from error
    behind = [deletion for deletion in begun if not deletion.is_done]
    late = await _wait_for_replicas(services, behind, request.timeout_ms) if behind else ()
    return _response({name: _row(name, outcome, late) for name, outcome in outcomes.items()})


def error_response(request: DeleteRecordsRequest, error: KafkaError, version: int) -> DeleteRecordsResponse:
    return _response({name: _failed(name, error) for name in _wanted(request)})


def _wanted(request: DeleteRecordsRequest) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, asked.partition_index): asked.offset
        for topic in request.topics
        for asked in topic.partitions
    }


async def _wait_for_replicas(services: Services, behind: list[_Deletion], timeout_ms: int) -> Collection[Partition]:
    """Those partitions of which not all replicas have deleted when the time is up, or the leader is another."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(_: DelayedProduce) -> None:
        if not done.done():
            done.set_result(None)

    waiting = [(deletion.partition, deletion.offset) for deletion in behind]
    parked = services.replicas.purgatory.park_deletion(waiting, max(0, timeout_ms) / 1000, on_done)
    try:
        await done
    finally:
        parked.finish()  # where the client is gone
    return parked.waiting


def _delete(services: Services, context: RequestContext, name: TopicPartition, offset: int) -> _Deletion:
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
    return _Deletion(partition, offset)


def _limit(services: Services, partition: Partition) -> int:
    """The highest log start that costs no two-phase transaction its records."""
    log = partition.log
    stable, high_watermark = log.last_stable_offset, log.high_watermark
    if stable < high_watermark and services.transactions.may_be_prepared(partition.topic_partition):
        return stable
    return high_watermark


def _row(
    name: TopicPartition, outcome: _Deletion | KafkaError, late: Collection[Partition]
) -> DeleteRecordsPartitionResult:
    if isinstance(outcome, KafkaError):
        return _failed(name, outcome)
    partition = outcome.partition
    if partition.log.failure is not None:
        return _failed(name, KafkaStorageError(partition.log.failure))
    if partition in late and not partition.is_leader:
        return _failed(name, partition.not_leading())
    return DeleteRecordsPartitionResult(
        partition_index=name.partition,
        low_watermark=partition.low_watermark,
        error_code=RequestTimedOut.code if partition in late else NONE,
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
