"""The members of each group: the classic protocol of joining, syncing, heartbeats and leaving.

The rounds in which a group comes together are in `rounds`.

1. A generation has one leader and one protocol, and every member of it that gets an assignment gets the one that its
   leader made for this generation, after it is in the log.
2. No request waits for ever: a rebalance ends when all have joined or its time is up. A member that has not joined or
   synced by then is removed (a static member stays until its session ends).
3. A request that waits is answered once, also when its member leaves, is fenced or expires, or the coordinator moves.
4. Time is an argument. What is due when is in `deadlines`; `tick` does one thing that is due.
5. A write that fails leaves the group as if it had not been tried, or in a new rebalance.

A group whose members are gone and whose emptiness is in the log is not kept here; the log's state says all of it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from twofold.coordinator.group.answers import (
    UNKNOWN_MEMBER,
    join_error,
    joined,
    rebalance_timeout,
    sync_error,
    synced,
)
from twofold.coordinator.group.classic import ClassicGroup, Member, Protocols, Token
from twofold.coordinator.group.context import NEW_MEMBER_JOIN_TIMEOUT_MS, Client, GroupConfig, Instant, Outcome
from twofold.coordinator.group.deadlines import Deadlines
from twofold.coordinator.group.records import GroupRecord, GroupValue
from twofold.coordinator.group.rounds import JOIN, SESSION, ClassicRounds
from twofold.coordinator.group.state import GroupsState, as_coordinator_error
from twofold.coordinator.group.states import HEARTBEAT, SYNC, GroupEvent, GroupState
from twofold.wire.errors import (
    NONE,
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownServerError,
)
from twofold.wire.messages.heartbeat import HeartbeatRequest
from twofold.wire.messages.join_group import JoinGroupRequest
from twofold.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from twofold.wire.messages.sync_group import SyncGroupRequest

MEMBER_ID_REQUIRED_SINCE = 4
SKIP_ASSIGNMENT_SINCE = 9


class Membership:
    def __init__(self, config: GroupConfig, new_id: Callable[[], str]) -> None:
        """`new_id` gives a unique text each time: member ids are made of it."""
        self.config = config
        self.groups: dict[str, ClassicGroup] = {}
        self.deadlines: Deadlines[tuple[str, str, str]] = Deadlines()
        self._new_id = new_id
        self._rounds = ClassicRounds(config, self.deadlines)

    # --- life ---

    def load(self, state: GroupsState, now: Instant) -> Outcome:
        """Take over the groups of a log that was replayed. Every member gets a full session timeout."""
        out = Outcome()
        for group_id, value in sorted(state.groups.items()):
            if value.members:
                group = self.groups[group_id] = ClassicGroup.from_value(group_id, value)
                for member in group.members.values():
                    self._rounds.renew(group, member, now)
                if len(group.members) > self.config.max_size:
                    self._rounds.prepare(group, now, out)
        return out

    def resign(self, error: KafkaError) -> Outcome:
        """Another broker coordinates these groups now: every request that waits is answered so."""
        out = Outcome()
        for group in self.groups.values():
            for member in group.members.values():
                self._rounds.answer_member(out, group, member, error)
        self.groups.clear()
        self.deadlines.clear()
        return out

    def find(self, state: GroupsState, group_id: str) -> ClassicGroup | None:
        """The group, as it is or as the log has it."""
        group = self.groups.get(group_id)
        if group is None:
            value = state.groups.get(group_id)
            group = None if value is None else ClassicGroup.from_value(group_id, value)
        return group

    def forget(self, state: GroupsState, group_id: str) -> None:
        """Drop an empty group of which the log says as much as we know, or which the log has removed."""
        group = self.groups.get(group_id)
        if group is None or group.state is not GroupState.EMPTY:
            return
        value = state.groups.get(group_id)
        # Ids that were given out are worth nothing in a group that was deleted.
        if value is None or (value.generation == group.generation and not group.pending_joins):
            del self.groups[group_id]
            self._rounds.cancel_all(group)

    # --- groups that change their type ---

    def release(self, group_id: str) -> Outcome:
        """The group is a consumer group now: members that wait are told to join again."""
        out = Outcome()
        group = self.groups.pop(group_id, None)
        if group is not None:
            for member in group.members.values():
                self._rounds.answer_member(out, group, member, RebalanceInProgress(""))
            self._rounds.cancel_all(group)
        return out

    def adopt(self, state: GroupsState, group_id: str, now: Instant, *, rebalance: bool) -> Outcome:
        """A consumer group has become a classic one, as the log has it."""
        out = Outcome()
        group = self.groups[group_id] = ClassicGroup.from_value(group_id, state.groups[group_id])
        for member in group.members.values():
            self._rounds.renew(group, member, now)
        if rebalance:
            self._rounds.prepare(group, now, out)
        return out

    # --- joining ---

    def join(
        self, state: GroupsState, request: JoinGroupRequest, client: Client, token: Token, now: Instant
    ) -> Outcome:
        out = Outcome()
        group: ClassicGroup | None
        try:
            self._check_join(request)
            group = self._group_to_join(state, request, now)
            self._accept(group, _Join.of(request, client, token), now, out)
        except KafkaError as error:
            member_id = UNKNOWN_MEMBER if isinstance(error, _ANONYMOUS) else request.member_id
            out.reply(token, join_error(error, member_id))
            group = self.groups.get(request.group_id)
        if group is not None and request.group_id not in state.groups and not out.records:
            self._write_new_group(group, out)
        return out

    def _check_join(self, request: JoinGroupRequest) -> None:
        if not request.group_id:
            raise InvalidGroupId("the group id is empty")
        least, most = self.config.min_session_timeout_ms, self.config.max_session_timeout_ms
        if not least <= request.session_timeout_ms <= most:
            raise InvalidSessionTimeout(
                f"a session timeout of {request.session_timeout_ms} ms is not between "
                f"group.min.session.timeout.ms={least} and group.max.session.timeout.ms={most}"
            )

    def _group_to_join(self, state: GroupsState, request: JoinGroupRequest, now: Instant) -> ClassicGroup:
        group = self.find(state, request.group_id)
        if group is None:
            if request.member_id != UNKNOWN_MEMBER:
                raise UnknownMemberId(f"there is no group {request.group_id}")
            group = ClassicGroup(request.group_id, now.wall_ms)
        self.groups[request.group_id] = group
        return group

    def _accept(self, group: ClassicGroup, asked: "_Join", now: Instant, out: Outcome) -> None:
        request, protocols = asked.request, asked.protocols
        member_id = request.member_id
        if not self._has_room(group, member_id):
            self._drop(group, member_id, now, out)
            raise GroupMaxSizeReached(f"group {group.group_id} has group.max.size={self.config.max_size} members")
        if not group.supports(request.protocol_type, protocols):
            raise InconsistentGroupProtocol(
                f"group {group.group_id} of type {group.protocol_type} has no protocol in common with a member of type "
                f"{request.protocol_type} that supports {[name for name, _ in protocols]}"
            )
        if member_id == UNKNOWN_MEMBER:
            self._join_new(group, asked, now, out)
        elif member_id in group.pending_joins:
            if request.group_instance_id is not None:
                raise UnknownServerError(f"{member_id} was given to a dynamic member and comes back as a static one")
            self._add(group, asked, member_id, now, out)
        else:
            member = group.check_member(member_id, request.group_instance_id)
            self._rejoin(group, member, asked, now, out)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        if group.state is GroupState.EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            # Members that have joined count, not those that may: a group above its limit loses the last to join.
            return (member is not None and member.is_awaiting_join) or group.joining < self.config.max_size
        return member is not None or len(group.members) < self.config.max_size

    def _join_new(self, group: ClassicGroup, asked: "_Join", now: Instant, out: Outcome) -> None:
        request, client = asked.request, asked.client
        instance_id = request.group_instance_id
        member_id = f"{client.client_id if instance_id is None else instance_id}-{self._new_id()}"
        if instance_id is not None:
            known = group.static_members.get(instance_id)
            if known is None:
                self._add(group, asked, member_id, now, out)
            else:
                self._replace_static(group, group.members[known], member_id, asked, now, out)
        elif client.version >= MEMBER_ID_REQUIRED_SINCE:
            # A client that cannot keep the id from an answer would join again and again as a new member (KIP-394).
            group.pending_joins.add(member_id)
            self.deadlines.set((SESSION, group.group_id, member_id), now.monotonic_ms + request.session_timeout_ms)
            out.reply(asked.token, join_error(MemberIdRequired(""), member_id))
        else:
            self._add(group, asked, member_id, now, out)

    def _add(self, group: ClassicGroup, asked: "_Join", member_id: str, now: Instant, out: Outcome) -> None:
        request, client = asked.request, asked.client
        member = Member(
            member_id,
            request.group_instance_id,
            client.client_id,
            client.client_host,
            rebalance_timeout(request),
            request.session_timeout_ms,
            asked.protocols,
        )
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(member, request.protocol_type, asked.token)
        # It cannot send heartbeats before it knows its id, and we do not see that it is gone while it waits.
        self.deadlines.set((SESSION, group.group_id, member_id), now.monotonic_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rounds.rebalance_or_complete(group, now, out)

    def _rejoin(self, group: ClassicGroup, member: Member, asked: "_Join", now: Instant, out: Outcome) -> None:
        request, protocols, token = asked.request, asked.protocols, asked.token
        if group.state is GroupState.EMPTY:
            raise UnknownMemberId(f"{member.member_id} is no member of the empty group {group.group_id}")
        if group.state is not GroupState.PREPARING_REBALANCE and member.protocols == protocols:
            is_leader = group.leader == member.member_id
            # A stable group's leader joins when something changed that only it knows of, such as partitions.
            if group.state is GroupState.COMPLETING_REBALANCE or not is_leader:
                out.reply(token, joined(group, member))
                return
        group.update(member, protocols, rebalance_timeout(request), request.session_timeout_ms)
        self._park_join(group, member, token, out)
        self._rounds.rebalance_or_complete(group, now, out)

    def _park_join(self, group: ClassicGroup, member: Member, token: Token, out: Outcome) -> None:
        before = group.await_join(member, token)
        # The same member asks on another connection; the older request is not left hanging.
        out.reply(before, join_error(RebalanceInProgress(""), member.member_id))

    def _replace_static(
        self, group: ClassicGroup, old: Member, member_id: str, asked: "_Join", now: Instant, out: Outcome
    ) -> None:
        """A static member has started again and does not know its id: it takes its own place, and gets a new id."""
        leader = group.leader
        member = group.replace_static(old, member_id)
        self._rounds.answer_member(
            out, group, old, FencedInstanceId(f"{member_id} has taken the place of {old.member_id}")
        )
        self.deadlines.cancel((SESSION, group.group_id, old.member_id))
        group.update(member, asked.protocols, rebalance_timeout(asked.request), asked.request.session_timeout_ms)
        group.await_join(member, asked.token)
        self._rounds.renew(group, member, now)
        if group.state is GroupState.STABLE:
            if group.select_protocol() == group.protocol:
                then = partial(self._static_replaced, group, old, member, leader, asked.client.version)
                out.write(GroupRecord(group.group_id, group.to_value()), then)
                return
            self._rounds.prepare(group, now, out)
        elif group.state is GroupState.COMPLETING_REBALANCE:
            # The leader may be assigning to the old id right now.
            self._rounds.prepare(group, now, out)
        else:
            self._rounds.maybe_complete_join(group, now, out)

    def _static_replaced(
        self,
        group: ClassicGroup,
        old: Member,
        member: Member,
        leader: str | None,
        version: int,
        error: KafkaError | None,
        now: Instant,
    ) -> Outcome:
        out = Outcome()
        if group.members.get(member.member_id) is not member:
            return out
        token = member.awaiting_join
        if error is not None:
            group.update(member, old.protocols, old.rebalance_timeout_ms, old.session_timeout_ms)
            group.await_join(member, None)
            restored = group.replace_static(member, old.member_id)
            self.deadlines.cancel((SESSION, group.group_id, member.member_id))
            self._rounds.renew(group, restored, now)
            out.reply(token, join_error(as_coordinator_error(error), UNKNOWN_MEMBER))
        elif group.state is GroupState.STABLE and token is not None:
            group.await_join(member, None)
            # Before version 9 a leader had to compute the assignment, so the answer names no leader.
            skips = version >= SKIP_ASSIGNMENT_SINCE
            is_leader = skips and group.leader == member.member_id
            out.reply(
                token,
                joined(group, member, leader if not skips else None, is_leader=is_leader, skip_assignment=is_leader),
            )
        return out

    def _write_new_group(self, group: ClassicGroup, out: Outcome) -> None:
        """A group is in the log before its first rebalance ends, so that a name in use can be listed."""
        value = GroupValue(state_timestamp_ms=group.state_timestamp_ms)

        def then(error: KafkaError | None, now: Instant) -> Outcome:
            failed = Outcome()
            if error is not None and self.groups.get(group.group_id) is group:
                for member in group.members.values():
                    self._rounds.answer_member(failed, group, member, as_coordinator_error(error))
                del self.groups[group.group_id]
                self._rounds.cancel_all(group)
            return failed

        out.write(GroupRecord(group.group_id, value), then)

    # --- syncing ---

    def sync(self, request: SyncGroupRequest, token: Token, now: Instant) -> Outcome:
        out = Outcome()
        try:
            group, member = self._check_sync(request)
        except KafkaError as error:
            out.reply(token, sync_error(error))
            return out
        self._rounds.has_synced(group, member.member_id)
        if group.state is GroupState.STABLE:
            self._rounds.renew(group, member, now)
            out.reply(token, synced(group, member))
            return out
        out.reply(member.awaiting_sync, sync_error(RebalanceInProgress("")))
        member.awaiting_sync = token
        if group.leader == member.member_id:
            given = {row.member_id: row.assignment for row in request.assignments}
            assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
            then = partial(self._assigned, group, group.generation, assignments)
            out.write(GroupRecord(group.group_id, group.to_value(assignments)), then)
        return out

    def _check_sync(self, request: SyncGroupRequest) -> tuple[ClassicGroup, Member]:
        group, member = self._check_member(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        for asked, known in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol)):
            if asked is not None and known is not None and asked != known:
                raise InconsistentGroupProtocol(f"group {group.group_id} has the protocol {known}, not {asked}")
        refused = SYNC[group.state]
        if refused is not None:
            raise refused(f"group {group.group_id} is in state {group.state.value}")
        return group, member

    def _assigned(
        self,
        group: ClassicGroup,
        generation: int,
        assignments: dict[str, bytes],
        error: KafkaError | None,
        now: Instant,
    ) -> Outcome:
        out = Outcome()
        if (
            self.groups.get(group.group_id) is not group
            or group.state is not GroupState.COMPLETING_REBALANCE
            or group.generation != generation
        ):
            return out  # a member came or went meanwhile: this assignment is of no generation
        if error is not None:
            self._rounds.answer_syncs(group, out, now, as_coordinator_error(error))
            self._rounds.prepare(group, now, out)
            return out
        for member in group.members.values():
            member.assignment = assignments[member.member_id]
        group.take(GroupEvent.ASSIGNED, now.wall_ms)
        self._rounds.answer_syncs(group, out, now, None)
        return out

    # --- heartbeats ---

    def heartbeat(self, request: HeartbeatRequest, now: Instant) -> int:
        """The error code for a member that says that it is there."""
        try:
            group, member = self._check_member(
                request.group_id, request.member_id, request.group_instance_id, request.generation_id
            )
        except KafkaError as error:
            return error.code
        refused = HEARTBEAT[group.state]
        if refused is None or refused is RebalanceInProgress:
            self._rounds.renew(group, member, now)
        return NONE if refused is None else refused.code

    def renew(self, group: ClassicGroup, member_id: str, now: Instant) -> None:
        """A commit shows that its member is there, too."""
        member = group.members.get(member_id)
        if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rounds.renew(group, member, now)

    def _check_member(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation: int
    ) -> tuple[ClassicGroup, Member]:
        if not group_id:
            raise InvalidGroupId("the group id is empty")
        group = self.groups.get(group_id)
        if group is None:
            # One that has members is always here.
            raise UnknownMemberId(f"{member_id} is no member of group {group_id}")
        member = group.check_member(member_id, group_instance_id)
        if generation != group.generation:
            raise IllegalGeneration(f"group {group_id} is in generation {group.generation}, not {generation}")
        return group, member

    # --- leaving ---

    def leave(self, state: GroupsState, request: LeaveGroupRequest, token: Token, now: Instant) -> Outcome:
        out = Outcome()
        if not request.group_id:
            out.reply(token, LeaveGroupResponse(error_code=InvalidGroupId.code))
            return out
        group = self.groups.get(request.group_id)
        rows: list[MemberResponse] = []
        for identity in request.members:
            code = NONE
            try:
                if group is None:
                    raise UnknownMemberId(f"there is no member in group {request.group_id}")
                self._leave(group, identity, out)
            except KafkaError as error:
                code = error.code
            rows.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
                )
            )
        if group is not None and any(row.error_code == NONE for row in rows):
            self._rounds.members_gone(group, now, out)
            self.forget(state, request.group_id)
        response = LeaveGroupResponse(error_code=NONE, members=rows)
        if out.then is None:
            out.reply(token, response)
        else:
            out.then = partial(_left, token, response)
        return out

    def _leave(self, group: ClassicGroup, identity: MemberIdentity, out: Outcome) -> None:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if member_id == UNKNOWN_MEMBER and instance_id is not None:
            # An operator removes a static member, whose id only the member knows.
            known = group.static_members.get(instance_id)
            member = None if known is None else group.members[known]
            if member is None:
                raise UnknownMemberId(f"group {group.group_id} has no member with the instance id {instance_id}")
        elif member_id in group.pending_joins:
            self._rounds.take_back(group, member_id)
            return
        else:
            member = group.check_member(member_id, instance_id)
        self._rounds.remove(group, member, out, UnknownMemberId(f"{member.member_id} has left"))

    def _drop(self, group: ClassicGroup, member_id: str, now: Instant, out: Outcome) -> None:
        """A group is full: the last to join are removed, and the rebalance does not wait for them."""
        member = group.members.get(member_id)
        if member is not None:
            self._rounds.remove(group, member, out, GroupMaxSizeReached(""))
        elif member_id in group.pending_joins:
            self._rounds.take_back(group, member_id)
        self._rounds.maybe_complete_join(group, now, out)

    # --- time ---

    def tick(self, state: GroupsState, now: Instant) -> Outcome | None:
        """Do one thing that is due; None when nothing is."""
        due = self.deadlines.pop_due(now.monotonic_ms)
        if due is None:
            return None
        kind, group_id, member_id = due
        out = Outcome()
        group = self.groups.get(group_id)
        if group is None:
            return out
        if kind == SESSION:
            self._session_is_over(group, member_id, now, out)
            self.forget(state, group_id)
        elif kind == JOIN:
            self._rounds.join_phase_is_due(group, now, out)
        else:
            self._rounds.sync_phase_is_due(group, now, out)
        return out

    def _session_is_over(self, group: ClassicGroup, member_id: str, now: Instant, out: Outcome) -> None:
        if member_id in group.pending_joins:
            group.remove(member_id)
            self._rounds.maybe_complete_join(group, now, out)
            return
        member = group.members.get(member_id)
        if member is not None and not member.is_waiting:
            self._rounds.remove(group, member, out, UnknownMemberId(f"the session of {member_id} has ended"))
            self._rounds.members_gone(group, now, out)


class _Join(NamedTuple):
    """A join that passed the first checks."""

    request: JoinGroupRequest
    protocols: Protocols
    client: Client
    token: Token

    @classmethod
    def of(cls, request: JoinGroupRequest, client: Client, token: Token) -> "_Join":
        protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
        return cls(request, protocols, client, token)


# Errors that come without the member id of the request.
_ANONYMOUS = (GroupMaxSizeReached, CoordinatorNotAvailable)


def _left(token: Token, response: LeaveGroupResponse, error: KafkaError | None, now: Instant) -> Outcome:
    out = Outcome()
    out.reply(token, response if error is None else LeaveGroupResponse(error_code=as_coordinator_error(error).code))
    return out
