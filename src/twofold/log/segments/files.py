"""The open files of all logs of a broker: a bounded LRU.

1. At most `capacity` files are open, more only while that many are pinned at once.
2. A pinned file stays open, also when it is evicted, renamed or removed meanwhile: a sync in another thread never
   meets a closed descriptor.
"""

from collections import OrderedDict

from twofold.runtime.api import Disk, File

MOST_OPEN_FILES = 8192
LEAST_OPEN_FILES = 16


def pool_size(open_file_limit: int) -> int:
    """Half of what the process may open, so that the other half is left to connections; at most MOST_OPEN_FILES."""
    return max(LEAST_OPEN_FILES, min(MOST_OPEN_FILES, open_file_limit // 2))


class PinnedFile:
    __slots__ = ("file", "path", "pins", "dropped")

    def __init__(self, path: str, file: File) -> None:
        self.path = path
        self.file = file
        self.pins = 0
        self.dropped = False


class FilePool:
    __slots__ = ("disk", "_capacity", "_open")

    def __init__(self, disk: Disk, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"{capacity} open files are too few: at least 1 is needed")
        self.disk = disk
        self._capacity = capacity
        self._open: OrderedDict[str, PinnedFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str, *, create: bool = False) -> File:
        """The file, opened if it is not; for use until the next call of the pool."""
        entry = self._open.get(path)
        if entry is None:
            return self._add(path, create).file
        self._open.move_to_end(path)
        return entry.file

    def pin(self, path: str) -> PinnedFile:
        """The file, kept open until `unpin`."""
        entry = self._open.get(path) or self._add(path, False)
        entry.pins += 1
        return entry

    def unpin(self, entry: PinnedFile) -> None:
        entry.pins -= 1
        if entry.dropped and not entry.pins:
            entry.file.close()
        elif not entry.dropped:
            self._evict()

    def forget(self, path: str) -> None:
        """Close the file: its name is about to change or to go."""
        entry = self._open.pop(path, None)
        if entry is not None:
            self._drop(entry)

    def close(self) -> None:
        while self._open:
            self._drop(self._open.popitem()[1])

    def _add(self, path: str, create: bool) -> PinnedFile:
        entry = self._open[path] = PinnedFile(path, self.disk.open(path, create=create))
        self._evict(entry)
        return entry

    def _evict(self, newest: PinnedFile | None = None) -> None:
        while len(self._open) > self._capacity:
            victim = next((entry for entry in self._open.values() if not entry.pins and entry is not newest), None)
            if victim is None:
                return
            del self._open[victim.path]
            self._drop(victim)

    def _drop(self, entry: PinnedFile) -> None:
        entry.dropped = True
        if not entry.pins:
            entry.file.close()
