"""All partition logs of a data directory, and what is done for them in the background.

1. A directory belongs to one process at a time (`.lock`) and to one node of one cluster (`meta.properties`).
2. After a clean shutdown nothing is read at start but names and checkpoints; a log is opened when it is first used.
   After any other end every log is recovered before the first one is served.
3. A log start is on disk before the segments below it go, and a lowered recovery point before the log is cut.
4. The mark of a clean shutdown is written last, and only if every log was closed without an error.
"""

import asyncio
import logging
import posixpath
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

from twofold.config.settings import Settings
from twofold.config.topic import LogConfig
from twofold.log.cleaning.cleaner import LogCleaner
from twofold.log.directory.clock_watch import ClockWatch
from twofold.log.directory.identity import DataDirectoryError as DataDirectoryError
from twofold.log.directory.reserve import Reserve
from twofold.log.environment import LogEnvironment
from twofold.log.log import PartitionLog
from twofold.log.options import CleanerOptions
from twofold.log.options import LogOptions as LogOptions
from twofold.log.producers.times import TimesToKeep
from twofold.log.recovery.checkpoints import (
    CLEANED_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    CheckpointWriter,
    encode_offsets,
    mark_clean_shutdown,
    read_offsets,
    read_topic_id,
    take_clean_shutdown,
)
from twofold.log.recovery.mending import LogMender
from twofold.log.recovery.opening import DirectoryListing, list_directory
from twofold.log.segments.files import FilePool, pool_size
from twofold.log.segments.scan import InvalidBatch
from twofold.runtime.api import DiskLock, Runtime
from twofold.types import TopicId, TopicPartition
from twofold.wire.errors import KafkaError, KafkaStorageError

log = logging.getLogger("twofold.log")

LOCK = ".lock"
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
METADATA_TOPIC = "__cluster_metadata"
CHECKPOINTS = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANED_OFFSETS)
MAX_NAME = 255
YIELD_EVERY = 8
CLOSE_AT_ONCE = 16
TIMES_AT_ONCE = 64


class LogManager:
    def __init__(
        self,
        runtime: Runtime,
        directory: str,
        options: LogOptions | None = None,
        *,
        default_config: LogConfig | None = None,
    ) -> None:
        self.directory = directory.rstrip("/") or "/"
        self.options = options or LogOptions()
        self.default_config = default_config or LogConfig()
        self._runtime = runtime
        self._disk = runtime.disk
        self._lock: DiskLock | None = None
        self._writer = CheckpointWriter(runtime.disk, self.directory)
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._doomed: list[tuple[int, str]] = []
        # Logs that were removed, and the checkpoints that still name them.
        self._gone: dict[TopicPartition, set[str]] = {}
        self._sync_scheduled = False
        self._times_in_flight: asyncio.Future[None] | None = None
        self._closed = False
        self._loaded = False  # the directory is this node's, so it may be written to
        self.broker_epoch = -1  # of a member of a cluster: noted by a clean shutdown
        self.unrecovered: int | None = None  # how many logs are still to be recovered; None before `load`
        self.was_unclean = False  # the process before this one was killed or lost its power, so every log was recovered
        self.on_mended: Callable[[PartitionLog], None] | None = None
        self.on_directory_failure: Callable[[KafkaStorageError], None] | None = None
        self.clock_watch = ClockWatch(runtime.clock)
        self.mender = LogMender(runtime, self, self.options.dir_failure_timeout_ms)
        self.reserve = Reserve(runtime.disk, self.directory, self.options.reserve_bytes)
        self.environment = self._make_environment(runtime)
        self.cleaner = LogCleaner(runtime, self, self.options.cleaner)

    def _make_environment(self, runtime: Runtime) -> LogEnvironment:
        """What all logs of the directory share."""
        return LogEnvironment(
            disk=runtime.disk,
            clock=runtime.clock,
            random=runtime.random,
            blocking=runtime.blocking,
            spawn=runtime.spawn,
            files=FilePool(runtime.disk, self.options.open_files or pool_size(runtime.disk.open_file_limit())),
            owner=self,
            verification_enabled=self.options.transaction_verification_enabled,
            producer_id_expiration_ms=self.options.producer_id_expiration_ms,
            reserve=self.reserve,
        )

    # Starting

    def take(self) -> None:
        """Lock the directory and take the reserve. Everything else in the directory stays as it is."""
        self._create_directory()
        self._is_new = not self._disk.exists(self._path(META_PROPERTIES))
        try:
            self._lock = self._disk.lock(self._path(LOCK))
        except BlockingIOError:
            raise DataDirectoryError(
                f"{self.directory} is in use by another process: stop it, or choose another directory (log.dirs)"
            ) from None
        self.reserve.take()

    def load(self) -> None:
        """Load everything in the directory, which is locked first unless `take` did that."""
        for _ in self.load_step_by_step():
            pass

    def load_step_by_step(self) -> Iterator[None]:
        """The same; each log that is recovered is a step, because many may take minutes."""
        disk = self._disk
        if self._lock is None:
            self.take()
        self._loaded = True
        clean = take_clean_shutdown(disk, self.directory)
        recovery_points = read_offsets(disk, self._path(RECOVERY_POINTS))
        log_starts = read_offsets(disk, self._path(LOG_STARTS))
        high_watermarks = read_offsets(disk, self._path(HIGH_WATERMARKS))
        cleaned_offsets = read_offsets(disk, self._path(CLEANED_OFFSETS))
        for name in disk.list(self.directory):
            partition = self._partition_of(name)
            if partition is not None:
                self._logs[partition] = self._existing(
                    partition,
                    clean,
                    recovery_points.get(partition),
                    log_starts.get(partition, 0),
                    high_watermarks.get(partition, 0),
                    cleaned_offsets.get(partition, 0),
                )
        if not clean:
            self.was_unclean = not self._is_new
            yield from self._recover_all()
        self.unrecovered = 0
        if self._is_new:
            log.info("%s: a new data directory", self.directory)
        else:
            end = "a clean" if clean else "an unclean"
            log.info("%s: %d partitions after %s shutdown", self.directory, len(self._logs), end)

    def _create_directory(self) -> None:
        """Make the directory, durably: nothing in it survives a power cut if its own name does not."""
        created = []
        path = self.directory
        while path and not self._disk.is_dir(path):
            if self._disk.exists(path):
                raise DataDirectoryError(f"{path} is a file, and logs need a directory: choose another path (log.dirs)")
            created.append(path)
            path = posixpath.dirname(path)
        self._disk.make_dirs(self.directory)
        for path in created:
            self._disk.sync_dir(posixpath.dirname(path) or ".")

    def _partition_of(self, name: str) -> TopicPartition | None:
        """The partition that a directory holds; None for a directory that holds none."""
        if name.endswith(DELETE_SUFFIX):
            self._doomed.append((0, self._path(name)))
            return None
        topic, _, number = name.rpartition("-")
        if not topic or topic == METADATA_TOPIC or not self._disk.is_dir(self._path(name)):
            return None
        # "t-00" is not a second directory of t-0.
        if number.isdecimal() and number.isascii() and str(int(number)) == number:
            return TopicPartition(topic, int(number))
        log.warning("%s is not used; remove it when nothing in it is needed", self._path(name))
        return None

    def _existing(
        self,
        partition: TopicPartition,
        clean: bool,
        recovery_point: int | None,
        log_start: int,
        high_watermark: int,
        cleaned_offset: int,
    ) -> PartitionLog:
        directory = self._path(str(partition))
        listing = list_directory(self._disk, directory)
        first = listing.bases[0] if clean and listing.bases else log_start
        loaded = PartitionLog(
            self.environment,
            directory,
            partition,
            self.default_config,
            listing=listing,
            closed_cleanly=clean,
            recovery_point=recovery_point or 0,
            log_start_offset=max(log_start, first),
            high_watermark=high_watermark,
            cleaned_offset=cleaned_offset,
        )
        if clean and (recovery_point is None or recovery_point not in listing.snapshots):
            # A clean shutdown leaves it otherwise: look inside now, because its bounds are not known.
            loaded.ensure_open()
        if clean:  # else the end is not known before the recovery, which does it
            loaded.clamp_high_watermark()
        return loaded

    def _recover_all(self) -> Iterator[None]:
        for done, partition in enumerate(list(self._logs.values())):
            self.unrecovered = len(self._logs) - done
            yield
            try:
                partition.ensure_open()
            except KafkaStorageError as error:
                log.error("%s stays offline: %s", partition.directory, error)

    # The logs

    def logs(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def get(self, partition: TopicPartition) -> PartitionLog | None:
        return self._logs.get(partition)

    def get_or_create(self, partition: TopicPartition, topic_id: TopicId | None, config: LogConfig) -> PartitionLog:
        """The log of a partition; its files are made by its first append.

        A log of an earlier topic of that name is moved aside, not removed.
        """
        known = self._logs.get(partition)
        if known is not None:
            if topic_id is not None and known.topic_id is None and known.exists:
                known.topic_id = read_topic_id(self._disk, known.directory)
            if topic_id is None or known.topic_id in (None, topic_id):
                if topic_id is not None:
                    known.set_topic_id(topic_id)
                known.update_config(config)
                return known
            log.warning("%s holds topic id %s, wanted is %s: moving it aside", known, known.topic_id, topic_id)
            self._move_away(known, STRAY_SUFFIX)
        if partition in self._gone:
            self.checkpoint()  # a log of the same name must not be taken for the one that went
            self._disk.sync_dir(self.directory)
        created = PartitionLog(
            self.environment, self._path(str(partition)), partition, config, topic_id=topic_id, closed_cleanly=True
        )
        self._logs[partition] = created
        return created

    def delete(self, partition: TopicPartition) -> None:
        """Remove a log: it is gone at once, its files go after file.delete.delay.ms."""
        known = self._logs.get(partition)
        if known is None:
            return
        target = self._move_away(known, DELETE_SUFFIX)
        if target is not None:
            self._doomed.append((self.environment.steady_ms() + known.config.file_delete_delay_ms, target))

    def set_aside(self, partition: TopicPartition) -> None:
        """Take a log that the metadata does not want here out of use. Its files stay: an operator may miss them."""
        known = self._logs.get(partition)
        if known is not None and (target := self._move_away(known, STRAY_SUFFIX)) is not None:
            text = "%s is of no partition that this broker holds, and is now %s; remove it when nothing in it is needed"
            log.warning(text, known, target)

    def _move_away(self, known: PartitionLog, suffix: str) -> str | None:
        self._logs.pop(known.topic_partition, None)
        known.abandon()
        if not self._disk.is_dir(known.directory):
            return None
        unique = f".{self._runtime.random.getrandbits(128):032x}{suffix}"
        target = self._path(str(known.topic_partition)[: MAX_NAME - len(unique)] + unique)
        self._disk.rename(known.directory, target)
        self._gone[known.topic_partition] = set(CHECKPOINTS)
        if not self._sync_scheduled:
            self._sync_scheduled = True
            self._runtime.spawn(self._sync_directory(), name="sync the data directory")
        log.info("%s: renamed to %s", known.directory, target)
        return target

    async def _sync_directory(self) -> None:
        """One sync for all partitions of a deleted topic."""
        self._sync_scheduled = False
        await self._runtime.blocking(self._disk.sync_dir, self.directory)

    async def mend(self, failed: PartitionLog) -> PartitionLog:
        """Put a log that was opened anew, and is on disk, in the place of one that failed."""
        partition = failed.topic_partition

        def is_over() -> bool:
            return self._closed or self._logs.get(partition) is not failed

        await failed.wait_for_sync()
        if failed.exists and not self._disk.is_dir(failed.directory):
            raise KafkaStorageError(f"{failed.directory} is gone: bring it back, or restart to begin with an empty one")
        listing = await self._runtime.blocking(self._list, failed.directory)
        failed.abandon()
        mended = PartitionLog(
            self.environment,
            failed.directory,
            partition,
            failed.config,
            topic_id=failed.topic_id,
            listing=listing,
            recovery_point=failed.recovery_point,
            log_start_offset=failed.log_start_offset,
            high_watermark=failed.high_watermark,
            cleaned_offset=failed.cleaned_offset,
            sync_failed=failed.sync_failed,
        )
        if listing is not None:
            try:
                await mended.open_in_background(is_over)
                await mended.sync()
            except (OSError, KafkaStorageError):
                if not is_over():
                    failed.mark_sync_failed()  # the error may be that of a sync
                raise
        if is_over():
            mended.abandon()
            raise KafkaStorageError(f"{failed.directory} is not used any more")
        self._logs[partition] = mended
        if self.on_mended is not None:
            self.on_mended(mended)
        return mended

    def _list(self, directory: str) -> DirectoryListing | None:
        return list_directory(self._disk, directory) if self._disk.is_dir(directory) else None

    def owns_directory(self) -> bool:
        return self._closed or self._lock is None or self._lock.is_in_place()

    def directory_failed(self, error: KafkaStorageError) -> None:
        if self.on_directory_failure is not None:
            self.on_directory_failure(error)

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def apply_settings(self, settings: Settings) -> None:
        """Take over what may change while the broker runs."""
        self.environment.verification_enabled = settings.bool("transaction.partition.verification.enable")
        self.environment.producer_id_expiration_ms = settings.int("producer.id.expiration.ms")
        # Whether there is a cleaner at all is read at the start only.
        self.cleaner.options = replace(CleanerOptions.from_settings(settings), enabled=self.cleaner.options.enabled)

    # What logs ask for

    def recovery_point_changed(self, log: PartitionLog) -> None:
        self._checkpoint(RECOVERY_POINTS, log)

    def log_start_changed(self, log: PartitionLog) -> None:
        self._checkpoint(LOG_STARTS, log)

    def high_watermark_fell(self, log: PartitionLog) -> None:
        self._checkpoint(HIGH_WATERMARKS, log)

    def cleaned_offset_changed(self, log: PartitionLog) -> None:
        self._checkpoint(CLEANED_OFFSETS, log)

    def log_failed(self, log: PartitionLog) -> None:
        self.mender.add(log)

    def segment_rolled(self, log: PartitionLog) -> None:
        self._spawn_sync(log)

    def flush_wanted(self, log: PartitionLog, delay_ms: int) -> None:
        def fire() -> None:
            log.begin_scheduled_flush()
            self._spawn_sync(log)

        self._runtime.timers.call_later(delay_ms / 1000, fire)

    def _spawn_sync(self, wanted: PartitionLog) -> None:
        if not self._closed and wanted.failure is None:
            self._runtime.spawn(self._sync(wanted), name=f"flush {wanted.topic_partition}")

    async def _sync(self, wanted: PartitionLog) -> None:
        try:
            await wanted.sync()
        except KafkaStorageError as error:
            log.error("%s: %s", wanted.directory, error)

    # Checkpoints

    def _checkpoint(self, name: str, added: PartitionLog | None = None) -> None:
        self._writer.write(name, self._encode_checkpoint(name, added), self._writer.ticket())
        self._checkpoint_is_written(name, list(self._gone))

    def _encode_checkpoint(self, name: str, added: PartitionLog | None = None) -> bytes:
        logs: dict[TopicPartition, PartitionLog] = {tp: known for tp, known in self._logs.items() if known.exists}
        if added is not None:
            logs[added.topic_partition] = added
        if name == RECOVERY_POINTS:
            return encode_offsets({tp: known.recovery_point for tp, known in logs.items()})
        if name == HIGH_WATERMARKS:
            return encode_offsets({tp: known.high_watermark for tp, known in logs.items()})
        if name == CLEANED_OFFSETS:
            return encode_offsets({tp: known.cleaned_offset for tp, known in logs.items() if known.cleaned_offset})
        return encode_offsets({tp: start for tp, known in logs.items() if (start := known.durable_log_start)})

    def checkpoint(self) -> None:
        """Write all checkpoints now."""
        for name in CHECKPOINTS:
            self._checkpoint(name)

    async def checkpoint_recovery_points(self) -> None:
        await self._checkpoint_later(RECOVERY_POINTS)

    async def checkpoint_cleaned_offsets(self) -> None:
        await self._checkpoint_later(CLEANED_OFFSETS)

    async def _checkpoint_later(self, name: str) -> None:
        gone, content = list(self._gone), self._encode_checkpoint(name)
        try:
            await self._runtime.blocking(self._writer.write, name, content, self._writer.ticket())
        except OSError as error:
            self.mender.directory_not_written(error)
            raise
        self.mender.directory_written()
        self._checkpoint_is_written(name, gone)

    def _checkpoint_is_written(self, name: str, gone: list[TopicPartition]) -> None:
        for partition in gone:
            names = self._gone.get(partition, set())
            names.discard(name)
            if not names:
                self._gone.pop(partition, None)

    # In the background

    async def run_background(self) -> None:
        """Retention, compaction, checkpoints, expiry and removal of files, until cancelled."""
        options = self.options
        await asyncio.gather(
            self._every(options.retention_check_interval_ms, self._retain, options.initial_task_delay_ms),
            self._every(options.flush_offset_checkpoint_interval_ms, lambda: self._checkpoint_later(RECOVERY_POINTS)),
            self._every(options.high_watermark_checkpoint_interval_ms, lambda: self._checkpoint_later(HIGH_WATERMARKS)),
            self._every(options.flush_start_offset_checkpoint_interval_ms, lambda: self._checkpoint_later(LOG_STARTS)),
            self._every(options.producer_id_expiration_check_interval_ms, self._expire),
            self._every(options.flush_offset_checkpoint_interval_ms, self.keep_producer_times),
            self._every(min(60_000, options.retention_check_interval_ms), self._remove_doomed),
            self.cleaner.run(),
            self.reserve.run(self._runtime.timers),
            self.mender.run(),
        )

    async def _every(
        self, interval_ms: int, work: Callable[[], Awaitable[Any]], first_delay_ms: int | None = None
    ) -> None:
        await self._runtime.timers.sleep((interval_ms if first_delay_ms is None else first_delay_ms) / 1000)
        while True:
            try:
                await work()
            except (OSError, KafkaStorageError) as error:
                log.error("%s: background work failed and will be tried again: %s", self.directory, error)
            await self._runtime.timers.sleep(max(interval_ms, 1) / 1000)

    async def _each(self) -> "list[PartitionLog]":
        """The logs that work. Lets the event loop run before it returns them."""
        await self._runtime.timers.sleep(0)
        return [known for known in self._logs.values() if known.failure is None]

    async def _retain(self) -> None:
        if self.clock_watch.is_doubtful():
            return
        now_ms = self._runtime.clock.wall_ms()
        raised: list[PartitionLog] = []
        for count, known in enumerate(await self._each(), 1):
            try:
                if known.exists and known.failure is None and known.raise_log_start_for_retention(now_ms):
                    raised.append(known)
            except (OSError, InvalidBatch, KafkaError) as error:  # this log failed; the others go on
                log.error("%s: retention failed and will be tried again: %s", known.directory, error)
            if count % YIELD_EVERY == 0:
                await self._runtime.timers.sleep(0)
        await self.keep_log_starts(raised)

    async def keep_log_starts(self, raised: list[PartitionLog]) -> None:
        """Bring raised log starts to the disk: they hold after any crash. Then remove the segments below them."""
        for known in raised:
            await self._sync(known)
        if not raised:
            return
        await self._checkpoint_later(LOG_STARTS)
        for known in raised:
            if known.failure is None and self._logs.get(known.topic_partition) is known:
                self._delete_old_segments(known)

    def _delete_old_segments(self, known: PartitionLog) -> None:
        try:
            known.delete_old_segments()
        except KafkaStorageError as error:
            log.error("%s: old segments stay for now: %s", known.directory, error)

    async def _expire(self) -> None:
        if self.clock_watch.is_doubtful():
            return
        now_ms = self._runtime.clock.wall_ms()
        for count, known in enumerate(await self._each(), 1):
            known.expire_producers(now_ms)
            if count % YIELD_EVERY == 0:
                await self._runtime.timers.sleep(0)

    async def keep_producer_times(self) -> None:
        """Write down when producers wrote, so that the broker knows it after a kill, too."""
        logs = await self._each()
        for at in range(0, len(logs), TIMES_AT_ONCE):
            due = [times for known in logs[at : at + TIMES_AT_ONCE] if (times := known.take_times()) is not None]
            if due:
                self._times_in_flight = asyncio.ensure_future(self._runtime.blocking(self._write_times, due))
                await asyncio.shield(self._times_in_flight)
            else:
                await self._runtime.timers.sleep(0)

    def _write_times(self, due: list[TimesToKeep]) -> None:
        for times in due:
            times.write(self._disk)

    async def _remove_doomed(self) -> None:
        now_ms = self.environment.steady_ms()
        due = [path for at_ms, path in self._doomed if at_ms <= now_ms]
        self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        for path in due:
            await self._runtime.blocking(self._disk.remove_tree, path)
            log.info("%s: removed", path)
        files = [path for known in await self._each() for path in known.take_deleted_files(now_ms)]
        await self._runtime.blocking(self._remove_files, files)

    def _remove_files(self, paths: list[str]) -> None:
        for path in paths:
            try:
                self._disk.remove(path)
            except FileNotFoundError:
                log.debug("%s was gone already", path)

    # Stopping

    async def close(self, *, others_are_whole: bool = True) -> None:
        """Sync and close everything, so that the next start is quick. The mark of that speaks for all of the directory:
        not `others_are_whole` says that what is not closed here, the metadata log, may have a torn end."""
        self._closed = True
        await self.cleaner.stop()
        if self._times_in_flight is not None and not self._times_in_flight.done():
            await asyncio.wait([self._times_in_flight])
        clean = others_are_whole
        logs = self.logs()
        for at in range(0, len(logs), CLOSE_AT_ONCE):
            clean &= all(await asyncio.gather(*map(self._close, logs[at : at + CLOSE_AT_ONCE])))
        self.environment.files.close()
        if not self._loaded:
            self.reserve.give_back()
        try:
            if clean and self._loaded:  # else the marks and checkpoints of the process before this one still hold
                for name in CHECKPOINTS:
                    await self._checkpoint_later(name)
                await self._runtime.blocking(mark_clean_shutdown, self._disk, self.directory, self.broker_epoch)
        except OSError as error:
            clean = False
            log.error("%s cannot be closed: %s", self.directory, error)
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None
        if self._loaded:
            log.info("%s: closed%s", self.directory, "" if clean else ", the next start will recover it")

    async def _close(self, known: PartitionLog) -> bool:
        await known.wait_for_sync()
        if known.failure is not None:
            return False
        try:
            plan = known.prepare_close()
            if plan is not None:
                try:
                    await self._runtime.blocking(plan.run)
                except OSError:
                    known.mark_sync_failed()
                    raise
                finally:
                    known.finish_close(plan)
        except (OSError, KafkaStorageError) as error:
            log.error("%s cannot be closed: %s", known.directory, error)
            return False
        return True
