"""The administrator's calls about what lies on the disks of brokers, a part of `twofold.client.admin.admin.Admin`.

1. Records are deleted at the leader of their partition. One that has moved is looked for until
   `default_api_timeout_ms` is over; a partition that does not exist is an error at once.
2. A log directory is described by the broker that has it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from twofold.client.admin.model import Results
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.metadata import NO_LEADER, group_by_topic, topic_error
from twofold.connections.waiting import Deadline
from twofold.types import TopicPartition
from twofold.wire.errors import (
    BrokerNotAvailable,
    KafkaError,
    LeaderNotAvailable,
    NotLeaderOrFollower,
    UnknownTopicOrPartition,
    error_for,
    raise_for,
)
from twofold.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from twofold.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)

ALL_RECORDS = -1
"""The offset that stands for the end of a partition in `delete_records`."""


class ReplicaInfo(NamedTuple):
    """`offset_lag`: how far the replica is behind; `is_future`: it will replace the one in another directory."""

    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """Bytes are -1 where the broker does not tell."""

    path: str
    error: KafkaError | None
    total_bytes: int
    usable_bytes: int
    replicas: Mapping[TopicPartition, ReplicaInfo]


class StorageCalls:
    _cluster: Cluster

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> Results[TopicPartition, int]:
        """Delete the records before an offset (`ALL_RECORDS`: all that are there now), for good.

        Returns where each partition begins now.
        """
        deadline = self._cluster.deadline()
        values: dict[TopicPartition, int] = {}
        errors: dict[TopicPartition, KafkaError] = {}

        async def attempt() -> None:
            left = [tp for tp in before if tp not in values and tp not in errors]
            leaders = await self._leaders(left, errors, deadline)
            for node_id, group in leaders.items():
                rows = await self._delete_at(node_id, {tp: before[tp] for tp in group}, deadline)
                moved = [error for error in rows.values() if isinstance(error, NotLeaderOrFollower)]
                for tp, row in rows.items():
                    if isinstance(row, int):
                        values[tp] = row
                    elif row not in moved:
                        errors[tp] = row
                if moved:
                    raise moved[0]

        await self._cluster.retry("DeleteRecords", attempt, deadline)
        return Results(values, errors)

    async def _leaders(
        self, wanted: list[TopicPartition], errors: dict[TopicPartition, KafkaError], deadline: Deadline
    ) -> dict[int, list[TopicPartition]]:
        """Partitions by their leaders; what does not exist goes to the errors."""
        names = list(dict.fromkeys(tp.topic for tp in wanted))
        if not names:
            return {}
        connection = await self._cluster.any_connection(deadline)
        response = await self._cluster.fetch_metadata(connection, names, deadline)
        self._cluster.cache.update(response)
        topics = {row.name: row for row in response.topics}
        found: dict[int, list[TopicPartition]] = {}
        for tp in wanted:
            topic = topics.get(tp.topic)
            if topic is None or topic.error_code:
                code = UnknownTopicOrPartition.code if topic is None else topic.error_code
                errors[tp] = topic_error(tp.topic, code)
                continue
            leader = next((row.leader_id for row in topic.partitions if row.partition_index == tp.partition), None)
            if leader is None:
                count = len(topic.partitions)
                errors[tp] = UnknownTopicOrPartition(f"topic {tp.topic!r} has {count} partitions, not a {tp.partition}")
            elif leader == NO_LEADER:
                raise LeaderNotAvailable(f"partition {tp} has no leader")
            else:
                found.setdefault(leader, []).append(tp)
        return found

    async def _delete_at(
        self, node_id: int, before: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, int | KafkaError]:
        topics = [
            DeleteRecordsTopic(
                name=name,
                partitions=[
                    DeleteRecordsPartition(partition_index=index, offset=before[TopicPartition(name, index)])
                    for index in indexes
                ],
            )
            for name, indexes in group_by_topic(before).items()
        ]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=deadline.remaining_ms())
        response: DeleteRecordsResponse = await self._cluster.request(node_id, request, "DeleteRecords", deadline)
        rows: dict[TopicPartition, int | KafkaError] = {}
        for topic in response.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                rows[tp] = error_for(row.error_code)(str(tp)) if row.error_code else row.low_watermark
        return rows

    async def describe_log_dirs(
        self, partitions: Iterable[TopicPartition] | None = None, *, brokers: Iterable[int] | None = None
    ) -> Results[int, tuple[LogDirDescription, ...]]:
        """The log directories of each broker (of all where none are named), with these partitions or with all."""
        deadline = self._cluster.deadline()
        topics = None
        if partitions is not None:
            grouped = group_by_topic(dict.fromkeys(partitions))
            topics = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in grouped.items()]
        request = DescribeLogDirsRequest(topics=topics)

        async def one(node_id: int) -> tuple[LogDirDescription, ...]:
            response: DescribeLogDirsResponse = await self._cluster.request(
                node_id, request, "DescribeLogDirs", deadline
            )
            raise_for(response.error_code, f"DescribeLogDirs at broker {node_id}")
            return tuple(_directory(row) for row in response.results)

        await self._cluster.retry("Metadata", lambda: self._cluster.refresh(deadline), deadline)
        values: dict[int, tuple[LogDirDescription, ...]] = {}
        errors: dict[int, KafkaError] = {}
        for node_id in list(self._cluster.cache.nodes) if brokers is None else list(dict.fromkeys(brokers)):
            if self._cluster.node(node_id) is None:
                errors[node_id] = BrokerNotAvailable(f"there is no broker {node_id}")
                continue
            try:
                values[node_id] = await self._cluster.retry("DescribeLogDirs", partial(one, node_id), deadline)
            except KafkaError as error:
                errors[node_id] = error
        return Results(values, errors)


def _directory(row: DescribeLogDirsResult) -> LogDirDescription:
    return LogDirDescription(
        row.log_dir,
        error_for(row.error_code)(f"log directory {row.log_dir}") if row.error_code else None,
        row.total_bytes,
        row.usable_bytes,
        {
            TopicPartition(topic.name, entry.partition_index): ReplicaInfo(
                entry.partition_size, entry.offset_lag, entry.is_future_key
            )
            for topic in row.topics
            for entry in topic.partitions
        },
    )
