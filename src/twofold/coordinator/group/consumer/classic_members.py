"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup and Heartbeat in terms of KIP-848.

1. Such a member is a follower: the coordinator computes its assignment. It joins at once, in the generation that is its
   member epoch, and gets what is assigned to it when it syncs.
2. A heartbeat tells it to join again (27) when it is behind the target, has something to give up, or may have more.
   What it still owns is what its next JoinGroup says.
3. A member that is told to join has its rebalance timeout to do so, and as long again to sync.
4. 27 also where the next join would compute a new target: in Apache Kafka 4.3.1 the partitions of a member that left
   stay unread while only classic members are left and the group may not turn classic.
"""

from collections.abc import Iterable

from twofold.coordinator.group.answers import rebalance_timeout
from twofold.coordinator.group.classic import CONSUMER_PROTOCOL_TYPE
from twofold.coordinator.group.consumer.checks import check_room
from twofold.coordinator.group.consumer.conversion import may_turn_classic_without, turn_classic
from twofold.coordinator.group.consumer.draft import JOIN, SESSION, SYNC, Draft
from twofold.coordinator.group.consumer.embedded import (
    ClassicSubscription,
    MalformedEmbedded,
    by_id,
    by_name,
    read_subscription,
    version_of,
    write_assignment,
)
from twofold.coordinator.group.consumer.heartbeat import change, take_place
from twofold.coordinator.group.consumer.records import ClassicPart, MemberSubscription
from twofold.coordinator.group.consumer.state import NO_PATTERN, UNRELEASED, UNREVOKED, ConsumerGroup, ConsumerMember
from twofold.coordinator.group.context import Client
from twofold.wire.errors import (
    NONE,
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownServerError,
)
from twofold.wire.messages.heartbeat import HeartbeatRequest
from twofold.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from twofold.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

UNKNOWN_MEMBER = ""


# --- joining ---


def check_join(draft: Draft, request: JoinGroupRequest, member_id: str) -> None:
    config, group = draft.config, draft.group
    least, most = config.min_session_timeout_ms, config.max_session_timeout_ms
    if not least <= request.session_timeout_ms <= most:
        raise InvalidSessionTimeout(
            f"a session timeout of {request.session_timeout_ms} ms is not between "
            f"group.min.session.timeout.ms={least} and group.max.session.timeout.ms={most}"
        )
    if config.migration_policy == "disabled":
        raise InconsistentGroupProtocol(
            f"{group.group_id} is a consumer group, and group.consumer.migration.policy=disabled"
        )
    check_room(group, member_id, request.group_instance_id, config)
    names = [protocol.name for protocol in request.protocols]
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not _supports(group, names):
        raise InconsistentGroupProtocol(f"group {group.group_id} has no protocol in common with {names}")


def _supports(group: ConsumerGroup, names: Iterable[str]) -> bool:
    """Whether all classic members have one of these protocols, the same one."""
    common = set(names)
    if not common:
        return False
    known = [member.subscription.classic for member in group.members.values() if member.subscription.classic]
    return not known or any(all(name in dict(part.protocols) for part in known) for name in common)


def join(
    draft: Draft, request: JoinGroupRequest, client: Client, member_id: str, *, check_metadata: bool
) -> tuple[JoinGroupResponse, bool]:
    """The answer, and whether the group is a classic one now. `member_id` is that of the request, or a new one."""
    base = draft.group
    replaced = base.static_member(request.group_instance_id)
    turns_classic = replaced is not None and may_turn_classic_without(base, [replaced], draft.config, 0)
    before = _place(draft, request, member_id)
    subscription = _read_subscription(request)
    old = MemberSubscription() if before is None else before.subscription
    wanted = _wanted(old, request, subscription, client)
    draft.subscribe(member_id, wanted)
    has_changed = change(draft, old, wanted, check_metadata=check_metadata)
    owned = by_id(subscription.owned, draft.cluster)
    must_rebalance = draft.group.target_epoch < draft.group.epoch
    if not turns_classic:
        draft.maybe_assign()
    if not turns_classic or not must_rebalance:
        draft.reconcile(member_id, owned, has_changed=has_changed)
    member = draft.group.members[member_id]
    draft.set_timer(JOIN, member_id, None)
    if turns_classic:
        assert replaced is not None
        turn_classic(draft, base, (), renamed=(replaced.member_id, member_id))
    else:
        draft.set_timer(SESSION, member_id, request.session_timeout_ms)
        draft.set_timer(SYNC, member_id, rebalance_timeout(request))
    response = JoinGroupResponse(
        error_code=NONE,
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=request.protocols[0].name,
        leader="",
        member_id=member_id,
        members=(),
    )
    return response, turns_classic


def _place(draft: Draft, request: JoinGroupRequest, member_id: str) -> ConsumerMember | None:
    group = draft.group
    if request.group_instance_id is None:
        return group.members.get(member_id)
    known = group.static_member(request.group_instance_id)
    if request.member_id == UNKNOWN_MEMBER:
        return group.members.get(member_id) if known is None else take_place(draft, known, member_id, 0, 0)
    return _static(group, request.member_id, request.group_instance_id)


def _read_subscription(request: JoinGroupRequest) -> ClassicSubscription:
    try:
        return read_subscription(request.protocols[0].metadata)
    except MalformedEmbedded as error:
        raise UnknownServerError(f"the subscription of {request.protocols[0].name} cannot be read: {error}") from None


def _wanted(
    old: MemberSubscription, request: JoinGroupRequest, subscription: ClassicSubscription, client: Client
) -> MemberSubscription:
    timeout_ms = rebalance_timeout(request)
    protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
    return MemberSubscription(
        instance_id=old.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=old.rack_id if subscription.rack_id is None else subscription.rack_id,
        client_id=client.client_id,
        client_host=client.client_host,
        topics=subscription.topics,
        pattern=NO_PATTERN,
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=old.assignor,
        classic=ClassicPart(request.session_timeout_ms, protocols),
    )


# --- syncing ---


def sync(draft: Draft, request: SyncGroupRequest) -> SyncGroupResponse:
    group = draft.group
    member, classic = classic_member(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    name, metadata = classic.protocols[0]
    for asked, known in ((request.protocol_type, CONSUMER_PROTOCOL_TYPE), (request.protocol_name, name)):
        if asked is not None and asked != known:
            raise InconsistentGroupProtocol(f"member {member.member_id} has the protocol {known}, not {asked}")
    draft.set_timer(SYNC, member.member_id, None)
    draft.set_timer(SESSION, member.member_id, classic.session_timeout_ms)
    assigned = by_name(member.current.assigned, draft.cluster)
    return SyncGroupResponse(
        error_code=NONE,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=write_assignment(assigned, version_of(metadata)),
    )


def must_join_before_sync(group: ConsumerGroup, request: SyncGroupRequest) -> ConsumerMember | None:
    """The member, if there is a newer target that it has to join for first."""
    member = group.members.get(request.member_id)
    if member is not None and group.target_epoch > member.epoch and member.current.state != UNREVOKED:
        return member
    return None


# --- heartbeats ---


def heartbeat(draft: Draft, request: HeartbeatRequest) -> int:
    """The error code: 27 where the member has to join again."""
    group = draft.group
    member, classic = classic_member(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    draft.set_timer(SESSION, member.member_id, classic.session_timeout_ms)
    if not (_has_to_join(group, member) or draft.is_target_due()):
        return NONE
    draft.set_timer(JOIN, member.member_id, member.subscription.rebalance_timeout_ms, if_unset=True)
    return RebalanceInProgress.code


def _has_to_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
    state = member.current.state
    if member.epoch < group.target_epoch or state == UNREVOKED:
        return True
    return state == UNRELEASED and not _waits_for_others(group, member)


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    assigned = member.current.assigned
    return any(
        (topic, index) in group.holders
        for topic, target in group.target(member.member_id).items()
        for index in target
        if index not in assigned.get(topic, ())
    )


# --- the member that asks ---


def classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> tuple[ConsumerMember, ClassicPart]:
    if instance_id is None:
        member = group.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"{member_id} is no member of group {group.group_id}")
    else:
        member = _static(group, member_id, instance_id)
    classic = member.subscription.classic
    if classic is None:
        raise UnknownMemberId(f"member {member.member_id} does not speak the classic protocol")
    return member, classic


def _static(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerMember:
    member = group.static_member(instance_id)
    if member is None:
        raise UnknownMemberId(f"group {group.group_id} has no member with the instance id {instance_id}")
    if member.member_id != member_id:
        raise FencedInstanceId(
            f"group {group.group_id}: the instance id {instance_id} belongs to {member.member_id}, not to {member_id}"
        )
    return member


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.epoch:
        raise IllegalGeneration(f"member {member.member_id} is in generation {member.epoch}, not {generation}")
