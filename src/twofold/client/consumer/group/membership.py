"""A consumer's place in its group, without I/O: what it may do, what it gives up, what the coordinator's answers mean.

1. The state changes by the table of `states` only. Times come with the calls.
2. An answer counts if it belongs to the identity (member id, generation) that the member still has.
3. With an eager strategy a member gives up everything before it joins; with a cooperative one it gives up what it is
   told to, after the round, and joins again (KIP-429). A list of strategies is cooperative if all of them are.
4. What is assigned when the generation is over is lost, not revoked.
5. A member is sure of its place for `session_timeout_ms` after it sent the last request that the coordinator has
   answered as one of a member, and for `max_poll_interval_ms` after the last one that was answered without a rebalance:
   a rebalance waits no longer for those that do not join. After that it hands out no records before it has asked
   again: a process that was stopped and goes on cannot know that its partitions are not another member's.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from twofold.client.consumer.assignors import Assignor, RebalanceProtocol
from twofold.client.consumer.assignors.model import NO_GENERATION
from twofold.client.consumer.group.states import (
    IN_ROUND,
    MAY_COMMIT,
    MAY_HAND_OUT,
    AnswerVerdict,
    GroupRequest,
    MembershipEvent,
    MembershipState,
    next_state,
    verdict_on,
)
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

NO_MEMBER_ID = ""


class Identity(NamedTuple):
    """What a request says of the member that sends it."""

    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION


class GivenUp(NamedTuple):
    """What a member must not read any more, and whether it still may commit its offsets."""

    partitions: tuple[TopicPartition, ...]
    is_lost: bool


class AssignmentChange(NamedTuple):
    revoked: tuple[TopicPartition, ...]
    added: tuple[TopicPartition, ...]


def common_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """The best that all of them support."""
    shared = set.intersection(*(set(assignor.protocols) for assignor in assignors))
    if not shared:
        names = ", ".join(assignor.name for assignor in assignors)
        raise ValueError(f"the strategies {names} have no rebalance protocol in common")
    return max(shared)


class ClientMembership:
    """Of one consumer in one group."""

    __slots__ = (
        "_asked_until",
        "_max_poll_s",
        "_polled_at",
        "_session_s",
        "_settled_until",
        "generation",
        "member_id",
        "protocol",
        "rejoin_reason",
        "state",
    )

    def __init__(self, protocol: RebalanceProtocol, session_s: float, max_poll_s: float) -> None:
        self.protocol = protocol
        self.state = MembershipState.UNJOINED
        self.member_id = NO_MEMBER_ID
        self.generation = NO_GENERATION
        self.rejoin_reason = ""  # not empty: another round is needed
        self._session_s = session_s
        self._max_poll_s = max_poll_s
        self._asked_until = float("-inf")
        self._settled_until = float("-inf")
        self._polled_at = float("inf")

    @property
    def identity(self) -> Identity:
        return Identity(self.member_id, self.generation)

    def is_at(self, state: MembershipState) -> bool:
        return self.state is state

    @property
    def has_generation(self) -> bool:
        return self.generation != NO_GENERATION

    @property
    def may_commit(self) -> bool:
        return self.has_generation and self.state in MAY_COMMIT

    @property
    def is_in_round(self) -> bool:
        return self.state in IN_ROUND

    @property
    def needs_round(self) -> bool:
        if self.state is MembershipState.STABLE:
            return bool(self.rejoin_reason)
        return self.state in (MembershipState.UNJOINED, MembershipState.PREPARING, MembershipState.PREPARED)

    def _on(self, event: MembershipEvent) -> None:
        self.state = next_state(self.state, event)

    # A round

    def request_rejoin(self, reason: str) -> None:
        self.rejoin_reason = self.rejoin_reason or reason

    def prepare(self, owned: Iterable[TopicPartition], topics: frozenset[str]) -> GivenUp:
        """Begin a round: what is given up before JoinGroup leaves."""
        self._on(MembershipEvent.PREPARE)
        if not self.has_generation:
            return GivenUp(tuple(owned), is_lost=True)
        if self.protocol is RebalanceProtocol.EAGER:
            return GivenUp(tuple(owned), is_lost=False)
        return GivenUp(tuple(tp for tp in owned if tp.topic not in topics), is_lost=False)

    def prepared(self) -> None:
        self._on(MembershipEvent.PREPARED)

    def sent(self) -> str:
        """JoinGroup leaves; returns the reason for the round."""
        self._on(MembershipEvent.SENT)
        reason, self.rejoin_reason = self.rejoin_reason, ""
        return reason

    def joined(self, identity: Identity) -> None:
        self._on(MembershipEvent.JOINED)
        self.member_id, self.generation = identity

    def synced(self, sent_at: float) -> None:
        self._on(MembershipEvent.SYNCED)
        self.heard(self.identity, sent_at)

    def change(self, owned: Iterable[TopicPartition], assigned: Iterable[TopicPartition]) -> AssignmentChange:
        """What the assignment of an ASSIGNED member revokes and adds."""
        before, after = dict.fromkeys(owned), dict.fromkeys(assigned)
        return AssignmentChange(
            tuple(tp for tp in before if tp not in after), tuple(tp for tp in after if tp not in before)
        )

    def taken(self, change: AssignmentChange) -> None:
        self._on(MembershipEvent.TAKEN)
        if change.revoked:
            # Other members get these in the next round: they wait for it.
            self.request_rejoin("partitions were revoked")

    # What the coordinator says

    def failed(self, request: GroupRequest, error: KafkaError, sent: Identity) -> AnswerVerdict:
        """What an answer means, which is done to the state. For IGNORE nothing is done."""
        verdict = verdict_on(request, error)
        if request in (GroupRequest.HEARTBEAT, GroupRequest.COMMIT):
            busy = self.state in (MembershipState.JOINING, MembershipState.SYNCING)
            if sent != self.identity or (busy and verdict not in (AnswerVerdict.FENCED, AnswerVerdict.RAISE)):
                return AnswerVerdict.IGNORE  # JoinGroup or SyncGroup, which are under way, say the same or better
        if self.state is MembershipState.FENCED:
            return AnswerVerdict.IGNORE
        self._apply(request, verdict)
        return verdict

    def _apply(self, request: GroupRequest, verdict: AnswerVerdict) -> None:
        if verdict is AnswerVerdict.FENCED:
            self._on(MembershipEvent.FENCED)
            self.generation = NO_GENERATION
        elif verdict is AnswerVerdict.RESET_MEMBER:
            self.dropped(forget=True)
        elif verdict is AnswerVerdict.RESET_GENERATION:
            self.dropped(forget=False)
        elif request is GroupRequest.JOIN:
            self._on(MembershipEvent.AGAIN)
        elif request is GroupRequest.SYNC:
            self.dropped(forget=False)  # the assignment was missed, whatever the reason
        elif verdict is AnswerVerdict.REJOIN:
            self.request_rejoin("the group rebalances")

    def take_member_id(self, member_id: str) -> None:
        """From a coordinator that wants the next JoinGroup to name it."""
        self._on(MembershipEvent.AGAIN)
        self.member_id = member_id

    def again(self) -> None:
        """JoinGroup came to nothing: it may be sent again."""
        self._on(MembershipEvent.AGAIN)

    def dropped(self, *, forget: bool) -> None:
        """The generation is over for this member; `forget`: the coordinator does not know its id either."""
        self._on(MembershipEvent.DROPPED)
        self.generation = NO_GENERATION
        self.rejoin_reason = ""
        if forget:
            self.member_id = NO_MEMBER_ID

    # Time

    def heard(self, sent: Identity, sent_at: float, *, rebalancing: bool = False) -> None:
        """The coordinator has answered a request of that time as one of a member."""
        if sent == self.identity:
            self._asked_until = max(self._asked_until, sent_at + self._session_s)
            if not rebalancing:
                self._settled_until = max(self._settled_until, sent_at + self._max_poll_s)

    def may_hand_out(self, now: float) -> bool:
        """Whether records of what is assigned may go to the application."""
        return now < self._asked_until and now < self._settled_until and self.state in MAY_HAND_OUT

    def must_ask(self, now: float) -> bool:
        """Whether only a heartbeat can tell if the member still is one."""
        return self.has_generation and now >= self._asked_until

    def polled(self, now: float) -> None:
        self._polled_at = now

    def poll_expires_at(self) -> float:
        return self._polled_at + self._max_poll_s

    def is_poll_overdue(self, now: float) -> bool:
        return self.has_generation and now >= self.poll_expires_at()
