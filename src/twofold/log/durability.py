"""How much of a log is on disk, and what is missing.

1. `recovery_point` is an offset up to which a power cut loses nothing. Segments that end below it need not be looked at
   after a cut; the one that ends there, or holds it, is.
2. `derived_point` is the base of a segment such that the indexes of all before it, the snapshots at their ends and the
   epochs are on disk. The recovery point goes beyond it only to an offset of the segment that begins there.
3. What a plan covers counts as synced when the plan is done, not when it is made: another flush may run meanwhile.
4. Cutting the log voids plans that are under way.
"""

import asyncio
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
        """Of files that nobody writes to there may be thousands: they are opened one at a time, beside the pool."""
        file = self.disk.open(path)
        try:
            file.sync()
        finally:
            file.close()

    def release(self, files: FilePool) -> None:
        if self.active is not None:
            files.unpin(self.active)
            self.active = None


class Durability:
    __slots__ = (
        "derived_point",
        "epochs",
        "generation",
        "in_flight",
        "names",
        "parent",
        "recovery_point",
        "writing",
    )

    def __init__(self, recovery_point: int) -> None:
        self.recovery_point = recovery_point
        self.derived_point = 0
        self.generation = 0
        self.names = Changes()  # in the log's directory
        self.parent = Changes()  # the name of that directory, and the file that says whose it is
        self.epochs = Changes()
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
        """Believe what a plan brought to the disk; nothing of one that failed half-way."""
        if plan.generation != self.generation or not plan.has_run:
            return
        self.recovery_point = max(self.recovery_point, plan.up_to)
        self.derived_point = max(self.derived_point, plan.derived_to)
        for changes, made in plan.covered:
            changes.synced = max(changes.synced, made)
