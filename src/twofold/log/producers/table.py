"""All producers of a partition: their entries, the open transactions and the first unstable offset. Pure.

1. `evaluate` changes nothing; `apply` takes its result once the batch is in the log.
2. Open transactions are kept in the order of their first offsets. They begin at the log end, so that is the order of
   insertion, and the oldest one is found and removed in constant time.
3. A transaction stays unstable until its marker is below the high watermark. The completed ones wait in a queue, by the
   offsets of their markers. One that completed earlier and began later than another one does not matter: it becomes
   stable first. Without those the first offsets in the queue increase, and its head is the minimum (a sliding-window
   minimum).
4. `end_offset`: the table is what the batches below this offset made of it.
5. Entries that are loaded or replayed do not say when they were appended. `recall` does, from what was kept of it
   (`times`); what is not known counts as appended now, so that no producer is forgotten early.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from twofold.log.api import OpenTransaction, Origin, ProducerRow, TransactionMarker
from twofold.log.indexes.txn_index import AbortedEntry
from twofold.log.producers.entry import (
    NO_OFFSET,
    BatchMetadata,
    CompletedTransaction,
    ProducerEntry,
    VerificationEntry,
    after_data,
    after_marker,
    check_guard,
    check_marker,
    check_plain,
    check_sequence,
    find_duplicate,
    is_expired,
    stale_epoch,
)
from twofold.log.producers.times import Opened, ProducerTime, state_of
from twofold.records.batch import TRANSACTIONAL, Header
from twofold.records.control import EndMarker
from twofold.types import NO_TIMESTAMP, ProducerEpoch, ProducerId

NO_LIMIT = 2**63 - 1

_new_tuple = tuple.__new__


class AppendChecks(NamedTuple):
    """What the leader checks in a batch beyond its form."""

    origin: Origin
    transaction_version: int = 2
    guard: int | None = None
    verification_enabled: bool = True


# By the transaction version of a marker that a coordinator sends; there is no higher one.
_MARKER_CHECKS = tuple(AppendChecks(Origin.COORDINATOR, version) for version in range(3))
_BY_HAND_CHECKS = tuple(AppendChecks(Origin.ADMINISTRATOR, version) for version in range(3))


def marker_checks(marker: TransactionMarker) -> AppendChecks:
    return (_BY_HAND_CHECKS if marker.by_hand else _MARKER_CHECKS)[marker.transaction_version]


class Change(NamedTuple):
    """What a batch does to the table, computed before the batch is written."""

    entry: ProducerEntry
    began: bool
    completed: CompletedTransaction | None
    transaction_version: int = 2


class ProducerTable:
    __slots__ = ("end_offset", "entries", "high_watermark", "_ongoing", "_unreplicated", "_verifications")

    def __init__(self) -> None:
        self.end_offset = 0
        self.high_watermark = 0
        self.entries: dict[ProducerId, ProducerEntry] = {}
        self._ongoing: OrderedDict[int, Opened] = OrderedDict()
        self._unreplicated: deque[tuple[int, int]] | None = None
        self._verifications: dict[ProducerId, VerificationEntry] = {}

    # Appending

    def find_duplicate(self, header: Header) -> BatchMetadata | None:
        entry = self.entries.get(header.producer_id)
        return None if entry is None else find_duplicate(entry, header)

    def evaluate(
        self,
        header: Header,
        base_offset: int,
        marker: EndMarker | TransactionMarker | None,
        checks: AppendChecks | None,
        now_ms: int,
        pending: dict[ProducerId, ProducerEntry] | None = None,
    ) -> Change:
        """The change that a batch of a producer makes, or the error that refuses it.

        Without `checks` the batch comes from the leader or is replayed. `now_ms` is when it is appended, NO_TIMESTAMP
        where that is not known. `pending` holds entries changed by batches before it in the same append.
        """
        producer_id = header.producer_id
        entry = pending.get(producer_id) if pending else None
        if entry is None:
            entry = self.entries.get(producer_id)
        if checks is not None:
            self._check(entry, header, marker, checks)
        if marker is not None:
            updated, completed = after_marker(entry, header, marker, base_offset + header.last_offset_delta, now_ms)
            version = 0 if checks is None else checks.transaction_version
            return _new_tuple(Change, (updated, False, completed, version))
        updated = after_data(entry, header, base_offset, now_ms)
        return _new_tuple(Change, (updated, updated.txn_first_offset == base_offset, None, 2))

    def _check(
        self,
        entry: ProducerEntry | None,
        header: Header,
        marker: EndMarker | TransactionMarker | None,
        checks: AppendChecks,
    ) -> None:
        if marker is not None:
            by_hand = checks.origin is Origin.ADMINISTRATOR
            check_marker(entry, header, marker, checks.transaction_version, by_hand)
            return
        verification = None
        if header.attributes & TRANSACTIONAL:
            verification = self._verifications.get(header.producer_id)
            check_guard(entry, header, verification, checks.guard, checks.verification_enabled)
        if entry is not None:
            if header.producer_epoch < entry.epoch:
                raise stale_epoch(entry, header.producer_epoch)
            if checks.origin is Origin.CLIENT and not header.attributes & TRANSACTIONAL:
                check_plain(entry, header)
        if checks.origin is Origin.CLIENT:
            check_sequence(entry, header, verification)

    def apply(self, change: Change, header: Header) -> AbortedEntry | None:
        """Take the change over; returns the entry for the transaction index where a transaction was aborted."""
        entry = change.entry
        self.entries[entry.producer_id] = entry
        if self._verifications and header.is_transactional:
            self._end_verification(header, change.transaction_version)
        if change.began:
            since_ms = entry.appended_ms
            self._ongoing[entry.txn_first_offset] = _new_tuple(Opened, (entry.producer_id, since_ms, True))
        completed = change.completed
        if completed is None:
            return None
        self._ongoing.pop(completed.first_offset, None)
        if completed.last_offset >= self.high_watermark:
            self._await_replication(completed)
        if not completed.aborted:
            return None
        stable = next(iter(self._ongoing), completed.last_offset + 1)
        return AbortedEntry(completed.producer_id, completed.first_offset, completed.last_offset, stable)

    def _await_replication(self, completed: CompletedTransaction) -> None:
        queue = self._unreplicated
        if queue is None:
            queue = self._unreplicated = deque()
        while queue and queue[-1][1] >= completed.first_offset:
            queue.pop()
        queue.append((completed.last_offset, completed.first_offset))

    # Verification (KIP-890)

    def start_verification(
        self,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        sequence: int,
        supports_epoch_bump: bool,
        now_ms: int,
        new_guard: int,
    ) -> int | None:
        """The guard for the first batch of a transaction; None where the transaction is open already."""
        entry = self.entries.get(producer_id)
        if entry is not None:
            if epoch < entry.epoch:
                raise stale_epoch(entry, epoch)
            if entry.has_open_transaction(epoch):
                return None
        known = self._verifications.get(producer_id)
        if known is None:
            updated = VerificationEntry(new_guard, now_ms, sequence, epoch, supports_epoch_bump)
        elif epoch > known.epoch:
            updated = known._replace(epoch=epoch, lowest_sequence=sequence)
        elif epoch == known.epoch:
            updated = known._replace(lowest_sequence=min(sequence, known.lowest_sequence))
        else:
            updated = known
        self._verifications[producer_id] = updated
        return updated.guard

    def verification(self, producer_id: ProducerId) -> VerificationEntry | None:
        return self._verifications.get(producer_id)

    def _end_verification(self, header: Header, transaction_version: int) -> None:
        known = self._verifications.get(header.producer_id)
        if known is None:
            return
        # The marker of the last transaction already has the epoch that the next one verifies with (KAFKA-18575).
        if header.is_control and transaction_version >= 2 and known.epoch == header.producer_epoch:
            return
        del self._verifications[header.producer_id]

    def clear_verifications(self) -> None:
        self._verifications.clear()

    # Stability

    def first_unstable_offset(self) -> int:
        """The first offset that may still change its meaning, or NO_LIMIT."""
        first = next(iter(self._ongoing)) if self._ongoing else NO_LIMIT
        queue = self._unreplicated
        return min(first, queue[0][1]) if queue else first

    def advance_high_watermark(self, offset: int) -> int:
        """The first unstable offset after the move."""
        self.high_watermark = offset
        queue = self._unreplicated
        if not queue:
            return next(iter(self._ongoing)) if self._ongoing else NO_LIMIT
        while queue and queue[0][0] < offset:
            queue.popleft()
        return self.first_unstable_offset()

    def oldest_open_transaction(self) -> OpenTransaction | None:
        return next(self.open_transactions(), None)

    def open_transactions(self) -> Iterator[OpenTransaction]:
        """In the order of their first offsets."""
        for first_offset, (producer_id, since_ms, is_exact) in self._ongoing.items():
            yield OpenTransaction(first_offset, producer_id, self.entries[producer_id].epoch, since_ms, is_exact)

    # Loading and expiry

    def reset(self, entries: Iterable[ProducerEntry], offset: int) -> None:
        """Start again from a snapshot at `offset`; what follows is replayed by the caller."""
        self.entries = {entry.producer_id: entry for entry in entries}
        opened = sorted(
            (entry.txn_first_offset, Opened(entry.producer_id))
            for entry in self.entries.values()
            if entry.txn_first_offset != NO_OFFSET
        )
        self._ongoing = OrderedDict(opened)
        self.end_offset = offset
        queue = self._unreplicated
        while queue and queue[-1][0] >= offset:
            queue.pop()

    def recall(self, times: Mapping[int, ProducerTime], now_ms: int) -> bool:
        """Set when loaded and replayed entries were appended; False where `times` does not tell it of all entries."""
        is_complete = True
        for producer_id, entry in self.entries.items():
            if entry.appended_ms == NO_TIMESTAMP:
                known = times.get(producer_id)
                appended_ms = now_ms
                if known is not None and known.state == state_of(entry):
                    appended_ms = min(known.appended_ms, now_ms)
                else:
                    is_complete = False
                self.entries[producer_id] = entry._replace(appended_ms=appended_ms)
        for first_offset, opened in self._ongoing.items():
            if opened.since_ms == NO_TIMESTAMP:
                known = times.get(opened.producer_id)
                since_ms, is_exact = now_ms, False
                if known is not None and known.txn_first_offset == first_offset:
                    since_ms, is_exact = min(known.since_ms, now_ms), known.is_exact
                self._ongoing[first_offset] = Opened(opened.producer_id, since_ms, is_exact)
        return is_complete

    def times(self) -> tuple[list[ProducerEntry], dict[int, Opened]]:
        """What the file `producer-times` keeps, as it is now."""
        return list(self.entries.values()), dict(self._ongoing)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove producers that were silent too long, but none with an open transaction (KAFKA-16229: in place)."""
        expired = [entry.producer_id for entry in self.entries.values() if is_expired(entry, now_ms, expiration_ms)]
        for producer_id in expired:
            del self.entries[producer_id]
        stale = [pid for pid, entry in self._verifications.items() if now_ms - entry.timestamp >= expiration_ms]
        for producer_id in stale:
            del self._verifications[producer_id]
        return len(expired)

    def rows(self) -> list[ProducerRow]:
        return [
            ProducerRow(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
            for entry in self.entries.values()
        ]
