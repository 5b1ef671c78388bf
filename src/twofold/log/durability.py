"""Getting a log onto the disk: one sync in flight, those who wait for a later one share it.

1. `recovery_point` is the offset up to which a power cut loses nothing and below whose segment nothing needs to be
   derived again.
2. A sync covers what was appended before it began. What is appended meanwhile waits for the next.
3. Cutting the log lowers the recovery point and voids syncs that are under way.
"""

import asyncio
from dataclasses import dataclass, field

from twofold.log.files import FilePool, PinnedFile
from twofold.runtime.api import Disk
from twofold.runtime.files import write_atomically


@dataclass(slots=True)
class FlushPlan:
    """What has to reach the disk before the recovery point may move to `up_to`. Runs in any thread."""

    disk: Disk
    up_to: int
    generation: int
    files: list[PinnedFile] = field(default_factory=list)
    writes: list[tuple[str, bytes]] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)

    def run(self) -> None:
        for path, data in self.writes:
            write_atomically(self.disk, path, data)
        for pinned in self.files:
            pinned.file.sync()
        for directory in self.directories:
            self.disk.sync_dir(directory)

    def release(self, files: FilePool) -> None:
        for pinned in self.files:
            files.unpin(pinned)


class Durability:
    __slots__ = ("recovery_point", "generation", "names_changed", "parent_changed", "in_flight", "writing")

    def __init__(self, recovery_point: int) -> None:
        self.recovery_point = recovery_point
        self.generation = 0
        self.names_changed = False
        self.parent_changed = False
        self.in_flight: asyncio.Task[None] | None = None
        self.writing = False  # the sync in flight replaces whole files

    def cut(self, offset: int) -> bool:
        """The log is about to be cut at `offset`; True when the recovery point fell."""
        self.generation += 1
        if offset >= self.recovery_point:
            return False
        self.recovery_point = offset
        return True

    def done(self, plan: FlushPlan) -> None:
        if plan.generation == self.generation:
            self.recovery_point = max(self.recovery_point, plan.up_to)
