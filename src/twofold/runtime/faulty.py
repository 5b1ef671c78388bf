"""The runtime of a real process for tests: its clock can be moved, and its disk can be slow, or lost as by kill -9."""

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from twofold.runtime.api import Data, File, Runtime
from twofold.runtime.movable import MovableTime
from twofold.runtime.real import RealDisk, RealFile, real_runtime

T = TypeVar("T")
PATIENCE_S = 10.0  # with the threads, until it is looked whether more was begun


class FaultyFile(RealFile):
    """Each access takes longer by what its disk says, in the thread that asks: as long as a slow device holds it up."""

    __slots__ = ()
    _disk: "FaultyDisk"

    def read(self, offset: int, size: int) -> bytes:
        _wait(self._disk.read_s)
        return super().read(offset, size)

    def write(self, offset: int, data: Data) -> None:
        _wait(self._disk.write_s)
        self._disk.check(self.path)
        super().write(offset, data)

    def truncate(self, size: int) -> None:
        self._disk.check(self.path)
        super().truncate(size)

    def sync(self) -> None:
        _wait(self._disk.sync_s)
        self._disk.check(self.path)
        super().sync()


class FaultyDisk(RealDisk):
    """`is_lost`: nothing is changed any more, as after the end of the process. What is open can be read and closed."""

    __slots__ = ("read_s", "write_s", "sync_s", "is_lost")

    file_type = FaultyFile

    def __init__(self) -> None:
        super().__init__()
        self.read_s = self.write_s = self.sync_s = 0.0
        self.is_lost = False

    def check(self, path: str) -> None:
        if self.is_lost:
            raise OSError(errno.EIO, "the broker was killed by a test", path)

    def open(self, path: str, *, create: bool = False) -> File:
        self.check(path)
        return super().open(path, create=create)

    def make_dirs(self, path: str) -> None:
        self.check(path)
        super().make_dirs(path)

    def rename(self, source: str, target: str) -> None:
        self.check(source)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.check(path)
        super().remove(path)

    def remove_tree(self, path: str) -> None:
        self.check(path)
        super().remove_tree(path)

    def allocate(self, path: str, size: int) -> None:
        self.check(path)
        super().allocate(path, size)

    def sync_dir(self, path: str) -> None:
        _wait(self.sync_s)
        self.check(path)
        super().sync_dir(path)


def _wait(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class FaultyRuntime:
    """`runtime` is for the node; time and disk are for the test."""

    runtime: Runtime
    time: MovableTime
    disk: FaultyDisk


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
    disk = FaultyDisk()
    return FaultyRuntime(replace(real, clock=movable, timers=movable, disk=disk, blocking=blocking), movable, disk)
