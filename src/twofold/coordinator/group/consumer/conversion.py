"""Groups that change their type while they have members: from classic to consumer with the first member of the new
protocol, and back when the last one goes.

1. Both are one batch of records: the removal of the group as it was, and the group as it is then.
2. An upgrade takes the last assignment as the target and as what members have. A downgrade takes the targets as the
   assignment, in the generation that is the group epoch so far; then all join anew.
3. What a member was told in a way that the other protocol cannot express (user data of its own assignor) stops an
   upgrade. `group.consumer.migration.policy` says which ways are open; groups without members are always free.
"""

from collections.abc import Sequence

from twofold.coordinator.group.classic import CONSUMER_PROTOCOL_TYPE, ClassicGroup, Member
from twofold.coordinator.group.consumer.draft import SESSION, Draft, removal_of
from twofold.coordinator.group.consumer.embedded import (
    ClassicAssignment,
    ClassicSubscription,
    MalformedEmbedded,
    by_id,
    by_name,
    read_assignment,
    read_subscription,
    version_of,
    write_assignment,
)
from twofold.coordinator.group.consumer.records import (
    CURRENT,
    GROUP_EPOCH,
    SUBSCRIPTION,
    TARGET,
    TARGET_EPOCH,
    ClassicPart,
    Current,
    GroupEpoch,
    MemberSubscription,
    Partitions,
    TargetEpoch,
)
from twofold.coordinator.group.consumer.state import STABLE, ConsumerGroup, ConsumerMember
from twofold.coordinator.group.consumer.surroundings import ConsumerGroupConfig
from twofold.coordinator.group.records import GroupRecord
from twofold.coordinator.group.states import GroupState
from twofold.wire.errors import GroupIdNotFound

# --- from classic to consumer ---


def check_upgrade(group: ClassicGroup, config: ConsumerGroupConfig) -> None:
    cannot = f"Cannot upgrade classic group {group.group_id} to consumer group because "
    if not config.may_upgrade:
        raise GroupIdNotFound(cannot + "online upgrade is disabled.")
    if not group.is_consumer_group:
        raise GroupIdNotFound(cannot + "the group does not use the consumer embedded protocol.")
    if len(group.members) > config.max_size:
        raise GroupIdNotFound(cannot + "the group size exceeds the consumer group maximum size.")


def upgrade(draft: Draft, group: ClassicGroup) -> None:
    """Write the classic group as a consumer group at its generation."""
    protocol = group.protocol or group.select_protocol()
    read = {member_id: _read(group, member, protocol) for member_id, member in group.members.items()}
    draft.records.append(GroupRecord(group.group_id, None))
    targets: dict[str, Partitions] = {}
    for member_id, member in group.members.items():
        subscription, assignment = read[member_id]
        targets[member_id] = by_id(assignment.partitions, draft.cluster)
        draft.emit(SUBSCRIPTION, member_id, _subscription(member, subscription))
    draft.emit(GROUP_EPOCH, "", GroupEpoch(group.generation, draft.metadata_hash()))
    for member_id, target in targets.items():
        draft.emit(TARGET, member_id, target)
    draft.emit(TARGET_EPOCH, "", TargetEpoch(group.generation))
    for member_id, target in targets.items():
        held = {topic: dict.fromkeys(sorted(found), group.generation) for topic, found in target.items()}
        draft.emit(CURRENT, member_id, Current(group.generation, group.generation, STABLE, held))
        draft.set_timer(SESSION, member_id, group.members[member_id].session_timeout_ms)


def _read(group: ClassicGroup, member: Member, protocol: str) -> tuple[ClassicSubscription, ClassicAssignment]:
    cannot = f"Cannot upgrade classic group {group.group_id} to consumer group because "
    try:
        subscription = read_subscription(member.metadata(protocol))
        assignment = read_assignment(member.assignment)
    except MalformedEmbedded:
        raise GroupIdNotFound(cannot + "the embedded consumer protocol is malformed.") from None
    if assignment.user_data:
        raise GroupIdNotFound(
            cannot + "an unsupported custom assignor is in use. Switch to a default assignor before the upgrade."
        )
    return subscription, assignment


def _subscription(member: Member, subscription: ClassicSubscription) -> MemberSubscription:
    return MemberSubscription(
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=subscription.topics,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicPart(member.session_timeout_ms, member.protocols),
    )


# --- from consumer to classic ---


def may_turn_classic_without(
    group: ConsumerGroup, gone: Sequence[ConsumerMember], config: ConsumerGroupConfig, fewer: int | None = None
) -> bool:
    """Whether only classic members are left, at least one, and that may be a classic group then. `fewer` is by how many
    members the group shrinks, where that is not all of those who go: one whose place is taken leaves no gap."""
    classic_left = group.classic_members - sum(member.is_classic for member in gone)
    if classic_left != len(group.members) - len(gone):
        return False
    left = len(group.members) - (len(gone) if fewer is None else fewer)
    return left > 0 and config.may_downgrade and left <= config.classic_max_size


def turn_classic(
    draft: Draft, group: ConsumerGroup, gone: Sequence[ConsumerMember], renamed: tuple[str, str] | None = None
) -> None:
    """Write a consumer group as a classic one. `group` is as it was before the request. `renamed` are the old and the
    new id of a static member whose records are in the draft already."""
    old_id, new_id = renamed or ("", "")
    draft.records.extend(removal_of(group, {old_id: new_id}))
    left = [member for member in group.members.values() if member not in gone and member.member_id != old_id]
    classic = ClassicGroup(group.group_id, draft.now.wall_ms)
    classic.state = GroupState.STABLE
    classic.generation = group.epoch
    for member in left:
        classic.add(_classic_member(member), CONSUMER_PROTOCOL_TYPE)
    if renamed is not None:
        classic.add(_classic_member(draft.group.members[new_id]), CONSUMER_PROTOCOL_TYPE)
    classic.protocol = classic.select_protocol()
    for member_id, made in classic.members.items():
        target = by_name(group.target(old_id if member_id == new_id else member_id), draft.cluster)
        made.assignment = write_assignment(target, version_of(made.metadata(classic.protocol)))
    draft.records.append(GroupRecord(group.group_id, classic.to_value()))
    for member in group.members.values():
        draft.end_timers(member.member_id)


def _classic_member(member: ConsumerMember) -> Member:
    subscription = member.subscription
    assert subscription.classic is not None  # all others are gone
    return Member(
        member.member_id,
        subscription.instance_id,
        subscription.client_id,
        subscription.client_host,
        subscription.rebalance_timeout_ms,
        subscription.classic.session_timeout_ms,
        subscription.classic.protocols,
    )
