"""Getting a log onto the disk, in the background or before an answer.

1. The recovery point is at most the offset up to which a power cut loses nothing, and it goes beyond the end of a
   segment (not only up to it) when its indexes, the snapshot at its end and the epochs are on disk too.
2. One sync runs at a time; all who come while it runs share the next one.
"""

import asyncio
import logging
import posixpath
from bisect import bisect_left

from twofold.log.durability import FlushPlan
from twofold.log.producers.snapshots import encode_snapshot
from twofold.log.producers.times import TimesToKeep
from twofold.log.recovery.checkpoints import PARTITION_METADATA
from twofold.log.recovery.opening import EPOCH_CHECKPOINT
from twofold.log.state import LogState

log = logging.getLogger("twofold.log")


class SyncedLog(LogState):
    __slots__ = ()

    def flush(self, up_to: int | None = None) -> None:
        """Sync everything below `up_to` (all of it) before returning."""
        self._check_not_failed()
        plan = self._plan_flush(self.log_end_offset if up_to is None else min(up_to, self.log_end_offset))
        if plan is None:
            return
        try:
            plan.run()
        except OSError as error:
            self._fail("cannot be synced", error)
        finally:
            plan.release(self._environment.files)
        self._durability.done(plan)

    async def sync(self) -> None:
        """Return when everything that is in the log now survives a power cut.

        One sync runs at a time; all who come while it runs wait for the same next one.
        """
        self._check_not_failed()
        target, generation = self.log_end_offset, self._durability.generation
        while self._wants_flush(target) and generation == self._durability.generation:
            running = self._durability.in_flight
            if running is None:
                name = f"sync {self.topic_partition}"
                running = self._durability.in_flight = self._environment.spawn(self._sync_once(), name=name)
            await asyncio.shield(running)

    async def _sync_once(self) -> None:
        plan: FlushPlan | None = None
        try:
            self._check_not_failed()
            plan = self._plan_flush(self.log_end_offset)
            if plan is not None:
                self._durability.writing = bool(plan.writes)
                await self._environment.blocking(plan.run)
                self._durability.done(plan)
        except OSError as error:
            if plan is None or plan.generation == self._durability.generation:
                self._fail("cannot be synced", error)
            # Otherwise the log was cut meanwhile, and files of the plan may be gone.
        finally:
            self._durability.in_flight = None
            self._durability.writing = False
            if plan is not None:
                plan.release(self._environment.files)

    def _wants_flush(self, up_to: int) -> bool:
        if not self._segments:
            return False
        durability = self._durability
        return durability.recovery_point < up_to or durability.derived_point < self._bases[self._floor(up_to)]

    def _plan_flush(self, up_to: int) -> FlushPlan | None:
        if not self._wants_flush(up_to):
            return None
        derived_to = self._bases[self._floor(up_to)]
        plan = FlushPlan(self._environment.disk, up_to, derived_to, self._durability.generation)
        if self._plan_segments(plan, derived_to) and self._durability.epochs:
            self._plan_epochs(plan)
        self._plan_names(plan)
        return plan

    def _plan_segments(self, plan: FlushPlan, derived_to: int) -> bool:
        """Add the logs between recovery point and `up_to`, and what is derived from segments before `derived_to`."""
        first = self._floor(self.recovery_point)
        for segment in self._segments[first : bisect_left(self._bases, plan.up_to)]:
            if segment is self._segments[-1]:
                plan.active = self._environment.files.pin(segment.log_path)
            else:
                plan.paths.append(segment.log_path)
        first = bisect_left(self._bases, self._durability.derived_point)
        last = bisect_left(self._bases, derived_to)
        for at in range(first, last):
            plan.paths += self._segments[at].index_paths()
            if self._end_of(at) in self._snapshots:
                plan.paths.append(self._snapshots.path(self._end_of(at)))
        return first < last

    def _plan_names(self, plan: FlushPlan) -> None:
        durability = self._durability
        if durability.names:
            plan.directories.append(self.directory)
            plan.cover(durability.names)
        if durability.parent:
            plan.directories.append(posixpath.dirname(self.directory))
            plan.cover(durability.parent)
            path = f"{self.directory}/{PARTITION_METADATA}"
            if self._environment.disk.exists(path):
                plan.paths.append(path)

    def _plan_epochs(self, plan: FlushPlan) -> None:
        if self._durability.writing:
            # Another thread is replacing that file: sync the data, and let a later flush move the recovery point.
            plan.up_to = self.recovery_point
            plan.derived_to = self._durability.derived_point
            return
        plan.writes.append((f"{self.directory}/{EPOCH_CHECKPOINT}", self._epochs.encode()))
        plan.cover(self._durability.epochs)

    def take_times(self) -> TimesToKeep | None:
        """When producers wrote, for the file that keeps it; None where that says so already."""
        producers = self._producers
        if self._listing is not None or not self._segments or not producers.entries:
            return None
        if self._failure is not None or self._times_kept_at == producers.end_offset:
            return None
        self._times_kept_at = producers.end_offset
        return TimesToKeep(self.directory, *producers.times())

    def _keep_times(self) -> None:
        times = self.take_times()
        if times is not None:
            try:
                times.write(self._environment.disk)
            except OSError as error:
                log.warning("%s: when its producers wrote is not kept: %s", self.directory, error)

    # The end

    def close(self) -> None:
        """Leave on disk what a clean start needs: everything synced, indexes complete, a snapshot at the log end."""
        plan = self.prepare_close()
        if plan is None:
            return
        try:
            plan.run()
        except OSError as error:
            self._fail("cannot be closed", error)
        finally:
            self.finish_close(plan)

    def prepare_close(self) -> FlushPlan | None:
        """What is left to write by a thread; None when all is there. After this nothing is appended any more."""
        if self._failure is not None:
            return None
        self._keep_times()
        try:
            plan = self._plan_close()
        except OSError as error:
            self._fail("cannot be closed", error)
        self._failure = "it is closed"
        return plan

    def _plan_close(self) -> FlushPlan | None:
        end, durability = self.log_end_offset, self._durability
        if self._clean or self._listing is not None or not self._segments:
            return None
        self._segments[-1].seal()
        if end not in self._snapshots:
            self._snapshots.write(end, encode_snapshot(self._producers.entries.values()))
        durability.names.note()
        plan = FlushPlan(self._environment.disk, end, end, durability.generation)
        self._plan_segments(plan, end + 1)
        plan.writes.append((f"{self.directory}/{EPOCH_CHECKPOINT}", self._epochs.encode()))
        self._plan_names(plan)
        return plan

    def finish_close(self, plan: FlushPlan) -> None:
        plan.release(self._environment.files)
        self._durability.done(plan)
        for segment in self._segments:
            segment.close_files()

    def abandon(self) -> None:
        """Give the files up, because they get another name or another log object."""
        self._failure = self._failure or "it is closed"
        self._durability.generation += 1
        for segment in self._segments:
            self._environment.indexes.forget(segment)
            segment.close_files()

    async def wait_for_sync(self) -> None:
        """Return when no thread is syncing this log."""
        # Others who waited for the same sync may have started the next one by the time that it is our turn.
        while (running := self._durability.in_flight) is not None:
            await asyncio.wait([running])
