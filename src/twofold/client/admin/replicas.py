"""The administrator's calls about where replicas are and which of them leads, a part of
`twofold.client.admin.admin.Admin`.

1. A reassignment that is accepted has begun, not ended: `list_partition_reassignments` shows those that go on.
2. Any broker passes these on to the controller; an answer of the wrong one is asked for again.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from twofold.client.admin.model import Results
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.metadata import group_by_topic
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, error_for, raise_for
from twofold.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from twofold.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from twofold.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
)


class ElectionType(IntEnum):
    """PREFERRED: the first of the replicas, if it is in sync. UNCLEAN: any, and what only others have is lost."""

    PREFERRED = 0
    UNCLEAN = 1


class Reassignment(NamedTuple):
    """One that goes on: the replicas now, those that come, and those that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.replicas if broker not in self.removing)


class ReplicaCalls:
    _cluster: Cluster

    async def alter_partition_reassignments(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None]
    ) -> Results[TopicPartition, None]:
        """Begin to move partitions to these replicas, the preferred leader first. None cancels what goes on."""
        topics = [
            ReassignableTopic(
                name=name,
                partitions=[
                    ReassignablePartition(partition_index=index, replicas=wanted[TopicPartition(name, index)])
                    for index in indexes
                ],
            )
            for name, indexes in group_by_topic(wanted).items()
        ]
        deadline = self._cluster.deadline()

        async def attempt() -> Results[TopicPartition, None]:
            request = AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=deadline.remaining_ms())
            response: AlterPartitionReassignmentsResponse = await self._cluster.request(
                None, request, "AlterPartitionReassignments", deadline
            )
            raise_for(response.error_code, response.error_message or "AlterPartitionReassignments")
            rows = (
                (TopicPartition(topic.name, row.partition_index), row.error_code, row.error_message)
                for topic in response.responses
                for row in topic.partitions
            )
            return _outcomes(rows)

        return await self._cluster.retry("AlterPartitionReassignments", attempt, deadline)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The reassignments that go on, of all partitions or of these."""
        topics = None
        if partitions is not None:
            topics = [
                ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
                for name, indexes in group_by_topic(partitions).items()
            ]
        deadline = self._cluster.deadline()

        async def attempt() -> dict[TopicPartition, Reassignment]:
            request = ListPartitionReassignmentsRequest(topics=topics, timeout_ms=deadline.remaining_ms())
            response: ListPartitionReassignmentsResponse = await self._cluster.request(
                None, request, "ListPartitionReassignments", deadline
            )
            raise_for(response.error_code, response.error_message or "ListPartitionReassignments")
            return {
                TopicPartition(topic.name, row.partition_index): Reassignment(
                    tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
                )
                for topic in response.topics
                for row in topic.partitions
            }

        return await self._cluster.retry("ListPartitionReassignments", attempt, deadline)

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, kind: ElectionType = ElectionType.PREFERRED
    ) -> Results[TopicPartition, None]:
        """Hold an election for these partitions, or for all. ElectionNotNeeded is the error of one that needs none;
        of all partitions, only those that needed one are in the results."""
        topics = None
        if partitions is not None:
            topics = [
                TopicPartitions(topic=name, partitions=indexes) for name, indexes in group_by_topic(partitions).items()
            ]
        deadline = self._cluster.deadline()

        async def attempt() -> Results[TopicPartition, None]:
            request = ElectLeadersRequest(
                topic_partitions=topics, timeout_ms=deadline.remaining_ms(), election_type=kind
            )
            response: ElectLeadersResponse = await self._cluster.request(None, request, "ElectLeaders", deadline)
            raise_for(response.error_code, "ElectLeaders")
            rows = (
                (TopicPartition(topic.topic, row.partition_id), row.error_code, row.error_message)
                for topic in response.replica_election_results
                for row in topic.partition_result
            )
            return _outcomes(rows)

        return await self._cluster.retry("ElectLeaders", attempt, deadline)


def _outcomes(rows: Iterable[tuple[TopicPartition, int, str | None]]) -> Results[TopicPartition, None]:
    values: dict[TopicPartition, None] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for partition, code, message in rows:
        if code:
            errors[partition] = error_for(code)(message or str(partition))
        else:
            values[partition] = None
    return Results(values, errors)
