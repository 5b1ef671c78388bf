"""Getting a log onto the disk, in the background or before an answer.

1. The recovery point is at most the offset up to which a power cut loses nothing. It goes beyond the end of a segment,
   and not only up to it, when the segment's indexes, the snapshot at its end and the epochs are on disk too.
2. One sync runs at a time. All callers that come while it runs share the next one.
"""

import asyncio
import posixpath
from bisect import bisect_left

from twofold.log.bounds import LogBounds
from twofold.log.durability.flush_plan import FlushPlan
from twofold.log.durability.health import LogHealth
from twofold.log.durability.points import Durability
from twofold.log.environment import LogContext
from twofold.log.producers.log_producers import LogProducers
from twofold.log.recovery.checkpoints import PARTITION_METADATA
from twofold.log.recovery.epochs import EPOCH_CHECKPOINT, EpochCache
from twofold.log.segments.segment_list import SegmentList


class LogSync:
    __slots__ = ("_bounds", "_context", "_durability", "_epochs", "_health", "_producers", "_segments")

    def __init__(
        self,
        context: LogContext,
        bounds: LogBounds,
        health: LogHealth,
        durability: Durability,
        segments: SegmentList,
        producers: LogProducers,
        epochs: EpochCache,
    ) -> None:
        self._context = context
        self._bounds = bounds
        self._health = health
        self._durability = durability
        self._segments = segments
        self._producers = producers
        self._epochs = epochs

    @property
    def durable_log_start(self) -> int:
        """The log start that a checkpoint may claim. After a crash nothing below it is looked at."""
        segments, durability, log_start = self._segments, self._durability, self._bounds.log_start_offset
        if not segments.all:
            return log_start
        start = min(log_start, max(durability.recovery_point, segments.bases[0]))
        return start if segments.floor_base(start) <= durability.derived_point else segments.bases[0]

    # Flushing and syncing

    def flush(self, up_to: int | None = None) -> None:
        """Sync everything below `up_to` before returning; without `up_to`, the whole log."""
        self._health.check()
        end = self._bounds.log_end_offset
        plan = self._plan(end if up_to is None else min(up_to, end))
        if plan is None:
            return
        try:
            plan.run()
        except OSError as error:
            self._health.fail("cannot be synced", error)
        finally:
            plan.release(self._context.environment.files)
        self._durability.done(plan)

    async def sync(self) -> None:
        """Return when everything that is in the log now survives a power cut."""
        self._health.check()
        durability = self._durability
        target, generation = self._bounds.log_end_offset, durability.generation
        while self._is_wanted(target) and generation == durability.generation:
            running = durability.in_flight
            if running is None:
                name = f"sync {self._context.topic_partition}"
                running = durability.in_flight = self._context.environment.spawn(self._sync_once(), name=name)
            await asyncio.shield(running)

    async def _sync_once(self) -> None:
        plan: FlushPlan | None = None
        durability, environment = self._durability, self._context.environment
        try:
            self._health.check()
            plan = self._plan(self._bounds.log_end_offset)
            if plan is not None:
                durability.writing = bool(plan.writes)
                await environment.blocking(plan.run)
                durability.done(plan)
        except OSError as error:
            if plan is None or plan.generation == durability.generation:
                self._health.fail("cannot be synced", error)
            # Otherwise the log was cut meanwhile, and files of the plan may be gone.
        finally:
            durability.in_flight = None
            durability.writing = False
            if plan is not None:
                plan.release(environment.files)

    async def wait(self) -> None:
        """Return when no thread is syncing this log."""
        # Another caller that waited for the same sync may have started the next one before this one goes on.
        while (running := self._durability.in_flight) is not None:
            await asyncio.wait([running])

    # Planning

    def _is_wanted(self, up_to: int) -> bool:
        if not self._segments.all:
            return False
        durability = self._durability
        return durability.recovery_point < up_to or durability.derived_point < self._segments.floor_base(up_to)

    def _plan(self, up_to: int) -> FlushPlan | None:
        if not self._is_wanted(up_to):
            return None
        derived_to = self._segments.floor_base(up_to)
        plan = FlushPlan(self._context.environment.disk, up_to, derived_to, self._durability.generation)
        if self._plan_segments(plan, derived_to) and self._durability.epochs:
            self._plan_epochs(plan)
        self._plan_names(plan)
        return plan

    def _plan_segments(self, plan: FlushPlan, derived_to: int) -> bool:
        """Add the logs between recovery point and `up_to`, and what is derived from segments before `derived_to`."""
        segments, durability, snapshots = self._segments, self._durability, self._producers.snapshots
        first = segments.floor(durability.recovery_point)
        for segment in segments.all[first : bisect_left(segments.bases, plan.up_to)]:
            if segment is segments.all[-1]:
                plan.active = self._context.environment.files.pin(segment.log_path)
            else:
                plan.paths.append(segment.log_path)
        first = bisect_left(segments.bases, durability.derived_point)
        last = bisect_left(segments.bases, derived_to)
        for at in range(first, last):
            plan.paths += segments.all[at].index_paths()
            end = segments.end_of(at)
            if end in snapshots:
                plan.paths.append(snapshots.path(end))
        return first < last

    def _plan_names(self, plan: FlushPlan) -> None:
        durability, directory = self._durability, self._context.directory
        if durability.names:
            plan.directories.append(directory)
            plan.cover(durability.names)
        if durability.parent:
            plan.directories.append(posixpath.dirname(directory))
            plan.cover(durability.parent)
            path = f"{directory}/{PARTITION_METADATA}"
            if self._context.environment.disk.exists(path):
                plan.paths.append(path)

    def _plan_epochs(self, plan: FlushPlan) -> None:
        durability = self._durability
        if durability.writing:
            # Another thread is replacing that file: sync the data, and let a later flush move the recovery point.
            plan.up_to = durability.recovery_point
            plan.derived_to = durability.derived_point
            return
        self._plan_epoch_file(plan)
        plan.cover(durability.epochs)

    def _plan_epoch_file(self, plan: FlushPlan) -> None:
        plan.writes.append((f"{self._context.directory}/{EPOCH_CHECKPOINT}", self._epochs.encode()))

    # Closing

    def prepare_close(self) -> FlushPlan | None:
        """What a thread still has to write; None when all is on disk. After this nothing is appended any more."""
        if self._health.failure is not None:
            return None
        try:
            plan = self._plan_close()
        except OSError as error:
            self._health.fail("cannot be closed", error)
        self._health.close()
        return plan

    def _plan_close(self) -> FlushPlan | None:
        """Everything synced, indexes complete, a snapshot at the log end: what a clean start needs."""
        segments, durability, end = self._segments, self._durability, self._bounds.log_end_offset
        if not segments.all:
            return None
        self._producers.keep_times()
        if durability.unchanged_since_clean_shutdown:
            return None
        segments.all[-1].seal()
        self._producers.snapshot_at(end)
        durability.names.note()
        plan = FlushPlan(self._context.environment.disk, end, end, durability.generation)
        self._plan_segments(plan, end + 1)
        self._plan_epoch_file(plan)
        self._plan_names(plan)
        return plan

    def finish_close(self, plan: FlushPlan) -> None:
        plan.release(self._context.environment.files)
        self._durability.done(plan)
        self._segments.close_files()

    def close(self) -> None:
        """Leave on disk what a clean start needs."""
        plan = self.prepare_close()
        if plan is None:
            return
        try:
            plan.run()
        except OSError as error:
            self._health.fail("cannot be closed", error)
        finally:
            self.finish_close(plan)
