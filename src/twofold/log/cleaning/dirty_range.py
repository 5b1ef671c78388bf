"""Which part of a compacted log can be cleaned, and whether that is worth it. Pure decisions.

1. Only whole segments are cleaned, none of them active, none with an offset at or beyond the last stable one.
2. A segment with a record younger than min.compaction.lag.ms waits, and so do all after it.
"""

from dataclasses import dataclass

from twofold.config.definition import LONG_MAX
from twofold.config.topic import LogConfig
from twofold.log.segments.segment import Segment


@dataclass(frozen=True, slots=True)
class CleanableRange:
    first_dirty: int
    end: int  # the base of the first segment that cannot be cleaned
    segments: int  # how many there are before it
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool  # max.compaction.lag.ms has passed

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_worth_cleaning(self, config: LogConfig) -> bool:
        if not self.dirty_bytes:
            return False
        return self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio


def cleanable_range(
    segments: list[Segment], config: LogConfig, *, first_dirty: int, last_stable_offset: int, now_ms: int
) -> CleanableRange:
    """What can be cleaned of a log that has segments."""
    ends = [segment.base_offset for segment in segments[1:]]  # of those that are sealed
    first = sum(end <= first_dirty for end in ends)
    last = sum(end <= last_stable_offset for end in ends)
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        last = next((at for at in range(first, last) if segments[at].max_timestamp[0] > youngest), last)
    sizes = [segment.size for segment in segments[:last]]
    return CleanableRange(
        first_dirty,
        segments[last].base_offset,
        last,
        sum(sizes[:first]),
        sum(sizes[first:]),
        config.max_compaction_lag_ms < LONG_MAX and _is_overdue(segments[first:last], config, now_ms),
    )


def _is_overdue(dirty: list[Segment], config: LogConfig, now_ms: int) -> bool:
    times = (segment.time_of_first_batch() for segment in dirty)
    return min((time for time in times if time > 0), default=now_ms) < now_ms - config.max_compaction_lag_ms
