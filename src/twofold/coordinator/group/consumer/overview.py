"""Consumer groups as administrators see them."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from twofold.coordinator.group.consumer.draft import preferred_assignor
from twofold.coordinator.group.consumer.state import ConsumerGroup, ConsumerMember
from twofold.coordinator.group.consumer.surroundings import ConsumerGroupConfig, GroupSurroundings
from twofold.wire.errors import NONE
from twofold.wire.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CONSUMER = "consumer"
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def describe_consumer_group(
    group: ConsumerGroup, cluster: GroupSurroundings, config: ConsumerGroupConfig
) -> DescribedGroup:
    return DescribedGroup(
        error_code=NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=preferred_assignor(group.members.values(), config.assignors),
        members=[_member(group, member, cluster) for _, member in sorted(group.members.items())],
    )


def topics_shown(described: DescribedGroup) -> set[str]:
    """The topics that a description names."""
    shown: set[str] = set()
    for member in described.members:
        shown.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            shown.update(row.topic_name for row in assignment.topic_partitions)
    return shown


def _member(group: ConsumerGroup, member: ConsumerMember, cluster: GroupSurroundings) -> Member:
    subscription = member.subscription
    held: dict[UUID, set[int]] = {}
    for topic, partition in member.holds():
        held.setdefault(topic, set()).add(partition)
    return Member(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=member.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=subscription.topics,
        subscribed_topic_regex=subscription.pattern,
        assignment=_assignment(held, cluster),
        target_assignment=_assignment(group.target(member.member_id), cluster),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(partitions: Mapping[UUID, Iterable[int]], cluster: GroupSurroundings) -> Assignment:
    rows = []
    for topic_id in sorted(partitions):
        name = cluster.topic_name(topic_id)
        if name is not None:
            indexes = sorted(partitions[topic_id])
            rows.append(TopicPartitions(topic_id=topic_id, topic_name=name, partitions=indexes))
    return Assignment(topic_partitions=rows)
