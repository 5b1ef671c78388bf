"""Getting a log onto the disk: one sync in flight, those who wait for a later one share it.

1. `recovery_point` is an offset up to which a power cut loses nothing. Segments that end below it need not be looked at
   after a cut; the one that ends there, or holds it, is.
2. `derived_point` is the base of a segment such that the indexes of all before it, the snapshots at their ends and the
   epochs are on disk. The recovery point goes beyond it only to an offset of the segment that begins there.
3. A sync covers what was appended before it began. What is appended meanwhile waits for the next.
4. Cutting the log lowers the recovery point and voids syncs that are under way.
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
    derived_to: int
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
    __slots__ = (
        "recovery_point",
        "derived_point",
        "generation",
        "names_changed",
        "parent_changed",
        "in_flight",
        "writing",
    )

    def __init__(self, recovery_point: int) -> None:
        self.recovery_point = recovery_point
        self.derived_point = 0
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
            self.derived_point = max(self.derived_point, plan.derived_to)
