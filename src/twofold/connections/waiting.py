"""Deadlines and back-off on the runtime's clock."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from twofold.connections.errors import GaveUp
from twofold.runtime.api import Clock, Runtime
from twofold.wire.errors import KafkaError

T = TypeVar("T")


class Deadline:
    """A moment until which something may be tried, and the name of the setting that put it there."""

    __slots__ = ("_clock", "_end", "setting", "timeout_ms")

    def __init__(self, clock: Clock, timeout_ms: float, setting: str) -> None:
        self._clock = clock
        self._end = clock.monotonic() + timeout_ms / 1000
        self.timeout_ms = timeout_ms
        self.setting = setting

    @property
    def expired(self) -> bool:
        return self._clock.monotonic() >= self._end

    def remaining_s(self) -> float:
        return max(0.0, self._end - self._clock.monotonic())

    def remaining_ms(self) -> int:
        return int(self.remaining_s() * 1000)

    def gave_up(self, what: str, last: BaseException | None = None) -> GaveUp:
        message = f"{what} did not succeed within {self.timeout_ms:g} ms ({self.setting})"
        return GaveUp(f"{message}: {last}" if last is not None else message, last)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential from `base_ms` to `max_ms`, spread by a fifth either way so that clients do not move in step."""

    base_ms: float
    max_ms: float

    def delay_s(self, failures: int, random: Random) -> float:
        """How long to wait after so many failures in a row (the first is 1)."""
        # The exponent has a bound, because a float has one too.
        term = min(self.max_ms, self.base_ms * 2.0 ** min(failures - 1, 32))
        return term * random.uniform(0.8, 1.2) / 1000


async def done_within(runtime: Runtime, future: "asyncio.Future[Any]", timeout_s: float) -> bool:
    """Wait for a future without owning it: it goes on when the time is over."""
    if future.done():
        return True
    if timeout_s <= 0:
        return False
    expiry: asyncio.Future[None] = future.get_loop().create_future()
    timer = runtime.timers.call_later(timeout_s, lambda: _complete(expiry))
    try:
        await asyncio.wait((future, expiry), return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        expiry.cancel()
    return future.done()


def _complete(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def spawn_shared(runtime: Runtime, coroutine: Coroutine[Any, Any, T], *, name: str) -> "asyncio.Task[T]":
    """A task that several callers may wait for, and whose failure is no news when none of them still does."""
    task = runtime.spawn(coroutine, name=name)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def retry(
    runtime: Runtime, backoff: Backoff, deadline: Deadline, what: str, attempt: Callable[[], Awaitable[T]]
) -> T:
    """Call `attempt` until it succeeds, fails for good, or the deadline leaves no time for another."""
    failures = 0
    while True:
        try:
            return await attempt()
        except KafkaError as error:
            if not error.retriable:
                raise
            failures += 1
            delay_s = backoff.delay_s(failures, runtime.random)
            if delay_s >= deadline.remaining_s():
                raise deadline.gave_up(what, error) from error
        await runtime.timers.sleep(delay_s)
