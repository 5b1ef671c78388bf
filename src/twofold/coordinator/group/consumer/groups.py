"""The consumer groups of a partition of `__consumer_offsets`: what a request or a deadline does to one of them.

1. A decision is records and an answer. What is not in the log (deadlines, which group was compared with the topics of
   now, what is being resolved) changes when the records are in the log (`accept`), and not if they are refused.
2. Deadlines are moments of the attention clock, as those of classic groups: while the broker cannot listen, no session
   and no revocation runs out. A group that was loaded gives every member a whole session.
3. A name is a classic group or a consumer group. An empty group of one type makes room for one of the other; one with
   members changes its type as `conversion` says.
"""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from twofold.coordinator.group.answers import join_error, sync_error
from twofold.coordinator.group.classic import ClassicGroup
from twofold.coordinator.group.consumer import classic_members
from twofold.coordinator.group.consumer.checks import known_static_member
from twofold.coordinator.group.consumer.conversion import (
    check_upgrade,
    may_turn_classic_without,
    turn_classic,
    upgrade,
)
from twofold.coordinator.group.consumer.draft import JOIN, REVOCATION, SESSION, Draft, Timer, removal_of
from twofold.coordinator.group.consumer.heartbeat import ConsumerHeartbeat, heartbeat, only_goes_on
from twofold.coordinator.group.consumer.leaving import leave_for_a_while, leaving_member, remove_members
from twofold.coordinator.group.consumer.state import (
    LEFT_FOR_A_WHILE,
    UNREVOKED,
    ConsumerGroup,
    ConsumerMember,
)
from twofold.coordinator.group.consumer.subscriptions import Resolution, resolve
from twofold.coordinator.group.consumer.surroundings import ConsumerGroupConfig, GroupSurroundings
from twofold.coordinator.group.context import Client, Instant
from twofold.coordinator.group.deadlines import Deadlines
from twofold.coordinator.group.records import GroupRecord, LogRecord
from twofold.coordinator.group.states import GroupState
from twofold.wire.errors import (
    NONE,
    GroupIdNotFound,
    InvalidSessionTimeout,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from twofold.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from twofold.wire.messages.heartbeat import HeartbeatRequest
from twofold.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from twofold.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from twofold.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from twofold.coordinator.group.state import GroupsState

A = TypeVar("A")

MEMBER_ID_REQUIRED_SINCE = 4
RETRY_MS = 1_000  # after a write that was refused


@dataclass(slots=True)
class GroupDecision(Generic[A]):
    """What is to be written, and answered when it is safe."""

    group_id: str
    answer: A
    records: Sequence[LogRecord] = ()
    timers: Sequence[Timer] = ()
    resolution: Resolution | None = None
    checked_version: int | None = None  # of the topics that the group was compared with
    rebalances: int = 0
    replaces_classic: bool = False  # members that wait in the classic group are told to come again
    turned_classic: bool = False
    must_rebalance: bool = False  # as a classic group
    retry: tuple[str, str, str] | None = None  # the deadline that is set again if the write is refused


class ConsumerGroups:
    def __init__(self, config: ConsumerGroupConfig, cluster: GroupSurroundings, new_id: Callable[[], str]) -> None:
        """`new_id` gives a unique text each time: the id of a member whose client does not make one."""
        self.config = config
        self.cluster = cluster
        self.deadlines: Deadlines[tuple[str, str, str]] = Deadlines()
        self.rebalances = 0
        self._new_id = new_id
        self._revoking: dict[tuple[str, str], int] = {}  # the epoch in which a member was told to give up
        self._checked: dict[str, int] = {}
        self._resolving: set[str] = set()

    # --- life ---

    def load(self, state: "GroupsState", now: Instant) -> None:
        for group_id, group in state.consumers.items():
            timeout_ms = self.cluster.timings(group_id).session_timeout_ms
            for member_id, member in group.members.items():
                self.deadlines.set((SESSION, group_id, member_id), now.monotonic_ms + timeout_ms)
                if member.current.state == UNREVOKED and not member.is_classic:
                    self._revoking[group_id, member_id] = member.epoch
                    at_ms = now.monotonic_ms + member.subscription.rebalance_timeout_ms
                    self.deadlines.set((REVOCATION, group_id, member_id), at_ms)

    def resign(self) -> None:
        self.deadlines.clear()
        self._revoking.clear()
        self._checked.clear()
        self._resolving.clear()

    def accept(self, state: "GroupsState", decision: GroupDecision[Any], now: Instant) -> None:
        """The records of a decision are in the log; `state` is the one after them."""
        group_id = decision.group_id
        for timer in decision.timers:
            key = (timer.kind, group_id, timer.member_id)
            if timer.after_ms is None:
                self.deadlines.cancel(key)
            elif not timer.if_unset or self.deadlines.get(key) is None:
                self.deadlines.set(key, now.monotonic_ms + timer.after_ms)
                if timer.kind == REVOCATION:
                    self._revoking[group_id, timer.member_id] = state.consumers[group_id].members[timer.member_id].epoch
            if timer.kind == REVOCATION and timer.after_ms is None:
                self._revoking.pop((group_id, timer.member_id), None)
        if decision.checked_version is not None:
            self._checked[group_id] = decision.checked_version
        if group_id not in state.consumers:
            self._checked.pop(group_id, None)
        if decision.resolution is not None:
            self._resolving.add(group_id)
        self.rebalances += decision.rebalances

    def _draft(self, group: ConsumerGroup, now: Instant) -> Draft:
        return Draft(group, self.cluster, self.config, now)

    def _decided(self, draft: Draft, answer: A, **more: Any) -> GroupDecision[A]:
        version = self.cluster.topics_version if draft.has_checked_metadata else None
        return GroupDecision(
            draft.group.group_id,
            answer,
            draft.records,
            draft.timers,
            checked_version=version,
            rebalances=draft.rebalances,
            **more,
        )

    def _must_check(self, group_id: str) -> bool:
        return self._checked.get(group_id) != self.cluster.topics_version

    # --- ConsumerGroupHeartbeat ---

    def heartbeat(
        self,
        state: "GroupsState",
        classic: ClassicGroup | None,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        now: Instant,
    ) -> GroupDecision[ConsumerGroupHeartbeatResponse]:
        """The request has passed `checks.check_request`. `classic` is the classic group of this name, if any."""
        if request.member_epoch < 0:
            return self._leave(state, request, now)
        group = state.consumers.get(request.group_id)
        if group is not None and not self._must_check(request.group_id) and only_goes_on(group, request, client):
            return self._goes_on(request)
        draft = self._draft(group or ConsumerGroup(request.group_id), now)
        if group is None:
            self._make_room(draft, classic, request)
        asked = ConsumerHeartbeat.of(request, request.member_id or self._new_id(), client)
        answer, resolution = heartbeat(
            draft,
            asked,
            check_metadata=self._must_check(request.group_id),
            may_resolve=request.group_id not in self._resolving,
        )
        return self._decided(draft, answer, resolution=resolution, replaces_classic=classic is not None)

    def _goes_on(self, request: ConsumerGroupHeartbeatRequest) -> GroupDecision[ConsumerGroupHeartbeatResponse]:
        timings = self.cluster.timings(request.group_id)
        answer = ConsumerGroupHeartbeatResponse(
            error_code=NONE,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=timings.heartbeat_interval_ms,
        )
        session = Timer(SESSION, request.member_id, timings.session_timeout_ms)
        return GroupDecision(request.group_id, answer, timers=[session])

    def _make_room(self, draft: Draft, classic: ClassicGroup | None, request: ConsumerGroupHeartbeatRequest) -> None:
        """There is no such consumer group yet: it begins with this member, empty or with those of a classic group."""
        group_id = request.group_id
        if classic is None:
            if request.member_epoch != 0:
                raise GroupIdNotFound(f"Consumer group {group_id} not found.")
        elif request.member_epoch != 0:
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")
        elif classic.state is GroupState.EMPTY:
            draft.records.append(GroupRecord(group_id, None))
        else:
            check_upgrade(classic, self.config)
            upgrade(draft, classic)

    def _leave(
        self, state: "GroupsState", request: ConsumerGroupHeartbeatRequest, now: Instant
    ) -> GroupDecision[ConsumerGroupHeartbeatResponse]:
        group = state.consumers.get(request.group_id)
        if group is None:
            kind = "is not a consumer group" if request.group_id in state.groups else "not found"
            raise GroupIdNotFound(f"Group {request.group_id} {kind}.")
        member = leaving_member(group, request)
        answer = ConsumerGroupHeartbeatResponse(
            error_code=NONE,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=0,
        )
        if request.member_epoch == LEFT_FOR_A_WHILE:
            draft = self._draft(group, now)
            leave_for_a_while(draft, member)
            return self._decided(draft, answer)
        return self._without(group, [member], answer, now)

    def _without(
        self, group: ConsumerGroup, members: Sequence[ConsumerMember], answer: A, now: Instant
    ) -> GroupDecision[A]:
        """The group without these members: a classic one, if only classic members are left."""
        draft = self._draft(group, now)
        if may_turn_classic_without(group, members, self.config):
            turn_classic(draft, group, members)
            return self._decided(draft, answer, turned_classic=True, must_rebalance=True)
        remove_members(draft, members)
        return self._decided(draft, answer)

    # --- patterns ---

    def resolved(
        self, state: "GroupsState", group_id: str, found: Mapping[str, frozenset[str]], version: int, now: Instant
    ) -> GroupDecision[None] | None:
        """The outcome of a resolution; None where it changes nothing."""
        group = state.consumers.get(group_id)
        if group is None:
            return None
        draft = self._draft(group, now)
        resolve(draft, found, version)
        return self._decided(draft, None) if draft.records else None

    def resolution_ended(self, group_id: str) -> None:
        self._resolving.discard(group_id)

    # --- members of the classic protocol ---

    def make_room_for_classic(self, state: "GroupsState", group_id: str) -> list[LogRecord]:
        """The records that remove an empty consumer group, in whose place a classic one comes."""
        group = state.consumers.get(group_id)
        return [] if group is None else removal_of(group)

    def join(
        self, group: ConsumerGroup, request: JoinGroupRequest, client: Client, now: Instant
    ) -> GroupDecision[JoinGroupResponse]:
        draft = self._draft(group, now)
        member_id = request.member_id or self._new_id()
        try:
            classic_members.check_join(draft, request, member_id)
            if (
                not request.member_id
                and request.group_instance_id is None
                and client.version >= MEMBER_ID_REQUIRED_SINCE
            ):
                return GroupDecision(group.group_id, join_error(MemberIdRequired(""), member_id))
            check = self._must_check(group.group_id)
            answer, is_classic = classic_members.join(draft, request, client, member_id, check_metadata=check)
        except InvalidSessionTimeout as error:
            return GroupDecision(group.group_id, join_error(error, request.member_id))
        except KafkaError as error:
            return GroupDecision(group.group_id, join_error(error))
        # The classic group has the targets for an assignment: where one is not reached yet, two members would own it.
        stale = is_classic and (
            draft.group.target_epoch < draft.group.epoch or not _others_have_their_targets(group, request)
        )
        return self._decided(draft, answer, turned_classic=is_classic, must_rebalance=stale)

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, now: Instant) -> GroupDecision[SyncGroupResponse]:
        draft = self._draft(group, now)
        try:
            answer = classic_members.sync(draft, request)
        except KafkaError as error:
            return GroupDecision(group.group_id, sync_error(error))
        late = classic_members.must_join_before_sync(group, request)
        if late is not None:
            timer = Timer(JOIN, late.member_id, late.subscription.rebalance_timeout_ms, if_unset=True)
            return GroupDecision(group.group_id, sync_error(RebalanceInProgress("")), timers=[timer])
        return self._decided(draft, answer)

    def classic_heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest, now: Instant) -> GroupDecision[int]:
        draft = self._draft(group, now)
        try:
            code = classic_members.heartbeat(draft, request)
        except KafkaError as error:
            return GroupDecision(group.group_id, error.code)
        return self._decided(draft, code)

    def leave(
        self, group: ConsumerGroup, request: LeaveGroupRequest, now: Instant
    ) -> GroupDecision[LeaveGroupResponse]:
        rows: list[MemberResponse] = []
        gone: dict[str, ConsumerMember] = {}
        for identity in request.members:
            code = NONE
            try:
                member = _identified(group, identity)
                gone[member.member_id] = member
            except KafkaError as error:
                code = error.code
            rows.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
                )
            )
        answer = LeaveGroupResponse(error_code=NONE, members=rows)
        if not gone:
            return GroupDecision(group.group_id, answer)
        return self._without(group, list(gone.values()), answer, now)

    # --- time ---

    def tick(self, state: "GroupsState", now: Instant) -> GroupDecision[None] | None:
        """Decide on one deadline that is due; None when none is."""
        while (due := self.deadlines.pop_due(now.monotonic_ms)) is not None:
            kind, group_id, member_id = due
            group = state.consumers.get(group_id)
            member = None if group is None else group.members.get(member_id)
            if group is None or member is None:
                continue
            if kind == REVOCATION and self._revoking.get((group_id, member_id)) != member.epoch:
                continue
            decision = self._without(group, [member], None, now)
            decision.retry = due
            return decision
        return None

    def try_again(self, decision: GroupDecision[Any], now: Instant) -> None:
        """A deadline's write was refused: the member stays, and the deadline comes again."""
        if decision.retry is not None:
            self.deadlines.set(decision.retry, now.monotonic_ms + RETRY_MS)


def new_member_id(bits: int) -> str:
    """128 random bits as Kafka writes a uuid: 22 characters of base64."""
    return b64encode(bits.to_bytes(16), b"-_").decode().rstrip("=")


def _others_have_their_targets(group: ConsumerGroup, request: JoinGroupRequest) -> bool:
    """All but the static member that comes back."""
    replaced = group.static_member(request.group_instance_id)
    others = (member for member in group.members.values() if member is not replaced)
    return all(member.is_reconciled_to(group.target_epoch) for member in others)


def _identified(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    instance_id = identity.group_instance_id
    if instance_id is None:
        member = group.members.get(identity.member_id)
    elif identity.member_id:
        return known_static_member(group, identity.member_id, instance_id)
    else:
        # An operator removes a static member, whose id only the member knows.
        member = group.static_member(instance_id)
    if member is None:
        raise UnknownMemberId(f"group {group.group_id} has no member {identity.member_id or instance_id}")
    return member
