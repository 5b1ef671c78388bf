"""Images of a cluster with a topic `t`, and requests about its partitions in one line."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from kits.metadata.controller import after, context, fold, image_with, performed
from twofold.controller.context import Context
from twofold.controller.image import MetadataImage, PartitionState
from twofold.controller.records import FeatureLevel, MetadataRecord, Partition, Topic
from twofold.controller.replay import ControllerState
from twofold.controller.replicas import alter_partition as changes
from twofold.controller.replicas import directories, elections, reassignments
from twofold.wire.messages.alter_partition import AlterPartitionRequest, BrokerState, PartitionData, TopicData
from twofold.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

TOPIC_ID = UUID(int=77 << 64)

alter_partition = performed(changes.alter_partition)
elect_leaders = performed(elections.elect_leaders)
balance_leaders = performed(elections.balance_leaders)
elect_unclean = performed(elections.elect_unclean)
alter_reassignments = performed(reassignments.alter_partition_reassignments)
assign_directories = performed(directories.assign_replicas_to_dirs)


def cluster(
    *states: dict[str, Any], brokers: Iterable[int] = (1, 2, 3), fenced: Iterable[int] = (), eligible: bool = False
) -> MetadataImage:
    """A partition of `t` for each state; replicas 1, 2, 3, all in sync, where it does not say otherwise."""
    image = image_with(*brokers, fenced=fenced)
    records: list[MetadataRecord] = [Topic("t", TOPIC_ID)]
    if eligible:
        records.append(FeatureLevel("eligible.leader.replicas.version", 1))
    for index, state in enumerate(states or ({},)):
        fields: dict[str, Any] = {"replicas": (1, 2, 3), "isr": (1, 2, 3), "leader": 1} | state
        fields.setdefault("directories", tuple(UUID(int=broker << 64) for broker in fields["replicas"]))
        records.append(Partition(index, TOPIC_ID, **fields))
    return fold(records, ControllerState(image)).image


def epoch_of(broker_id: int) -> int:
    return 100 + broker_id


def state(image: MetadataImage, index: int = 0) -> PartitionState:
    found = image.partition("t", index)
    assert found is not None
    return found


def in_sync(image: MetadataImage, isr: Sequence[int], *, index: int = 0, **changed: Any) -> AlterPartitionRequest:
    """What the leader of a partition asks for, rightly but for what is changed."""
    partition = image.partition("t", index)
    sender = changed.pop("sender", 1 if partition is None else partition.leader)
    epochs = changed.pop("epochs", {})
    fields: dict[str, Any] = {
        "partition_index": index,
        "leader_epoch": 0 if partition is None else partition.leader_epoch,
        "partition_epoch": 0 if partition is None else partition.partition_epoch,
        "new_isr_with_epochs": tuple(
            BrokerState(broker_id=member, broker_epoch=epochs.get(member, epoch_of(member))) for member in isr
        ),
    }
    topic_id = changed.pop("topic_id", TOPIC_ID)
    broker_epoch = changed.pop("broker_epoch", epoch_of(sender))
    row = PartitionData(**(fields | changed))
    topic = TopicData(topic_id=topic_id, partitions=(row,))
    return AlterPartitionRequest(broker_id=sender, broker_epoch=broker_epoch, topics=(topic,))


def altered(image: MetadataImage, isr: Sequence[int], world: Context | None = None, **changed: Any) -> tuple[Any, Any]:
    """The row of the answer, and the image after it."""
    result = alter_partition(image, in_sync(image, isr, **changed), world or context(image))
    return result.response.topics[0].partitions[0], after(image, result.records)


def moving(replicas: Sequence[int] | None, *, index: int = 0, may_resize: bool = True) -> Any:
    row = ReassignablePartition(partition_index=index, replicas=replicas)
    topic = ReassignableTopic(name="t", partitions=(row,))
    return AlterPartitionReassignmentsRequest(topics=(topic,), allow_replication_factor_change=may_resize)
