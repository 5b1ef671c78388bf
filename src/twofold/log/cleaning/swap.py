"""Putting cleaned segments in the place of old ones, so that a power cut at any point leaves the one or the other.

The way of a group, each step begun when the one before is on disk:

1. `.cleaned`: written and synced by the pass. A leftover is garbage.
2. `.swap`: the log's file is renamed last. From here on an opening completes the swap, unless a `.cleaned` file says
   that not all were renamed. The log can still let go (`discard`), and does before it is cut.
3. The old files are `.deleted` and the new ones serve readers under their `.swap` names. The `.swap` is what tells
   leftovers of the old segments from the log, so its name stays until theirs are gone for good.
4. The plain names. A `.swap` index without its log is garbage: what belongs to it is built again.

Readers notice nothing: a read takes its bytes in one go, and a new segment holds every offset of the old ones.
The log start, the high watermark, stability, the epochs and the producers are what they were.
"""

from twofold.log.bounds import LogBounds
from twofold.log.cleaning.dirty_range import CleanableRange, cleanable_range
from twofold.log.cleaning.rewriting import CleaningPlan, Rewritten, SealedSource
from twofold.log.durability.health import LogHealth
from twofold.log.durability.points import Durability
from twofold.log.environment import LogContext
from twofold.log.indexes.aborted import AbortedIndex
from twofold.log.producers.log_producers import LogProducers
from twofold.log.segments.reading import LogReader
from twofold.log.segments.segment import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    TXN_INDEX_SUFFIX,
    Segment,
    rename_segment,
)
from twofold.log.segments.segment_list import SegmentList


class SegmentSwap:
    __slots__ = (
        "_aborted",
        "_bounds",
        "_context",
        "_durability",
        "_health",
        "_paths",
        "_producers",
        "_reader",
        "_segments",
    )

    def __init__(
        self,
        context: LogContext,
        bounds: LogBounds,
        health: LogHealth,
        durability: Durability,
        segments: SegmentList,
        producers: LogProducers,
        aborted: AbortedIndex,
        reader: LogReader,
    ) -> None:
        self._context = context
        self._bounds = bounds
        self._health = health
        self._durability = durability
        self._segments = segments
        self._producers = producers
        self._aborted = aborted
        self._reader = reader
        self._paths: tuple[str, ...] = ()  # files that an opening would take for the segments they were made from

    # What can be cleaned

    def cleanable_range(self, now_ms: int) -> CleanableRange:
        bounds = self._bounds
        return cleanable_range(
            self._segments.all,
            self._context.config,
            first_dirty=max(bounds.cleaned_offset, bounds.log_start_offset),
            last_stable_offset=bounds.last_stable_offset,
            now_ms=now_ms,
        )

    def is_durable_up_to(self, offset: int) -> bool:
        """Whether a power cut loses nothing below, and the segment that begins there has its name for good.

        Otherwise offsets that compaction left no record of could be given out twice.
        """
        return min(self._durability.recovery_point, self._durability.derived_point) >= offset

    def plan(self, wanted: CleanableRange, now_ms: int) -> CleaningPlan:
        segments = self._segments
        active = segments.all[-1]
        ends = [*segments.bases[1:], self._bounds.log_end_offset]
        sources = [
            SealedSource(segment.prefix, segment.log_path, segment.base_offset, end, segment.size, segment.created_ms)
            for segment, end in zip(segments.all[: wanted.segments], ends, strict=False)
        ]
        sealed = [segments.all[segments.floor(base)] for base in self._aborted.bases if base != active.base_offset]
        return CleaningPlan(
            self._context.directory,
            self._context.config,
            tuple(sources),
            wanted.first_dirty,
            self._bounds.high_watermark,
            dict(self._producers.table.entries),
            tuple((segment.base_offset, segment.path(TXN_INDEX_SUFFIX)) for segment in sealed),
            (active.base_offset, active.txn_index.encode()),
            now_ms,
        )

    # Swapping, step by step

    def begin(self, new: Rewritten, generation: int) -> bool:
        """Step 2; False when the segments are not there any more. The caller syncs the directory."""
        if self._place_of(new, generation) is None:
            return False
        segment = self._new_segment(new, CLEANED_SUFFIX)
        self._paths = tuple(segment.prefix + kind + SWAP_SUFFIX for kind in (LOG_SUFFIX, *SEGMENT_SUFFIXES[1:]))
        try:
            rename_segment(segment, self._context.environment.files, SWAP_SUFFIX)
        except OSError as error:
            self._health.fail("cannot rename what was cleaned", error)
        return True

    def apply(self, new: Rewritten, generation: int) -> Segment | None:
        """Step 3, while no sync is under way; the segment that serves from now on. The caller syncs the directory."""
        at = self._place_of(new, generation)
        if at is None or not self._paths:
            self.discard()
            return None
        assert self._durability.in_flight is None, "a sync may be about to open the old files"
        segment = self._new_segment(new, SWAP_SUFFIX)
        try:
            self._segments.replace(at, len(new.sources), segment)
        except OSError as error:
            self._health.fail("cannot take cleaned segments away", error)
        gone = {source.base_offset for source in new.sources}
        self._aborted.replace(gone, segment.base_offset, has_aborts=new.has_aborts)
        self._reader.forget_positions()
        self._paths = ()
        return segment

    def finish(self, segment: Segment, new: Rewritten) -> None:
        """Step 4. The caller syncs the directory."""
        if self._health.failure is not None or segment not in self._segments.all:
            return
        try:
            rename_segment(segment, self._context.environment.files, "")
            self._producers.snapshots.remove_at([source.base_offset for source in new.sources[1:]])
        except OSError as error:
            self._health.fail("cannot give a cleaned segment its name", error)
        self._durability.names.note()

    def discard(self) -> None:
        """Take step 2 back, for good."""
        paths, self._paths = self._paths, ()
        disk = self._context.environment.disk
        if paths and disk.is_dir(self._context.directory):
            for path in paths:
                if disk.exists(path):
                    disk.remove(path)
            disk.sync_dir(self._context.directory)

    def fail(self, error: OSError) -> None:
        """The names on disk are not known: nothing more is written until the log was opened again."""
        self._health.fail("cannot be synced after it was cleaned", error)

    def _place_of(self, new: Rewritten, generation: int) -> int | None:
        if self._health.failure is not None or self._durability.generation != generation:
            return None
        at = self._segments.floor(new.base_offset)
        bases = [source.base_offset for source in new.sources]
        return at if self._segments.bases[at : at + len(bases)] == bases else None

    def _new_segment(self, new: Rewritten, suffix: str) -> Segment:
        environment = self._context.environment
        created_ms = new.sources[0].created_ms
        return Segment(
            environment.files,
            environment.indexes,
            self._context.directory,
            new.base_offset,
            new.size,
            created_ms,
            suffix,
        )
