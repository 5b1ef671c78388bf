"""Signs of life for an open transaction (KIP-1309), and for a member of a group, from a timer: whatever the application
and the sending or fetching of records are doing, as long as the client's loop runs."""

import asyncio
from collections.abc import Awaitable, Callable

from twofold.runtime.api import Runtime


class Heartbeats:
    """Calls `beat` every `interval_s` from `start` to `stop`. A beat that takes longer delays the next, so that there
    is never more than one; after one that returns False the next comes after a fraction of the interval. Without
    `enabled` there are none."""

    RETRY_FRACTION = 0.2

    def __init__(
        self,
        runtime: Runtime,
        interval_s: float,
        beat: Callable[[], Awaitable[bool]],
        name: str = "transaction heartbeats",
    ) -> None:
        self._runtime = runtime
        self._interval_s = interval_s
        self._beat = beat
        self._name = name
        self.enabled = True
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        if self.enabled and self._interval_s > 0 and not self.running:
            self._task = self._runtime.spawn(self._run(), name=self._name)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        clock = self._runtime.clock
        due = clock.monotonic() + self._interval_s
        while self.enabled:
            await self._runtime.timers.sleep(max(0.0, due - clock.monotonic()))
            started = clock.monotonic()
            heard = await self._beat()
            due = started + (self._interval_s if heard else self._interval_s * self.RETRY_FRACTION)
