"""A partition's log: batches appended at the end, read by offset.

1. LSO <= high watermark <= log end, and no reader gets an offset at or beyond its bound.
2. A batch is in the log or it is not: a rejected one leaves no trace (checks first, then bytes, then state).
3. The producers' table, the indexes and the epochs are what a replay of the batches gives.
4. Appending and reading cost the same whatever the length of the log, the number of producers and of open transactions.
5. Batches are not unpacked, except on compacted topics and to answer a look-up by time.

All methods run on the event loop; the files are the business of the classes it extends.
"""

import errno
import logging
from bisect import bisect_left
from collections.abc import Sequence
from typing import NoReturn

from twofold.log.api import (
    AbortedTransaction,
    AppendResult,
    Bound,
    MarkersResult,
    OpenTransaction,
    Origin,
    ProducerRow,
    ReadResult,
    TimestampOffset,
    TransactionMarker,
)
from twofold.log.cutting import CuttableLog
from twofold.log.producers.entry import NO_OFFSET, ProducerEntry
from twofold.log.producers.table import AppendChecks, Change, marker_checks
from twofold.log.segments.lookup import find_max_timestamp, find_timestamp
from twofold.log.segments.scan import InvalidBatch
from twofold.log.segments.segment import Segment
from twofold.log.stamping import (
    StoredBatch,
    internal_batches,
    marker_batch,
    marker_of,
    replicated_batches,
    stamp_batch,
    stored_bytes,
)
from twofold.records.batch import MAGIC, MAGIC_POSITION, Buffer, Header, single_record_batch
from twofold.records.client_batch_checks import validate_client_batch
from twofold.types import NO_TIMESTAMP
from twofold.wire.errors import CorruptMessage, KafkaError, KafkaStorageError, OffsetOutOfRange

log = logging.getLogger("twofold.log")

POSITION_CACHE_SIZE = 32
COMPLAIN_EVERY_S = 10.0
NEVER_MS = 2**63 - 1  # flush.ms that nobody set

_new_tuple = tuple.__new__


class PartitionLog(CuttableLog):
    __slots__ = ()

    # Appending

    def append(
        self,
        records: Buffer,
        *,
        origin: Origin = Origin.CLIENT,
        leader_epoch: int,
        transaction_version: int = 2,
        guard: int | None = None,
        allow_zstd: bool = True,
        defer_flush: bool = False,
    ) -> AppendResult:
        """Append as the leader: one batch of a client, or what a coordinator or the metadata quorum wrote.

        With `defer_flush` the caller awaits `sync()` before it acknowledges a result that has `flush_due`; without, an
        append that reaches flush.messages syncs before it returns.
        """
        if self._failure is not None or self._listing is not None:
            self._check_usable()
        if origin is not Origin.CLIENT:
            return self._append_internal(records, origin, leader_epoch, transaction_version, guard, defer_flush)
        config = self.config
        now_ms = self._environment.clock.wall_ms()
        header = validate_client_batch(
            records,
            max_message_bytes=config.max_message_bytes,
            compacted=config.is_compacted,
            now_ms=now_ms,
            timestamp_type=config.message_timestamp_type,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            allow_zstd=allow_zstd,
            topic_partition=self.topic_partition,
        )
        append_time_ms = now_ms if config.message_timestamp_type == "LogAppendTime" else None
        if append_time_ms is not None:
            header = header._replace(max_timestamp=append_time_ms)
        base_offset = self.log_end_offset
        change = None
        if header.producer_id >= 0:
            known = self._producers.find_duplicate(header)
            if known is not None:
                # Kafka answers with the stored timestamp whatever the topic's timestamp type is.
                time_ms = known.timestamp
                return AppendResult(known.first_offset, known.last_offset, time_ms, self.log_start_offset, True)
            checks = AppendChecks(origin, transaction_version, guard, self._environment.verification_enabled)
            change = self._producers.evaluate(header, base_offset, None, checks, now_ms)
        data, stored = stored_bytes(records, header, config)
        stamp_batch(data, 0, stored, base_offset, leader_epoch, append_time_ms)
        if stored.batch_length != header.batch_length:
            # Compressed anew. The time to index stays the one that was stamped.
            header = stored._replace(max_timestamp=header.max_timestamp)
        reserve = self._environment.reserve
        if reserve is None:
            return self._commit_one(
                data, header, base_offset, change, leader_epoch, now_ms, append_time_ms, defer_flush
            )
        reserve.serves_client = True
        try:
            return self._commit_one(
                data, header, base_offset, change, leader_epoch, now_ms, append_time_ms, defer_flush
            )
        finally:
            reserve.serves_client = False

    def append_record(
        self, key: bytes, value: bytes | None, *, leader_epoch: int, defer_flush: bool = False
    ) -> AppendResult:
        """Append one record of a coordinator, outside of any transaction, in a batch of its own.

        What `append` does with a batch of a coordinator, without building it first and parsing it again.
        """
        if self._failure is not None or self._listing is not None:
            self._check_usable()
        now_ms = self._environment.clock.wall_ms()
        stamps = self.config.stamps_append_time
        offset = self.log_end_offset
        header, data = single_record_batch(key, value, now_ms, offset, leader_epoch, stamps)
        append_time_ms = now_ms if stamps else None
        return self._commit_one(data, header, offset, None, leader_epoch, now_ms, append_time_ms, defer_flush)

    def _append_internal(
        self,
        records: Buffer,
        origin: Origin,
        leader_epoch: int,
        transaction_version: int,
        guard: int | None,
        defer_flush: bool,
    ) -> AppendResult:
        """Any number of batches, all or none; nobody checks their sequence numbers."""
        now_ms = self._environment.clock.wall_ms()
        append_time_ms = now_ms if self.config.stamps_append_time else None
        checks = AppendChecks(origin, transaction_version, guard, self._environment.verification_enabled)
        pending: dict[int, ProducerEntry] = {}
        batches: list[StoredBatch] = []
        data = bytearray(records)
        offset = self.log_end_offset
        for at, header in internal_batches(records):
            if append_time_ms is not None:
                header = header._replace(max_timestamp=append_time_ms)
            change = None
            marker = marker_of(records, at, header)
            if header.producer_id >= 0 and (marker is not None or not header.is_control):
                change = self._producers.evaluate(header, offset, marker, checks, now_ms, pending)
                pending[header.producer_id] = change.entry
            stamp_batch(data, at, header, offset, leader_epoch, append_time_ms)
            batches.append(StoredBatch(at, header, offset, change))
            offset += header.last_offset_delta + 1
        return self._commit(data, batches, leader_epoch, now_ms, append_time_ms, defer_flush)

    def append_markers(
        self, markers: Sequence[TransactionMarker], *, leader_epoch: int, defer_flush: bool = False
    ) -> MarkersResult:
        """End transactions, each on its own: what refuses one marker does not concern the others, and one write does.

        Every transaction passes here. Unlike `append` it writes bytes of its own, of which nothing is to be checked.
        """
        if self._failure is not None or self._listing is not None:
            self._check_usable()
        if len(markers) == 1:
            return self._append_marker(markers[0], leader_epoch, defer_flush)
        now_ms = self._environment.clock.wall_ms()
        stamps = self.config.stamps_append_time
        outcomes: list[int | KafkaError] = []
        pending: dict[int, ProducerEntry] = {}
        batches: list[StoredBatch] = []
        data = b""
        offset = self.log_end_offset
        for marker in markers:
            header, batch = marker_batch(marker, offset, leader_epoch, now_ms, stamps)
            try:
                change = self._producers.evaluate(header, offset, marker, marker_checks(marker), now_ms, pending)
            except KafkaError as error:
                outcomes.append(error)
                continue
            pending[marker.producer_id] = change.entry
            batches.append(StoredBatch(len(data), header, offset, change))
            outcomes.append(offset)
            data += batch
            offset += 1
        if not batches:
            return MarkersResult(outcomes, None)
        append_time_ms = now_ms if stamps else None
        appended = self._commit(data, batches, leader_epoch, now_ms, append_time_ms, defer_flush)
        return MarkersResult(outcomes, appended)

    def _append_marker(self, marker: TransactionMarker, leader_epoch: int, defer_flush: bool) -> MarkersResult:
        now_ms = self._environment.clock.wall_ms()
        stamps = self.config.stamps_append_time
        offset = self.log_end_offset
        header, data = marker_batch(marker, offset, leader_epoch, now_ms, stamps)
        try:
            change = self._producers.evaluate(header, offset, marker, marker_checks(marker), now_ms)
        except KafkaError as error:
            return MarkersResult([error], None)
        append_time_ms = now_ms if stamps else None
        appended = self._commit_one(data, header, offset, change, leader_epoch, now_ms, append_time_ms, defer_flush)
        return MarkersResult([offset], appended)

    def append_replicated(self, records: Buffer) -> None:
        """Append what the leader has: batches that carry their offsets and epochs. A cut-off last one is left out."""
        self._check_usable()
        now_ms = self._environment.clock.wall_ms()
        pending: dict[int, ProducerEntry] = {}
        batches: list[StoredBatch] = []
        end = 0
        for at, header in replicated_batches(records, self.log_end_offset):
            change = None
            marker = marker_of(records, at, header)
            if header.producer_id >= 0 and (marker is not None or not header.is_control):
                change = self._producers.evaluate(header, header.base_offset, marker, None, now_ms, pending)
                pending[header.producer_id] = change.entry
            batches.append(StoredBatch(at, header, header.base_offset, change))
            end = at + header.size
        if batches:
            with memoryview(records) as view:
                self._commit(view[:end], batches, None, now_ms, None, False)

    def _commit(
        self,
        data: Buffer,
        batches: list[StoredBatch],
        leader_epoch: int | None,
        now_ms: int,
        append_time_ms: int | None,
        defer_flush: bool,
    ) -> AppendResult:
        """Write checked batches and let them act. The epochs are those of the batches where no leader says one."""
        base_offset = batches[0].base_offset
        last = batches[-1]
        last_offset = last.base_offset + last.header.last_offset_delta
        try:
            max_timestamp = last.header.max_timestamp
            segment = self._segment_for(len(data), base_offset, last_offset, max_timestamp, now_ms)
            segment.append(data, batches, self.config.index_interval_bytes)
        except OSError as error:
            self._not_written(error)
        self.log_end_offset = self._producers.end_offset = last_offset + 1
        for _, header, offset, change in batches:
            epoch = header.leader_epoch if leader_epoch is None else leader_epoch
            if epoch > self._epochs.latest:
                self._assign_epoch(epoch, offset)
            if change is not None:
                self._take_change(change, header, segment)
        due = self._flush_after_append(defer_flush)
        time_ms = NO_TIMESTAMP if append_time_ms is None else append_time_ms
        return AppendResult(base_offset, last_offset, time_ms, self.log_start_offset, False, due)

    def _commit_one(
        self,
        data: Buffer,
        header: Header,
        base_offset: int,
        change: Change | None,
        leader_epoch: int,
        now_ms: int,
        append_time_ms: int | None,
        defer_flush: bool,
    ) -> AppendResult:
        """`_commit` of a single batch, which is what almost every append is."""
        last_offset = base_offset + header.last_offset_delta
        config = self.config
        try:
            segment = self._segment_for(len(data), base_offset, last_offset, header.max_timestamp, now_ms)
            segment.append_one(data, header, base_offset, config.index_interval_bytes)
        except OSError as error:
            self._not_written(error)
        self.log_end_offset = self._producers.end_offset = last_offset + 1
        if leader_epoch > self._epochs.latest:
            self._assign_epoch(leader_epoch, base_offset)
        if change is not None:
            self._take_change(change, header, segment)
        due = False
        if last_offset - self._durability.recovery_point >= config.flush_messages - 1 or config.flush_ms < NEVER_MS:
            due = self._flush_after_append(defer_flush)
        time_ms = NO_TIMESTAMP if append_time_ms is None else append_time_ms
        return _new_tuple(AppendResult, (base_offset, last_offset, time_ms, self.log_start_offset, False, due))

    def _not_written(self, error: OSError) -> NoReturn:
        """A full disk is no broken one: what was written of the batch goes, and the log works when there is room."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and self._segments:
            try:
                self._segments[-1].forget_rest()
            except OSError as worse:
                self._fail("cannot be written", worse, only_written=True)
            raise KafkaStorageError(f"{self.topic_partition}: the disk is full") from error
        self._fail("cannot be written", error, only_written=True)

    def _take_change(self, change: Change, header: Header, segment: Segment) -> None:
        """Let a batch act on its producer.

        The last stable offset stays: what begins or ends here lies beyond the high watermark, and counts when that
        moves.
        """
        aborted = self._producers.apply(change, header)
        if aborted is not None:
            segment.note_aborted(aborted)
            self._note_aborts_in(segment)

    def _note_aborts_in(self, segment: Segment) -> None:
        if not self._aborted_bases or self._aborted_bases[-1] != segment.base_offset:
            self._aborted_bases.append(segment.base_offset)

    def _flush_after_append(self, defer_flush: bool) -> bool:
        config = self.config
        if self.log_end_offset - self._durability.recovery_point >= config.flush_messages:
            if not defer_flush:
                self.flush()
            return defer_flush
        if config.flush_ms < NEVER_MS and not self.flush_is_scheduled:
            self.flush_is_scheduled = True
            self._environment.owner.flush_wanted(self, config.flush_ms)
        return False

    # Reading

    @property
    def last_stable_offset(self) -> int:
        if self._listing is not None:
            self._open()
        return self._last_stable_offset

    def bound(self, bound: Bound) -> int:
        """The first offset that a reader with this bound may not see."""
        if bound is Bound.HIGH_WATERMARK:
            return self.high_watermark
        return self.log_end_offset if bound is Bound.LOG_END else self.last_stable_offset

    def read(self, offset: int, max_bytes: int, bound: Bound, *, at_least_one: bool = True) -> ReadResult:
        """Whole batches from the one that holds `offset`, at most `max_bytes` of one segment, none beyond the bound.

        With `at_least_one` the first batch is given even if it alone is larger.
        """
        if self._listing is not None:
            self._open()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: offset {offset} is outside of [{self.log_start_offset}, "
                f"{self.log_end_offset}]"
            )
        records = b""
        end_offset = upper = self.bound(bound)
        if offset < upper:
            try:
                records, end_offset = self._read(offset, max_bytes, upper, at_least_one)
            except (OSError, InvalidBatch) as error:
                records, end_offset = self._read_again(offset, max_bytes, upper, at_least_one, error)
        aborted = None
        if bound is Bound.LAST_STABLE:
            aborted = self._aborted_between(offset, end_offset) if records and self._aborted_bases else ()
        return ReadResult(records, self.high_watermark, self._last_stable_offset, self.log_start_offset, aborted)

    def _read_again(
        self, offset: int, max_bytes: int, upper: int, at_least_one: bool, error: Exception
    ) -> tuple[bytes, int]:
        """After bytes that are no batch: perhaps it is the index of the segment that is wrong."""
        segment = self._segments[self._floor(offset)]
        try:
            if isinstance(error, InvalidBatch) and segment is not self._segments[-1] and segment.rebuild_once():
                self._positions.clear()
                return self._read(offset, max_bytes, upper, at_least_one)
        except (OSError, InvalidBatch) as again:
            error = again
        raise self._unreadable(f"at {offset}", error, segment.log_path) from error

    def _read(self, offset: int, max_bytes: int, upper: int, at_least_one: bool) -> tuple[bytes, int]:
        """(records, an offset that none of them reaches)."""
        at = self._floor(offset)
        while at < len(self._segments):
            segment = self._segments[at]
            next_base = self._end_of(at)
            start = self._position(segment, offset)
            limit = segment.size if upper >= next_base else self._position(segment, upper)
            if at < len(self._segments) - 1:
                self._environment.indexes.touch(segment)
            if start < limit:
                return self._read_segment(segment, start, limit, max_bytes, min(upper, next_base), at_least_one)
            if upper <= next_base:
                break
            at += 1
        return b"", upper

    def _read_segment(
        self, segment: Segment, start: int, limit: int, max_bytes: int, upper: int, at_least_one: bool
    ) -> tuple[bytes, int]:
        end = segment.end_of_read(start, max_bytes, limit, at_least_one)
        if end == start:
            return b"", upper
        end_offset = upper if end == limit else segment.base_offset_at(end)
        # Where this reader goes on, and where a bound lies, is asked for again soon.
        if len(self._positions) >= POSITION_CACHE_SIZE:
            del self._positions[next(iter(self._positions))]
        self._positions[end_offset] = (segment.base_offset, end)
        records = segment.read(start, end)
        if len(records) > MAGIC_POSITION and records[MAGIC_POSITION] != MAGIC:
            raise InvalidBatch(start, f"magic {records[MAGIC_POSITION]} where {MAGIC} is known")
        return records, end_offset

    def _position(self, segment: Segment, offset: int) -> int:
        known = self._positions.get(offset)
        if known is not None and known[0] == segment.base_offset:
            return known[1]
        return segment.position_of(offset)

    def _aborted_between(self, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Aborted transactions with records in [start, end); their markers may lie in later segments."""
        found: list[AbortedTransaction] = []
        first = self._bases[self._floor(start)]
        for at in range(bisect_left(self._aborted_bases, first), len(self._aborted_bases)):
            segment = self._segments[self._floor(self._aborted_bases[at])]
            for producer_id, first_offset, _, stable in self._txn_index(segment).entries(start):
                if first_offset < end:
                    found.append(_new_tuple(AbortedTransaction, (producer_id, first_offset)))
                if stable >= end:
                    return tuple(found)
        return tuple(found)

    def _unreadable(self, what: str, error: Exception, path: str = "") -> KafkaError:
        """A failed read says nothing about what is written: it stops nobody but the reader, who may ask very often."""
        now = self._environment.clock.monotonic()
        if now - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = now
            log.error("%s cannot be read %s: %s", path or self.directory, what, error)
        kind = CorruptMessage if isinstance(error, InvalidBatch) else KafkaStorageError
        return kind(f"{self.topic_partition} cannot be read {what}: {error}")

    # Looking up

    def offset_for_timestamp(self, timestamp: int, bound: Bound) -> TimestampOffset | None:
        """The first record from this time on; None when there is none below the bound."""
        self.ensure_open()
        try:
            found = find_timestamp(self._segments, timestamp, self.log_start_offset)
        except (OSError, InvalidBatch) as error:
            raise self._unreadable(f"to find timestamp {timestamp}", error) from error
        return found if found is not None and found.offset < self.bound(bound) else None

    def offset_of_max_timestamp(self, bound: Bound) -> TimestampOffset | None:
        """The first record with the greatest timestamp; None when it is at or beyond the bound."""
        self.ensure_open()
        try:
            found = find_max_timestamp(self._segments)
        except (OSError, InvalidBatch) as error:
            raise self._unreadable("to find its greatest timestamp", error) from error
        return found if found is not None and found.offset < self.bound(bound) else None

    # Leadership

    @property
    def leader_epoch(self) -> int:
        """The latest epoch that is known here, -1 before the first."""
        if self._listing is not None and self._epochs.latest < 0:
            self._open()
        return self._epochs.latest

    def assign_leader_epoch(self, epoch: int) -> None:
        """Begin an epoch at the log end; it is forgotten again if no record follows before the next."""
        if epoch > self._epochs.latest:
            self._assign_epoch(epoch, self.log_end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the last epoch up to this one, (-1, -1) for one that has not begun."""
        self.ensure_open()
        known, end = self._epochs.end_offset_for(epoch, self.log_end_offset)
        # Epochs that ended below the log start are as good as unknown; they are forgotten with their segments.
        return (epoch, self.log_start_offset) if 0 <= end <= self.log_start_offset and known >= 0 else (known, end)

    def epoch_for_offset(self, offset: int) -> int:
        self.ensure_open()
        return self._epochs.epoch_for(offset)

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark, at most to the log end; False when it stays."""
        if offset > self.log_end_offset:
            offset = self.log_end_offset
        if offset <= self.high_watermark:
            return False
        if self._listing is None and self._producers.advance_high_watermark(offset) >= offset:
            # Nothing below is open, and the log start is no further than this.
            self.high_watermark = self._last_stable_offset = offset
        else:
            self._set_high_watermark(offset)
        return True

    # Producers

    def start_verification(
        self, producer_id: int, epoch: int, sequence: int, supports_epoch_bump: bool = True
    ) -> int | None:
        """The guard that the first batch of a transaction must bring; None when the transaction is open already."""
        if self._failure is not None or self._listing is not None:
            self._check_usable()
        environment = self._environment
        return self._producers.start_verification(
            producer_id, epoch, sequence, supports_epoch_bump, environment.clock.wall_ms(), next(environment.guards)
        )

    @property
    def producer_count(self) -> int:
        """How many producers are remembered; none before the log is opened."""
        return len(self._producers.entries)

    def producers(self) -> list[ProducerRow]:
        self.ensure_open()
        return self._producers.rows()

    def was_ended_by_hand(self, producer_id: int, epoch: int, *, since_ms: int = NO_TIMESTAMP) -> bool:
        """Whether somebody else than the coordinator has ended what the producer wrote under this epoch: its own marker
        would have a higher one (from transaction.version 2 on). `since_ms` leaves out what ended before."""
        if self._listing is not None:
            self._open()
        entry = self._producers.entries.get(producer_id)
        if entry is None or entry.epoch != epoch or entry.txn_first_offset != NO_OFFSET or not entry.window:
            return False
        return entry.last_timestamp > since_ms

    def has_lost_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the log begins behind the first record of what the producer has open under this epoch."""
        self.ensure_open()
        entry = self._producers.entries.get(producer_id)
        return (
            entry is not None
            and entry.epoch == epoch
            and entry.txn_first_offset != NO_OFFSET
            and entry.txn_first_offset < self.log_start_offset
        )

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers that appended nothing for producer.id.expiration.ms; returns how many."""
        if self._listing is not None:
            return 0
        return self._producers.expire(now_ms, self._environment.producer_id_expiration_ms)

    def oldest_open_transaction(self) -> OpenTransaction | None:
        """The transaction that was opened first; of a log that nobody opened yet there is none."""
        return self._producers.oldest_open_transaction()

    def open_transactions(self) -> list[OpenTransaction]:
        """In the order of their offsets; nothing is read for it."""
        return list(self._producers.open_transactions())
