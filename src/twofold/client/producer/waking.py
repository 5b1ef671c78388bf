"""Wakes one task: at once, or at a moment of the runtime's clock."""

import asyncio

from twofold.runtime.api import Runtime, TimerHandle


class Waking:
    """One timer for all moments: the earliest counts, because a task that wakes too early asks again for the others."""

    __slots__ = ("_at", "_closed", "_event", "_runtime", "_timer")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._event = asyncio.Event()
        self._timer: TimerHandle | None = None
        self._at = float("inf")
        self._closed = False

    async def wait(self) -> None:
        """Until the task is woken. What comes from then on wakes it again."""
        await self._event.wait()
        self._event.clear()

    def now(self) -> None:
        self._event.set()

    def at(self, moment: float) -> None:
        """Then, or earlier."""
        if moment >= self._at or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at = moment
        delay_s = max(0.0, moment - self._runtime.clock.monotonic())
        self._timer = self._runtime.timers.call_later(delay_s, self._on_timer)

    def close(self) -> None:
        """No moment counts any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        self._at = float("inf")
        self._event.set()
