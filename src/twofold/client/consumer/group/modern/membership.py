"""A consumer's place in a group of the new protocol, without I/O: what heartbeats say, and what their answers mean.

1. The state changes by the table of `states` only. Times come with the calls.
2. An answer counts if the membership is still the one in which its heartbeat left.
3. A heartbeat says what the coordinator does not know yet. After an error, or without an answer, it says everything.
4. The coordinator tells the whole set of partitions to have. The application gives up what is not in it, then takes
   what is new, and then the coordinator hears what the application has.
5. What is assigned when the membership is over is lost, not revoked.
6. A member is sure of its place for `session_s` after it sent the last heartbeat that was answered. After that it hands
   out no records before it has asked again: a process that was stopped and goes on cannot know that its partitions are
   not another member's.
"""

from collections.abc import Iterable
from typing import NamedTuple

from twofold.client.consumer.group.membership import Identity
from twofold.client.consumer.group.modern.states import (
    IS_MEMBER,
    EpochEvent,
    EpochState,
    EpochVerdict,
    next_state,
    verdict_on,
)
from twofold.types import TopicId
from twofold.wire.errors import KafkaError
from twofold.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2  # of a static member, which comes back within its session
NO_TIMEOUT = -1

PartitionId = tuple[TopicId, int]


class MemberTerms(NamedTuple):
    """What stays the same for the life of a consumer."""

    group_id: str
    member_id: str
    instance_id: str | None
    rack: str | None
    server_assignor: str | None
    rebalance_timeout_ms: int
    session_s: float


class WantedTopics(NamedTuple):
    """What the application is subscribed to: names, or a pattern for the broker."""

    topics: frozenset[str] = frozenset()
    regex: str = ""


class Said(NamedTuple):
    """What an answered heartbeat has told the coordinator."""

    wanted: WantedTopics
    owned: frozenset[PartitionId]


class SentHeartbeat(NamedTuple):
    request: ConsumerGroupHeartbeatRequest
    says: Said
    life: int  # of the membership that sent it


class ReconciledChange(NamedTuple):
    revoked: frozenset[PartitionId]
    added: frozenset[PartitionId]


class EpochMembership:
    """Of one consumer in one group."""

    __slots__ = (
        "_asked_until",
        "_had_regex",
        "_polled_at",
        "_said",
        "epoch",
        "heartbeat_interval_s",
        "life",
        "owned",
        "reads_as",
        "state",
        "target",
        "terms",
        "wanted",
    )

    def __init__(self, terms: MemberTerms) -> None:
        self.terms = terms
        self.state = EpochState.UNJOINED
        self.epoch = JOIN_EPOCH
        self.wanted = WantedTopics()
        self.target: frozenset[PartitionId] = frozenset()  # to have, as the coordinator said last
        self.owned: frozenset[PartitionId] = frozenset()  # what the application has
        self.reads_as = Identity()  # for offsets in a transaction
        self.heartbeat_interval_s = 0.0
        self.life = 0  # grows when a membership is over
        self._had_regex = False
        self._said: Said | None = None
        self._asked_until = float("-inf")
        self._polled_at = float("inf")

    @property
    def identity(self) -> Identity:
        return Identity(self.terms.member_id, self.epoch)

    def is_at(self, state: EpochState) -> bool:
        return self.state is state

    @property
    def is_member(self) -> bool:
        return self.state in IS_MEMBER

    def _on(self, event: EpochEvent) -> None:
        self.state = next_state(self.state, event)

    # Heartbeats

    def join(self) -> None:
        """After the application was told what is lost."""
        self._on(EpochEvent.JOIN)

    @property
    def must_speak(self) -> bool:
        """Whether a heartbeat is due at once."""
        if self.state in (EpochState.JOINING, EpochState.ACKNOWLEDGING):
            return True
        return self.is_member and (self._said is None or self._said.wanted != self.wanted)

    def speak(self) -> SentHeartbeat:
        """The next heartbeat. Of a member, or of one that joins."""
        terms, said, wanted = self.terms, self._said, self.wanted
        is_full = said is None or self.state is EpochState.JOINING
        known = WantedTopics() if said is None else said.wanted
        self._had_regex = self._had_regex or bool(wanted.regex)
        # The empty pattern takes one away; a member that never had one does not mention it.
        tells_regex = self._had_regex and (is_full or wanted.regex != known.regex)
        request = ConsumerGroupHeartbeatRequest(
            group_id=terms.group_id,
            member_id=terms.member_id,
            member_epoch=self.epoch,
            instance_id=terms.instance_id,
            rack_id=terms.rack if is_full else None,
            rebalance_timeout_ms=terms.rebalance_timeout_ms if is_full else NO_TIMEOUT,
            subscribed_topic_names=sorted(wanted.topics) if is_full or wanted.topics != known.topics else None,
            subscribed_topic_regex=wanted.regex if tells_regex else None,
            server_assignor=terms.server_assignor if is_full else None,
            topic_partitions=_rows(self.owned) if is_full or said is None or said.owned != self.owned else None,
        )
        return SentHeartbeat(request, Said(wanted, self.owned), self.life)

    def answered(self, sent: SentHeartbeat, response: ConsumerGroupHeartbeatResponse, sent_at: float) -> None:
        """Without an error."""
        if sent.life != self.life:
            return
        joins = self.state is EpochState.JOINING
        self.epoch = response.member_epoch
        self.heartbeat_interval_s = response.heartbeat_interval_ms / 1000
        self._said = sent.says
        self._asked_until = max(self._asked_until, sent_at + self.terms.session_s)
        if response.assignment is not None:
            rows = response.assignment.topic_partitions
            self._assigned(frozenset((row.topic_id, n) for row in rows if row.topic_id for n in row.partitions))
        elif joins:
            self._assigned(frozenset())
        if self.state is EpochState.ACKNOWLEDGING and sent.says.owned == self.owned:
            self._on(EpochEvent.ACKNOWLEDGED)
        if not joins:
            self.reads_as = self.identity  # it still has what it had

    def _assigned(self, target: frozenset[PartitionId]) -> None:
        is_same = target == self.target and self.state is not EpochState.JOINING
        if not is_same:
            self.target = target
            self._on(EpochEvent.ASSIGNED)

    def unanswered(self, sent: SentHeartbeat) -> None:
        """It may have arrived, and its answer may be lost."""
        if sent.life == self.life:
            self._said = None

    def failed(self, sent: SentHeartbeat, error: KafkaError) -> EpochVerdict | None:
        """What an error means, which is done to the state; None for old news."""
        if sent.life != self.life or self.state is EpochState.FAILED:
            return None
        self._said = None
        verdict = verdict_on(error)
        if verdict is EpochVerdict.REJOIN:
            self.dropped()
        elif verdict is EpochVerdict.FAIL:
            self._on(EpochEvent.FAILED)
            self._forget()
        return verdict

    def refused(self, sent: Identity) -> bool:
        """A commit was answered that the member is unknown. Whether it was this one, as it is now."""
        if sent != self.identity or not self.is_member:
            return False
        self.dropped()
        return True

    def dropped(self) -> None:
        """The membership is over: the coordinator has removed the member, or it leaves."""
        self._on(EpochEvent.DROPPED)
        self._forget()

    def _forget(self) -> None:
        self.life += 1
        self.epoch = JOIN_EPOCH
        self.target = self.owned = frozenset()
        self._said = None
        self._asked_until = float("-inf")

    # Reconciliation

    def change(self, known: Iterable[PartitionId]) -> ReconciledChange:
        """What is to be given up and to be taken; `known` are the partitions whose topics have a name by now."""
        return ReconciledChange(self.owned - self.target, (self.target & frozenset(known)) - self.owned)

    def gave_up(self, partitions: frozenset[PartitionId]) -> None:
        self.owned -= partitions

    def took(self, partitions: frozenset[PartitionId]) -> bool:
        """The application has these, too. Whether that is all: the rest of the target may have no names yet."""
        self.owned |= partitions
        self.reads_as = self.identity
        if self.owned == self.target:
            self._on(EpochEvent.RECONCILED)
            if self._said is not None and self._said.owned == self.owned:
                self._on(EpochEvent.ACKNOWLEDGED)  # nothing has changed, or the coordinator knows it already
            return True
        return False

    # Time

    def may_hand_out(self, now: float) -> bool:
        """Whether records of what is assigned may go to the application."""
        return self.is_member and now < self._asked_until

    def must_ask(self, now: float) -> bool:
        """Whether only a heartbeat can tell if the member still is one."""
        return self.is_member and now >= self._asked_until

    def polled(self, now: float) -> None:
        self._polled_at = now

    def poll_expires_at(self) -> float:
        return self._polled_at + self.terms.rebalance_timeout_ms / 1000

    def is_poll_overdue(self, now: float) -> bool:
        return self.state not in (EpochState.UNJOINED, EpochState.FAILED) and now >= self.poll_expires_at()


def leaving(terms: MemberTerms) -> ConsumerGroupHeartbeatRequest:
    """The last heartbeat of a member. A static one keeps its partitions while its session lasts."""
    return ConsumerGroupHeartbeatRequest(
        group_id=terms.group_id,
        member_id=terms.member_id,
        member_epoch=LEAVE_EPOCH if terms.instance_id is None else LEAVE_FOR_A_WHILE_EPOCH,
        instance_id=terms.instance_id,
        topic_partitions=None,
    )


def _rows(partitions: Iterable[PartitionId]) -> list[TopicPartitions]:
    rows: dict[TopicId, list[int]] = {}
    for topic_id, number in sorted(partitions):
        rows.setdefault(topic_id, []).append(number)
    return [TopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in rows.items()]
