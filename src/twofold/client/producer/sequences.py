"""Which batch of a partition may be sent next, and under which sequence number. Pure: no clock, no network.

A broker accepts a producer's batches only in the order of their sequence numbers, and recognises a batch that comes
twice while it is among the last five, or after its restart perhaps only if it is the last. What follows from it:

1. A batch gets its number when it is first sent and keeps it for every further attempt, until 4.
2. At most `max_unacked` batches are unacknowledged, so that each stays within the broker's memory.
3. While a batch waits for another attempt nothing newer is sent, and only the lowest one is tried: order is kept.
4. When a number will never be used (its batch failed or was given up), numbers start anew at 0 under the next epoch.
   Before that, every batch in doubt is tried again under its old number, lowest first. One that the broker takes or
   knows proves that it has all before it, also those that it called OUT_OF_ORDER_SEQUENCE_NUMBER because it remembers
   only later ones. Where it calls all of them so it has none, since it would know the last. Where the last was given
   up instead, those before it stay unknown and fail, too: renumbering a batch that was appended would double it.
5. A batch is never sent under an older identity than one before it.
6. Until a batch of an identity is acknowledged, one is out at a time: a broker that does not know a producer yet takes
   any number as its first, so that a second batch could overtake a first one that failed.
7. A broker that has forgotten the producer (UNKNOWN_PRODUCER_ID, brokers before 2.5) takes only number 0. What it has
   certainly not appended is numbered anew. A batch in doubt fails: it may have been appended before the broker forgot.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from twofold.records.batch import increment_sequence
from twofold.types import NO_SEQUENCE

MAX_EPOCH = 32767


class ProducerIdentity(NamedTuple):
    producer_id: int
    epoch: int

    def bumped(self) -> "ProducerIdentity | None":
        """The next epoch; None when only a new producer id helps."""
        return ProducerIdentity(self.producer_id, self.epoch + 1) if self.epoch < MAX_EPOCH - 1 else None


class Sequenced(Protocol):
    """The part of a batch that this module reads and writes."""

    identity: ProducerIdentity | None
    base_sequence: int
    on_wire: bool
    in_doubt: bool  # an attempt may have been appended without our knowing

    @property
    def count(self) -> int: ...


B = TypeVar("B", bound=Sequenced)


class PartitionSequences(Generic[B]):
    """The unacknowledged batches of one partition, lowest first."""

    __slots__ = (
        "_forgotten",
        "_known",
        "_max_unacked",
        "_missed",
        "_numbered",
        "_resetting",
        "_suspect",
        "_unprovable",
        "identity",
        "next_sequence",
        "unacked",
    )

    def __init__(self, *, idempotent: bool, max_unacked: int) -> None:
        self.unacked: list[B] = []
        self.identity: ProducerIdentity | None = None
        self.next_sequence = 0
        self._numbered = idempotent
        self._max_unacked = max_unacked
        self._resetting = False
        self._forgotten = False  # the broker knows nothing of this producer, so that its numbers are free again
        self._known = not idempotent  # whether the broker has appended a batch of this identity
        self._suspect: B | None = None  # the lowest, called out of order although nothing before it failed
        self._missed: list[B] = []  # called out of order while in doubt
        self._unprovable: list[B] = []  # whether the broker has them, a later one would have told that was given up

    def next_retry(self) -> B | None:
        """The batch that must be tried again before anything else, when it may be now."""
        first = next((batch for batch in self.unacked if not batch.on_wire), None)
        if first is None:
            return None
        if self._resetting:
            if any(batch.on_wire for batch in self.unacked):
                return None
            return next((batch for batch in self.unacked if batch.in_doubt), None)
        return first if first is self.unacked[0] else None

    def may_send_new(self, current: ProducerIdentity | None) -> bool:
        """Whether a batch without a number may be sent now under `current`."""
        if self._resetting or len(self.unacked) >= (self._max_unacked if self._known else 1):
            return False
        if any(not batch.on_wire for batch in self.unacked):
            return False
        if not self._numbered:
            return True
        return current is not None and (self.identity == current or not self.unacked)

    def wants_identity(self) -> bool:
        """Whether everything is settled and only a new identity is missing for a new start."""
        return self._resetting and not any(batch.on_wire or batch.in_doubt for batch in self.unacked)

    def start_anew(self, identity: ProducerIdentity) -> None:
        """Number what is left from 0 under an identity that this partition's broker does not know."""
        assert self.wants_identity() and (identity != self.identity or self._forgotten)
        assert not self.untold()
        self._resetting = False
        self._forgotten = False
        self._suspect = None
        self._missed.clear()
        self._unprovable.clear()
        self._adopt(identity)
        for batch in self.unacked:
            self._number(batch)

    def on_sent(self, batch: B, current: ProducerIdentity | None) -> None:
        """`batch` goes out now: new ones get their number."""
        batch.on_wire = True
        if batch in self.unacked:
            return
        if self._numbered:
            assert current is not None
            if self.identity != current:
                assert not self.unacked
                self._adopt(current)
            self._number(batch)
        self.unacked.append(batch)

    def on_acknowledged(self, batch: B) -> list[B]:
        """Returns what the broker has, too, because it has this one: numbers before it that it did not recognise."""
        self._known = self._known or batch.identity == self.identity
        if batch not in self.unacked:
            return []
        implied = self.unacked[: self.unacked.index(batch)] if self._numbered else []
        implied = [other for other in implied if other.identity == batch.identity and not other.on_wire]
        for settled in (*implied, batch):
            self.unacked.remove(settled)
        return implied

    def on_unknown(self, batch: B) -> None:
        """The attempt failed, and whether the broker has the batch is not known."""
        batch.on_wire = False
        batch.in_doubt = True

    def on_refused(self, batch: B) -> None:
        """This attempt was not appended; earlier ones may have been."""
        batch.on_wire = False

    def on_out_of_order(self, batch: B) -> None:
        """The broker misses the batch before this one, or has forgotten this one: those after it will tell."""
        if batch is self.unacked[0] and not self._resetting:
            self._resetting = True
            self._suspect = batch
        if batch.in_doubt:
            self._missed.append(batch)
        batch.on_wire = False
        batch.in_doubt = False

    def on_forgotten(self, batch: B) -> None:
        """The broker knows nothing of this producer; no attempt of `batch` is in doubt."""
        assert not batch.in_doubt
        self._resetting = True
        self._forgotten = True
        batch.on_wire = False

    @property
    def forgotten(self) -> bool:
        return self._forgotten

    def is_gap_explained(self, batch: B) -> bool:
        """Whether OUT_OF_ORDER_SEQUENCE_NUMBER for `batch` comes from one before it that failed or was given up.

        Or perhaps from a broker that has the batch and remembers only later ones.
        """
        if not self._resetting and self.unacked and self.unacked[0] is batch:
            return batch.in_doubt and len(self.unacked) > 1
        return self._resetting or bool(self.unacked)

    def untold(self) -> list[B]:
        """When everything else is settled: those to be failed, because the broker lost what it had acknowledged before
        them, or because it cannot be found out whether it has them."""
        return [
            batch
            for batch in self.unacked
            if batch is self._suspect or (batch in self._missed and batch in self._unprovable)
        ]

    def on_failed(self, batch: B) -> None:
        """The batch is given up; its number, if it has one, will not be used again."""
        if batch not in self.unacked:
            return
        position = self.unacked.index(batch)
        del self.unacked[position]
        if self._numbered and batch.base_sequence != NO_SEQUENCE:
            self._resetting = True
            if batch.on_wire or batch.in_doubt:
                self._unprovable += self.unacked[:position]

    def split(self, batch: B, parts: Sequence[B]) -> None:
        """Put smaller batches in the place, and under the numbers, of one that the broker refused as too large."""
        sequence = batch.base_sequence
        for part in parts:
            part.identity = batch.identity
            part.base_sequence = sequence
            part.on_wire = False
            if self._numbered:
                sequence = increment_sequence(sequence, part.count)
        position = self.unacked.index(batch)
        self.unacked[position : position + 1] = parts

    def _adopt(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self.next_sequence = 0
        self._known = False

    def _number(self, batch: B) -> None:
        batch.identity = self.identity
        batch.base_sequence = self.next_sequence
        self.next_sequence = increment_sequence(self.next_sequence, batch.count)
