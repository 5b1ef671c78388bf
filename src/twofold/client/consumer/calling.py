"""Calls between a thread and the event loop that works for it, in both directions.

1. `run` gives the loop a coroutine and waits for its end. Meanwhile the waiting thread runs the functions that the
   coroutine asks for with `in_caller`: that is how an application's callbacks run in the application's thread.
2. Such a function may call `run` again: calls are nested, and the innermost one runs what is asked for.
3. What interrupts the waiting thread (Ctrl-C) cancels the coroutine, and `run` returns only after that has ended. So a
   thread has one coroutine of its own at a time.
"""

import asyncio
import queue
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class _Job:
    """A function for the waiting thread, and the future that hears of it."""

    __slots__ = ("_function", "_future")

    def __init__(self, function: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        self._function = function
        self._future = future

    def run(self) -> None:
        try:
            result, error = self._function(), None
        except Exception as raised:
            result, error = None, raised
        self._future.get_loop().call_soon_threadsafe(self._settle, result, error)

    def _settle(self, result: Any, error: Exception | None) -> None:
        if self._future.done():
            return
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)


class _Call(Generic[T]):
    __slots__ = ("jobs", "task")

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.task: asyncio.Task[T] | None = None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.task = asyncio.get_running_loop().create_task(coroutine)
        self.task.add_done_callback(lambda _: self.jobs.put(None))

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Interrupted(BaseException):
    """What interrupted the thread, and what its coroutine had found by then."""

    def __init__(self, cause: BaseException, result: Any) -> None:
        super().__init__(cause)
        self.cause = cause
        self.result = result


class CallingThread:
    """The thread that calls; one at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: list[_Call[Any]] = []
        self._functions = 0

    @property
    def runs_a_function(self) -> bool:
        """On the loop: whether a coroutine waits for a function of the thread."""
        return self._functions > 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Raises `asyncio.CancelledError` if the loop has cancelled it, and `Interrupted` for an interrupt."""
        call: _Call[T] = _Call()
        self._calls.append(call)
        try:
            self._loop.call_soon_threadsafe(call.start, coroutine)
            while (job := call.jobs.get()) is not None:
                job.run()
        except BaseException as error:
            self._loop.call_soon_threadsafe(call.cancel)
            while call.jobs.get() is not None:
                pass
            assert call.task is not None
            found = not call.task.cancelled() and call.task.exception() is None
            raise Interrupted(error, call.task.result() if found else None) from error
        finally:
            self._calls.pop()
        assert call.task is not None
        return call.task.result()

    async def in_caller(self, function: Callable[..., R], *args: Any) -> R:
        """On the loop: run the function in the thread that waits for this coroutine."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._calls[-1].jobs.put(_Job(lambda: function(*args), future))
        self._functions += 1
        try:
            return await future
        finally:
            self._functions -= 1
