"""Faults of a broker in this process, asked for by any other thread.

1. Everything but `pause`, `resume` and the waiting of the caller happens on the broker's loop.
2. `pause` holds the loop's thread. The kernel goes on accepting connections and keeping what clients send, as it does
   for a process that is stopped. A call that needs the loop is refused meanwhile.
3. The clock stays moved over restarts; what was planned stays planned.
"""

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from typing import Any, TypeVar

from twofold.broker.faults.calls import Faults
from twofold.broker.faults.requests import Delay, Drop, Fail, Fate, RequestFaults
from twofold.broker.network.server import Server
from twofold.runtime.api import Runtime
from twofold.runtime.faulty import FaultyRuntime, faulty_runtime
from twofold.wire.apis import KEYS
from twofold.wire.errors import KafkaError, error_for, error_named

T = TypeVar("T")
PAUSE_TIMEOUT_S = 10.0


class LocalFaults(Faults):
    def __init__(self, *, stop: Callable[[], None], kill: Callable[[], None]) -> None:
        """`stop` and `kill` end the broker; they are called in the thread of the test."""
        self.requests = RequestFaults()
        self._ends = {"stop": stop, "kill": kill}
        self._moved_s = 0.0
        self._faulty: FaultyRuntime | None = None
        self._server: Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held: threading.Event | None = None  # set by `resume`
        self._lock = threading.Lock()

    # --- what the owner of the broker calls, on its loop ---

    def make_runtime(self) -> Runtime:
        """The runtime for a broker that starts on the running loop."""
        self._faulty = faulty_runtime(moved_s=self._moved_s)
        return self._faulty.runtime

    def attach(self, server: Server) -> None:
        """The broker serves clients."""
        self._loop, self._server = asyncio.get_running_loop(), server

    def detach(self) -> None:
        """The broker stops."""
        self._loop = self._server = None
        if self._faulty is not None:
            self._moved_s = self._faulty.time.moved_s

    def lose(self) -> None:
        """Let nothing leave the broker any more, neither to clients nor to the disk. Called in another thread."""
        loop = self._loop
        assert loop is not None, "only called while the broker runs"
        lost = asyncio.run_coroutine_threadsafe(self._lose(), loop)
        self._resume()  # after that, so that a paused broker answers nothing on its way
        lost.result()

    async def _lose(self) -> None:
        self._runtime().disk.is_lost = True
        await self._network_down()

    # --- what a test calls, in another thread ---

    def _do(self, operation: str, **arguments: Any) -> Any:
        match operation:
            case "pause":
                return self._pause()
            case "resume":
                return self._resume()
            case "stop" | "kill":
                self._ends[operation]()
                return self._resume()
            case "clear":
                self._resume()
                if self._loop is None:
                    return self.requests.clear()
        if self._held is not None:
            raise RuntimeError(f"the broker is paused and cannot do {operation}: resume() comes first")
        return self._run(getattr(self, f"_{operation}")(**arguments))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None:
            work.close()
            raise RuntimeError("the broker is not running: faults are for one that is")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _pause(self) -> None:
        with self._lock:
            if self._held is not None:
                return
            loop = self._loop
            if loop is None:
                raise RuntimeError("the broker is not running: faults are for one that is")
            is_held, self._held = threading.Event(), threading.Event()
            loop.call_soon_threadsafe(_hold, is_held, self._held)
            if not is_held.wait(PAUSE_TIMEOUT_S):
                self._held.set()
                self._held = None
                raise TimeoutError(f"the broker's loop did not come round within {PAUSE_TIMEOUT_S:.0f} s")

    def _resume(self) -> None:
        with self._lock:
            held, self._held = self._held, None
            if held is not None:
                held.set()

    # --- on the broker's loop ---

    async def _fail_next(self, api: str, error: str | int, times: int | None, client_id: str | None) -> None:
        self._plan(Fail(_error(error)), api, times, client_id)

    async def _drop_next(self, api: str | None, handled: bool, times: int | None, client_id: str | None) -> None:
        self._plan(Drop(handled), api, times, client_id)

    async def _delay_next(self, api: str | None, seconds: float, times: int | None, client_id: str | None) -> None:
        self._plan(Delay(_not_negative("seconds", seconds)), api, times, client_id)

    def _plan(self, fate: Fate, api: str | None, times: int | None, client_id: str | None) -> None:
        if times is not None and times < 1:
            raise ValueError(f"times={times}: at least 1, or None for all requests until clear()")
        self.requests.add(fate, None if api is None else _api(api), times, client_id)

    async def _wait_for_request(self, api: str, client_id: str | None, timeout_s: float) -> None:
        _not_negative("timeout_s", timeout_s)
        try:
            # Not on the broker's clock: the test waits, and moves the other.
            await asyncio.wait_for(self.requests.next(_api(api), client_id), timeout_s)
        except TimeoutError:
            of = "" if client_id is None else f" of the client id {client_id}"
            raise TimeoutError(f"no {api}{of} came within {timeout_s:g} s") from None

    async def _drop_connections(self) -> int:
        return self._broker_server().drop_all()

    async def _network_down(self) -> None:
        server = self._broker_server()
        server.is_cut = True
        server.drop_all()

    async def _network_up(self) -> None:
        self._broker_server().is_cut = False

    async def _slow_disk(self, read_s: float, write_s: float, sync_s: float) -> None:
        disk = self._runtime().disk
        disk.read_s = _not_negative("read_s", read_s)
        disk.write_s = _not_negative("write_s", write_s)
        disk.sync_s = _not_negative("sync_s", sync_s)

    async def _advance(self, seconds: float) -> None:
        await self._runtime().time.advance(_not_negative("seconds", seconds))

    async def _clear(self) -> None:
        self.requests.clear()
        await self._network_up()
        await self._slow_disk(0.0, 0.0, 0.0)

    def _broker_server(self) -> Server:
        assert self._server is not None, "only called while the broker runs"
        return self._server

    def _runtime(self) -> FaultyRuntime:
        assert self._faulty is not None, "only called while the broker runs"
        return self._faulty


def _hold(is_held: threading.Event, held: threading.Event) -> None:
    is_held.set()
    held.wait()


def _api(name: str) -> str:
    if name in KEYS:
        return name
    near = get_close_matches(name, KEYS, 1, 0.0)
    raise ValueError(f"there is no API {name!r}: perhaps {near[0]}")


def _error(named: str | int) -> KafkaError:
    if isinstance(named, str):
        return error_named(named)("asked for by a test")
    kind = error_for(named)
    if kind.code != named:
        raise ValueError(f"there is no error with the code {named}")
    return kind("asked for by a test")


def _not_negative(name: str, seconds: float) -> float:
    if not 0 <= seconds < math.inf:  # NaN is neither
        raise ValueError(f"{name}={seconds}: at least 0, and a number of seconds that ends")
    return float(seconds)
