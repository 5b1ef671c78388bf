"""What the leader of a partition knows of its followers, and what follows from it. A value with decisions.

1. A follower acknowledges by its next fetch: all below the offset that it asks for is in its log.
2. The high watermark is the smallest log end in the maximal ISR. Replicas that are about to join hold it back as well:
   otherwise it would run away from them, and they could never join. It never falls in an epoch, and it stays while
   fewer replicas are in sync than min.insync.replicas asks for.
3. In a new leader epoch nothing is known of any follower: what one had before, it may have cut off.
4. A replica joins the ISR if its log reaches the high watermark and the start of this epoch, and its broker is the one
   that the metadata knows, unfenced and not in a controlled shutdown. It leaves when it has not been at the log's end
   for replica.lag.time.max.ms.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

from twofold.replication.isr import (
    UNKNOWN_BROKER_EPOCH,
    Isr,
    IsrChange,
    IsrMember,
    Reaction,
    Registration,
    reaction_to,
)
from twofold.wire.messages.alter_partition import PartitionDataResult

UNKNOWN_OFFSET = -1
NEVER_MS = -(2**62)

Brokers: TypeAlias = Callable[[int], Registration | None]
"""The registration of a broker in the newest metadata."""


class Assignment(Protocol):
    """What the metadata says of a partition."""

    @property
    def replicas(self) -> tuple[int, ...]: ...

    @property
    def isr(self) -> tuple[int, ...]: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def partition_epoch(self) -> int: ...


class FollowerFetch(NamedTuple):
    """What a follower says of itself when it fetches."""

    offset: int  # its log end
    log_start_offset: int
    broker_epoch: int = UNKNOWN_BROKER_EPOCH


class Follower(NamedTuple):
    """What the leader knows of another replica in this leader epoch."""

    end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int | None = None  # None: it has not fetched
    fetched_ms: int = NEVER_MS
    leader_end_then: int = UNKNOWN_OFFSET  # where our log ended at that fetch
    caught_up_ms: int = NEVER_MS

    def after(self, fetch: FollowerFetch, log_end: int, now_ms: int) -> "Follower":
        caught_up_ms = self.caught_up_ms
        if fetch.offset >= log_end:
            caught_up_ms = max(caught_up_ms, now_ms)
        elif fetch.offset >= self.leader_end_then:
            # It has all that there was when it fetched before: then it was at the end.
            caught_up_ms = max(caught_up_ms, self.fetched_ms)
        return Follower(
            fetch.offset,
            fetch.log_start_offset,
            fetch.broker_epoch,
            now_ms,
            max(self.leader_end_then, log_end),
            caught_up_ms,
        )

    def is_caught_up(self, log_end: int, now_ms: int, lag_ms: int) -> bool:
        return self.end_offset == log_end or now_ms - self.caught_up_ms <= lag_ms

    def is_eligible(self, registration: Registration | None) -> bool:
        """Whether the controller would take it into the ISR, as far as is known here."""
        if registration is None or not registration.is_active:
            return False
        return self.broker_epoch in (registration.epoch, UNKNOWN_BROKER_EPOCH)


@dataclass(frozen=True, slots=True)
class LeaderState:
    node_id: int
    leader_epoch: int
    partition_epoch: int
    epoch_start: int  # our log end when the epoch began
    replicas: tuple[int, ...]
    isr: Isr
    followers: Mapping[int, Follower]

    @classmethod
    def begin(cls, node_id: int, assignment: Assignment, log_end: int, now_ms: int) -> "LeaderState":
        followers = {
            replica: Follower(caught_up_ms=now_ms if replica in assignment.isr else NEVER_MS)
            for replica in assignment.replicas
            if replica != node_id
        }
        return cls(
            node_id,
            assignment.leader_epoch,
            assignment.partition_epoch,
            log_end,
            assignment.replicas,
            Isr(assignment.isr),
            followers,
        )

    def updated(self, assignment: Assignment) -> "LeaderState":
        """The metadata has a newer state of the partition in the same leader epoch."""
        if assignment.partition_epoch <= self.partition_epoch:
            return self
        followers = {
            replica: self.followers.get(replica, Follower())
            for replica in assignment.replicas
            if replica != self.node_id
        }
        return replace(
            self,
            partition_epoch=assignment.partition_epoch,
            replicas=assignment.replicas,
            isr=Isr(assignment.isr),
            followers=followers,
        )

    # --- followers ---

    def is_stale(self, fetch: FollowerFetch, registration: Registration | None) -> bool:
        """Whether a process has fetched that the metadata knows to be over. Without an epoch, or with one that is yet
        to be heard of, it may."""
        return registration is not None and UNKNOWN_BROKER_EPOCH < fetch.broker_epoch < registration.epoch

    def fetched(self, replica: int, fetch: FollowerFetch, log_end: int, now_ms: int) -> "LeaderState":
        followers = dict(self.followers)
        followers[replica] = followers[replica].after(fetch, log_end, now_ms)
        return self.__class__(  # not `replace`: every fetch of a follower comes here
            self.node_id, self.leader_epoch, self.partition_epoch, self.epoch_start, self.replicas, self.isr, followers
        )

    # --- the high watermark ---

    def min_in_sync(self, wanted: int) -> int:
        """min.insync.replicas, which no partition with fewer replicas could ever reach."""
        return min(wanted, max(1, len(self.replicas)))

    def high_watermark(
        self, current: int, log_end: int, *, min_in_sync: int, brokers: Brokers, now_ms: int, lag_ms: int
    ) -> int:
        """Where it is to be, which is never below `current`."""
        if len(self.isr.committed) < self.min_in_sync(min_in_sync):
            return current
        maximal = self.isr.maximal
        smallest = log_end
        for replica, follower in self.followers.items():
            if follower.end_offset >= smallest:
                continue
            if replica in maximal or self._is_about_to_join(replica, follower, log_end, brokers, now_ms, lag_ms):
                smallest = follower.end_offset
        return max(current, smallest)

    @staticmethod
    def _is_about_to_join(
        replica: int, follower: Follower, log_end: int, brokers: Brokers, now_ms: int, lag_ms: int
    ) -> bool:
        return follower.is_caught_up(log_end, now_ms, lag_ms) and follower.is_eligible(brokers(replica))

    def low_watermark(self, log_start: int, brokers: Brokers) -> int:
        """The smallest log start of all replicas that live."""
        starts = [log_start]
        for replica, follower in self.followers.items():
            registration = brokers(replica)
            if registration is not None and registration.is_active:
                starts.append(follower.log_start_offset)
        return min(starts)

    # --- changes of the ISR ---

    def expansion(self, replica: int, high_watermark: int, brokers: Brokers) -> IsrChange | None:
        """The change by which a follower that has just fetched joins; None where it may not, or is a member."""
        isr = self.isr
        if isr.pending is not None or replica in isr.committed:
            return None
        follower = self.followers[replica]
        if follower.end_offset < max(high_watermark, self.epoch_start) or not follower.is_eligible(brokers(replica)):
            return None
        return self._change((*isr.committed, replica), joining=replica)

    def shrinking(self, log_end: int, now_ms: int, lag_ms: int) -> IsrChange | None:
        """The change by which the members leave that have fallen behind; None where none has."""
        isr = self.isr
        if isr.pending is not None or len(isr.committed) == 1:
            return None
        kept = tuple(
            member
            for member in isr.committed
            if (follower := self.followers.get(member)) is None or follower.is_caught_up(log_end, now_ms, lag_ms)
        )
        return None if len(kept) == len(isr.committed) else self._change(kept)

    def _change(self, members: tuple[int, ...], joining: int | None = None) -> IsrChange:
        return IsrChange(
            self.leader_epoch, self.partition_epoch, tuple(self._member(member) for member in members), joining
        )

    def _member(self, broker_id: int) -> IsrMember:
        """Our own broker epoch is filled in when the change is sent."""
        follower = self.followers.get(broker_id)
        if follower is None or follower.broker_epoch is None:
            return IsrMember(broker_id)
        return IsrMember(broker_id, follower.broker_epoch)

    def asking(self, change: IsrChange) -> "LeaderState":
        return replace(self, isr=Isr(self.isr.committed, change))

    def answered(self, change: IsrChange, row: PartitionDataResult) -> "tuple[LeaderState, Reaction]":
        """What becomes of a change by the controller's answer."""
        reaction = reaction_to(
            row,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            is_pending=self.isr.pending == change,
        )
        if reaction is Reaction.COMMITTED:
            isr = Isr(tuple(row.isr))
            return replace(self, isr=isr, partition_epoch=row.partition_epoch), reaction
        if reaction is Reaction.ROLLED_BACK:
            return replace(self, isr=Isr(self.isr.committed)), reaction
        return self, reaction
