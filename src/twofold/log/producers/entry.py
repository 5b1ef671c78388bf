"""The state of one producer in one partition, and what a batch does to it. Pure: no file, no clock.

1. An entry is a value. Checks and changes yield a new entry. An append that rejects its batch drops the new entry, so
   that a rejected batch leaves no trace.
2. The window holds the last five batches of the current epoch. A new epoch, from data or a marker, clears it.
3. The coordinator epoch of an entry never falls, except where a replica repeats what its leader decided. The marker of
   an administrator has none (-1): it passes, and the entry keeps the epoch that it has, live and in replay.
4. Sequence numbers are checked for batches of clients, not for those of a coordinator or of the leader.
5. Two times are kept. `last_timestamp` is that of the newest batch, by the client's clock: DescribeProducers tells it,
   as Apache Kafka does. `appended_ms` is when the newest batch was appended here, by our clock: a producer is forgotten
   by that time, because a client that writes the records of last year is active all the same.
6. A producer id whose transaction ended here, or is open, is a transactional one: a plain batch under it, with whatever
   epoch, comes from another client that would fence the owner. The epoch of a coordinator tells it, so that snapshots
   and replay know it as well.
"""

from typing import NamedTuple

from twofold.log.api import TransactionMarker
from twofold.records.batch import SEQUENCE_MAX, TRANSACTIONAL, Header, decrement_sequence
from twofold.records.control import EndMarker
from twofold.types import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, ProducerEpoch, ProducerId
from twofold.wire.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)

WINDOW = 5
EPOCH_MAX = 32767
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1

_new_tuple = tuple.__new__


class ForeignBatch(InvalidTxnState):
    """A plain batch under the id of a transactional producer, which sends none."""


class BatchMetadata(NamedTuple):
    """What the window keeps of a batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return decrement_sequence(self.last_sequence, self.offset_delta)

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry(NamedTuple):
    producer_id: ProducerId
    epoch: ProducerEpoch
    coordinator_epoch: int  # -1 until the first marker
    last_timestamp: int
    txn_first_offset: int  # of the open transaction, else -1
    window: tuple[BatchMetadata, ...]
    appended_ms: int = NO_TIMESTAMP  # unknown only while a log is being opened or cut

    @property
    def last_sequence(self) -> int:
        return self.window[-1].last_sequence if self.window else NO_SEQUENCE

    @property
    def is_transactional(self) -> bool:
        return self.coordinator_epoch != NO_COORDINATOR_EPOCH or self.txn_first_offset != NO_OFFSET

    def has_open_transaction(self, epoch: ProducerEpoch) -> bool:
        return self.txn_first_offset != NO_OFFSET and self.epoch == epoch


class VerificationEntry(NamedTuple):
    """A transaction whose first batch waits for the coordinator's word (KIP-890)."""

    guard: int
    timestamp: int
    lowest_sequence: int
    epoch: ProducerEpoch
    supports_epoch_bump: bool


class CompletedTransaction(NamedTuple):
    producer_id: ProducerId
    first_offset: int
    last_offset: int  # of the marker
    aborted: bool


def find_duplicate(entry: ProducerEntry, header: Header) -> BatchMetadata | None:
    """The batch of the window that this one repeats: same epoch, same first and same last sequence number."""
    window = entry.window
    if not window or header.base_sequence == window[-1].last_sequence + 1:  # a batch that is in order is no duplicate
        return None
    if header.producer_epoch != entry.epoch:
        return None
    last_sequence = header.last_sequence
    for batch in window:
        if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
            return batch
    return None


def check_guard(
    entry: ProducerEntry | None,
    header: Header,
    verification: VerificationEntry | None,
    guard: int | None,
    enabled: bool,
) -> None:
    """The first batch of a transaction must come with the guard of the verification that is still the current one."""
    if entry is not None:
        if entry.has_open_transaction(header.producer_epoch):
            return
        # The epoch first: a client that is told of a stale epoch aborts and goes on, INVALID_TXN_STATE is fatal to it
        # (KAFKA-18042, KAFKA-19690).
        if header.producer_epoch < entry.epoch:
            raise stale_epoch(entry, header.producer_epoch)
    if not enabled or header.is_control:
        return
    # A token, never an object's identity (KAFKA-15626), and never one that was used before: "verified, aborted, new
    # transaction, late append" must not pass (KAFKA-14884).
    if not guard or verification is None or verification.guard != guard:
        raise InvalidTxnState(
            f"producer {header.producer_id} epoch {header.producer_epoch}: the first batch of a transaction must be "
            "verified with the transaction coordinator, and this one is not (transaction.partition.verification.enable)"
        )


def check_plain(entry: ProducerEntry, header: Header) -> None:
    """Refuse what only a client can send that is not the producer: Kafka takes it, and its epoch fences the owner."""
    if entry.is_transactional:
        raise ForeignBatch(
            f"a batch outside of any transaction has the producer id {header.producer_id}, epoch "
            f"{header.producer_epoch}, and that id is a transactional one (epoch {entry.epoch})"
        )


def stale_epoch(entry: ProducerEntry, epoch: ProducerEpoch) -> InvalidProducerEpoch:
    return InvalidProducerEpoch(
        f"epoch {epoch} of producer {entry.producer_id} is smaller than the last seen epoch {entry.epoch}"
    )


def check_sequence(entry: ProducerEntry | None, header: Header, verification: VerificationEntry | None) -> None:
    sequence = header.base_sequence
    if verification is not None:
        if entry is None and verification.supports_epoch_bump and sequence != 0:
            # Such a producer always starts at 0: its earlier batches are missing (KAFKA-18202).
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id} is unknown here and starts with sequence {sequence}, expected 0"
            )
        if sequence > verification.lowest_sequence:
            # Batches verified at the same time may arrive in the wrong order (KAFKA-14920).
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id} sent sequence {sequence} before {verification.lowest_sequence}"
            )
    if entry is None or entry.epoch == NO_PRODUCER_EPOCH:
        return
    if header.producer_epoch != entry.epoch:
        if sequence != 0:
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id} starts epoch {header.producer_epoch} (after {entry.epoch}) with "
                f"sequence {sequence}, expected 0"
            )
        return
    last = entry.window[-1].last_sequence if entry.window else NO_SEQUENCE
    if sequence != (0 if last == SEQUENCE_MAX else last + 1):
        raise OutOfOrderSequenceNumber(
            f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence {sequence} after {last}"
        )


def after_data(entry: ProducerEntry | None, header: Header, base_offset: int, now_ms: int) -> ProducerEntry:
    """The entry after a data batch at `base_offset`; begins a transaction where the batch does."""
    # Every idempotent batch passes here: bits and sums instead of the header's properties.
    epoch, delta, timestamp = header.producer_epoch, header.last_offset_delta, header.max_timestamp
    coordinator_epoch, txn_first_offset = NO_COORDINATOR_EPOCH, NO_OFFSET
    window: tuple[BatchMetadata, ...] = ()
    if entry is not None:
        coordinator_epoch, txn_first_offset = entry.coordinator_epoch, entry.txn_first_offset
        if entry.epoch == epoch:
            window = entry.window[1 - WINDOW :]
    if header.attributes & TRANSACTIONAL:
        if txn_first_offset == NO_OFFSET:
            txn_first_offset = base_offset
    elif txn_first_offset != NO_OFFSET:
        raise InvalidTxnState(
            f"producer {header.producer_id} sent a batch outside of its transaction that is open since offset "
            f"{txn_first_offset}"
        )
    added = _new_tuple(BatchMetadata, (header.last_sequence, base_offset + delta, delta, timestamp))
    return _new_tuple(
        ProducerEntry,
        (header.producer_id, epoch, coordinator_epoch, timestamp, txn_first_offset, (*window, added), now_ms),
    )


def check_marker(
    entry: ProducerEntry | None,
    header: Header,
    marker: EndMarker | TransactionMarker,
    transaction_version: int,
    by_hand: bool = False,
) -> None:
    if entry is None:
        if marker.coordinator_epoch < NO_COORDINATOR_EPOCH:
            raise _coordinator_fenced(header.producer_id, marker.coordinator_epoch, NO_COORDINATOR_EPOCH)
        return
    epoch = header.producer_epoch
    if epoch < entry.epoch:
        raise stale_epoch(entry, epoch)
    # From transaction version 2 on every transaction ends with a higher epoch, so that a late marker cannot end the
    # next one (KAFKA-19446). A repeated marker passes, and so does one with the highest epoch of all (KAFKA-19999).
    if transaction_version >= 2 and epoch == entry.epoch and entry.txn_first_offset != NO_OFFSET and epoch != EPOCH_MAX:
        raise InvalidProducerEpoch(
            f"the marker's epoch {epoch} must be higher than that of the transaction which producer "
            f"{header.producer_id} has open since offset {entry.txn_first_offset}"
        )
    if by_hand and marker.coordinator_epoch == NO_COORDINATOR_EPOCH:
        return
    if marker.coordinator_epoch < entry.coordinator_epoch:
        raise _coordinator_fenced(header.producer_id, marker.coordinator_epoch, entry.coordinator_epoch)


def _coordinator_fenced(producer_id: ProducerId, epoch: int, last_seen: int) -> TransactionCoordinatorFenced:
    return TransactionCoordinatorFenced(
        f"a marker for producer {producer_id} comes from coordinator epoch {epoch}, smaller than the last seen "
        f"{last_seen}"
    )


def after_marker(
    entry: ProducerEntry | None, header: Header, marker: EndMarker | TransactionMarker, offset: int, now_ms: int
) -> tuple[ProducerEntry, CompletedTransaction | None]:
    """The entry after a marker, and the transaction that it ended if that held any data."""
    completed = None
    window: tuple[BatchMetadata, ...] = ()
    coordinator_epoch = marker.coordinator_epoch
    if entry is not None:
        if coordinator_epoch == NO_COORDINATOR_EPOCH:
            coordinator_epoch = entry.coordinator_epoch
        if entry.txn_first_offset != NO_OFFSET:
            completed = CompletedTransaction(header.producer_id, entry.txn_first_offset, offset, not marker.commit)
        if entry.epoch == header.producer_epoch:
            window = entry.window
    # The marker counts as activity: a producer must not expire right after a long transaction (KAFKA-9144).
    epoch, timestamp = header.producer_epoch, header.max_timestamp
    updated = _new_tuple(
        ProducerEntry,
        (header.producer_id, epoch, coordinator_epoch, timestamp, NO_OFFSET, window, now_ms),
    )
    return updated, completed


def is_expired(entry: ProducerEntry, now_ms: int, expiration_ms: int) -> bool:
    return entry.txn_first_offset == NO_OFFSET and now_ms - entry.appended_ms >= expiration_ms
