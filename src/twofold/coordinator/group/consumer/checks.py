"""What is wrong with a ConsumerGroupHeartbeat by itself, and with what a member says of itself. The order is Apache
Kafka's: it decides which of two mistakes a client is told."""

from collections.abc import Sequence
from uuid import UUID

from twofold.coordinator.group.consumer.reconciliation import Owned
from twofold.coordinator.group.consumer.state import LEFT, LEFT_FOR_A_WHILE, ConsumerGroup, ConsumerMember
from twofold.coordinator.group.consumer.surroundings import ConsumerGroupConfig
from twofold.wire.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRequest,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from twofold.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

OWN_ID_SINCE = 1  # the client makes its member id (KIP-1082)
JOINING = 0


def check_request(request: ConsumerGroupHeartbeatRequest, version: int, config: ConsumerGroupConfig) -> None:
    epoch = request.member_epoch
    if not request.member_id.strip() and (version >= OWN_ID_SINCE or epoch > JOINING or epoch == LEFT):
        raise InvalidRequest("MemberId can't be empty.")
    if not request.group_id.strip():
        raise InvalidRequest("GroupId can't be empty.")
    if request.instance_id is not None and not request.instance_id.strip():
        raise InvalidRequest("InstanceId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise InvalidRequest("RackId can't be empty.")
    if epoch == JOINING:
        _check_joining(request)
    elif epoch == LEFT_FOR_A_WHILE:
        if request.instance_id is None:
            raise InvalidRequest("InstanceId can't be null.")
    elif epoch < LEFT_FOR_A_WHILE:
        raise InvalidRequest(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    if request.server_assignor is not None and request.server_assignor not in config.assignors:
        raise UnsupportedAssignor(
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(config.assignors)}."
        )


def _check_joining(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or len(request.topic_partitions) > 0:
        raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequest("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def owned_of(rows: Sequence[object] | None) -> Owned | None:
    if rows is None:
        return None
    owned: dict[UUID, set[int]] = {}
    for row in rows:
        topic_id: UUID | None = getattr(row, "topic_id", None)
        if topic_id is not None:
            owned.setdefault(topic_id, set()).update(getattr(row, "partitions", ()))
    return owned


def check_room(group: ConsumerGroup, member_id: str, instance_id: str | None, config: ConsumerGroupConfig) -> None:
    if len(group.members) < config.max_size or member_id in group.members:
        return
    if group.static_member(instance_id) is not None:
        return  # it takes a place that it has already
    raise GroupMaxSizeReached(f"group {group.group_id} has group.consumer.max.size={config.max_size} members")


def check_epoch(member: ConsumerMember, epoch: int, owned: Owned | None) -> None:
    """A member that is behind by one answer is believed if it has nothing that it may not have."""
    if epoch == JOINING or epoch == member.epoch:
        return
    if epoch > member.epoch:
        raise FencedMemberEpoch(
            f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group "
            f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
        )
    if epoch != member.current.previous_epoch or not _is_within(owned, member):
        raise FencedMemberEpoch(
            f"The consumer group member has a smaller member epoch ({epoch}) than the one known by the group "
            f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
        )


def _is_within(owned: Owned | None, member: ConsumerMember) -> bool:
    if owned is None:
        return False
    assigned = member.current.assigned
    return all(index in assigned.get(topic, ()) for topic, partitions in owned.items() for index in partitions)


def known_member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    member = group.members.get(member_id)
    if member is None:
        raise UnknownMemberId(f"Member {member_id} is not a member of group {group.group_id}.")
    return member


def known_static_member(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerMember:
    """The member with this instance id, if it is the one that asks."""
    member = group.static_member(instance_id)
    if member is None:
        raise UnknownMemberId(f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise FencedInstanceId(
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}."
        )
    return member


def check_released(member: ConsumerMember) -> None:
    """A place is free again once its member has left for a while, or was one of the classic protocol."""
    if member.epoch != LEFT_FOR_A_WHILE and not member.is_classic:
        instance_id = member.subscription.instance_id
        raise UnreleasedInstanceId(
            f"Static member with instance id {instance_id} is still used by member {member.member_id}: it has to leave "
            "the group, or its session has to end."
        )
