"""A partition's log: batches appended at the end, read by offset.

1. LSO <= high watermark <= log end, and no reader gets an offset at or beyond its bound.
2. A batch is in the log or it is not: a rejected one leaves no trace.
3. The producers' table, the indexes and the epochs are what a replay of the batches gives.
4. Appending and reading cost the same whatever the length of the log, the number of producers and of open transactions.
5. Batches are not unpacked, except on compacted topics and to answer a look-up by time.

A log is made of parts, each with its own state and rules: bounds, health, durability and syncing, segments, producers,
epochs, aborted transactions, the appender, the reader, truncation and the swap of cleaned segments. This class puts
them together, opens the log when it is first used, and checks before each change that the log works. All methods run
on the event loop.
"""

import logging
from collections.abc import Callable, Sequence

from twofold.config.topic import LogConfig
from twofold.log.api import (
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
from twofold.log.appending.appender import LogAppender
from twofold.log.appending.writer import BatchWriter
from twofold.log.bounds import LogBounds
from twofold.log.cleaning.dirty_range import CleanableRange
from twofold.log.cleaning.swap import SegmentSwap
from twofold.log.durability.flush_plan import FlushPlan
from twofold.log.durability.health import LogHealth
from twofold.log.durability.points import Durability
from twofold.log.durability.syncing import LogSync
from twofold.log.environment import LogContext, LogEnvironment
from twofold.log.indexes.aborted import AbortedIndex
from twofold.log.producers.log_producers import LogProducers
from twofold.log.producers.times import TimesToKeep
from twofold.log.recovery.epochs import EpochCache
from twofold.log.recovery.opening import DirectoryListing, OpenedLog
from twofold.log.recovery.unopened import UnopenedLog
from twofold.log.segments.reading import LogReader
from twofold.log.segments.scan import InvalidBatch
from twofold.log.segments.segment_list import SegmentList
from twofold.log.truncation import LogTruncation
from twofold.records.batch import Buffer
from twofold.types import NO_TIMESTAMP, ProducerEpoch, ProducerId, TopicId, TopicPartition

log = logging.getLogger("twofold.log")


class PartitionLog:
    __slots__ = (
        "_aborted",
        "_appender",
        "_bounds",
        "_context",
        "_durability",
        "_epochs",
        "_health",
        "_producers",
        "_reader",
        "_segments",
        "_swap",
        "_sync",
        "_unopened",
        "_writer",
        "__weakref__",
    )

    def __init__(
        self,
        environment: LogEnvironment,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: TopicId | None = None,
        listing: DirectoryListing | None = None,
        closed_cleanly: bool = False,
        sync_failed: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        cleaned_offset: int = 0,
    ) -> None:
        """With a `listing` the log is there and is opened when it is first used; without, it is a new one."""
        context = self._context = LogContext(self, environment, directory, topic_partition, config, topic_id)
        log_end = max(recovery_point, log_start_offset)
        bounds = self._bounds = LogBounds(log_start_offset, log_end, high_watermark, cleaned_offset)
        health = self._health = LogHealth(context, bounds, sync_failed=sync_failed)
        durability = self._durability = Durability(recovery_point, closed_cleanly=closed_cleanly)
        producers = self._producers = LogProducers(context)
        epochs = self._epochs = EpochCache()
        segments = self._segments = SegmentList(context, bounds, health, durability, producers)
        aborted = self._aborted = AbortedIndex(segments, producers)
        self._reader = LogReader(context, bounds, segments, aborted)
        sync = self._sync = LogSync(context, bounds, health, durability, segments, producers, epochs)
        self._writer = BatchWriter(context, bounds, health, durability, segments, producers, epochs, aborted, sync)
        self._appender = LogAppender(context, bounds, producers, self._writer)
        self._swap: SegmentSwap | None = None
        self._unopened: UnopenedLog | None = None
        if listing is not None:
            self._unopened = UnopenedLog(context, bounds, health, durability, listing, closed_cleanly=closed_cleanly)

    def __repr__(self) -> str:
        return f"<log {self.topic_partition} [{self.log_start_offset}, {self.log_end_offset})>"

    # What it is

    @property
    def directory(self) -> str:
        return self._context.directory

    @property
    def topic_partition(self) -> TopicPartition:
        return self._context.topic_partition

    @property
    def config(self) -> LogConfig:
        return self._context.config

    def update_config(self, config: LogConfig) -> None:
        self._context.config = config

    @property
    def topic_id(self) -> TopicId | None:
        return self._context.topic_id

    @topic_id.setter
    def topic_id(self, topic_id: TopicId | None) -> None:
        self._context.topic_id = topic_id

    def set_topic_id(self, topic_id: TopicId) -> None:
        """Say which topic the log belongs to. The file that names the topic is written again where a crash took it."""
        if self._context.topic_id is None:
            self._context.topic_id = topic_id
            if self.exists:
                self._segments.write_topic_id()

    @property
    def exists(self) -> bool:
        """Whether there is anything on disk."""
        return bool(self._segments.all) or self._unopened is not None

    @property
    def size_bytes(self) -> int:
        if self._unopened is not None:
            return self._unopened.size_bytes
        return sum(segment.size for segment in self._segments.all)

    @property
    def segment_count(self) -> int:
        return len(self._segments.all) if self._unopened is None else len(self._unopened.listing.bases)

    def segment_sizes(self) -> list[tuple[int, int]]:
        """(base offset, bytes) of every segment of an open log, the active one last."""
        return [(segment.base_offset, segment.size) for segment in self._segments.all]

    # How far it reaches

    @property
    def log_start_offset(self) -> int:
        return self._bounds.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._bounds.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._bounds.high_watermark

    @property
    def last_stable_offset(self) -> int:
        if self._unopened is not None:
            self._open()
        return self._bounds.last_stable_offset

    @property
    def recovery_point(self) -> int:
        return self._durability.recovery_point

    @property
    def durable_log_start(self) -> int:
        """The log start that a checkpoint may claim. After a crash nothing below it is looked at."""
        return self._sync.durable_log_start

    @property
    def cleaned_offset(self) -> int:
        """Compaction has been through the whole segments below it."""
        return self._bounds.cleaned_offset

    @cleaned_offset.setter
    def cleaned_offset(self, offset: int) -> None:
        self._bounds.cleaned_offset = offset

    def bound(self, bound: Bound) -> int:
        """The first offset that a reader with this bound may not see."""
        if self._unopened is not None and bound is Bound.LAST_STABLE:
            self._open()
        return self._bounds.of(bound)

    def advance_high_watermark(self, offset: int) -> bool:
        """Raise the high watermark, at most to the log end; False when it stays."""
        bounds = self._bounds
        if offset > bounds.log_end_offset:
            offset = bounds.log_end_offset
        if offset <= bounds.high_watermark:
            return False
        if self._unopened is None:
            bounds.set_high_watermark(offset, self._producers.table)
        else:
            bounds.high_watermark = offset  # the rest follows when the log is opened
        return True

    def take_high_watermark(self, offset: int) -> bool:
        """Take the leader's high watermark over, as far as the log reaches; False when it stays. It may go down: a new
        leader has yet to hear from its followers.

        A transaction that was below the high watermark once stays decided, so the last stable offset goes down no
        further than the high watermark.
        """
        bounds = self._bounds
        offset = max(min(offset, bounds.log_end_offset), bounds.log_start_offset)
        if offset == bounds.high_watermark:
            return False
        self._set_high_watermark(offset)
        return True

    def clamp_high_watermark(self) -> None:
        """A checkpointed high watermark may lie outside of what is left of the log."""
        self._set_high_watermark(self._bounds.clamped_high_watermark())

    def _set_high_watermark(self, offset: int) -> None:
        if self._unopened is None:
            self._bounds.set_high_watermark(offset, self._producers.table)
        else:
            self._bounds.high_watermark = offset  # the rest follows when the log is opened

    # Whether it works

    @property
    def failure(self) -> str | None:
        """Why the log takes no more appends; None while it does."""
        return self._health.failure

    @property
    def sync_failed(self) -> bool:
        """Whether a sync failed, so that pages which can be read need not be on disk."""
        return self._health.sync_failed

    def mark_sync_failed(self) -> None:
        """A sync failed: later ones may succeed and mean nothing."""
        self._health.mark_sync_failed()

    @property
    def generation(self) -> int:
        """Changes when the log is cut or given up: what was planned before must not happen after."""
        return self._durability.generation

    # Opening

    @property
    def is_open(self) -> bool:
        """Whether the files were looked at since the start; a new log is open without having any."""
        return self._unopened is None

    def ensure_open(self) -> None:
        """Read what is on disk, if that did not happen yet."""
        if self._unopened is not None:
            self._open()

    def read_ahead(self) -> Callable[[], None]:
        """What a thread may do before a log is opened, so that the opening does not have to wait for the disk."""
        assert self._unopened is not None
        return self._unopened.read_ahead()

    async def open_in_background(self, is_over: Callable[[], bool]) -> None:
        """`ensure_open` in a thread, for a log that is not in use yet; raises what went wrong."""
        assert self._unopened is not None
        self._adopt(await self._unopened.open_in_background(is_over))

    def _check_usable(self) -> None:
        self._health.check()
        self.ensure_open()

    def _open(self) -> None:
        self._health.check()
        assert self._unopened is not None
        try:
            self._adopt(self._unopened.open())
        except (OSError, InvalidBatch) as error:
            self._health.fail("cannot be opened", error)

    def _adopt(self, opened: OpenedLog) -> None:
        """Hand out to the parts what an opening found."""
        assert self._unopened is not None
        expected = self.log_end_offset if self._unopened.skip_recovery_on_open else opened.log_end_offset
        self._unopened = None
        latest = self._epochs.latest
        self._segments.adopt(opened.segments)
        self._aborted.bases = opened.aborted_bases
        self._producers.adopt(opened.producers, opened.snapshots, times_are_kept=opened.times_are_kept)
        self._epochs.adopt(opened.epochs)
        self._adopt_bounds(opened, expected)
        durability = self._durability
        durability.unchanged_since_clean_shutdown = not opened.recovered
        if opened.recovered:
            durability.epochs.note()
            durability.note_directory()
        if durability.cut(opened.recovery_point):
            self._context.recovery_point_changed()
        durability.derived_point = opened.derived_point
        if latest > self._epochs.latest:
            self._writer.assign_epoch(latest, opened.log_end_offset)
        self.clamp_high_watermark()

    def _adopt_bounds(self, opened: OpenedLog, expected: int) -> None:
        bounds, directory = self._bounds, self.directory
        bounds.log_start_offset = opened.log_start_offset
        bounds.log_end_offset = opened.log_end_offset
        if expected != opened.log_end_offset:
            log.warning("%s ends at %d, its checkpoint said %d", directory, opened.log_end_offset, expected)
        if bounds.cleaned_offset > opened.log_end_offset:
            text = "%s: compacted up to %d, its checkpoint says, and it ends at %d; it counts as not compacted"
            log.warning(text, directory, bounds.cleaned_offset, opened.log_end_offset)
            bounds.cleaned_offset = 0

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
        if self._health.failure is not None or self._unopened is not None:
            self._check_usable()
        if origin is Origin.CLIENT:
            return self._appender.append_client(
                records, leader_epoch, transaction_version, guard, allow_zstd, defer_flush
            )
        return self._appender.append_internal(records, origin, leader_epoch, transaction_version, guard, defer_flush)

    def append_record(
        self, key: bytes, value: bytes | None, *, leader_epoch: int, defer_flush: bool = False
    ) -> AppendResult:
        """Append one record of a coordinator, outside of any transaction, in a batch of its own."""
        if self._health.failure is not None or self._unopened is not None:
            self._check_usable()
        return self._appender.append_record(key, value, leader_epoch, defer_flush)

    def append_markers(
        self, markers: Sequence[TransactionMarker], *, leader_epoch: int, defer_flush: bool = False
    ) -> MarkersResult:
        """End transactions with one write. Each marker is checked on its own: one that is refused stops no other."""
        if self._health.failure is not None or self._unopened is not None:
            self._check_usable()
        return self._appender.append_markers(markers, leader_epoch, defer_flush)

    def append_replicated(self, records: Buffer, *, last_epoch: int | None = None, defer_flush: bool = False) -> bool:
        """Append what the leader has: batches that carry their offsets and epochs. A cut-off last one is left out, and
        so is what follows the first batch of an epoch later than `last_epoch`.

        With `defer_flush` it is for the caller to await `sync()` where the result says that a flush is due.
        """
        self._check_usable()
        return self._appender.append_replicated(records, self._epochs.latest, last_epoch, defer_flush)

    def roll(self) -> None:
        """Seal the active segment and begin a new one; nothing where nothing was written."""
        self._check_usable()
        self._segments.roll()

    # Reading

    def read(self, offset: int, max_bytes: int, bound: Bound, *, at_least_one: bool = True) -> ReadResult:
        """Whole batches from the one that holds `offset`, at most `max_bytes` of one segment, none beyond the bound.

        With `at_least_one` the first batch is given even if it alone is larger.
        """
        if self._unopened is not None:
            self._open()
        return self._reader.read(offset, max_bytes, bound, at_least_one)

    def offset_for_timestamp(self, timestamp: int, bound: Bound) -> TimestampOffset | None:
        """The first record from this time on; None when there is none below the bound."""
        self.ensure_open()
        return self._reader.offset_for_timestamp(timestamp, bound)

    def offset_of_max_timestamp(self, bound: Bound) -> TimestampOffset | None:
        """The first record with the greatest timestamp; None when it is at or beyond the bound."""
        self.ensure_open()
        return self._reader.offset_of_max_timestamp(bound)

    # Leadership

    @property
    def leader_epoch(self) -> int:
        """The latest epoch that is known here, -1 before the first."""
        if self._unopened is not None and self._epochs.latest < 0:
            self._open()
        return self._epochs.latest

    def assign_leader_epoch(self, epoch: int) -> None:
        """Begin an epoch at the log end; it is forgotten again if no record follows before the next."""
        if epoch > self._epochs.latest:
            self._writer.assign_epoch(epoch, self.log_end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the last epoch up to this one, (-1, -1) for one that has not begun."""
        self.ensure_open()
        known, end = self._epochs.end_offset_for(epoch, self.log_end_offset)
        # Epochs that ended below the log start are as good as unknown; they are forgotten with their segments.
        return (epoch, self.log_start_offset) if 0 <= end <= self.log_start_offset and known >= 0 else (known, end)

    def epoch_for_offset(self, offset: int) -> int:
        self.ensure_open()
        return self._epochs.epoch_for(offset)

    # Producers

    def start_verification(
        self, producer_id: ProducerId, epoch: ProducerEpoch, sequence: int, supports_epoch_bump: bool = True
    ) -> int | None:
        """The guard that the first batch of a transaction must bring; None when the transaction is open already."""
        if self._health.failure is not None or self._unopened is not None:
            self._check_usable()
        return self._producers.start_verification(producer_id, epoch, sequence, supports_epoch_bump)

    @property
    def producer_count(self) -> int:
        """How many producers are remembered; none before the log is opened."""
        return len(self._producers.table.entries)

    def producers(self) -> list[ProducerRow]:
        self.ensure_open()
        return self._producers.table.rows()

    def was_ended_by_hand(self, producer_id: ProducerId, epoch: ProducerEpoch, *, since_ms: int = NO_TIMESTAMP) -> bool:
        """Whether an administrator, and not the coordinator, ended what the producer wrote under this epoch.

        The coordinator's marker would have a higher epoch (from transaction.version 2 on). `since_ms` leaves out what
        ended before.
        """
        self.ensure_open()
        return self._producers.was_ended_by_hand(producer_id, epoch, since_ms)

    def has_lost_transaction(self, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        """Whether the log begins behind the first record of what the producer has open under this epoch."""
        self.ensure_open()
        return self._producers.has_open_transaction_before(self.log_start_offset, producer_id, epoch)

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers that appended nothing for producer.id.expiration.ms; returns how many."""
        return self._producers.expire(now_ms)

    def oldest_open_transaction(self) -> OpenTransaction | None:
        """The transaction that was opened first; none before the log is opened."""
        return self._producers.table.oldest_open_transaction()

    def open_transactions(self) -> list[OpenTransaction]:
        """In the order of their offsets; nothing is read for it."""
        return list(self._producers.table.open_transactions())

    def take_times(self) -> TimesToKeep | None:
        """When producers wrote, to be written to a file; None where the file is up to date."""
        if self._health.failure is not None or not self._segments.all:
            return None
        return self._producers.take_times()

    # Getting onto the disk

    def flush(self, up_to: int | None = None) -> None:
        """Sync everything below `up_to` before returning; without `up_to`, the whole log."""
        self._sync.flush(up_to)

    async def sync(self) -> None:
        """Return when everything that is in the log now survives a power cut."""
        await self._sync.sync()

    async def wait_for_sync(self) -> None:
        """Return when no thread is syncing this log."""
        await self._sync.wait()

    def begin_scheduled_flush(self) -> None:
        """The timer of flush.ms has run out; the next append may start another."""
        self._durability.flush_is_scheduled = False

    def close(self) -> None:
        """Leave on disk what a clean start needs: everything synced, indexes complete, a snapshot at the log end."""
        self._sync.close()

    def prepare_close(self) -> FlushPlan | None:
        """What a thread still has to write; None when all is on disk. After this nothing is appended any more."""
        return self._sync.prepare_close()

    def finish_close(self, plan: FlushPlan) -> None:
        self._sync.finish_close(plan)

    def abandon(self) -> None:
        """Give the files up, because they get another name or another log object."""
        self._health.close()
        self._durability.generation += 1
        self._segments.abandon()

    # Cutting

    def _truncation(self) -> LogTruncation:
        """Made when it is needed: a broker has many logs, and few are cut at the same time."""
        return LogTruncation(
            self._context,
            self._bounds,
            self._health,
            self._durability,
            self._segments,
            self._producers,
            self._epochs,
            self._aborted,
            self._reader,
            self._sync,
            self.swap,
        )

    def truncate_to(self, offset: int) -> None:
        """Remove all batches that end at `offset` or later."""
        self._check_usable()
        self._truncation().truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything; the next batch gets `offset`."""
        self._check_usable()
        self._truncation().truncate_fully_and_start_at(offset)

    def advance_log_start(self, offset: int) -> None:
        """Make `offset` the first one that can be read; whole segments below it go with the next retention."""
        self._check_usable()
        self._truncation().advance_log_start(offset)

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that the limits let go; returns how many."""
        self._check_usable()
        return self._truncation().apply_retention(now_ms)

    def raise_log_start_for_retention(self, now_ms: int) -> bool:
        """The first half of retention; True when segments can go once the log start is on disk."""
        self._check_usable()
        return self._truncation().raise_log_start_for_retention(now_ms)

    def delete_old_segments(self) -> int:
        """The second half: take away segments that end at or below the log start, which is on disk by now."""
        self._check_usable()
        return self._truncation().delete_old_segments()

    def take_deleted_files(self, steady_ms: int) -> list[str]:
        """Files that were renamed to .deleted at least file.delete.delay.ms ago; the caller removes them."""
        return self._segments.take_deleted_files(steady_ms)

    # Compaction; `swap` has the steps that put cleaned segments in the place of old ones

    @property
    def swap(self) -> SegmentSwap:
        if self._swap is None:
            self._swap = SegmentSwap(
                self._context,
                self._bounds,
                self._health,
                self._durability,
                self._segments,
                self._producers,
                self._aborted,
                self._reader,
            )
        return self._swap

    @property
    def may_be_dirty(self) -> bool:
        """Whether the cleaner should look at the log. Asking does not open the log."""
        if not self.config.is_compacted or self.failure is not None:
            return False
        bases = self._segments.bases if self._unopened is None else self._unopened.listing.bases
        return len(bases) > 1 and self.cleaned_offset < bases[-1]

    def cleanable_range(self, now_ms: int) -> CleanableRange:
        self.ensure_open()
        return self.swap.cleanable_range(now_ms)
