"""When a snapshot of the metadata is written: it bounds what a start has to replay, and lets the log before it go.

1. A snapshot is due after metadata.log.max.record.bytes.between.snapshots of log, counted since the last one, across
   restarts; or after metadata.log.max.snapshot.interval.ms (0: never for that), if there is anything new.
2. It stands for an image that is committed and stable: the end of a batch, never inside a metadata transaction.
3. One is written at a time, in a thread that also makes the records: the image does not change, and the event loop goes
   on whatever its size.
4. One that cannot be written is a line in the log and is tried again later; no request fails for it.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from twofold.config.settings import Settings
from twofold.controller.delta import ImageDelta
from twofold.controller.image import MetadataImage
from twofold.controller.snapshot_records import snapshot_values
from twofold.metadata_log.metadata_log import CommittedPoint
from twofold.metadata_log.snapshots import SnapshotId
from twofold.runtime.api import Runtime, TimerHandle
from twofold.wire.errors import KafkaError

RETRY_S = 60.0

log = logging.getLogger(__name__)


class SnapshottedLog(Protocol):
    """What the generator needs of the metadata log."""

    directory: str

    @property
    def committed(self) -> CommittedPoint: ...

    @property
    def latest_snapshot(self) -> SnapshotId | None: ...

    @property
    def written_snapshot_bytes(self) -> int: ...

    def begins_batch(self, offset: int) -> bool: ...

    def snapshot_id(self, end_offset: int) -> SnapshotId: ...

    async def write_snapshot(
        self, values: Iterable[bytes], end_offset: int, *, last_contained_timestamp_ms: int | None = None
    ) -> SnapshotId: ...

    async def trim(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    max_bytes: int = 20 * 1024 * 1024
    interval_ms: int = 3_600_000

    @classmethod
    def from_settings(cls, settings: Settings) -> "SnapshotOptions":
        return cls(
            settings.int("metadata.log.max.record.bytes.between.snapshots"),
            settings.int("metadata.log.max.snapshot.interval.ms"),
        )


class SnapshotGenerator:
    """Subscribed to the images of a controller; `close` it before the log."""

    def __init__(self, runtime: Runtime, metadata_log: SnapshottedLog, options: SnapshotOptions) -> None:
        self.written = 0
        self.failed = 0
        self._runtime = runtime
        self._log = metadata_log
        self._options = options
        self._image = MetadataImage()
        self._point = CommittedPoint()  # how far the log was committed when the image was
        self._bytes_at_last = 0
        self._last_at = self._not_before = runtime.clock.monotonic()
        self._writing: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None
        self._is_closed = False

    @property
    def age_s(self) -> float:
        """Since the last snapshot, or since the start where none was written."""
        return self._runtime.clock.monotonic() - self._last_at

    @property
    def latest_bytes(self) -> int:
        """Of the last one that was written in this life."""
        return self._log.written_snapshot_bytes

    def changed(self, delta: ImageDelta, image: MetadataImage) -> None:
        """A new image is committed."""
        self._image, self._point = image, self._log.committed
        self._consider()

    async def write_now(self) -> None:
        """Write a snapshot of the newest image, whatever is due, and return when it is there or has failed."""
        await self._wait()
        if self._has_news():
            self._begin("asked for")
            await self._wait()

    async def close(self) -> None:
        """Begin no more, and return when none is being written."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._wait()

    async def _wait(self) -> None:
        while self._writing is not None:
            await asyncio.wait([self._writing])

    # -- deciding

    def _consider(self) -> None:
        if self._writing is not None or self._is_closed or not self._has_news():
            return
        reason, wait_s = self._decide()
        if reason:
            self._begin(reason)  # at the end of a batch; otherwise the next image is asked
        elif wait_s is not None and self._timer is None:
            self._timer = self._runtime.timers.call_later(wait_s, self._time_is_up)

    def _decide(self) -> tuple[str, float | None]:
        """(why one is due, or after how many seconds to ask again)."""
        now = self._runtime.clock.monotonic()
        if now < self._not_before:
            return "", self._not_before - now
        new_bytes = self._point.bytes - self._bytes_at_last
        if new_bytes >= self._options.max_bytes:
            return f"{new_bytes} bytes of log since the last one", None
        interval_s = self._options.interval_ms / 1000
        if not interval_s:
            return "", None
        due_at = self._last_at + interval_s
        return (f"{interval_s:.0f} s since the last one", None) if now >= due_at else ("", due_at - now)

    def _has_news(self) -> bool:
        newest = self._log.latest_snapshot
        end = self._image.offset + 1
        return end > (0 if newest is None else newest.end_offset)

    def _time_is_up(self) -> None:
        self._timer = None
        self._consider()

    # -- writing

    def _begin(self, reason: str) -> None:
        if self._log.begins_batch(self._image.offset + 1):
            self._writing = self._runtime.spawn(self._write(self._image, self._point, reason), name="metadata snapshot")

    async def _write(self, image: MetadataImage, point: CommittedPoint, reason: str) -> None:
        started = self._runtime.clock.monotonic()
        path = f"{self._log.directory}/{self._log.snapshot_id(image.offset + 1).file_name}"
        try:
            await self._log.write_snapshot(
                snapshot_values(image), image.offset + 1, last_contained_timestamp_ms=point.timestamp_ms
            )
            self._last_at = now = self._runtime.clock.monotonic()
            self._bytes_at_last = point.bytes
            self.written += 1
            log.info("%s: written in %.1f s, %s", path, now - started, reason)
            await self._trim()
        except (OSError, KafkaError) as error:
            self.failed += 1
            self._not_before = self._runtime.clock.monotonic() + RETRY_S
            log.error("%s: the snapshot cannot be written: %s; the next try is in %.0f s", path, error, RETRY_S)
        finally:
            self._writing = None
        self._consider()

    async def _trim(self) -> None:
        try:
            await self._log.trim()
        except OSError as error:
            text = "%s: old snapshots cannot be removed: %s; the next try is with the next snapshot"
            log.error(text, self._log.directory, error)
