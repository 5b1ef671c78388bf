"""Members that go: they leave, leave for a while, fall silent, or do not give up in time what they have to.

1. Members that go together are one step of the group epoch. The epoch stands for what the others want, so its hash is
   computed without them.
2. A static member that leaves for a while keeps its place and its partitions until its session ends. They count as
   assigned in epoch 0 then, because its successor may commit with an epoch of before.
"""

from collections.abc import Sequence

from twofold.coordinator.group.consumer.checks import known_member, known_static_member
from twofold.coordinator.group.consumer.draft import Draft
from twofold.coordinator.group.consumer.records import CURRENT
from twofold.coordinator.group.consumer.state import LEFT_FOR_A_WHILE, ConsumerGroup, ConsumerMember
from twofold.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


def leaving_member(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest) -> ConsumerMember:
    if request.instance_id is None:
        return known_member(group, request.member_id)
    return known_static_member(group, request.member_id, request.instance_id)


def leave_for_a_while(draft: Draft, member: ConsumerMember) -> None:
    current = member.current
    assigned = {topic: dict.fromkeys(partitions, 0) for topic, partitions in current.assigned.items()}
    left = current._replace(epoch=LEFT_FOR_A_WHILE, assigned=assigned, pending={})
    draft.emit(CURRENT, member.member_id, left)


def remove_members(draft: Draft, members: Sequence[ConsumerMember]) -> None:
    for member in members:
        draft.remove(member.member_id)
    for pattern in dict.fromkeys(member.subscription.pattern for member in members):
        draft.forget_pattern(pattern)
    draft.raise_epoch(draft.metadata_hash())
    for member in members:
        draft.end_timers(member.member_id)
