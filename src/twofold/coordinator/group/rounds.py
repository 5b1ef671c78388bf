"""The rounds of classic groups: a rebalance from the moment when all are asked to join to the last assignment.

1. A round has two phases: members join until all have, or until the group's rebalance timeout is over; then its leader
   assigns, and every member gets its part. A member that comes too late in either phase is removed; a static one stays
   until its session ends.
2. A member that goes while a request of its own waits is told so.
3. When a phase or a session ends is in `deadlines`, under (kind, group id, member id). A phase concerns no member.
"""

from twofold.coordinator.group.answers import UNKNOWN_MEMBER, join_error, joined, sync_error, synced
from twofold.coordinator.group.classic import ClassicGroup, Member
from twofold.coordinator.group.context import GroupConfig, Instant, Outcome
from twofold.coordinator.group.deadlines import Deadlines
from twofold.coordinator.group.records import GroupRecord
from twofold.coordinator.group.states import GroupEvent, GroupState
from twofold.wire.errors import KafkaError, RebalanceInProgress, UnknownMemberId

SESSION, JOIN, SYNC_PHASE = "session", "join", "sync"


class ClassicRounds:
    def __init__(self, config: GroupConfig, deadlines: Deadlines[tuple[str, str, str]]) -> None:
        self._config = config
        self._deadlines = deadlines

    # --- the join phase ---

    def rebalance_or_complete(self, group: ClassicGroup, now: Instant, out: Outcome) -> None:
        if group.may(GroupEvent.REBALANCE):
            self.prepare(group, now, out)
        else:
            self.maybe_complete_join(group, now, out)

    def prepare(self, group: ClassicGroup, now: Instant, out: Outcome) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.answer_syncs(group, out, now, RebalanceInProgress(f"group {group.group_id} rebalances"))
        self._deadlines.cancel((SYNC_PHASE, group.group_id, ""))
        is_first = group.state is GroupState.EMPTY
        group.take(GroupEvent.REBALANCE, now.wall_ms)
        if is_first:
            # Members of a new group tend to start together; one generation for all of them is better than one each.
            delay_ms = self._config.initial_rebalance_delay_ms
            group.initial_delay = (delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
            self._deadlines.set((JOIN, group.group_id, ""), now.monotonic_ms + delay_ms)
        elif group.all_joined:
            self._complete_join(group, now, out)
        else:
            self._deadlines.set((JOIN, group.group_id, ""), now.monotonic_ms + group.rebalance_timeout_ms)

    def maybe_complete_join(self, group: ClassicGroup, now: Instant, out: Outcome) -> None:
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_joined
        ):
            self._complete_join(group, now, out)

    def join_phase_is_due(self, group: ClassicGroup, now: Instant, out: Outcome) -> None:
        if group.state is not GroupState.PREPARING_REBALANCE:
            return
        if group.initial_delay is not None:
            delay_ms, left_ms = group.initial_delay
            if group.new_member_added and left_ms:
                group.new_member_added = False
                next_ms = min(self._config.initial_rebalance_delay_ms, left_ms)
                group.initial_delay = (next_ms, max(left_ms - delay_ms, 0))
                self._deadlines.set((JOIN, group.group_id, ""), now.monotonic_ms + next_ms)
                return
        self._complete_join(group, now, out)

    def _complete_join(self, group: ClassicGroup, now: Instant, out: Outcome) -> None:
        self._deadlines.cancel((JOIN, group.group_id, ""))
        for member in list(group.members.values()):
            if not member.is_awaiting_join and member.group_instance_id is None:
                self.remove(group, member, out, UnknownMemberId(f"{member.member_id} has not joined in time"))
        if not group.elect_joined_leader() and group.members:
            # Only static members, none of which is back: wait until they are, or until their sessions end.
            self._deadlines.set((JOIN, group.group_id, ""), now.monotonic_ms + group.rebalance_timeout_ms)
            return
        group.next_generation(now.wall_ms)
        if group.state is GroupState.EMPTY:
            out.write(GroupRecord(group.group_id, group.to_value()), _nothing)
            return
        for member in group.members.values():
            token = group.await_join(member, None)
            out.reply(token, joined(group, member))
            self.renew(group, member, now)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        self._deadlines.set((SYNC_PHASE, group.group_id, ""), now.monotonic_ms + group.rebalance_timeout_ms)

    # --- the sync phase ---

    def sync_phase_is_due(self, group: ClassicGroup, now: Instant, out: Outcome) -> None:
        if group.pending_syncs and group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            for late in sorted(group.pending_syncs):
                self.remove(group, group.members[late], out, UnknownMemberId(f"{late} has not synced in time"))
            self.prepare(group, now, out)

    def has_synced(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            self._deadlines.cancel((SYNC_PHASE, group.group_id, ""))

    def answer_syncs(self, group: ClassicGroup, out: Outcome, now: Instant, error: KafkaError | None) -> None:
        """Answer all members that wait for their assignment."""
        for member in group.members.values():
            if error is not None:
                member.assignment = b""
            token, member.awaiting_sync = member.awaiting_sync, None
            if token is not None:
                out.reply(token, synced(group, member) if error is None else sync_error(error))
                # Its session may have run out while it waited for us, and then has no deadline any more.
                self.renew(group, member, now)

    # --- members ---

    def renew(self, group: ClassicGroup, member: Member, now: Instant) -> None:
        key = (SESSION, group.group_id, member.member_id)
        self._deadlines.set(key, now.monotonic_ms + member.session_timeout_ms)

    def take_back(self, group: ClassicGroup, member_id: str) -> None:
        """Forget an id that was given out and never used."""
        group.remove(member_id)
        self._deadlines.cancel((SESSION, group.group_id, member_id))

    def remove(self, group: ClassicGroup, member: Member, out: Outcome, error: KafkaError) -> None:
        group.remove(member.member_id)
        self._deadlines.cancel((SESSION, group.group_id, member.member_id))
        self.answer_member(out, group, member, error)

    def answer_member(self, out: Outcome, group: ClassicGroup, member: Member, error: KafkaError) -> None:
        """Whatever a member waits for, it will not come."""
        member_id = UNKNOWN_MEMBER if isinstance(error, UnknownMemberId) else member.member_id
        out.reply(member.awaiting_join, join_error(error, member_id))
        out.reply(member.awaiting_sync, sync_error(error))
        member.awaiting_join = member.awaiting_sync = None

    def members_gone(self, group: ClassicGroup, now: Instant, out: Outcome) -> None:
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group, now, out)
        else:
            self.maybe_complete_join(group, now, out)

    def cancel_all(self, group: ClassicGroup) -> None:
        self._deadlines.cancel((JOIN, group.group_id, ""))
        self._deadlines.cancel((SYNC_PHASE, group.group_id, ""))
        for member_id in (*group.members, *group.pending_joins):
            self._deadlines.cancel((SESSION, group.group_id, member_id))


def _nothing(error: KafkaError | None, now: Instant) -> Outcome:
    return Outcome()
