"""The snapshots in the directory of the metadata log: those there are, new ones, and those that go.

1. The newest good one is never removed.
2. One that goes is renamed to `.checkpoint.deleted` first, as Kafka does, and removed later; a start removes what was
   left of it, and of one that was being written.
3. A damaged one that a start passed over is kept as `.checkpoint.damaged`, and counts for nothing.
"""

import contextlib
from collections.abc import Iterable, Sequence

from twofold.log.segments.segment import DELETED_SUFFIX
from twofold.metadata_log.errors import CorruptSnapshot
from twofold.metadata_log.retention import SnapshotFile
from twofold.metadata_log.snapshots import (
    PART_SUFFIX,
    SUFFIX,
    SnapshotId,
    list_snapshots,
    read_snapshot_time,
    write_snapshot,
)
from twofold.runtime.api import Disk

DAMAGED_SUFFIX = ".damaged"
NEVER_EXPIRES_MS = 2**63 - 1


class SnapshotFiles:
    """`ids` belongs to the event loop; the methods that say so run in a thread and touch files alone."""

    __slots__ = ("_directory", "_disk", "ids")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.ids: list[SnapshotId] = list_snapshots(disk, directory)  # oldest first

    @property
    def newest(self) -> SnapshotId | None:
        return self.ids[-1] if self.ids else None

    def path(self, snapshot_id: SnapshotId) -> str:
        return f"{self._directory}/{snapshot_id.file_name}"

    def settle(self, damaged: Sequence[SnapshotId], log_start_offset: int) -> None:
        """After a start: put damaged ones aside, and take away leftovers and what the log does not reach back to."""
        for snapshot_id in damaged:
            self._disk.rename(self.path(snapshot_id), self.path(snapshot_id) + DAMAGED_SUFFIX)
        kept = [one for one in self.ids if one not in damaged]
        for snapshot_id in kept:
            if snapshot_id.end_offset < log_start_offset:
                self._disk.remove(self.path(snapshot_id))
        self.ids = [one for one in kept if one.end_offset >= log_start_offset]
        if self._disk.is_dir(self._directory):
            for name in self._disk.list(self._directory):
                if name.endswith((SUFFIX + PART_SUFFIX, SUFFIX + DELETED_SUFFIX)):
                    self._disk.remove(f"{self._directory}/{name}")

    def describe(self, ids: Sequence[SnapshotId]) -> list[SnapshotFile]:
        """What retention wants to know; runs in a thread."""
        return [SnapshotFile(one, self._disk.file_size(self.path(one)), self._time_of(one)) for one in ids]

    def _time_of(self, snapshot_id: SnapshotId) -> int:
        try:
            return read_snapshot_time(self._disk, self.path(snapshot_id))
        except CorruptSnapshot:
            return NEVER_EXPIRES_MS

    def write(self, snapshot_id: SnapshotId, batches: Iterable[bytes]) -> int:
        """Put a snapshot in place, durably; returns its size. Runs in a thread."""
        return write_snapshot(self._disk, self.path(snapshot_id), batches)

    def take_away(self, ids: Sequence[SnapshotId]) -> list[str]:
        """Rename snapshots, durably, and return their new names; runs in a thread."""
        renamed = [self.path(one) + DELETED_SUFFIX for one in ids]
        for snapshot_id, path in zip(ids, renamed, strict=True):
            with contextlib.suppress(FileNotFoundError):
                self._disk.rename(self.path(snapshot_id), path)
        self._disk.sync_dir(self._directory)
        return renamed

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files for good; runs in a thread."""
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(path)
