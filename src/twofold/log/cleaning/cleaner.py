"""Compaction in the background: the log with the largest dirty part first, at a bounded rate.

1. Records are walked in a thread, a few milliseconds at a time with a rest in between; the event loop only renames.
2. One log is cleaned at a time (log.cleaner.threads has no effect), and at most log.cleaner.dedupe.buffer.size bytes of
   keys are held: what does not fit is left to the next pass.
3. A log is cleaned only as far as a power cut loses nothing of it, and the recovery point on disk says so: a gap that
   compaction leaves must not be taken for a hole.
4. Groups of segments are swapped one after the other, each for good before the next: a tombstone never goes before
   what it deletes.
5. A log that cannot be cleaned is named and left alone until the next start. A log whose disk failed is left alone for
   a while. The others go on.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from twofold.log.cleaning.rewriting import CleaningPass, Rewritten
from twofold.log.indexes.offset_index import CorruptIndex
from twofold.log.log import PartitionLog
from twofold.log.options import CleanerOptions
from twofold.log.segments.scan import InvalidBatch
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, KafkaStorageError

log = logging.getLogger("twofold.log")

T = TypeVar("T")
REST_S = 0.001
REST_AFTER_DISK_ERROR_S = 300.0
YIELD_EVERY = 8


class CleanerHost(Protocol):
    """Has the logs and their checkpoints."""

    def logs(self) -> list[PartitionLog]: ...

    async def checkpoint_recovery_points(self) -> None: ...

    async def checkpoint_cleaned_offsets(self) -> None: ...


class LogCleaner:
    def __init__(self, runtime: Runtime, host: CleanerHost, options: CleanerOptions) -> None:
        self.options = options
        self._runtime = runtime
        self._host = host
        # Partitions that could not be cleaned since the start.
        self._uncleanable: dict[TopicPartition, PartitionLog] = {}
        self._resting: dict[TopicPartition, float] = {}
        self._free_at = 0.0
        self._stopped = False
        self._running: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Clean what is worth it, until cancelled."""
        while True:
            await self._runtime.timers.sleep(max(self.options.backoff_ms, 1) / 1000)
            while self.options.enabled and await self.clean_filthiest():
                pass

    async def stop(self) -> None:
        """Return when no thread works on a log any more."""
        self._stopped = True
        running = self._running
        if running is not None:
            await asyncio.wait([running])

    # Choosing

    async def clean_filthiest(self) -> bool:
        """Clean the log that needs it most; False when none does or none could be."""
        now_ms = self._runtime.clock.wall_ms()
        best: tuple[float, PartitionLog] | None = None
        for count, known in enumerate(self._host.logs(), 1):
            if count % YIELD_EVERY == 0:
                await self._runtime.timers.sleep(0)
            if self._may_be_cleaned(known):
                ratio = self._dirty_ratio(known, now_ms)
                if ratio is not None and (best is None or ratio > best[0]):
                    best = ratio, known
        return best is not None and await self.clean(best[1])

    def _may_be_cleaned(self, known: PartitionLog) -> bool:
        partition = known.topic_partition
        if not known.may_be_dirty or self._uncleanable.get(partition) is known:
            return False
        return self._resting.get(partition, 0.0) <= self._runtime.clock.monotonic()

    def _dirty_ratio(self, known: PartitionLog, now_ms: int) -> float | None:
        """None for a log that is not worth cleaning."""
        try:
            wanted = known.cleanable_range(now_ms)
            return wanted.dirty_ratio if wanted.is_worth_cleaning(known.config) else None
        except (KafkaStorageError, OSError, InvalidBatch) as error:
            self._rest(known, error)
            return None

    # Cleaning

    async def clean(self, known: PartitionLog) -> bool:
        """Clean a log now, worth it or not; False when it was not cleaned."""
        generation = known.generation
        try:
            return await self._clean(known)
        except (OSError, InvalidBatch, CorruptIndex, KafkaError, OverflowError) as error:
            if self._is_over(known, generation):
                log.debug("%s: compaction given up, the log changed: %s", known.directory, error)
            elif isinstance(error, OSError | KafkaStorageError):
                self._rest(known, error)
            else:
                self._uncleanable[known.topic_partition] = known
                log.error("%s cannot be compacted and is left alone until the next start: %s", known.directory, error)
        return False

    def _rest(self, known: PartitionLog, error: Exception) -> None:
        self._resting[known.topic_partition] = self._runtime.clock.monotonic() + REST_AFTER_DISK_ERROR_S
        if known.failure is None:
            log.error("%s could not be compacted, to be tried again later: %s", known.directory, error)

    async def _clean(self, known: PartitionLog) -> bool:
        if not known.may_be_dirty:
            return False
        now_ms, started = self._runtime.clock.wall_ms(), self._runtime.clock.monotonic()
        wanted = known.cleanable_range(now_ms)
        if not wanted.dirty_bytes:
            return False
        if not known.swap.is_durable_up_to(wanted.end):
            await known.sync()
            if known.failure is not None or not known.swap.is_durable_up_to(wanted.end):
                return False
        generation = known.generation
        memory = self.options.dedupe_buffer_bytes * self.options.load_factor
        cleaning = CleaningPass(self._runtime.disk, known.swap.plan(wanted, now_ms), memory)
        await self._host.checkpoint_recovery_points()
        try:
            done = await self._rewrite(known, cleaning, generation)
        finally:
            await self._call(cleaning.close)
        if not done or self._is_over(known, generation):
            return False
        known.cleaned_offset = cleaning.offset_map.end
        await self._host.checkpoint_cleaned_offsets()
        log.info(
            "%s: compacted [%d, %d), %d records and %d bytes read, %d bytes written, in %.1f s",
            known.directory,
            wanted.first_dirty,
            known.cleaned_offset,
            cleaning.records_read,
            cleaning.bytes_read,
            cleaning.bytes_written,
            self._runtime.clock.monotonic() - started,
        )
        return True

    async def _rewrite(self, known: PartitionLog, cleaning: CleaningPass, generation: int) -> bool:
        await self._run(cleaning.map_keys(), known, generation)
        for group in await self._call(cleaning.groups):
            await self._run(cleaning.rewrite(group), known, generation)
            if self._is_over(known, generation):
                return False
            if cleaning.result is not None and not await self._swap(known, cleaning.result, generation):
                return False
        return True

    async def _swap(self, known: PartitionLog, new: Rewritten, generation: int) -> bool:
        """Put a new segment in the place of the old ones; `swap` describes the steps."""
        if self._stopped or not known.swap.begin(new, generation):
            return False
        try:
            await self._sync_names(known)
        except OSError:
            known.swap.discard()
            raise
        await known.wait_for_sync()
        segment = known.swap.apply(new, generation)
        if segment is None:
            return False
        try:
            await self._sync_names(known)
            known.swap.finish(segment, new)
            await self._sync_names(known)
        except OSError as error:
            if not self._is_over(known, generation):
                known.swap.fail(error)
            return False
        return True

    async def _sync_names(self, known: PartitionLog) -> None:
        await self._call(self._runtime.disk.sync_dir, known.directory)

    def _is_over(self, known: PartitionLog, generation: int) -> bool:
        return self._stopped or known.failure is not None or known.generation != generation

    # Working in a thread

    async def _run(self, work: Iterator[int], known: PartitionLog, generation: int) -> None:
        """Let a pass go on slice by slice, as fast as log.cleaner.io.max.bytes.per.second allows."""
        while (done := await self._call(next, work, None)) is not None:
            if self._is_over(known, generation):
                return
            await self._runtime.timers.sleep(self._pause_s(done))

    def _pause_s(self, done_bytes: int) -> float:
        now = self._runtime.clock.monotonic()
        self._free_at = max(now, self._free_at) + done_bytes / max(self.options.max_bytes_per_second, 1.0)
        return max(REST_S, self._free_at - now)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        """Run in a thread. A call that is cancelled meanwhile leaves the thread running; `stop` waits for it."""

        async def call() -> T:
            return await self._runtime.blocking(function, *args)

        if self._running is not None:
            await asyncio.wait([self._running])
        self._running = task = self._runtime.spawn(call(), name="log cleaner")
        try:
            return await asyncio.shield(task)
        finally:
            if task.done():
                self._running = None
