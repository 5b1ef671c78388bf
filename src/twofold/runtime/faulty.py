"""The runtime of a real process whose clock can be moved and whose disk can be made slow, for tests."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from twofold.runtime.api import Data, Runtime
from twofold.runtime.movable import MovableTime
from twofold.runtime.real import RealDisk, RealFile, real_runtime

T = TypeVar("T")
PATIENCE_S = 10.0  # with the threads, until it is looked whether more was begun


class SlowFile(RealFile):
    """Each access takes longer by what its disk says, in the thread that asks: as long as a slow device holds it up."""

    __slots__ = ()
    _disk: "SlowDisk"

    def read(self, offset: int, size: int) -> bytes:
        _wait(self._disk.read_s)
        return super().read(offset, size)

    def write(self, offset: int, data: Data) -> None:
        _wait(self._disk.write_s)
        super().write(offset, data)

    def sync(self) -> None:
        _wait(self._disk.sync_s)
        super().sync()


class SlowDisk(RealDisk):
    __slots__ = ("read_s", "write_s", "sync_s")

    file_type = SlowFile

    def __init__(self) -> None:
        super().__init__()
        self.read_s = self.write_s = self.sync_s = 0.0

    def sync_dir(self, path: str) -> None:
        _wait(self.sync_s)
        super().sync_dir(path)


def _wait(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class FaultyRuntime:
    """`runtime` is for the node; time and disk are for the test."""

    runtime: Runtime
    time: MovableTime
    disk: SlowDisk


def faulty_runtime(*, moved_s: float = 0.0) -> FaultyRuntime:
    """The runtime of the running loop; `moved_s`: so far is its clock ahead from the start."""
    real = real_runtime()
    loop = asyncio.get_running_loop()
    at_work: set[asyncio.Future[Any]] = set()

    def blocking(function: Callable[..., T], *args: Any) -> Awaitable[T]:
        call = asyncio.ensure_future(real.blocking(function, *args), loop=loop)
        at_work.add(call)
        call.add_done_callback(at_work.discard)
        return call

    async def work_is_done() -> bool:
        if at_work:
            await asyncio.wait(at_work, timeout=PATIENCE_S)
            return False
        return True

    movable = MovableTime(real.clock, loop, work_is_done, moved_s=moved_s)
    disk = SlowDisk()
    return FaultyRuntime(replace(real, clock=movable, timers=movable, disk=disk, blocking=blocking), movable, disk)
