"""The producer snapshots in a partition's directory."""

import logging
from bisect import bisect_left, bisect_right, insort

from twofold.log.producers.entry import ProducerEntry
from twofold.log.producers.snapshots import CorruptProducerSnapshot, decode_snapshot
from twofold.runtime.api import Disk
from twofold.runtime.files import TEMPORARY_SUFFIX, read_file

log = logging.getLogger("twofold.log")

SNAPSHOT_SUFFIX = ".snapshot"


class SnapshotStore:
    __slots__ = ("_directory", "_disk", "_offsets")

    def __init__(self, disk: Disk, directory: str, offsets: list[int] | None = None) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets = sorted(offsets or ())

    def path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}{SNAPSHOT_SUFFIX}"

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._offsets, offset)
        return at > 0 and self._offsets[at - 1] == offset

    @property
    def newest(self) -> int:
        """-1 when there is none."""
        return self._offsets[-1] if self._offsets else -1

    def offsets(self) -> list[int]:
        return list(self._offsets)

    def write(self, offset: int, data: bytes) -> str:
        """Put a snapshot there without waiting for the disk; the recovery point must not pass it before it is synced.

        A crash before that may leave a torn file, which is recognized by its CRC.
        """
        path = self.path(offset)
        file = self._disk.open(path + TEMPORARY_SUFFIX, create=True)
        try:
            file.truncate(0)
            file.write(0, data)
        finally:
            file.close()
        self._disk.rename(path + TEMPORARY_SUFFIX, path)
        if offset not in self:
            insort(self._offsets, offset)
        return path

    def sync(self, offset: int) -> None:
        file = self._disk.open(self.path(offset))
        try:
            file.sync()
        finally:
            file.close()
        self._disk.sync_dir(self._directory)

    def load(self, up_to: int) -> tuple[int, list[ProducerEntry]] | None:
        """The newest good snapshot at or below `up_to`; bad ones are removed on the way."""
        for offset in reversed(self._offsets[: bisect_right(self._offsets, up_to)]):
            try:
                return offset, decode_snapshot(read_file(self._disk, self.path(offset)))
            except (CorruptProducerSnapshot, FileNotFoundError) as error:
                log.warning("%s: %s; using an older one and the log", self.path(offset), error)
                self._remove(offset)
        return None

    def remove_above(self, offset: int) -> None:
        """Remove the snapshots above `offset`, where the log ends now."""
        for known in self._offsets[bisect_right(self._offsets, offset) :]:
            self._remove(known)

    def remove_below(self, offset: int) -> None:
        for known in self._offsets[: bisect_left(self._offsets, offset)]:
            self._remove(known)

    def remove_at(self, offsets: list[int]) -> None:
        """Remove the snapshots at these offsets: their segments were merged into another one."""
        for offset in offsets:
            if offset in self:
                self._remove(offset)

    def remove_strays(self, bases: set[int]) -> None:
        """Keep the newest and those where a segment begins."""
        for known in self._offsets[:-1]:
            if known not in bases:
                self._remove(known)

    def _remove(self, offset: int) -> None:
        self._offsets.remove(offset)
        try:
            self._disk.remove(self.path(offset))
        except FileNotFoundError:
            log.debug("%s was gone already", self.path(offset))
