"""A metadata log on a simulated disk whose records are `key=value`, so that an image is a dict."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any, TypeVar, cast

from kits.metadata.controller import DIRECTORY_ID, LOG_DIR, ManualClock
from twofold.metadata_log.metadata_log import MetadataLog, ReplayedBatch
from twofold.metadata_log.options import MetadataLogOptions
from twofold.runtime.api import Network, Runtime
from twofold.runtime.sim import SimDisk
from twofold.wire.errors import KafkaError

T = TypeVar("T")
DIRECTORY = f"{LOG_DIR}/__cluster_metadata-0"
SMALL = MetadataLogOptions(segment_bytes=600, retention_bytes=1500, delete_delay_ms=0)
Image = dict[bytes, bytes]


class ManualTimers:
    """Timers that fire when a test says so."""

    def __init__(self) -> None:
        self.pending: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "_Timer":
        entry = (delay_s, callback)
        self.pending.append(entry)
        return _Timer(self, entry)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(0)

    def fire(self) -> None:
        due, self.pending = self.pending, []
        for _, callback in due:
            callback()


class _Timer:
    def __init__(self, timers: ManualTimers, entry: tuple[float, Callable[[], None]]) -> None:
        self._timers = timers
        self._entry = entry

    def cancel(self) -> None:
        if self._entry in self._timers.pending:
            self._timers.pending.remove(self._entry)


def timed_runtime(disk: SimDisk, clock: ManualClock | None = None) -> Runtime:
    async def blocking(function: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(0)
        return function(*args)

    def spawn(coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(coroutine, name=name)

    clock = clock or ManualClock()
    return Runtime(clock, ManualTimers(), disk, cast(Network, None), Random(1), spawn, blocking)


def fold(batches: list[ReplayedBatch]) -> Image:
    image: Image = {}
    for batch in batches:
        if batch.is_snapshot:
            image = {}
        for value in batch.values:
            name, _, text = value.partition(b"=")
            image[name] = text
    return image


class Node:
    """One life of a node that keeps an image of what is in its log."""

    def __init__(
        self,
        disk: SimDisk,
        options: MetadataLogOptions = SMALL,
        *,
        closed_cleanly: bool = False,
        clock: ManualClock | None = None,
    ) -> None:
        self.disk = disk
        self.failures: list[KafkaError] = []
        self.image: Image = {}
        self.runtime = timed_runtime(disk, clock)
        self.log = MetadataLog(
            self.runtime,
            LOG_DIR,
            node_id=1,
            directory_id=DIRECTORY_ID,
            options=options,
            closed_cleanly=closed_cleanly,
        )
        self.log.listen(lambda offset: None, self.failures.append)

    @property
    def timers(self) -> ManualTimers:
        return cast(ManualTimers, self.runtime.timers)

    async def start(self) -> Image:
        self.image = fold(list(self.log.replay()))
        await self.log.become_leader()
        await self.log.wait_committed(self.log.end_offset - 1)
        return self.image

    async def put(self, name: bytes, text: bytes, *, wait: bool = True) -> int:
        offset = self.log.append([name + b"=" + text], self.log.epoch)
        self.image[name] = text
        if wait:
            await self.log.wait_committed(offset)
        return offset

    async def snapshot(self, *, trim: bool = True) -> None:
        """What is committed at the moment, all of it."""
        await self.log.wait_committed(self.log.end_offset - 1)
        values = [name + b"=" + text for name, text in sorted(self.image.items())]
        await self.log.write_snapshot(values, self.log.end_offset)
        if trim:
            await self.log.trim()
            self.timers.fire()
            for _ in range(3):
                await asyncio.sleep(0)

    def names(self) -> list[str]:
        return self.disk.list(DIRECTORY)


def names_with(disk: SimDisk, suffix: str) -> list[str]:
    return [name for name in disk.list(DIRECTORY) if name.endswith(suffix)]


def options_with(**changes: int) -> MetadataLogOptions:
    return replace(SMALL, **changes)
