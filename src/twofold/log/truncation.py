"""Cutting a log at its end and at its start, so that a crash on the way leaves one of the two and nothing in between.

1. A lower recovery point is on disk before the end is cut, and the cut itself before anything is appended. So is a
   lower high watermark: what comes later at those offsets is not safe because something else was.
2. A log start is on disk before the segments below it go, and what is derived from them before that.
"""

import logging
from bisect import bisect_right

from twofold.log.bounds import LogBounds
from twofold.log.cleaning.swap import SegmentSwap
from twofold.log.durability.health import LogHealth
from twofold.log.durability.points import Durability
from twofold.log.durability.syncing import LogSync
from twofold.log.environment import LogContext
from twofold.log.indexes.aborted import AbortedIndex
from twofold.log.producers.log_producers import LogProducers
from twofold.log.recovery.epochs import EPOCH_CHECKPOINT, EpochCache
from twofold.log.segments.reading import LogReader
from twofold.log.segments.retention import count_deletable
from twofold.log.segments.scan import InvalidBatch
from twofold.log.segments.segment import Segment
from twofold.log.segments.segment_list import SegmentList
from twofold.runtime.files import write_atomically
from twofold.wire.errors import OffsetOutOfRange

log = logging.getLogger("twofold.log")


class LogTruncation:
    __slots__ = (
        "_aborted",
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
    )

    def __init__(
        self,
        context: LogContext,
        bounds: LogBounds,
        health: LogHealth,
        durability: Durability,
        segments: SegmentList,
        producers: LogProducers,
        epochs: EpochCache,
        aborted: AbortedIndex,
        reader: LogReader,
        sync: LogSync,
        swap: SegmentSwap,
    ) -> None:
        self._context = context
        self._bounds = bounds
        self._health = health
        self._durability = durability
        self._segments = segments
        self._producers = producers
        self._epochs = epochs
        self._aborted = aborted
        self._reader = reader
        self._sync = sync
        self._swap = swap

    # Cutting the end

    def truncate_to(self, offset: int) -> None:
        """Remove all batches that end at `offset` or later, and epochs that got no batch."""
        if offset >= self._bounds.log_end_offset:
            if self._epochs.truncate_from_end(self._bounds.log_end_offset):
                self._durability.note_epochs()
            return
        if not self._segments.all or offset < self._segments.bases[0]:
            self.truncate_fully_and_start_at(offset)
            return
        try:
            self._truncate(offset)
        except (OSError, InvalidBatch) as error:
            self._health.fail(f"cannot be truncated to {offset}", error)

    def _truncate(self, offset: int) -> None:
        context, bounds, segments = self._context, self._bounds, self._segments
        at = segments.floor(offset)
        segment = segments.all[at]
        size = segment.position_of(offset)
        end = segment.base_offset_at(size) if size < segment.size else offset
        log.info("%s: truncating from %d to %d", context.directory, bounds.log_end_offset, end)
        if end < bounds.log_start_offset:
            bounds.log_start_offset = end
            context.log_start_changed()
        self._prepare_cut(end)
        self._durability.derived_point = min(self._durability.derived_point, segment.base_offset)
        segments.remove(segments.all[at + 1 :])
        context.environment.indexes.forget(segment)
        self._cut_segment(segment, size, end)
        self._producers.snapshots.remove_above(end)
        context.environment.disk.sync_dir(context.directory)
        self._aborted.forget_above(segment.base_offset)
        bounds.log_end_offset = end
        self._producers.reload(segments.all, end)
        self._finish_cut()

    def _cut_segment(self, segment: Segment, size: int, end: int) -> None:
        if size < segment.size:
            self._aborted.of(segment)
            segment.truncate(size, end, self._context.config.index_interval_bytes)
        if segment.load_tail() < end:
            # Compaction left a gap here, and only the name of a segment can tell where it ends.
            segment.seal()
            self._segments.create(end)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything; the next batch gets `offset`."""
        bounds, segments = self._bounds, self._segments
        log.info(
            "%s: removing all of [%d, %d)", self._context.directory, bounds.log_start_offset, bounds.log_end_offset
        )
        try:
            if segments.all and segments.bases[0] < bounds.log_end_offset:
                # From the end first: a crash on the way leaves a log that was cut, not one that lost its beginning.
                self._truncate(segments.bases[0])
            self._empty(offset)
        except (OSError, InvalidBatch) as error:
            self._health.fail(f"cannot be emptied and started at {offset}", error)
        self._aborted.bases = []
        bounds.log_end_offset = offset
        self._producers.start_empty_at(offset)
        self._finish_cut()

    def _empty(self, offset: int) -> None:
        context, durability = self._context, self._durability
        self._prepare_cut(offset)
        self._bounds.log_start_offset = durability.recovery_point = durability.derived_point = offset
        context.log_start_changed()
        self._segments.remove(list(self._segments.all))
        self._producers.snapshots.remove_above(-1)
        self._segments.create(offset)
        self._epochs.clear()
        write_atomically(context.environment.disk, f"{context.directory}/{EPOCH_CHECKPOINT}", self._epochs.encode())
        context.recovery_point_changed()

    def _prepare_cut(self, offset: int) -> None:
        """Before the first file changes: the offsets on disk must not claim what is about to go."""
        self._reader.forget_positions()
        self._durability.unchanged_since_clean_shutdown = False
        self._producers.forget_times()
        self._swap.discard()
        if self._durability.cut(offset):
            self._context.recovery_point_changed()
        if offset < self._bounds.high_watermark:
            self._bounds.high_watermark = offset
            self._context.high_watermark_fell()
        if offset < self._bounds.cleaned_offset:
            self._bounds.cleaned_offset = offset
            self._context.cleaned_offset_changed()

    def _finish_cut(self) -> None:
        bounds = self._bounds
        if self._epochs.truncate_from_end(bounds.log_end_offset):
            self._durability.epochs.note()
        high_watermark = min(max(bounds.high_watermark, bounds.log_start_offset), bounds.log_end_offset)
        bounds.set_high_watermark(high_watermark, self._producers.table)

    # Cutting the start

    def advance_log_start(self, offset: int) -> None:
        """Make `offset` the first one that can be read; whole segments below it go with the next retention."""
        bounds = self._bounds
        if offset > bounds.high_watermark:
            raise OffsetOutOfRange(
                f"{self._context.topic_partition}: the log start cannot move to {offset}, the high watermark is "
                f"{bounds.high_watermark}"
            )
        if offset > bounds.log_start_offset:
            log.info("%s: the log start moves from %d to %d", self._context.directory, bounds.log_start_offset, offset)
            bounds.log_start_offset = offset
            bounds.update_stable(self._producers.table)

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that the limits let go; returns how many."""
        if self.raise_log_start_for_retention(now_ms):
            self._sync.flush(self._segments.floor_base(self._bounds.log_start_offset))
            self._context.log_start_changed()
        return self.delete_old_segments()

    def raise_log_start_for_retention(self, now_ms: int) -> bool:
        """The first half of retention; True when segments can go once the log start is on disk."""
        context, bounds, segments = self._context, self._bounds, self._segments
        disk = context.environment.disk
        count = count_deletable(
            segments.all, context.config, disk, now_ms, bounds.last_stable_offset, bounds.log_end_offset
        )
        if count:
            if count == len(segments.all):
                segments.roll()
            self.advance_log_start(segments.bases[count])
        return len(segments.bases) > 1 and segments.bases[1] <= bounds.log_start_offset

    def delete_old_segments(self) -> int:
        """The second half: take away segments that end at or below the log start, which is on disk by now.

        What later segments derive from them must be on disk, too. Segments for which it is not wait for the next time.
        """
        segments, durability, log_start = self._segments, self._durability, self._bounds.log_start_offset
        count = max(0, bisect_right(segments.bases, min(log_start, durability.derived_point)) - 1)
        if not count:
            return 0
        if self._epochs.truncate_from_start(segments.bases[count]):
            durability.epochs.note()
        doomed = segments.all[:count]
        try:
            segments.remove(doomed)
            self._producers.snapshots.remove_below(segments.bases[0])
        except OSError as error:
            self._health.fail("cannot remove old segments", error)
        self._aborted.forget_below(segments.bases[0])
        log.info("%s: removed %d segments [%d, %d)", self._context.directory, count, doomed[0].base_offset, log_start)
        return count
