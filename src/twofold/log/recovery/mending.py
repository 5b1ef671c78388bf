"""Logs that failed are opened again, and a directory that is gone stops the broker.

1. A log whose write or sync failed takes nothing until it was opened again: what it had not synced is written anew and
   synced (`rescue`), what cannot be read any more is cut off. Only then it takes the place of the one that failed.
2. The first attempt is made a second after the failure, the next ones after twice the time before, up to a minute.
   Readers get what is below the high watermark all the time.
3. A directory whose lock file is another's, or gone, is no longer ours: writes to open files would succeed, and could
   never be read again. A directory that could not be written to for log.dir.failure.timeout.ms (a full disk does not
   count) has failed. Both stop the broker, as Apache Kafka stops when its last directory fails.
"""

import asyncio
import errno
import logging
from collections.abc import Awaitable
from typing import Protocol

from twofold.log.directory.clock_watch import ClockWatch
from twofold.log.log import PartitionLog
from twofold.log.segments.scan import InvalidBatch
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaStorageError

log = logging.getLogger("twofold.log")

LOOK_EVERY_S = 5.0
FIRST_DELAY_S = 1.0
MOST_S_BETWEEN_ATTEMPTS = 60.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


class MenderHost(Protocol):
    """Has the logs and the directory."""

    directory: str
    clock_watch: ClockWatch

    def get(self, partition: TopicPartition) -> PartitionLog | None: ...

    def mend(self, failed: PartitionLog) -> Awaitable[PartitionLog]: ...

    def owns_directory(self) -> bool: ...

    def directory_failed(self, error: KafkaStorageError) -> None: ...


class LogMender:
    def __init__(self, runtime: Runtime, host: MenderHost, failure_timeout_ms: int) -> None:
        self._runtime = runtime
        self._host = host
        self._timeout_s = failure_timeout_ms / 1000
        self._failed: dict[TopicPartition, asyncio.Task[None] | None] = {}
        self._one_at_a_time = asyncio.Lock()
        self._is_running = False
        self._unwritable_since: float | None = None

    def add(self, failed: PartitionLog) -> None:
        """Open the log again, after a delay."""
        if failed.topic_partition not in self._failed:
            self._failed[failed.topic_partition] = None
            if self._is_running:
                self._begin(failed.topic_partition)

    def directory_written(self) -> None:
        self._unwritable_since = None

    def directory_not_written(self, error: OSError) -> None:
        if self._unwritable_since is None and error.errno not in _FULL:
            self._unwritable_since = self._runtime.clock.monotonic()

    async def run(self) -> None:
        """Until cancelled, or until the directory has failed."""
        self._is_running = True
        for partition in list(self._failed):
            self._begin(partition)
        try:
            await self._watch_directory()
        finally:
            self._is_running = False
            for task in self._failed.values():
                if task is not None:
                    task.cancel()

    # The directory

    async def _watch_directory(self) -> None:
        while True:
            await self._runtime.timers.sleep(LOOK_EVERY_S)
            self._host.clock_watch.is_doubtful()  # a jump counts from the moment it is seen
            problem = self._problem()
            if problem is not None:
                log.critical("%s; the broker stops", problem)
                self._host.directory_failed(KafkaStorageError(problem))
                return

    def _problem(self) -> str | None:
        directory = self._host.directory
        if not self._host.owns_directory():
            return f"{directory} was removed, moved or unmounted (log.dirs)"
        since = self._unwritable_since
        if since is None or self._runtime.clock.monotonic() - since < self._timeout_s:
            return None
        return (
            f"{directory} cannot be written to for {self._timeout_s:g} s (log.dir.failure.timeout.ms): "
            "see whether its disk is read-only or broken (log.dirs)"
        )

    # The logs

    def _begin(self, partition: TopicPartition) -> None:
        self._failed[partition] = self._runtime.spawn(self._mend_in_time(partition), name=f"mend {partition}")

    async def _mend_in_time(self, partition: TopicPartition) -> None:
        delay_s = FIRST_DELAY_S
        while True:
            await self._runtime.timers.sleep(delay_s)
            delay_s = min(delay_s * 2, MOST_S_BETWEEN_ATTEMPTS)
            async with self._one_at_a_time:
                if await self._is_over(partition, delay_s):
                    self._failed.pop(partition, None)
                    return

    async def _is_over(self, partition: TopicPartition, next_s: float) -> bool:
        """Mend a log; True when it is mended, or when there is nothing to mend any more."""
        failed = self._host.get(partition)
        if failed is None or failed.failure is None:
            return True
        end, high_watermark = failed.log_end_offset, failed.high_watermark
        try:
            mended = await self._host.mend(failed)
        except (OSError, InvalidBatch, KafkaStorageError) as error:
            if self._host.get(partition) is not failed:
                return True
            log.error("%s still fails, to be tried again in %g s: %s", failed.directory, next_s, error)
            return False
        if mended.log_end_offset < high_watermark:
            log.critical(
                "%s lost the records from %d to %d, which could not be read any more",
                failed.directory, mended.log_end_offset, high_watermark - 1,
            )  # fmt: skip
        log.warning("%s works again: it ends at %d, before at %d", failed.directory, mended.log_end_offset, end)
        return mended.failure is None  # a listener of on_mended may have written to it already, and failed
