"""The replicas that are in sync: what the controller has said last, and what it is being asked for.

1. The committed ISR is what the controller has said. Only it decides whether a write with acks=all may begin.
2. One change at a time is pending. It may have been made already, because an answer can get lost on its way. So the
   maximal ISR is what holds the high watermark back: the committed members, also one that is about to leave, and the
   one that is about to join.
3. A change is over when the controller has answered it, or when the metadata brings a newer state of the partition.
   Metadata of the same partition epoch ends nothing: it says again what a pending change is based on.
"""

from enum import Enum
from typing import NamedTuple, Protocol

from twofold.wire.errors import (
    NONE,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NewLeaderElected,
    OperationNotAttempted,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from twofold.wire.messages.alter_partition import PartitionDataResult

UNKNOWN_BROKER_EPOCH = -1

ROLLED_BACK_BY = frozenset((OperationNotAttempted.code, IneligibleReplica.code))
SETTLED_BY_METADATA = frozenset(
    error.code
    for error in (
        UnknownTopicOrPartition,
        UnknownTopicId,
        FencedLeaderEpoch,
        InvalidUpdateVersion,
        InvalidRequest,
        NewLeaderElected,
    )
)


class Registration(Protocol):
    """What is asked of a broker's registration in the metadata."""

    @property
    def epoch(self) -> int: ...

    @property
    def is_active(self) -> bool:
        """Neither fenced nor in a controlled shutdown."""


class IsrMember(NamedTuple):
    """A replica in sync, and the epoch under which its broker fetched."""

    broker_id: int
    broker_epoch: int = UNKNOWN_BROKER_EPOCH


class IsrChange(NamedTuple):
    """What the leader asks the controller for."""

    leader_epoch: int
    partition_epoch: int  # of the state that it changes
    members: tuple[IsrMember, ...]
    joining: int | None = None

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(member.broker_id for member in self.members)


class Isr(NamedTuple):
    committed: tuple[int, ...]
    pending: IsrChange | None = None

    @property
    def maximal(self) -> tuple[int, ...]:
        pending = self.pending
        if pending is None or pending.joining is None:
            return self.committed
        return (*self.committed, pending.joining)


class Reaction(Enum):
    """What the leader makes of an answer to a change."""

    COMMITTED = "the answer is the new state"
    ROLLED_BACK = "the state is as before, and the next reason may lead to the change again"
    LEFT_PENDING = "the metadata will bring a newer state"
    SEND_AGAIN = "the controller could not say"
    IGNORED = "something newer is known"


def reaction_to(row: PartitionDataResult, *, leader_epoch: int, partition_epoch: int, is_pending: bool) -> Reaction:
    """`is_pending`: the change that was answered is still the one that the leader waits for."""
    if row.error_code == NONE:
        # Of the same partition epoch: the metadata was faster, and another change may be pending by now.
        is_news = row.partition_epoch > partition_epoch or (is_pending and row.partition_epoch == partition_epoch)
        return Reaction.COMMITTED if is_news and row.leader_epoch == leader_epoch else Reaction.IGNORED
    if not is_pending:
        return Reaction.IGNORED
    if row.error_code in ROLLED_BACK_BY:
        return Reaction.ROLLED_BACK
    return Reaction.LEFT_PENDING if row.error_code in SETTLED_BY_METADATA else Reaction.SEND_AGAIN
