"""Something has changed: wakes all that wait for it, once."""

import asyncio

from twofold.connections.waiting import done_within
from twofold.runtime.api import Runtime


class Signal:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: asyncio.Future[None] | None = None

    def fire(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """Until the next change; False where none comes in time."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        return await done_within(self._runtime, self._waiting, timeout_s)
