"""The asyncio clients for code that does not use asyncio: an event loop on a thread of its own.

    with LoopThread() as loop:
        producer = loop.run(open_producer())
        delivery = loop.run(producer.send("topic", b"value"))

Background work (heartbeats, linger, fetches) goes on while the calling thread does something else.
"""

import asyncio
import atexit
import concurrent.futures
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from twofold.runtime.real import run

T = TypeVar("T")


class LoopThread:
    """Starts with the first `run`, or on entering a `with` block; `close` ends it."""

    def __init__(self, name: str = "twofold-client") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> "LoopThread":
        self._running_loop()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run on the loop and return the result. An interrupt of the caller, or the timeout, cancels the coroutine."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("run() was called on the loop's own thread: await the coroutine there")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise  # the coroutine's own
            future.cancel()
            raise TimeoutError(f"no result within {timeout_s} s") from None
        except BaseException:
            future.cancel()
            raise

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def close(self) -> None:
        with self._lock:
            thread, loop, stop = self._thread, self._loop, self._stop
            self._thread = self._loop = self._stop = None
        if thread is not None and loop is not None and stop is not None:
            atexit.unregister(self.close)
            loop.call_soon_threadsafe(stop.set)
            thread.join()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                started: concurrent.futures.Future[None] = concurrent.futures.Future()
                self._thread = threading.Thread(target=self._main, args=(started,), name=self._name, daemon=True)
                self._thread.start()
                started.result()
                atexit.register(self.close)  # if close() was forgotten: the tasks end before the interpreter does
            assert self._loop is not None
            return self._loop

    def _main(self, started: "concurrent.futures.Future[None]") -> None:
        try:
            run(self._serve(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    async def _serve(self, started: "concurrent.futures.Future[None]") -> None:
        self._loop = asyncio.get_running_loop()
        stop = self._stop = asyncio.Event()
        started.set_result(None)
        await stop.wait()
