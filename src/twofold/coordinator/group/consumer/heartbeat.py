"""A heartbeat of a member: it joins, says what it wants and owns, and learns what it gets.

1. Everything that one heartbeat changes is one batch of records: the member, the group epoch, the target, the member's
   step. The answer follows from the group after all of them.
2. The answer names the assignment when the member asked for everything (it joined, or sent all fields), or when what is
   assigned to it changed; else the member knows it.
3. Nearly all heartbeats only say that the member is there. `only_goes_on` finds them without deciding anything, and
   their answer is the one that the long way would give.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from twofold.coordinator.group.consumer.checks import (
    JOINING,
    check_epoch,
    check_released,
    check_room,
    known_member,
    known_static_member,
    owned_of,
)
from twofold.coordinator.group.consumer.draft import SESSION, Draft
from twofold.coordinator.group.consumer.reconciliation import Owned
from twofold.coordinator.group.consumer.records import CURRENT, SUBSCRIPTION, TARGET, Epochs, Held, MemberSubscription
from twofold.coordinator.group.consumer.state import FIRST_EPOCH, STABLE, ConsumerGroup, ConsumerMember
from twofold.coordinator.group.consumer.subscriptions import (
    PatternChange,
    Resolution,
    change_pattern,
    wanted_resolution,
)
from twofold.coordinator.group.context import Client
from twofold.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsResult,
)

JOINED_AGAIN = 0  # the epoch of a static member that takes the place of its former self


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """A heartbeat that passed the checks of the request alone."""

    request: ConsumerGroupHeartbeatRequest
    member_id: str
    client: Client
    owned: Owned | None

    @classmethod
    def of(cls, request: ConsumerGroupHeartbeatRequest, member_id: str, client: Client) -> "ConsumerHeartbeat":
        return cls(request, member_id, client, owned_of(request.topic_partitions))

    @property
    def is_joining(self) -> bool:
        return self.request.member_epoch == JOINING

    @property
    def wants_assignment(self) -> bool:
        request = self.request
        is_full = (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and request.topic_partitions is not None
        )
        return self.is_joining or is_full


class Step(NamedTuple):
    """A member that speaks either protocol, and what it says now."""

    member_id: str
    subscription: MemberSubscription
    before: MemberSubscription
    owned: Owned | None


def only_goes_on(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, client: Client) -> bool:
    """Whether the member has all that it should have and says nothing new: only its session goes on. The topics have to
    be those with which the group was compared."""
    member = group.members.get(request.member_id)
    if member is None or not request.member_epoch == member.epoch == group.target_epoch == group.epoch:
        return False
    subscription = member.subscription
    instance_id = request.instance_id
    return (
        member.current.state == STABLE
        and request.topic_partitions is None
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
        and request.rack_id is None
        and request.rebalance_timeout_ms == -1
        and subscription.client_id == client.client_id
        and subscription.client_host == client.client_host
        and subscription.classic is None
        and (instance_id is None or group.static.get(instance_id) == member.member_id)
        and not group.pattern_users
    )


def heartbeat(
    draft: Draft, asked: ConsumerHeartbeat, *, check_metadata: bool, may_resolve: bool
) -> tuple[ConsumerGroupHeartbeatResponse, Resolution | None]:
    resolved_before = draft.group.patterns
    before = find_member(draft, asked)
    old = MemberSubscription() if before is None else before.subscription
    wanted = _subscription(old, asked)
    draft.subscribe(asked.member_id, wanted)
    has_changed = change(draft, old, wanted, check_metadata=check_metadata)
    resolution = wanted_resolution(draft, resolved_before) if may_resolve else None
    draft.maybe_assign()
    after = draft.reconcile(asked.member_id, asked.owned, has_changed=has_changed)
    timings = draft.cluster.timings(draft.group.group_id)
    draft.set_timer(SESSION, asked.member_id, timings.session_timeout_ms)
    assigned = after.current.assigned
    is_new = before is None or not _is_same(before.current.assigned, assigned)
    response = ConsumerGroupHeartbeatResponse(
        error_code=0,
        member_id=asked.member_id,
        member_epoch=after.epoch,
        heartbeat_interval_ms=timings.heartbeat_interval_ms,
        assignment=_assignment(assigned) if asked.wants_assignment or is_new else None,
    )
    return response, resolution


def change(draft: Draft, old: MemberSubscription, wanted: MemberSubscription, *, check_metadata: bool) -> bool:
    """Raise the group epoch where a changed subscription, or changed topics, ask for it; whether the former did."""
    names_changed = old.topics != wanted.topics
    pattern = change_pattern(draft, old.pattern, wanted.pattern)
    # A classic group that turns into a consumer group in its first round has generation 0, which is no epoch: it would
    # tell the member to join again.
    is_first = draft.group.epoch < FIRST_EPOCH
    has_changed = names_changed or pattern is PatternChange.RESOLVED or is_first
    if has_changed or check_metadata:
        draft.check_metadata(has_changed=has_changed)
    return names_changed or pattern is not PatternChange.NONE


def find_member(draft: Draft, asked: ConsumerHeartbeat) -> ConsumerMember | None:
    """The member that asks, in its place; None where it is new."""
    request, group, member_id = asked.request, draft.group, asked.member_id
    check_room(group, member_id, request.instance_id, draft.config)
    if request.instance_id is None:
        if asked.is_joining:
            return group.members.get(member_id)
        member = known_member(group, member_id)
    elif asked.is_joining:
        known = group.static_member(request.instance_id)
        if known is None:
            return group.members.get(member_id)
        check_released(known)
        return take_place(draft, known, member_id, JOINED_AGAIN, JOINED_AGAIN)
    else:
        member = known_static_member(group, member_id, request.instance_id)
    check_epoch(member, request.member_epoch, asked.owned)
    return member


def take_place(draft: Draft, old: ConsumerMember, member_id: str, epoch: int, previous_epoch: int) -> ConsumerMember:
    """A static member comes back under a new id: it gets its old target and what it had."""
    target = draft.group.target(old.member_id)
    draft.remove(old.member_id)
    if old.member_id != member_id:
        draft.end_timers(old.member_id)
    draft.emit(SUBSCRIPTION, member_id, old.subscription)
    draft.emit(TARGET, member_id, target)
    draft.emit(CURRENT, member_id, old.current._replace(epoch=epoch, previous_epoch=previous_epoch))
    return draft.group.members[member_id]


def _subscription(old: MemberSubscription, asked: ConsumerHeartbeat) -> MemberSubscription:
    """The subscription so far, with the changes of this heartbeat. Null stands for: as before."""
    request, client = asked.request, asked.client
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return MemberSubscription(
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.client_host,
        topics=old.topics if names is None else tuple(sorted(set(names))),
        pattern=old.pattern if pattern is None else pattern,
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=old.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def _is_same(old: Held, new: Held) -> bool:
    """Whether these are the same partitions, whatever the epochs in which they were assigned."""
    return old is new or (old.keys() == new.keys() and all(old[topic].keys() == new[topic].keys() for topic in old))


def _assignment(assigned: Mapping[UUID, Epochs]) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitionsResult(topic_id=topic, partitions=sorted(assigned[topic])) for topic in sorted(assigned)
        ]
    )
