"""What becomes of partitions when a broker comes, goes, or loses a directory."""

from collections.abc import Callable, Iterator
from uuid import UUID

from twofold.controller.context import Context
from twofold.controller.image import MetadataImage, PartitionState
from twofold.controller.records import MetadataRecord, PartitionChange
from twofold.controller.replicas.change import Election, Goal, change_partition
from twofold.controller.replicas.rules import ClusterRules

Changes = Iterator[MetadataRecord | None]


def leave_partitions(image: MetadataImage, context: Context, broker_id: int) -> Changes:
    """Take a broker out of the ISRs and give what it led to others; the last in sync stays so, without a leader."""
    return _update(image, context, lambda partition: broker_id in partition.isr, without=broker_id)


def lose_partitions(image: MetadataImage, context: Context, broker_id: int) -> Changes:
    """A broker died and may have lost its last writes: it is in sync with nothing, and no eligible leader either."""

    def touches(partition: PartitionState) -> bool:
        return broker_id in partition.isr or broker_id in partition.eligible_leader_replicas

    return _update(image, context, touches, without=broker_id, lost=broker_id)


def leave_directory(image: MetadataImage, context: Context, broker_id: int, directory: UUID) -> Changes:
    """As `leave_partitions`, for the replicas in one directory."""

    def touches(partition: PartitionState) -> bool:
        return broker_id in partition.isr and (broker_id, directory) in zip(
            partition.replicas, partition.directories, strict=False
        )

    return _update(image, context, touches, without=broker_id)


def lead_again(image: MetadataImage, context: Context, broker_id: int) -> Changes:
    """A broker is back: it leads what waited for it."""
    return _update(image, context, lambda partition: not partition.has_leader, also=broker_id)


def _update(
    image: MetadataImage,
    context: Context,
    touches: Callable[[PartitionState], bool],
    *,
    without: int | None = None,
    also: int | None = None,
    lost: int | None = None,
) -> Changes:
    cluster = ClusterRules(image, context)
    for topic in image.topics_in_order():
        rules = None
        latest: PartitionState | None = None  # neighbours are mostly alike
        change: PartitionChange | None = None
        for index, partition in topic.in_order():
            if not touches(partition):
                yield None
                continue
            if rules is None:
                rules = cluster.of(topic)
            if partition is not latest:
                isr = tuple(replica for replica in partition.isr if replica != without)
                goal = Goal(isr=isr, lost=lost, election=Election.UNCLEAN if rules.allows_unclean else Election.ONLINE)
                accepts = cluster.accepts(partition, without=without, also=also)
                change = change_partition(index, topic.topic_id, partition, goal, rules, accepts)
                latest = partition
            yield None if change is None else change._replace(partition_id=index)
