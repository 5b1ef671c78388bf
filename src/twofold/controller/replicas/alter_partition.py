"""AlterPartition: a leader tells which replicas are in sync.

Rules of a row, in the order in which the first to fail decides: a topic id (100) or partition (3) that is not there; an
epoch of the leader or the partition that is newer than ours, so that we are no active controller any more (41); an
older leader epoch (74); a broker that does not lead (42); an older partition epoch (95); an ISR that is no set of
replicas with the leader in it, or that has others beside a leader that is recovering, or a leader that goes back to
recovering (42); a member that is not registered, fenced, in controlled shutdown, or registered with another epoch than
the leader has seen (107). A change that ends a move and takes the lead away from the sender is made, and answered with
108.
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from twofold.controller.brokers import checked_broker
from twofold.controller.context import Context
from twofold.controller.image import MetadataImage, PartitionState, TopicImage
from twofold.controller.operation import Operation
from twofold.controller.records import LEADER_UNCHANGED, RECOVERED, PartitionChange
from twofold.controller.replay import changed_partition
from twofold.controller.replicas.change import RECOVERING, Election, Goal, change_partition
from twofold.controller.replicas.rules import ClusterRules
from twofold.wire.errors import (
    NONE,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    KafkaError,
    NewLeaderElected,
    NotController,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionDataResult,
    TopicData,
    TopicDataResult,
)

EPOCH_UNKNOWN = -1


def alter_partition(
    image: MetadataImage, request: AlterPartitionRequest, context: Context
) -> Operation[AlterPartitionResponse]:
    checked_broker(image, request.broker_id, request.broker_epoch)
    cluster = ClusterRules(image, context)
    topics = []
    for asked in request.topics:
        rows = []
        for row in asked.partitions:
            try:
                decided = _decide(image, cluster, request.broker_id, asked, row)
            except KafkaError as error:
                rows.append(_refused(row, error.code))
                yield None
                continue
            rows.append(_row(row, decided, request.broker_id))
            yield decided.change
        topics.append(TopicDataResult(topic_id=asked.topic_id, partitions=tuple(rows)))
    return AlterPartitionResponse(error_code=NONE, topics=tuple(topics))


class _Decided(NamedTuple):
    change: PartitionChange | None
    state: PartitionState  # after the change


def _row(asked: PartitionData, decided: _Decided, sender: int) -> PartitionDataResult:
    change, state = decided
    if change is not None and change.leader not in (LEADER_UNCHANGED, sender):
        return _refused(asked, NewLeaderElected.code)
    return PartitionDataResult(
        partition_index=asked.partition_index,
        error_code=NONE,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        leader_recovery_state=state.leader_recovery_state,
        partition_epoch=state.partition_epoch,
    )


def _refused(asked: PartitionData, code: int) -> PartitionDataResult:
    return PartitionDataResult(
        partition_index=asked.partition_index, error_code=code, leader_id=0, leader_epoch=0, partition_epoch=0
    )


def _decide(image: MetadataImage, cluster: ClusterRules, sender: int, asked: TopicData, row: PartitionData) -> _Decided:
    topic = image.topic_by_id(asked.topic_id or UUID(int=0))
    if topic is None:
        raise UnknownTopicId(f"no topic has the id {asked.topic_id}")
    old = topic.partitions.get(row.partition_index)
    if old is None:
        raise UnknownTopicOrPartition(f"topic {topic.name} has no partition {row.partition_index}")
    members = row.new_isr_with_epochs or [BrokerState(broker_id=member) for member in row.new_isr]
    _check_epochs(topic, old, sender, row)
    _check_isr(old, tuple(member.broker_id for member in members), row.leader_recovery_state)
    _check_members(image, members)
    rules = cluster.of(topic)
    goal = Goal(
        isr=tuple(member.broker_id for member in members),
        recovery_state=row.leader_recovery_state,
        election=Election.UNCLEAN if rules.allows_unclean else Election.ONLINE,
    )
    change = change_partition(row.partition_index, topic.topic_id, old, goal, rules, cluster.accepts(old))
    return _Decided(change, old if change is None else changed_partition(old, change))


def _check_epochs(topic: TopicImage, old: PartitionState, sender: int, row: PartitionData) -> None:
    name = f"{topic.name}-{row.partition_index}"
    if row.leader_epoch > old.leader_epoch or row.partition_epoch > old.partition_epoch:
        raise NotController(
            f"{name} is at leader epoch {old.leader_epoch} and partition epoch {old.partition_epoch} here, broker "
            f"{sender} has {row.leader_epoch} and {row.partition_epoch}: another controller is newer"
        )
    if row.leader_epoch < old.leader_epoch:
        raise FencedLeaderEpoch(f"{name} is at leader epoch {old.leader_epoch}, not {row.leader_epoch}")
    if sender != old.leader:
        raise InvalidRequest(f"broker {old.leader} leads {name}, not {sender}")
    if row.partition_epoch < old.partition_epoch:
        raise InvalidUpdateVersion(f"{name} is at partition epoch {old.partition_epoch}, not {row.partition_epoch}")


def _check_isr(old: PartitionState, isr: tuple[int, ...], recovery_state: int) -> None:
    if len(set(isr)) != len(isr) or not set(isr) <= set(old.replicas) or old.leader not in isr:
        raise InvalidRequest(f"{list(isr)} is no ISR of the replicas {list(old.replicas)} with leader {old.leader}")
    if recovery_state == RECOVERING and len(isr) > 1:
        raise InvalidRequest("no other replica is in sync while the leader is recovering")
    if recovery_state == RECOVERING and old.leader_recovery_state == RECOVERED:
        raise InvalidRequest("a leader that has recovered does not go back")


def _check_members(image: MetadataImage, members: Sequence[BrokerState]) -> None:
    for member in members:
        broker = image.broker(member.broker_id)
        if broker is None:
            raise IneligibleReplica(f"broker {member.broker_id} is not registered")
        if not broker.is_active:
            raise IneligibleReplica(f"broker {member.broker_id} is fenced or shutting down")
        if member.broker_epoch not in (EPOCH_UNKNOWN, broker.epoch):
            raise IneligibleReplica(
                f"broker {member.broker_id} is registered with epoch {broker.epoch}, not {member.broker_epoch}"
            )
