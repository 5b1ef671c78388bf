"""Background tasks that cannot vanish: kept alive while they run, reported when they fail and are not awaited."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

Report: TypeAlias = Callable[[asyncio.Task[Any], BaseException], None]


def report_if_unobserved(task: asyncio.Task[Any], report: Report) -> None:
    """Call `report` when `task` ends with an exception and no code awaits it."""
    task.add_done_callback(lambda done: _on_done(done, report))


def _on_done(task: asyncio.Task[Any], report: Report) -> None:
    if not task.cancelled():
        # Code that waits for the task is woken in this turn. Code behind an asyncio.wait is woken one turn later. After
        # that the result was fetched, if it is at all.
        loop = task.get_loop()
        loop.call_soon(loop.call_soon, _check, task, report)


def _check(task: asyncio.Task[Any], report: Report) -> None:
    # asyncio keeps this flag for its own message at garbage collection, which comes too late or never for a task
    # that its owner still holds. exception() clears it.
    unobserved = getattr(task, "_log_traceback", True)
    error = task.exception()
    if unobserved and error is not None:
        report(task, error)
