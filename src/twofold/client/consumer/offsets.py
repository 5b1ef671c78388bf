"""ListOffsets: from timestamps, and from the ends of a partition, to offsets."""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.metadata import PartitionMetadata
from twofold.connections.waiting import Deadline
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, LeaderNotAvailable, error_for
from twofold.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)


class OffsetSpec(IntEnum):
    """What to look for instead of a timestamp."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3


class ListedOffset(NamedTuple):
    """The offset is -1 when no record is that late."""

    offset: int
    timestamp: int
    leader_epoch: int


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: int, deadline: Deadline
) -> dict[TopicPartition, ListedOffset]:
    """The offset of each partition for its timestamp or OffsetSpec; those that fail for a while are asked again."""
    found: dict[TopicPartition, ListedOffset] = {}

    async def attempt() -> None:
        problem: KafkaError | None = None
        by_leader: dict[int, dict[TopicPartition, PartitionMetadata]] = {}
        for tp in wanted:
            if tp not in found:
                row = await cluster.leader(tp, deadline)
                by_leader.setdefault(row.leader, {})[tp] = row
        for leader, rows in by_leader.items():
            error = await _ask(cluster, leader, rows, wanted, isolation, deadline, found)
            problem = problem or error
        if problem is not None:
            raise problem

    await cluster.retry("ListOffsets", attempt, deadline)
    return found


async def list_once(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: int, deadline: Deadline
) -> tuple[dict[TopicPartition, ListedOffset], list[KafkaError]]:
    """What the leaders that are known say at once, and what went wrong with others."""
    found: dict[TopicPartition, ListedOffset] = {}
    problems: list[KafkaError] = []
    by_leader: dict[int, dict[TopicPartition, PartitionMetadata]] = {}
    for tp in wanted:
        row = cluster.cache.leader(tp)
        if row is not None:
            by_leader.setdefault(row.leader, {})[tp] = row
        else:
            problems.append(cluster.cache.error_of(tp.topic) or LeaderNotAvailable(f"the leader of {tp} is not known"))
    for leader, rows in by_leader.items():
        try:
            error = await _ask(cluster, leader, rows, wanted, isolation, deadline, found)
        except KafkaError as raised:
            error = raised
        if error is not None:
            problems.append(error)
    return found, problems


async def _ask(
    cluster: Cluster,
    leader: int,
    rows: Mapping[TopicPartition, PartitionMetadata],
    wanted: Mapping[TopicPartition, int],
    isolation: int,
    deadline: Deadline,
    found: dict[TopicPartition, ListedOffset],
) -> KafkaError | None:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for tp, row in rows.items():
        topics.setdefault(tp.topic, []).append(
            ListOffsetsPartition(
                partition_index=tp.partition, timestamp=wanted[tp], current_leader_epoch=row.leader_epoch
            )
        )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()],
        timeout_ms=deadline.remaining_ms(),
    )
    response: ListOffsetsResponse = await cluster.request(leader, request, "ListOffsets", deadline)
    problem: KafkaError | None = None
    for topic in response.topics:
        for entry in topic.partitions:
            tp = TopicPartition(topic.name, entry.partition_index)
            if entry.error_code:
                problem = problem or error_for(entry.error_code)(f"ListOffsets of {tp} at broker {leader}")
            else:
                found[tp] = _listed(entry)
    return problem


def _listed(entry: ListOffsetsPartitionResponse) -> ListedOffset:
    return ListedOffset(entry.offset, entry.timestamp, entry.leader_epoch)
