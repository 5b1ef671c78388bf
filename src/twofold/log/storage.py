"""The files of a partition log: opening, rolling, syncing, cutting, removing.

1. Nothing is on disk before the first append: no directory, no file.
2. What a log says about itself before it is opened (its bounds) comes from the checkpoints of a clean shutdown.
3. Segments are in the order of their offsets; only the last is written to, and each new one starts at the log end.
4. The recovery point is at most the offset up to which a power cut loses nothing, and it goes beyond the end of a
   segment (not only up to it) when its indexes, the snapshot at its end and the epochs are on disk too.
5. After a failed write or sync nothing more is written until the log was opened again (KAFKA-10778).
"""

import asyncio
import logging
import posixpath
from bisect import bisect_left, bisect_right
from typing import NoReturn

from twofold.config.topic import LogConfig
from twofold.log.checkpoints import PARTITION_METADATA, encode_partition_metadata
from twofold.log.durability import Durability, FlushPlan
from twofold.log.environment import LogEnvironment
from twofold.log.epochs import EpochCache
from twofold.log.offset_index import CorruptIndex
from twofold.log.opening import EPOCH_CHECKPOINT, Listing, LogOpener, OpenedLog, rebuild_txn_index, replay
from twofold.log.producer_table import ProducerTable
from twofold.log.retention import count_deletable, should_roll
from twofold.log.scan import InvalidBatch
from twofold.log.segment import Segment, rename_to_deleted
from twofold.log.snapshot_store import SnapshotStore
from twofold.log.snapshots import encode_snapshot
from twofold.log.txn_index import TxnIndex
from twofold.runtime.files import write_atomically
from twofold.types import TopicId, TopicPartition
from twofold.wire.errors import KafkaStorageError, OffsetOutOfRange

log = logging.getLogger("twofold.log")


class LogStorage:
    __slots__ = (
        "config",
        "directory",
        "high_watermark",
        "log_end_offset",
        "log_start_offset",
        "topic_id",
        "topic_partition",
        "_aborted_bases",
        "_bases",
        "_clean",
        "_doomed",
        "_durability",
        "_environment",
        "_epochs",
        "_epochs_changed",
        "_failure",
        "_flush_scheduled",
        "_last_stable_offset",
        "_listing",
        "_positions",
        "_producers",
        "_segments",
        "_snapshots",
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
        listing: Listing | None = None,
        clean: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
    ) -> None:
        """With a `listing` the log is there and is opened when it is first used; without, it is a new one."""
        self._environment = environment
        self.directory = directory
        self.topic_partition = topic_partition
        self.config = config
        self.topic_id = topic_id
        self.log_start_offset = log_start_offset
        self.log_end_offset = max(recovery_point, log_start_offset)
        self.high_watermark = high_watermark
        self._last_stable_offset = high_watermark
        self._listing = listing
        self._clean = clean  # what is on disk is what a clean shutdown leaves
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._aborted_bases: list[int] = []
        self._producers = ProducerTable()
        self._epochs = EpochCache()
        self._epochs_changed = False
        self._snapshots = SnapshotStore(environment.files, directory)
        self._durability = Durability(recovery_point)
        self._doomed: list[tuple[int, list[str]]] = []
        self._positions: dict[int, tuple[int, int]] = {}
        self._failure: str | None = None
        self._flush_scheduled = False

    # State

    @property
    def recovery_point(self) -> int:
        return self._durability.recovery_point

    @property
    def durable_log_start(self) -> int:
        """The log start that a checkpoint may claim: what lies below it is not looked at after a crash."""
        if not self._segments:
            return self.log_start_offset
        start = min(self.log_start_offset, max(self.recovery_point, self._bases[0]))
        return start if self._bases[self._floor(start)] <= self._durability.derived_point else self._bases[0]

    @property
    def failure(self) -> str | None:
        """Why the log takes no more appends; None while it does."""
        return self._failure

    @property
    def is_open(self) -> bool:
        """Whether the files were looked at since the start; a new log is open without having any."""
        return self._listing is None

    @property
    def exists(self) -> bool:
        """Whether there is anything on disk."""
        return bool(self._segments) or self._listing is not None

    @property
    def size_bytes(self) -> int:
        if self._listing is not None:
            path = f"{self.directory}/{{:020d}}.log"
            return sum(self._environment.disk.file_size(path.format(base)) for base in self._listing.bases)
        return sum(segment.size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments) if self._listing is None else len(self._listing.bases)

    def __repr__(self) -> str:
        return f"<log {self.topic_partition} [{self.log_start_offset}, {self.log_end_offset})>"

    def _fail(self, what: str, error: Exception) -> NoReturn:
        if self._failure is None:
            self._failure = f"{what}: {error}"
            log.error(
                "%s: %s at log end %d: %s; no more appends until it is opened again",
                self.directory,
                what,
                self.log_end_offset,
                error,
            )
        raise KafkaStorageError(f"{self.topic_partition}: {what}: {error}") from error

    def update_config(self, config: LogConfig) -> None:
        self.config = config

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise KafkaStorageError(f"{self.topic_partition} failed and was not opened again since: {self._failure}")
        if self._listing is not None:
            self._open()

    # Opening

    def ensure_open(self) -> None:
        """Read what is on disk, if that did not happen yet."""
        if self._listing is not None:
            self._open()

    def _open(self) -> None:
        assert self._listing is not None
        try:
            opener = LogOpener(
                self._environment,
                self.directory,
                self.config,
                self._listing,
                recovery_point=self.recovery_point,
                log_start_offset=self.log_start_offset,
                high_watermark=self.high_watermark,
            )
            self._adopt(opener.open(clean=self._clean))
        except (OSError, InvalidBatch) as error:
            self._fail("cannot be opened", error)

    def _adopt(self, opened: OpenedLog) -> None:
        expected = self.log_end_offset
        self._listing = None
        self._segments = opened.segments
        self._bases = [segment.base_offset for segment in opened.segments]
        self._aborted_bases = opened.aborted_bases
        self._producers = opened.producers
        self._snapshots = opened.snapshots
        latest, self._epochs = self._epochs.latest, opened.epochs
        self.log_start_offset = opened.log_start_offset
        self.log_end_offset = opened.log_end_offset
        if self._clean and expected != opened.log_end_offset:
            log.warning("%s ends at %d, its checkpoint said %d", self.directory, opened.log_end_offset, expected)
        if opened.recovered:
            self._clean = False
            self._epochs_changed = self._durability.names_changed = self._durability.parent_changed = True
        if self._durability.cut(opened.recovery_point):
            self._environment.owner.recovery_point_changed(self)
        self._durability.derived_point = opened.derived_point
        if latest > self._epochs.latest:
            self._assign_epoch(latest, self.log_end_offset)
        self.clamp_high_watermark()

    def clamp_high_watermark(self) -> None:
        """A checkpointed high watermark may lie outside of what is left of the log."""
        self._set_high_watermark(max(min(self.high_watermark, self.log_end_offset), self.log_start_offset))

    def _set_high_watermark(self, offset: int) -> None:
        self.high_watermark = offset
        if self._listing is None:
            self._producers.advance_high_watermark(offset)
            self._update_stable()

    def _update_stable(self) -> None:
        unstable = max(self._producers.first_unstable_offset(), self.log_start_offset)
        self._last_stable_offset = min(unstable, self.high_watermark)

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        if self._epochs.assign(epoch, start_offset):
            self._epochs_changed = True
            self._clean = False

    # Segments

    def _floor(self, offset: int) -> int:
        """The place of the segment that holds `offset`."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def _end_of(self, at: int) -> int:
        return self._bases[at + 1] if at + 1 < len(self._bases) else self.log_end_offset

    def _segment_for(self, size: int, base_offset: int, last_offset: int, max_timestamp: int, now_ms: int) -> Segment:
        """The segment that takes the next bytes: the active one, or a new one."""
        self._clean = False
        if not self._segments:
            return self._create_segment(base_offset)
        active = self._segments[-1]
        if should_roll(active, self.config, size, last_offset, max_timestamp, now_ms):
            # The new segment starts at the log end, so that a hole in the files can be told from one in the offsets;
            # only a leader's hole that no relative offset spans is left out.
            start = self.log_end_offset if last_offset - self.log_end_offset < 2**31 else base_offset
            if active.size:
                return self._roll_at(start)
            if not active.fits(last_offset):
                self._remove_segments([active])
                return self._create_segment(start)
        return active

    def _create_segment(self, base_offset: int) -> Segment:
        environment = self._environment
        if not self._segments:
            self._create_directory()
        segment = Segment(environment.files, self.directory, base_offset, 0, environment.clock.wall_ms())
        jitter_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        if jitter_ms:
            segment.jitter_ms = environment.random.randrange(jitter_ms)
        segment.create()
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._durability.names_changed = True
        return segment

    def _create_directory(self) -> None:
        disk = self._environment.disk
        if disk.is_dir(self.directory):
            return
        disk.make_dirs(self.directory)
        self._write_topic_id()
        log.info("%s: created", self.directory)

    def set_topic_id(self, topic_id: TopicId) -> None:
        """Say which topic the log belongs to; a log whose file that says so was lost gets it again."""
        if self.topic_id is None:
            self.topic_id = topic_id
            if self.exists:
                self._write_topic_id()

    def _write_topic_id(self) -> None:
        self._durability.parent_changed = self._durability.names_changed = True
        if self.topic_id is not None:
            file = self._environment.disk.open(f"{self.directory}/{PARTITION_METADATA}", create=True)
            file.write(0, encode_partition_metadata(self.topic_id))
            file.close()

    def roll(self) -> None:
        """Seal the active segment and begin a new one; nothing where nothing was written."""
        self._check_usable()
        if self._segments and self._segments[-1].size:
            try:
                self._roll_at(self.log_end_offset)
            except OSError as error:
                self._fail("cannot begin a new segment", error)

    def _roll_at(self, base_offset: int) -> Segment:
        self._clean = False
        sealed = self._segments[-1]
        sealed.seal()
        if base_offset not in self._snapshots:
            self._snapshots.write(base_offset, encode_snapshot(self._producers.entries.values()))
        if base_offset <= self.log_start_offset:
            # With the new segment all before it is below the log start, and not looked at after a crash.
            self._snapshots.sync(base_offset)
        segment = self._create_segment(base_offset)
        self._environment.indexes.touch(sealed)
        log.debug("%s: rolled at offset %d", self.directory, base_offset)
        self._environment.owner.segment_rolled(self)
        return segment

    # Syncing

    def flush(self, up_to: int | None = None) -> None:
        """Sync everything below `up_to` (all of it) before returning."""
        self._check_usable()
        plan = self._plan_flush(self.log_end_offset if up_to is None else min(up_to, self.log_end_offset))
        if plan is None:
            return
        try:
            plan.run()
        except OSError as error:
            self._fail("cannot be synced", error)
        finally:
            plan.release(self._environment.files)
        self._durability.done(plan)

    async def sync(self) -> None:
        """Return when everything that is in the log now survives a power cut.

        One sync runs at a time; all who come while it runs wait for the same next one.
        """
        self._check_usable()
        target, generation = self.log_end_offset, self._durability.generation
        while self._wants_flush(target) and generation == self._durability.generation:
            running = self._durability.in_flight
            if running is None:
                name = f"sync {self.topic_partition}"
                running = self._durability.in_flight = self._environment.spawn(self._sync_once(), name=name)
            await asyncio.shield(running)

    async def _sync_once(self) -> None:
        plan: FlushPlan | None = None
        try:
            self._check_usable()
            plan = self._plan_flush(self.log_end_offset)
            if plan is not None:
                self._durability.writing = bool(plan.writes)
                await self._environment.blocking(plan.run)
                self._durability.done(plan)
        except OSError as error:
            self._fail("cannot be synced", error)
        finally:
            self._durability.in_flight = None
            self._durability.writing = False
            if plan is not None:
                plan.release(self._environment.files)

    def _wants_flush(self, up_to: int) -> bool:
        if not self._segments:
            return False
        durability = self._durability
        return durability.recovery_point < up_to or durability.derived_point < self._bases[self._floor(up_to)]

    def _plan_flush(self, up_to: int) -> FlushPlan | None:
        if not self._wants_flush(up_to):
            return None
        derived_to = self._bases[self._floor(up_to)]
        plan = FlushPlan(self._environment.disk, up_to, derived_to, self._durability.generation)
        if self._plan_segments(plan, derived_to) and self._epochs_changed:
            self._plan_epochs(plan)
        self._plan_names(plan)
        return plan

    def _plan_segments(self, plan: FlushPlan, derived_to: int) -> bool:
        """Add the logs between recovery point and `up_to`, and what is derived from segments before `derived_to`."""
        files = self._environment.files
        first = self._floor(self.recovery_point)
        for segment in self._segments[first : bisect_left(self._bases, plan.up_to)]:
            plan.files.append(files.pin(segment.log_path))
        first = bisect_left(self._bases, self._durability.derived_point)
        last = bisect_left(self._bases, derived_to)
        for at in range(first, last):
            plan.files += map(files.pin, self._segments[at].index_paths())
            if self._end_of(at) in self._snapshots:
                plan.files.append(files.pin(self._snapshots.path(self._end_of(at))))
        return first < last

    def _plan_names(self, plan: FlushPlan) -> None:
        durability = self._durability
        if durability.names_changed:
            plan.directories.append(self.directory)
        if durability.parent_changed:
            plan.directories.append(posixpath.dirname(self.directory))
            path = f"{self.directory}/{PARTITION_METADATA}"
            if self._environment.disk.exists(path):
                plan.files.append(self._environment.files.pin(path))
        durability.names_changed = durability.parent_changed = False

    def _plan_epochs(self, plan: FlushPlan) -> None:
        if self._durability.writing:
            # Another thread is replacing that file: sync the data, and let a later flush move the recovery point.
            plan.up_to = self.recovery_point
            plan.derived_to = self._durability.derived_point
            return
        plan.writes.append((f"{self.directory}/{EPOCH_CHECKPOINT}", self._epochs.encode()))
        self._epochs_changed = False

    # Cutting the end

    def truncate_to(self, offset: int) -> None:
        """Remove all batches that end at `offset` or later."""
        self._check_usable()
        if offset >= self.log_end_offset:
            return
        if not self._segments or offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return
        try:
            self._truncate(offset)
        except (OSError, InvalidBatch) as error:
            self._fail(f"cannot be truncated to {offset}", error)

    def _truncate(self, offset: int) -> None:
        at = self._floor(offset)
        segment = self._segments[at]
        size = segment.position_of(offset)
        end = segment.base_offset_at(size) if size < segment.size else offset
        log.info("%s: truncating from %d to %d", self.directory, self.log_end_offset, end)
        if end < self.log_start_offset:
            self.log_start_offset = end
            self._environment.owner.log_start_changed(self)
        self._cut(end)
        self._durability.derived_point = min(self._durability.derived_point, segment.base_offset)
        self._remove_segments(self._segments[at + 1 :])
        self._environment.indexes.forget(segment)
        if size < segment.size:
            self._txn_index(segment)
            segment.truncate(size, end, self.config.index_interval_bytes)
        self._snapshots.remove_above(end)
        self._environment.disk.sync_dir(self.directory)
        self._aborted_bases = [base for base in self._aborted_bases if base <= segment.base_offset]
        self.log_end_offset = end
        self._reload_producers(end)
        self._finish_cut()

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything; the next batch gets `offset`."""
        self._check_usable()
        log.info("%s: removing all of [%d, %d)", self.directory, self.log_start_offset, self.log_end_offset)
        try:
            if self._segments and self._bases[0] < self.log_end_offset:
                # From the end first: a crash on the way leaves a log that was cut, not one that lost its beginning.
                self._truncate(self._bases[0])
            self._cut(offset)
            self.log_start_offset = self._durability.recovery_point = self._durability.derived_point = offset
            self._environment.owner.log_start_changed(self)
            self._remove_segments(list(self._segments))
            self._snapshots.remove_above(-1)
            self._create_segment(offset)
            self._epochs = EpochCache()
            write_atomically(self._environment.disk, f"{self.directory}/{EPOCH_CHECKPOINT}", self._epochs.encode())
            self._environment.owner.recovery_point_changed(self)
        except (OSError, InvalidBatch) as error:
            self._fail(f"cannot be emptied and started at {offset}", error)
        self._aborted_bases = []
        self.log_end_offset = offset
        self._producers.reset((), offset)
        self._producers.clear_verifications()
        self._finish_cut()

    def _cut(self, offset: int) -> None:
        """Before the first file changes: the recovery point on disk must not claim what is about to go."""
        self._positions.clear()
        self._clean = False
        if self._durability.cut(offset):
            self._environment.owner.recovery_point_changed(self)

    def _finish_cut(self) -> None:
        if self._epochs.truncate_from_end(self.log_end_offset):
            self._epochs_changed = True
        self._set_high_watermark(min(max(self.high_watermark, self.log_start_offset), self.log_end_offset))

    def _reload_producers(self, end_offset: int) -> None:
        loaded = self._snapshots.load(end_offset)
        start, entries = loaded if loaded is not None else (self._bases[0], [])
        self._producers.reset(entries, start)
        self._producers.clear_verifications()
        replay(self._producers, self._segments, start, end_offset)

    # Cutting the start

    def advance_log_start(self, offset: int) -> None:
        """Make `offset` the first one that can be read; whole segments below it go with the next retention."""
        self._check_usable()
        if offset > self.high_watermark:
            raise OffsetOutOfRange(
                f"{self.topic_partition}: the log start cannot move to {offset}, the high watermark is "
                f"{self.high_watermark}"
            )
        if offset > self.log_start_offset:
            log.info("%s: the log start moves from %d to %d", self.directory, self.log_start_offset, offset)
            self.log_start_offset = offset
            self._update_stable()

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that the limits let go; returns how many."""
        if self.raise_log_start_for_retention(now_ms):
            self.flush(self._bases[self._floor(self.log_start_offset)])
            self._environment.owner.log_start_changed(self)
        return self.delete_old_segments(now_ms)

    def raise_log_start_for_retention(self, now_ms: int) -> bool:
        """The first half of retention; True when segments can go once the log start is on disk."""
        self._check_usable()
        count = count_deletable(
            self._segments, self.config, self._environment.disk, now_ms, self.high_watermark, self.log_end_offset
        )
        if count:
            if count == len(self._segments):
                self.roll()
            self.advance_log_start(self._bases[count])
        return len(self._bases) > 1 and self._bases[1] <= self.log_start_offset

    def delete_old_segments(self, now_ms: int) -> int:
        """The second half: take away segments that end at or below the log start, which is on disk by now.

        What follows from them for later segments must be on disk too; those of which it is not wait for the next time.
        """
        self._check_usable()
        count = max(0, bisect_right(self._bases, min(self.log_start_offset, self._durability.derived_point)) - 1)
        if not count:
            return 0
        if self._epochs.truncate_from_start(self._bases[count]):
            self._epochs_changed = True
        doomed = self._segments[:count]
        try:
            self._remove_segments(doomed, now_ms)
            self._snapshots.remove_below(self._bases[0])
        except OSError as error:
            self._fail("cannot remove old segments", error)
        self._aborted_bases = [base for base in self._aborted_bases if base >= self._bases[0]]
        log.info(
            "%s: removed %d segments [%d, %d)", self.directory, count, doomed[0].base_offset, self.log_start_offset
        )
        return count

    def _remove_segments(self, segments: list[Segment], now_ms: int | None = None) -> None:
        now_ms = self._environment.clock.wall_ms() if now_ms is None else now_ms
        for segment in segments:
            at = bisect_left(self._bases, segment.base_offset)
            del self._segments[at], self._bases[at]
            self._environment.indexes.forget(segment)
            renamed = rename_to_deleted(self._environment.files, segment)
            self._doomed.append((now_ms + self.config.file_delete_delay_ms, renamed))
        self._durability.names_changed = True

    def remove_deleted_files(self, now_ms: int) -> int:
        """Remove files that were renamed to .deleted at least file.delete.delay.ms ago; returns how many."""
        due = [paths for at_ms, paths in self._doomed if at_ms <= now_ms]
        self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        for paths in due:
            for path in paths:
                if self._environment.disk.exists(path):
                    self._environment.disk.remove(path)
        return sum(map(len, due))

    # The end

    def close(self) -> None:
        """Leave on disk what a clean start needs: everything synced, indexes complete, a snapshot at the log end."""
        plan = self.prepare_close()
        if plan is None:
            return
        try:
            plan.run()
        except OSError as error:
            self._fail("cannot be closed", error)
        finally:
            self.finish_close(plan)

    def prepare_close(self) -> FlushPlan | None:
        """What is left to write by a thread; None when all is there. After this nothing is appended any more."""
        if self._failure is not None:
            return None
        try:
            plan = self._plan_close()
        except OSError as error:
            self._fail("cannot be closed", error)
        self._failure = "it is closed"
        return plan

    def _plan_close(self) -> FlushPlan | None:
        end, durability = self.log_end_offset, self._durability
        if self._clean or self._listing is not None or not self._segments:
            return None
        self._segments[-1].seal()
        if end not in self._snapshots:
            self._snapshots.write(end, encode_snapshot(self._producers.entries.values()))
        durability.names_changed = True
        plan = FlushPlan(self._environment.disk, end, end, durability.generation)
        self._plan_segments(plan, end + 1)
        plan.writes.append((f"{self.directory}/{EPOCH_CHECKPOINT}", self._epochs.encode()))
        self._plan_names(plan)
        return plan

    def finish_close(self, plan: FlushPlan) -> None:
        plan.release(self._environment.files)
        self._durability.done(plan)
        for segment in self._segments:
            segment.close_files()

    def abandon(self) -> None:
        """Give the files up, because they get another name or another log object."""
        self._failure = self._failure or "it is closed"
        self._durability.generation += 1
        for segment in self._segments:
            self._environment.indexes.forget(segment)
            segment.close_files()

    async def wait_for_sync(self) -> None:
        """Return when no thread is syncing this log."""
        running = self._durability.in_flight
        if running is not None:
            await asyncio.wait([running])

    def _txn_index(self, segment: Segment) -> TxnIndex:
        """A segment's transaction index, built again from the log if its file is damaged."""
        try:
            return segment.txn_index
        except CorruptIndex as error:
            log.warning("%s; building it from the log", error)
            rebuild_txn_index(segment, self._segments, self._snapshots, self._end_of(self._floor(segment.base_offset)))
            return segment.txn_index
