"""When a segment is full, and when it is old enough to go. Pure decisions."""

from twofold.config.topic import LogConfig
from twofold.log.indexes.offset_index import MAX_RELATIVE_OFFSET
from twofold.log.indexes.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from twofold.log.segments.segment import Segment
from twofold.runtime.api import Disk


def should_roll(
    segment: Segment, config: LogConfig, size: int, last_offset: int, max_timestamp: int, now_ms: int
) -> bool:
    """Whether a batch of `size` bytes belongs into a new segment."""
    if segment.size > config.segment_bytes - size or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return True
    # A cheap comparison first: this is asked before every append.
    index_bytes = config.segment_index_bytes
    if segment.index_entries >= index_bytes // TIME_ENTRY_SIZE - 1 and segment.indexes_are_full(index_bytes):
        return True
    if not segment.size:
        return False
    # The age is that of the records where they have one: otherwise a topic filled with old records would never roll by
    # time, and a restart would set the age back. Compaction waits for a segment to be closed.
    age_ms = max_timestamp - segment.first_timestamp if segment.first_timestamp >= 0 else now_ms - segment.created_ms
    limit_ms = config.segment_ms
    if config.max_compaction_lag_ms < limit_ms and config.is_compacted:
        limit_ms = config.max_compaction_lag_ms
    return age_ms > limit_ms - segment.jitter_ms


def count_deletable(
    segments: list[Segment], config: LogConfig, disk: Disk, now_ms: int, stable_offset: int, log_end_offset: int
) -> int:
    """How many segments from the first on the retention limits let go.

    All of them end at or below the last stable offset: the records of an undecided transaction must still be there when
    it is committed (KIP-939).
    """
    if not config.deletes_old_segments or not segments:
        return 0
    bases = [segment.base_offset for segment in segments[1:]] + [log_end_offset]
    return max(
        _count_expired(segments, bases, config.retention_ms, disk, now_ms, stable_offset),
        _count_excess(segments, bases, config.retention_bytes, stable_offset),
    )


def _count_expired(
    segments: list[Segment], ends: list[int], retention_ms: int, disk: Disk, now_ms: int, stable_offset: int
) -> int:
    if retention_ms < 0:
        return 0
    count = 0
    empty = _empty_active(segments)
    for segment, end in zip(segments, ends, strict=True):
        if end > stable_offset or segment is empty or now_ms - _newest_ms(segment, disk) <= retention_ms:
            break
        count += 1
    return count


def _empty_active(segments: list[Segment]) -> Segment | None:
    """The active segment if it is empty. Other segments may be empty after compaction; those may go."""
    return None if segments[-1].size else segments[-1]


def _newest_ms(segment: Segment, disk: Disk) -> int:
    """The greatest timestamp in a segment, or when it was written where its records have none."""
    timestamp = segment.max_timestamp[0]
    return timestamp if timestamp >= 0 else disk.modified_ms(segment.log_path)


def _count_excess(segments: list[Segment], ends: list[int], retention_bytes: int, stable_offset: int) -> int:
    if retention_bytes < 0:
        return 0
    excess = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    empty = _empty_active(segments)
    for segment, end in zip(segments, ends, strict=True):
        if end > stable_offset or segment is empty or segment.size > excess:
            break
        excess -= segment.size
        count += 1
    return count
