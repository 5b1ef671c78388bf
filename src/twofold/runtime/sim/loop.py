"""An asyncio event loop on virtual time, in which the same start always leads to the same run.

Invariants:

1. Time moves only when nothing is ready to run, and then straight to the next timer. (Timers within a microsecond run
   together; each finds its own time.)
2. Callbacks run in the order in which they were scheduled; timers of the same moment in the order of their creation.
3. Tasks and futures of this loop hash by their number, not by their address, so that asyncio's own sets of them
   (TaskGroup, wait) are walked in the same order in every run.
4. No threads: what would start one is refused.
5. What belongs to a paused node does not run: it is held, and runs in its order when the node goes on.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from typing import Any, NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Timers closer together than this run together. It must exceed the spacing of floats at the largest virtual time:
# asyncio would otherwise spin on a timer that is due "now". A microsecond is enough for two hundred years.
RESOLUTION_S = 1e-6
MIN_TIMERS_TO_SWEEP = 100


class DeadlockError(RuntimeError):
    """Nothing can ever run again and the main coroutine has not ended."""


class VirtualTimeout(RuntimeError):
    """The main coroutine did not end within the virtual time it was given."""


class Life:
    """One run of a node, from its start to its crash: what belongs to it dies with it."""

    def __init__(self, node: str, incarnation: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self.alive = True
        self.tasks: dict[SimTask[Any], None] = {}
        self.timers: dict[SimTimer, None] = {}
        self.calls: dict[asyncio.Future[Any], None] = {}
        """Futures of blocking calls under way."""
        self.paused = False
        self.held: list[asyncio.Handle] = []
        """What would have run while it was paused, in order."""
        self._context = copy_context()
        self._context.run(_current.set, self)

    def context(self) -> Context:
        """A context in which whatever is started belongs to this life."""
        return self._context.copy()

    def __repr__(self) -> str:
        return f"{self.node}/{self.incarnation}"


_current: ContextVar[Life | None] = ContextVar("twofold_sim_life", default=None)


def current_life(context: Context | None = None) -> Life | None:
    """The life that the running code, or the owner of `context`, belongs to."""
    return _current.get() if context is None else context.get(_current)


class SimTask(asyncio.Task[T]):
    def __init__(self, coroutine: Coroutine[Any, Any, T], *, loop: "SimLoop", name: str, context: Context) -> None:
        self._number = loop.next_number()  # first: the base class already puts the task into a set
        self.life = current_life(context)
        super().__init__(coroutine, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class SimFuture(asyncio.Future[T]):
    def __init__(self, *, loop: "SimLoop") -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimTimer(asyncio.TimerHandle):
    __slots__ = ("_sim_loop", "life", "number")
    _scheduled: bool  # what the base class has but its type stub does not tell

    def __init__(
        self, when: float, callback: Callable[..., object], args: Any, loop: "SimLoop", context: Context | None
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._sim_loop = loop
        self.number = loop.next_number()
        self.life: Life | None = None

    def cancel(self) -> None:
        if self.life is not None:
            self.life.timers.pop(self, None)
        super().cancel()

    def _run(self) -> None:
        # The loop runs timers that are due within its resolution. A callback that is woken must find that its time has
        # come. Otherwise code that waits for the rest of the time would wait for ever.
        self._sim_loop.reach(self.when())
        if self._sim_loop.paused_lives and self._sim_loop.hold(self):
            return
        super()._run()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    # What the base class has but its type stub does not tell.
    _scheduled: list[tuple[float, int, SimTimer]]  # tuples are compared faster than timers
    _ready: deque[asyncio.Handle]
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._numbers = itertools.count(1)
        self._unfinished: dict[SimTask[Any], None] = {}
        self.paused_lives = 0
        self.deadline: float | None = None
        self.set_debug(False)

    def next_number(self) -> int:
        return next(self._numbers)

    def time(self) -> float:
        return self._now

    def reach(self, moment: float) -> None:
        self._now = max(self._now, moment)

    def hold(self, handle: asyncio.Handle) -> bool:
        """Keep it for later where it belongs to a node that is paused; whether that is so."""
        life = current_life(handle._context)  # type: ignore[attr-defined]
        if life is None or not life.paused:
            return False
        life.held.append(handle)
        return True

    def release(self, life: Life) -> None:
        """What was held for a node runs now."""
        held, life.held = life.held, []
        for handle in held:
            if not handle.cancelled():
                self._ready.append(handle)

    def unfinished_tasks(self) -> list[SimTask[Any]]:
        """In order of creation."""
        return list(self._unfinished)

    def create_future(self) -> SimFuture[Any]:
        return SimFuture(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> SimTask[T]:
        self._check_closed()
        assert isinstance(coro, Coroutine)
        label = f"task-{self.next_number()}" if name is None else str(name)
        task = SimTask(coro, loop=self, name=label, context=context or copy_context())
        self._unfinished[task] = None
        task.add_done_callback(self._on_task_done)
        life = task.life
        if life is not None:
            life.tasks[task] = None
            if not life.alive:
                task.cancel()
        return task

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> SimTimer:
        self._check_closed()
        timer = SimTimer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, (when, timer.number, timer))
        timer._scheduled = True  # the base class counts cancelled timers by it
        return timer

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> SimTimer:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_closed()
        handle = asyncio.Handle(callback, args, self, context)
        if not (self.paused_lives and self.hold(handle)):
            self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        """One turn, as the base class has it, but without sockets to wait for."""
        ready = self._ready
        self._drop_cancelled()
        if not ready and not self._stopping:
            self._advance()
        self._take_due()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _drop_cancelled(self) -> None:
        timers = self._scheduled
        if len(timers) > MIN_TIMERS_TO_SWEEP and 2 * self._timer_cancelled_count > len(timers):
            timers[:] = [entry for entry in timers if not entry[2]._cancelled]
            heapq.heapify(timers)
            self._timer_cancelled_count = 0
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)[2]._scheduled = False
            self._timer_cancelled_count -= 1

    def _take_due(self) -> None:
        timers, end = self._scheduled, self._now + RESOLUTION_S
        while timers and timers[0][0] < end:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            self._ready.append(timer)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], object], *args: *Ts) -> NoReturn:
        raise RuntimeError("a thread would make the simulation depend on real time: use Runtime.blocking")

    def __del__(self) -> None:
        """Nothing to warn of: the loop holds no resources of the system."""

    def _check_closed(self) -> None:
        if self.is_closed():
            raise RuntimeError("the simulation is closed")

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        assert isinstance(task, SimTask)
        self._unfinished.pop(task, None)
        life = task.life
        if life is not None:
            life.tasks.pop(task, None)
            if not life.alive and not task.cancelled():
                task.exception()  # the node is dead: its errors are not reported

    def _advance(self) -> None:
        if not self._scheduled:
            raise DeadlockError("no timer is set and these tasks wait for ever: " + self.describe_tasks())
        target = self._scheduled[0][0]
        if target > self._now:
            if self.deadline is not None and target > self.deadline:
                self._now = self.deadline
                raise VirtualTimeout(f"still running at virtual second {self._now:.3f}: " + self.describe_tasks())
            self._now = target

    def describe_tasks(self) -> str:
        return "; ".join(_describe(task) for task in self._unfinished) or "none"

    def _write_to_self(self) -> None:
        """Nothing sleeps that would have to be woken."""


def _describe(task: SimTask[Any]) -> str:
    """Name, node and the chain of coroutines, with lines, down to where the task waits."""
    owner = f" of {task.life!r}" if task.life is not None else ""
    steps: list[str] = []
    coroutine: Any = task.get_coro()
    while isinstance(coroutine, Coroutine):
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            file_name = frame.f_code.co_filename.rpartition("/")[2]
            steps.append(f"{frame.f_code.co_name} ({file_name}:{frame.f_lineno})")
        coroutine = getattr(coroutine, "cr_await", None)
    return f"{task.get_name()}{owner} in {' > '.join(steps)}"
