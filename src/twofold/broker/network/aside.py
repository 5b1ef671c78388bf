"""Work that takes too long for the loop and comes from clients: in a thread, two pieces at a time.

The threads are also those that sync files. However many clients send what is long to unpack, a sync finds one that is
free: what is too many waits here, in the order in which it came.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from twofold.runtime.api import Blocking

T = TypeVar("T")
AT_A_TIME = 2


class Aside:
    __slots__ = ("_blocking", "_room")

    def __init__(self, blocking: Blocking) -> None:
        self._blocking = blocking
        self._room = asyncio.Semaphore(AT_A_TIME)

    async def __call__(self, function: Callable[..., T], *arguments: Any) -> T:
        async with self._room:
            return await self._blocking(function, *arguments)
