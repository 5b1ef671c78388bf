"""How much of a log is on disk, and what is missing.

1. `recovery_point` is an offset up to which a power cut loses nothing. Segments that end below it need not be looked at
   after a power cut. The segment that ends there, or holds it, is looked at.
2. `derived_point` is the base of a segment such that the indexes of all before it, the snapshots at their ends and the
   epochs are on disk. The recovery point goes beyond it only to an offset of the segment that begins there.
3. What a plan covers counts as synced when the plan is done, not when it is made: another flush may run meanwhile.
4. Cutting the log voids plans that are under way.
"""

import asyncio

from twofold.log.durability.flush_plan import Changes, FlushPlan


class Durability:
    __slots__ = (
        "derived_point",
        "epochs",
        "flush_is_scheduled",
        "generation",
        "in_flight",
        "names",
        "parent",
        "recovery_point",
        "unchanged_since_clean_shutdown",
        "writing",
    )

    def __init__(self, recovery_point: int, *, closed_cleanly: bool = False) -> None:
        self.recovery_point = recovery_point
        self.unchanged_since_clean_shutdown = closed_cleanly  # what is on disk is what a clean shutdown leaves
        self.derived_point = 0
        self.generation = 0
        self.names = Changes()  # in the log's directory
        self.parent = Changes()  # the name of that directory, and the file in it that names its topic
        self.epochs = Changes()
        self.in_flight: asyncio.Task[None] | None = None
        self.writing = False  # the sync in flight replaces whole files
        self.flush_is_scheduled = False  # a timer of flush.ms is running

    def note_epochs(self) -> None:
        """An epoch began: the file of the epochs is out of date."""
        self.epochs.note()
        self.unchanged_since_clean_shutdown = False

    def note_directory(self) -> None:
        """The directory is new, or the file in it that names its topic."""
        self.parent.note()
        self.names.note()

    def cut(self, offset: int) -> bool:
        """The log is about to be cut at `offset`; True when that lowers the recovery point."""
        self.generation += 1
        if offset >= self.recovery_point:
            return False
        self.recovery_point = offset
        return True

    def done(self, plan: FlushPlan) -> None:
        """Take over what a plan brought to the disk. A plan that failed half-way brought nothing for sure."""
        if plan.generation != self.generation or not plan.has_run:
            return
        self.recovery_point = max(self.recovery_point, plan.up_to)
        self.derived_point = max(self.derived_point, plan.derived_to)
        for changes, made in plan.covered:
            changes.synced = max(changes.synced, made)
