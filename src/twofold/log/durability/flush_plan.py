"""What one flush brings to the disk. A plan is made on the event loop; `run` may run in any thread."""

from dataclasses import dataclass, field

from twofold.log.segments.files import FilePool, PinnedFile
from twofold.runtime.api import Disk
from twofold.runtime.files import write_atomically


class Changes:
    """Counts changes to something that is synced as a whole."""

    __slots__ = ("made", "synced")

    def __init__(self) -> None:
        self.made = 0
        self.synced = 0

    def __bool__(self) -> bool:
        return self.made > self.synced

    def note(self) -> None:
        self.made += 1


@dataclass(slots=True)
class FlushPlan:
    """What has to reach the disk before the recovery point may move to `up_to`. `run` may run in any thread."""

    disk: Disk
    up_to: int
    derived_to: int
    generation: int
    active: PinnedFile | None = None
    paths: list[str] = field(default_factory=list)
    writes: list[tuple[str, bytes]] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    covered: list[tuple[Changes, int]] = field(default_factory=list)
    has_run: bool = False

    def cover(self, changes: Changes) -> None:
        self.covered.append((changes, changes.made))

    def run(self) -> None:
        for path, data in self.writes:
            write_atomically(self.disk, path, data)
        for path in self.paths:
            self._sync(path)
        if self.active is not None:
            self.active.file.sync()
        for directory in self.directories:
            self.disk.sync_dir(directory)
        self.has_run = True

    def _sync(self, path: str) -> None:
        """There may be thousands of sealed files: they are opened one at a time, beside the pool."""
        file = self.disk.open(path)
        try:
            file.sync()
        finally:
            file.close()

    def release(self, files: FilePool) -> None:
        if self.active is not None:
            files.unpin(self.active)
            self.active = None
