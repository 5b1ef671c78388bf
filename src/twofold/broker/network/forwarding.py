"""Requests that the controller answers, on behalf of a client.

1. The client's timeout bounds the waiting, not the work: what the controller accepted goes on, and the client is told
   REQUEST_TIMED_OUT (7).
2. The controller answers when its records are committed and this broker has seen them: what was created can be used,
   and what was deleted is gone, by the time the client hears of it.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from twofold.runtime.api import Runtime
from twofold.wire.errors import RequestTimedOut

T = TypeVar("T")


async def forward(runtime: Runtime, call: Coroutine[Any, Any, T], *, timeout_ms: int, name: str) -> T:
    """What the controller answers to `call` within the client's patience."""
    task = runtime.spawn(call, name=f"forwarded {name}")
    patience: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = runtime.timers.call_later(max(0, timeout_ms) / 1000, lambda: _end(patience))
    try:
        waited: tuple[asyncio.Future[Any], ...] = (task, patience)
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        patience.cancel()
    if task.done():
        return task.result()
    task.add_done_callback(_forget)
    raise RequestTimedOut(f"the controller did not answer {name} within {timeout_ms} ms; it may still happen")


def _end(patience: "asyncio.Future[None]") -> None:
    if not patience.done():
        patience.set_result(None)


def _forget(task: "asyncio.Task[T]") -> None:
    """No request waits any more: asyncio must not report the error as never retrieved."""
    if not task.cancelled():
        task.exception()
