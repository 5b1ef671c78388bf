"""Which snapshots of the metadata log may go, and with them the log before the next one. Pure decisions, as Kafka's.

1. A snapshot goes only if there is a newer one: the newest always stays.
2. The oldest goes if log and snapshots together are larger than metadata.max.retention.bytes, or if what it stands for
   is older than metadata.max.retention.ms.
3. The log begins at the oldest snapshot that stays; whole segments before it go.
"""

from collections.abc import Sequence
from typing import NamedTuple

from twofold.metadata_log.snapshots import SnapshotId


class SnapshotFile(NamedTuple):
    """A snapshot on disk."""

    id: SnapshotId
    size: int
    last_contained_timestamp_ms: int


class SegmentFile(NamedTuple):
    """A segment on disk."""

    base_offset: int
    size: int


def count_forgettable(
    snapshots: Sequence[SnapshotFile],
    segments: Sequence[SegmentFile],
    *,
    retention_bytes: int,
    retention_ms: int,
    now_ms: int,
) -> int:
    """How many snapshots, from the oldest on, are to go."""
    return max(
        _count_excess(snapshots, segments, retention_bytes),
        _count_expired(snapshots, retention_ms, now_ms),
    )


def _count_excess(snapshots: Sequence[SnapshotFile], segments: Sequence[SegmentFile], retention_bytes: int) -> int:
    if retention_bytes < 0:
        return 0
    for count in range(len(snapshots) - 1):
        start = snapshots[count].id.end_offset if count else 0
        if sum(one.size for one in snapshots[count:]) + _size_from(segments, start) <= retention_bytes:
            return count
    return max(0, len(snapshots) - 1)


def _size_from(segments: Sequence[SegmentFile], start: int) -> int:
    """Bytes of the segments that stay when the log begins at `start`."""
    ends = [segment.base_offset for segment in segments[1:]]
    gone = sum(end <= start for end in ends)
    return sum(segment.size for segment in segments[gone:])


def _count_expired(snapshots: Sequence[SnapshotFile], retention_ms: int, now_ms: int) -> int:
    if retention_ms < 0:
        return 0
    count = 0
    while count < len(snapshots) - 1 and now_ms - snapshots[count].last_contained_timestamp_ms > retention_ms:
        count += 1
    return count
