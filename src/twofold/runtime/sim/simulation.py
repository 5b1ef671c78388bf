"""Many nodes in one process, on one thread, in one virtual time, decided by one seed.

    with Simulation(seed) as sim:
        async def story() -> None:
            a, b = sim.runtime("a"), sim.runtime("b")
            a.spawn(server(a), name="server")
            await a.spawn(client(b), name="client")
            sim.crash("a")
            a = sim.runtime("a")        # the restarted node: same disk, nothing else
        sim.run(story())

Invariants:

1. The seed and the code decide everything: `digest()` of two runs is the same. (Code that walks a set of strings, or
   takes anything from outside its Runtime, breaks this.)
2. A crash kills the disk handles of a node first, then its connections, timers and tasks. Its tasks are cancelled, and
   whatever their cleanup still tries (disk, network, timers, tasks) fails: a dead machine does not tidy up.
3. A background task that fails and is not awaited fails the run, unless its node is dead.
"""

import asyncio
import errno
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, TypeVar

from twofold.runtime.api import Runtime
from twofold.runtime.sim.disk import CutMode, SimDisk
from twofold.runtime.sim.loop import Life, SimLoop, SimTask, SimTimer, current_life
from twofold.runtime.sim.network import SimNetwork
from twofold.runtime.tasks import report_if_unobserved

T = TypeVar("T")

START_MS = 1_767_225_600_000  # 2026-01-01
MAX_UPTIME_S = 100_000
CLOSING_TURNS = 100


class SimClock:
    def __init__(self, host: "_Host", loop: SimLoop, booted_for_s: int) -> None:
        self._host = host
        self._loop = loop
        self._zero = loop.time() - booted_for_s

    def wall_ms(self) -> int:
        return self._host.wall_ms()

    def monotonic(self) -> float:
        return self._loop.time() - self._zero


class SimTimers:
    def __init__(self, loop: SimLoop, life: Life) -> None:
        self._loop = loop
        self._life = life

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> SimTimer:
        def fire() -> None:
            self._life.timers.pop(timer, None)
            callback()

        timer = self._loop.call_later(delay_s, fire, context=self._life.context())
        timer.life = self._life
        self._life.timers[timer] = None
        if not self._life.alive:
            timer.cancel()
        return timer

    async def sleep(self, delay_s: float) -> None:
        if not self._life.alive:
            raise asyncio.CancelledError(f"node {self._life.node} has crashed")
        await asyncio.sleep(delay_s)


class _Host:
    """What of a node outlives its crashes."""

    def __init__(self, name: str, disk: SimDisk, wall_ms: Callable[[], int]) -> None:
        self.name = name
        self.disk = disk
        self.skew_ms = 0
        self.life: Life | None = None
        self.runtime: Runtime | None = None
        self.incarnations = 0
        self._true_wall_ms = wall_ms

    def wall_ms(self) -> int:
        return self._true_wall_ms() + self.skew_ms


class Simulation:
    """See the module. `random` is for the test's own choices; nodes have their own, in their Runtime."""

    def __init__(
        self,
        seed: int,
        *,
        start_ms: int = START_MS,
        max_skew_ms: int = 100,
        blocking_delay_s: tuple[float, float] = (0.00001, 0.002),
        cut_mode: CutMode = CutMode.ORDERED,
        trace_limit: int = 10_000,
        strict: bool = True,
    ) -> None:
        self.seed = seed
        self.loop = SimLoop()
        self.loop.set_exception_handler(self._on_loop_error)
        self.random = Random(f"{seed}/test")
        self.network = SimNetwork(self.loop, Random(f"{seed}/network"), self.note)
        self.failures: list[BaseException] = []
        """Exceptions of living nodes that no code awaited; with `strict` they are raised at the end of `run`."""
        self._start_ms = start_ms
        self._max_skew_ms = max_skew_ms
        self.blocking_delay_s = blocking_delay_s
        """How long a blocking call takes before, and again after, it acts. Raise it for a slow disk."""
        self._cut_mode = cut_mode
        self._strict = strict
        self._schedule = Random(f"{seed}/schedule")
        self._hosts: dict[str, _Host] = {}
        self._trace: deque[str] = deque(maxlen=trace_limit)
        self._digest = hashlib.blake2b(digest_size=16)

    # Running

    def run(self, main: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run until `main` ends, and no further: what it left in the background goes on in the next `run`.

        `timeout_s` is virtual. Raises DeadlockError when nothing can go on, VirtualTimeout when time is over.
        """
        task = self.loop.create_task(main, name="main")
        self.loop.deadline = None if timeout_s is None else self.loop.time() + timeout_s
        try:
            result = self.loop.run_until_complete(task)
        except BaseException as error:
            for failure in self._take_failures():
                error.add_note(f"earlier, in the background: {failure!r}")
            raise
        finally:
            self.loop.deadline = None
        self._raise_failures()
        return result

    def close(self) -> None:
        """End everything that still runs."""
        if self.loop.is_closed():
            return
        for host in self._hosts.values():
            if host.life is not None:
                self._kill(host.life, silently=True)
        for _ in range(CLOSING_TURNS):
            unfinished = self.loop.unfinished_tasks()
            if not unfinished:
                break
            for task in unfinished:
                task.cancel()
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        for task in self.loop.unfinished_tasks():
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it refused to be cancelled
        self.loop.close()

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            self._raise_failures()

    @property
    def now_s(self) -> float:
        """Virtual seconds since the start."""
        return self.loop.time()

    # Nodes

    def runtime(self, node: str) -> Runtime:
        """The runtime of a living node; after a crash, a new one on the same disk."""
        host = self._host(node)
        if host.runtime is None:
            host.incarnations += 1
            host.life = Life(node, host.incarnations)
            host.runtime = self._build(host, host.life)
            self.note(f"start {host.life!r}")
        return host.runtime

    def disk(self, node: str) -> SimDisk:
        """For faults; it outlives crashes."""
        return self._host(node).disk

    def crash(self, node: str, *, power_cut: bool = True) -> None:
        """Kill a node at this instant (without `power_cut`: only its process, as `kill -9` does).

        After a power cut the other ends of its connections may not notice before they send. Restart: `runtime(node)`.
        """
        host = self._host(node)
        life, host.life, host.runtime = host.life, None, None
        self.note(f"crash {node} power_cut={power_cut}")
        if life is not None:
            life.alive = False
        host.disk.crash(power_cut=power_cut)
        if life is not None:
            self._kill(life, silently=power_cut and self._schedule.random() < 0.5)

    def crash_after(self, node: str, disk_operations: int, *, power_cut: bool = True) -> None:
        """Kill a node in the middle of its work: in the change of its disk that follows `disk_operations` more."""
        self._host(node).disk.cut_power_after(disk_operations, partial(self.crash, node, power_cut=power_cut))

    def pause(self, node: str) -> None:
        """Stop a node's process where it is (SIGSTOP): no callback, no timer, no blocking call goes on. What is sent
        to it waits, as far as its connections have room."""
        life = self._host(node).life
        if life is not None and not life.paused:
            self.note(f"pause {life!r}")
            life.paused = True
            self.loop.paused_lives += 1

    def resume(self, node: str) -> None:
        """Let it go on; it finds everything that was due since, all at once."""
        life = self._host(node).life
        if life is not None and life.paused:
            self.note(f"resume {life!r}")
            self._unpause(life)
            self.loop.release(life)
            self.network.resume(life)

    def _unpause(self, life: Life) -> None:
        if life.paused:
            life.paused = False
            self.loop.paused_lives -= 1

    def jump_clock(self, node: str, ms: int) -> None:
        """The node's wall clock steps by `ms`, which may be negative. Its monotonic clock does not."""
        self.note(f"jump {node} {ms}")
        self._host(node).skew_ms += ms

    def _kill(self, life: Life, *, silently: bool) -> None:
        life.alive = False
        self._unpause(life)
        self.loop.release(life)
        self.network.crash(life, silently=silently)
        for timer in list(life.timers):
            timer.cancel()
        for future in list(life.calls):
            future.cancel()
        for task in list(life.tasks):
            task.cancel(f"node {life.node} has crashed")

    def _host(self, node: str) -> _Host:
        host = self._hosts.get(node)
        if host is None:
            disk = SimDisk(
                Random(f"{self.seed}/disk/{node}"),
                now_ms=lambda: self._host(node).wall_ms(),
                trace=lambda text: self.note(f"disk {node} {text}"),
                guard=partial(_refuse_the_dead, node),
                cut_mode=self._cut_mode,
            )
            host = self._hosts[node] = _Host(node, disk, self._wall_ms)
            host.skew_ms = Random(f"{self.seed}/skew/{node}").randint(-self._max_skew_ms, self._max_skew_ms)
        return host

    def _wall_ms(self) -> int:
        return self._start_ms + int(self.loop.time() * 1000)

    def _build(self, host: _Host, life: Life) -> Runtime:
        random = Random(f"{self.seed}/node/{life!r}")
        return Runtime(
            clock=SimClock(host, self.loop, random.randint(0, MAX_UPTIME_S)),
            timers=SimTimers(self.loop, life),
            disk=host.disk,
            network=self.network.of(life),
            random=random,
            spawn=partial(self._spawn, life),
            blocking=partial(self._blocking, life),
        )

    def _spawn(self, life: Life, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        task = self.loop.create_task(coroutine, name=name, context=life.context())
        report_if_unobserved(task, self._on_task_death)
        return task

    def _blocking(self, life: Life, function: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Some time passes before the function runs and some more before its caller hears of it.

        A crash in between finds the work not done, or done and not reported.
        """
        future: asyncio.Future[T] = self.loop.create_future()
        timers = SimTimers(self.loop, life)
        if not life.alive:
            future.cancel(f"node {life.node} has crashed")
            return future
        life.calls[future] = None
        future.add_done_callback(lambda done: life.calls.pop(done, None))
        before_s, after_s = (self._schedule.uniform(*self.blocking_delay_s) for _ in range(2))

        def execute() -> None:
            if future.cancelled() and self._schedule.random() < 0.5:
                return  # a real pool drops a cancelled call that no thread has begun
            report: Callable[[], None]
            try:
                report = partial(_unless_done, future, future.set_result, function(*args))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                report = partial(_unless_done, future, future.set_exception, error)
            timers.call_later(after_s, report)

        timers.call_later(before_s, execute)
        return future

    # What happened

    def note(self, text: str) -> None:
        """Add a line to the trace, and to the digest."""
        line = f"{self.loop.time():.6f} {text}"
        self._trace.append(line)
        self._digest.update(line.encode() + b"\n")

    @property
    def trace(self) -> list[str]:
        """The last events; how many are kept is `trace_limit`."""
        return list(self._trace)

    def digest(self) -> str:
        """A hash of all events so far, also of those that the trace no longer holds."""
        return self._digest.hexdigest()

    def _on_task_death(self, task: asyncio.Task[Any], error: BaseException) -> None:
        life = task.life if isinstance(task, SimTask) else None
        if life is None or life.alive:
            self.note(f"died {life!r} {task.get_name()} {type(error).__name__}")
            error.add_note(f"in task {task.get_name()} of {life!r}, seed {self.seed}")
            self.failures.append(error)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        life = _owner(context)
        if life is None or life.alive:
            message = f"{context.get('message')} ({life!r}, seed {self.seed})"
            error = context.get("exception") or RuntimeError(message)
            error.add_note(message)
            self.failures.append(error)

    def _take_failures(self) -> list[BaseException]:
        failures, self.failures = self.failures, []
        return failures

    def _raise_failures(self) -> None:
        if self._strict and self.failures:
            raise BaseExceptionGroup(f"seed {self.seed}: failed in the background", self._take_failures())


def _refuse_the_dead(node: str) -> None:
    life = current_life()
    if life is not None and life.node == node and not life.alive:
        raise OSError(errno.EIO, f"node {node} has crashed")


def _unless_done(future: asyncio.Future[T], settle: Callable[[Any], None], value: object) -> None:
    if not future.done():
        settle(value)


def _owner(context: dict[str, Any]) -> Life | None:
    for key in ("task", "future", "transport"):
        life = getattr(context.get(key), "life", None)
        if isinstance(life, Life):
            return life
    handle_context = getattr(context.get("handle"), "_context", None)
    return current_life(handle_context) if handle_context is not None else current_life()
