"""Putting cleaned segments in the place of old ones, so that a power cut at any point leaves the one or the other.

The way of a group, each step begun when the one before is on disk:

1. `.cleaned`: written and synced by the pass. A leftover is garbage.
2. `.swap`: the log's file is renamed last. From here on an opening completes the swap, unless a `.cleaned` file says
   that not all were renamed. The log can still let go (`_discard_swap`), and does before it is cut.
3. The old files are `.deleted` and the new ones serve readers under their `.swap` names. The `.swap` is what tells
   leftovers of the old segments from the log, so its name stays until theirs are gone for good.
4. The plain names. A `.swap` index without its log is garbage: what belongs to it is built again.

Readers notice nothing: a read takes its bytes in one go, and a new segment holds every offset of the old ones.
The log start, the high watermark, stability, the epochs and the producers are what they were.
"""

from twofold.log.cleaning.dirty_range import CleanableRange, cleanable_range
from twofold.log.cleaning.rewriting import CleaningPlan, Rewritten, SealedSource
from twofold.log.segments.segment import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    rename_segment,
    rename_to_deleted,
)
from twofold.log.storage import LogStorage


class SwappableLog(LogStorage):
    __slots__ = ()

    # What can be cleaned

    @property
    def may_be_dirty(self) -> bool:
        """Whether it is worth looking; does not open a log that nobody used since the start."""
        if not self.config.is_compacted or self._failure is not None:
            return False
        bases = self._bases if self._listing is None else self._listing.bases
        return len(bases) > 1 and self.cleaned_offset < bases[-1]

    def cleanable_range(self, now_ms: int) -> CleanableRange:
        self.ensure_open()
        return cleanable_range(
            self._segments,
            self.config,
            first_dirty=max(self.cleaned_offset, self.log_start_offset),
            last_stable_offset=self._last_stable_offset,
            now_ms=now_ms,
        )

    def is_durable_up_to(self, offset: int) -> bool:
        """Whether a power cut loses nothing below, and the segment that begins there has its name for good.

        Otherwise offsets that compaction left no record of could be given out twice.
        """
        return min(self._durability.recovery_point, self._durability.derived_point) >= offset

    def plan_cleaning(self, wanted: CleanableRange, now_ms: int) -> CleaningPlan:
        segments, active = self._segments, self._segments[-1]
        ends = [*self._bases[1:], self.log_end_offset]
        sources = [
            SealedSource(segment.prefix, segment.log_path, segment.base_offset, end, segment.size, segment.created_ms)
            for segment, end in zip(segments[: wanted.segments], ends, strict=False)
        ]
        sealed = [segments[self._floor(base)] for base in self._aborted_bases if base != active.base_offset]
        return CleaningPlan(
            self.directory,
            self.config,
            tuple(sources),
            wanted.first_dirty,
            self.high_watermark,
            dict(self._producers.entries),
            tuple((segment.base_offset, segment.path(TXN_INDEX_SUFFIX)) for segment in sealed),
            (active.base_offset, active.txn_index.encode()),
            now_ms,
        )

    @property
    def generation(self) -> int:
        """Changes when the log is cut or given up: what was planned before must not happen after."""
        return self._durability.generation

    # Swapping, step by step

    def begin_swap(self, new: Rewritten, generation: int) -> bool:
        """Step 2; False when the segments are not there any more. The caller syncs the directory."""
        if self._place_of(new, generation) is None:
            return False
        segment = self._new_segment(new, CLEANED_SUFFIX)
        self._swap_paths = [segment.prefix + kind + SWAP_SUFFIX for kind in (LOG_SUFFIX, *SEGMENT_SUFFIXES[1:])]
        try:
            rename_segment(segment, self._environment.files, SWAP_SUFFIX)
        except OSError as error:
            self._fail("cannot rename what was cleaned", error)
        return True

    def apply_swap(self, new: Rewritten, generation: int) -> Segment | None:
        """Step 3, while no sync is under way; the segment that serves from now on. The caller syncs the directory."""
        at = self._place_of(new, generation)
        if at is None or not self._swap_paths:
            self.discard_swap()
            return None
        assert self._durability.in_flight is None, "a sync may be about to open the old files"
        segment = self._new_segment(new, SWAP_SUFFIX)
        count = len(new.sources)
        old = self._segments[at : at + count]
        delete_at_ms = self._environment.steady_ms() + self.config.file_delete_delay_ms
        try:
            for replaced in old:
                self._environment.indexes.forget(replaced)
                self._doomed.append((delete_at_ms, rename_to_deleted(self._environment.files, replaced)))
        except OSError as error:
            self._fail("cannot take cleaned segments away", error)
        self._segments[at : at + count] = [segment]
        self._bases[at : at + count] = [segment.base_offset]
        gone = {replaced.base_offset for replaced in old}
        kept = [base for base in self._aborted_bases if base not in gone]
        self._aborted_bases = sorted([*kept, segment.base_offset]) if new.has_aborts else kept
        self._positions.clear()
        self._swap_paths = []
        self._durability.names.note()
        return segment

    def finish_swap(self, segment: Segment, new: Rewritten) -> None:
        """Step 4. The caller syncs the directory."""
        if self._failure is not None or segment not in self._segments:
            return
        try:
            rename_segment(segment, self._environment.files, "")
            self._snapshots.remove_at([source.base_offset for source in new.sources[1:]])
        except OSError as error:
            self._fail("cannot give a cleaned segment its name", error)
        self._durability.names.note()

    def discard_swap(self) -> None:
        """Take step 2 back, for good."""
        paths, self._swap_paths = self._swap_paths, []
        disk = self._environment.disk
        if paths and disk.is_dir(self.directory):
            for path in paths:
                if disk.exists(path):
                    disk.remove(path)
            disk.sync_dir(self.directory)

    def swap_failed(self, error: OSError) -> None:
        """The names on disk are not known: nothing more is written until the log was opened again."""
        self._fail("cannot be synced after it was cleaned", error)

    def _place_of(self, new: Rewritten, generation: int) -> int | None:
        if self._failure is not None or self._durability.generation != generation:
            return None
        at = self._floor(new.base_offset)
        bases = [source.base_offset for source in new.sources]
        return at if self._bases[at : at + len(bases)] == bases else None

    def _new_segment(self, new: Rewritten, suffix: str) -> Segment:
        environment = self._environment
        created_ms = new.sources[0].created_ms
        return Segment(
            environment.files, environment.indexes, self.directory, new.base_offset, new.size, created_ms, suffix
        )
