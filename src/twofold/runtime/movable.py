"""A clock that can be moved ahead, and the timers that run by it: an hour of timeouts passes in seconds.

1. Time runs by itself, as that of the clock below. `advance` adds to it. It never goes back.
2. A timer that is due in the stretch fires at its own moment. What it wakes has its turn, and sets its next timer,
   before the time goes on. So what happens five times per second happens five times in each moved second.
3. The time stands still while a thread works for the broker: nothing that is done takes moved time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from twofold.runtime.api import Clock

STEP_S = 0.2  # at most, however far the next timer is: what was woken may set an earlier one
TURNS = 5  # of the loop, from a timer to what its callback wakes


class MovableTimer:
    """Fires when the moved clock shows `due`."""

    __slots__ = ("due", "_callback", "_handle", "_is_over", "_time")

    def __init__(self, time: "MovableTime", due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self._time = time
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._is_over = False

    def set(self, loop: asyncio.AbstractEventLoop, delay_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = loop.call_later(max(0.0, delay_s), self.fire)

    def fire(self) -> None:
        if not self._is_over:
            self.cancel()
            self._callback()

    def cancel(self) -> None:
        self._is_over = True
        self._time.timers.pop(self, None)
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class MovableTime:
    """Clock and timers of one node."""

    def __init__(
        self,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        work_is_done: Callable[[], Awaitable[bool]],
        *,
        moved_s: float = 0.0,
    ) -> None:
        """`work_is_done` waits for the threads, and tells whether there was nothing to wait for.

        `moved_s`: so far is this clock ahead already.
        """
        self.moved_s = moved_s
        self.timers: dict[MovableTimer, None] = {}  # in the order in which they were set
        self._clock = clock
        self._loop = loop
        self._work_is_done = work_is_done
        self._moving = asyncio.Lock()

    # --- the clock ---

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + round(self.moved_s * 1000)

    def monotonic(self) -> float:
        return self._clock.monotonic() + self.moved_s

    # --- the timers ---

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> MovableTimer:
        timer = MovableTimer(self, self.monotonic() + delay_s, callback)
        self.timers[timer] = None
        timer.set(self._loop, delay_s)
        return timer

    async def sleep(self, delay_s: float) -> None:
        if delay_s <= 0:
            await asyncio.sleep(0)
            return
        over: asyncio.Future[None] = self._loop.create_future()
        timer = self.call_later(delay_s, partial(_end, over))
        try:
            await over
        finally:
            timer.cancel()

    # --- moving ---

    async def advance(self, seconds: float) -> None:
        """Move the clock ahead, and return when everything that was due has had its turn."""
        if seconds < 0:
            raise ValueError(f"the clock cannot go back, and {seconds} s is negative")
        async with self._moving:
            end_s = self.moved_s + seconds
            try:
                while self.moved_s < end_s:
                    self.moved_s = min(end_s, self.moved_s + min(STEP_S, self._until_next()))
                    self._fire_due()
                    await self._let_work()
            finally:
                now = self.monotonic()
                for timer in list(self.timers):
                    timer.set(self._loop, timer.due - now)
            await self._let_work()

    def _until_next(self) -> float:
        first = min((timer.due for timer in self.timers), default=float("inf"))
        return max(0.0, first - self.monotonic())

    def _fire_due(self) -> None:
        now = self.monotonic()
        for timer in sorted((timer for timer in self.timers if timer.due <= now), key=lambda timer: timer.due):
            self._loop.call_soon(timer.fire)

    async def _let_work(self) -> None:
        """Give what was woken its turns, and the threads their time."""
        is_done = False
        while not is_done:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            is_done = await self._work_is_done()


def _end(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)
