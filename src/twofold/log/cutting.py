"""Cutting a log at its end and at its start, so that a crash on the way leaves one of the two and nothing in between.

1. A lower recovery point is on disk before the end is cut, and the cut itself before anything is appended.
2. A log start is on disk before the segments below it go, and what is derived from them before that.
"""

import logging
from bisect import bisect_right

from twofold.log.cleaning.swap import SwappableLog
from twofold.log.producers.entry import NO_OFFSET
from twofold.log.producers.times import remove_times, times_of
from twofold.log.producers.windows import deepen_windows
from twofold.log.recovery.epochs import EpochCache
from twofold.log.recovery.opening import EPOCH_CHECKPOINT, replay
from twofold.log.segments.retention import count_deletable
from twofold.log.segments.scan import InvalidBatch
from twofold.runtime.files import write_atomically
from twofold.wire.errors import OffsetOutOfRange

log = logging.getLogger("twofold.log")


class CuttableLog(SwappableLog):
    __slots__ = ()

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
        if segment.load_tail() < end:
            # Compaction left a gap here, and only the name of a segment can tell where it ends.
            segment.seal()
            self._create_segment(end)
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
        self._times_kept_at = NO_OFFSET
        remove_times(self._environment.disk, self.directory)
        self.discard_swap()
        if self._durability.cut(offset):
            self._environment.owner.recovery_point_changed(self)
        if offset < self.cleaned_offset:
            self.cleaned_offset = offset
            self._environment.owner.cleaned_offset_changed(self)

    def _finish_cut(self) -> None:
        if self._epochs.truncate_from_end(self.log_end_offset):
            self._durability.epochs.note()
        self._set_high_watermark(min(max(self.high_watermark, self.log_start_offset), self.log_end_offset))

    def _reload_producers(self, end_offset: int) -> None:
        known = times_of(*self._producers.times())
        loaded = self._snapshots.load(end_offset)
        start, entries = loaded if loaded is not None else (self._bases[0], [])
        self._producers.reset(entries, start)
        deepen_windows(self._producers, self._segments, start)
        self._producers.clear_verifications()
        replay(self._producers, self._segments, start, end_offset)
        self._producers.recall(known, self._environment.clock.wall_ms())

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
        return self.delete_old_segments()

    def raise_log_start_for_retention(self, now_ms: int) -> bool:
        """The first half of retention; True when segments can go once the log start is on disk."""
        self._check_usable()
        count = count_deletable(
            self._segments, self.config, self._environment.disk, now_ms, self._last_stable_offset, self.log_end_offset
        )
        if count:
            if count == len(self._segments):
                self.roll()
            self.advance_log_start(self._bases[count])
        return len(self._bases) > 1 and self._bases[1] <= self.log_start_offset

    def delete_old_segments(self) -> int:
        """The second half: take away segments that end at or below the log start, which is on disk by now.

        What follows from them for later segments must be on disk too; those of which it is not wait for the next time.
        """
        self._check_usable()
        count = max(0, bisect_right(self._bases, min(self.log_start_offset, self._durability.derived_point)) - 1)
        if not count:
            return 0
        if self._epochs.truncate_from_start(self._bases[count]):
            self._durability.epochs.note()
        doomed = self._segments[:count]
        try:
            self._remove_segments(doomed)
            self._snapshots.remove_below(self._bases[0])
        except OSError as error:
            self._fail("cannot remove old segments", error)
        self._aborted_bases = [base for base in self._aborted_bases if base >= self._bases[0]]
        log.info(
            "%s: removed %d segments [%d, %d)", self.directory, count, doomed[0].base_offset, self.log_start_offset
        )
        return count

    def take_deleted_files(self, steady_ms: int) -> list[str]:
        """Files that were renamed to .deleted at least file.delete.delay.ms ago; the caller removes them."""
        due = [path for at_ms, paths in self._doomed if at_ms <= steady_ms for path in paths]
        if due:
            self._doomed = [entry for entry in self._doomed if entry[0] > steady_ms]
        return due
