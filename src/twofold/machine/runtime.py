"""The runtime of a state machine whose every change is a record in a log.

The controller and both coordinators run on it. A machine is pure: `apply` folds records into an immutable state, and a
handler maps (state, now) to records, a response and effects. The runtime owns what is not pure: the order of things,
the log, and the moment at which a response may be seen. It never awaits; a held response is a future.

1. A handler sees the optimistic state: everything written so far, committed or not. Readers and listeners see the
   committed state only.
2. The records of one handler are appended as one, or not at all; a handler that fails changes nothing.
3. A response is released when its last record is committed, in the order of the writes, after the listeners ran and
   after the effects of the write ran. Effects are data: those of records that are never committed are dropped.
4. Live and replayed records go through the same `apply`, so the state is a function of the log alone.
5. Writes happen in one epoch at a time. Losing it fails every held response with a retriable error and reverts the
   state to what the log has committed; what of the rest still commits comes back through `replay`.
6. The committed state that others see is never one that the machine calls unstable (half of a metadata transaction).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from twofold.runtime.api import Clock
from twofold.wire.errors import KafkaError, KafkaStorageError, NotCoordinator, RequestTimedOut, UnknownServerError

S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T")
R_contra = TypeVar("R_contra", contravariant=True)

MAX_PENDING = 10_000
NO_OFFSET = -1
NO_EPOCH = -1

log = logging.getLogger(__name__)


class Result(NamedTuple, Generic[R, T]):
    """What a handler decided: records to append, and once they are committed the effects to run and the response."""

    records: Sequence[R]
    response: T
    # For a result without records: hold the response until all that the handler saw is committed.
    wait: bool = False
    effects: Sequence[Any] = ()


class Machine(Generic[S, R]):
    """The pure part. A subclass gives `initial` and `apply_all`; the rest has defaults."""

    busy: type[KafkaError] = RequestTimedOut  # the error of a write that finds the queue full

    def initial(self) -> S:
        raise TypeError(f"{type(self).__name__} does not say what its initial state is")

    def apply_all(self, state: S, entries: Iterable[tuple[int, R]]) -> S:
        """Fold (offset, record) pairs into the state. All or nothing: an entry that cannot be applied raises."""
        raise TypeError(f"{type(self).__name__} does not say how records change its state")

    def apply(self, state: S, record: R, offset: int) -> S:
        return self.apply_all(state, ((offset, record),))

    def condensed(self, records: Sequence[R]) -> Sequence[Any]:
        """What listeners get of these records: less than all, where a machine has many and listeners need little."""
        return records

    def is_stable(self, state: S) -> bool:
        """False while this state must not be shown; responses and listeners then wait for the next stable one."""
        return True

    def map_error(self, error: Exception) -> KafkaError:
        """What a client gets when the log refused an append."""
        if isinstance(error, KafkaError):
            return error
        if isinstance(error, OSError):
            return KafkaStorageError(str(error))
        return UnknownServerError(f"{type(error).__name__}: {error}")


class LogPort(Protocol[R_contra]):
    """Where records go. Its owner calls `MachineRuntime.commit` as they become durable."""

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        ...

    @property
    def committed_offset(self) -> int:
        """The last offset that is known to be committed; NO_OFFSET where only the owner knows."""
        ...

    def append(self, records: Sequence[R_contra], epoch: int) -> int:
        """Append all or nothing and return the last offset; refuse an epoch that is not the current one."""
        ...


Handler: TypeAlias = Callable[[S, int], Result[R, T]]
Listener: TypeAlias = Callable[[S, S, int, Sequence[Any]], None]


@dataclass(slots=True)
class _Step(Generic[S]):
    """The state after some records, and the response that waits until they are committed and shown."""

    offset: int
    state: S
    records: Sequence[Any]  # condensed
    effects: Sequence[Any] = ()
    response: Any = None
    waiter: "asyncio.Future[Any] | None" = None
    is_joined: bool = False  # the list of records is its own

    def join(self, later: "_Step[S]") -> None:
        """Become one step with the one that follows."""
        if not self.is_joined:
            self.records, self.is_joined = list(self.records), True
        cast(list[Any], self.records).extend(later.records)
        self.effects = (*self.effects, *later.effects)
        self.offset, self.state, self.response, self.waiter = later.offset, later.state, later.response, later.waiter


class MachineRuntime(Generic[S, R]):
    def __init__(
        self,
        machine: Machine[S, R],
        port: LogPort[R],
        clock: Clock,
        *,
        max_pending: int = MAX_PENDING,
        inactive: KafkaError | None = None,
        run_effects: Callable[[Sequence[Any]], None] | None = None,
    ) -> None:
        """`inactive` is the error of a write before `become_leader`, e.g. that the machine is loading. `run_effects`
        acts on the effects of a handler whose records are committed; without it a handler that has some is refused."""
        self.machine = machine
        self.committed: S = machine.initial()
        self.committed_offset = NO_OFFSET  # of the last record in `committed`
        self.epoch = NO_EPOCH
        self._state = self.committed
        self._port = port
        self._clock = clock
        self._max_pending = max_pending
        self._inactive: KafkaError | None = inactive or NotCoordinator("nothing is led here yet")
        self._run_effects = run_effects
        self._pending: deque[_Step[S]] = deque()  # in the log, not committed
        self._unseen: list[_Step[S]] = []  # committed, not shown: only while unstable, or during a load
        self._listeners: list[Listener[S]] = []

    @property
    def state(self) -> S:
        """The optimistic state that the next handler gets. All others read `committed`."""
        return self._state

    @property
    def is_leader(self) -> bool:
        return self._inactive is None

    @property
    def pending(self) -> int:
        """How many steps wait to be committed or shown."""
        return len(self._pending) + len(self._unseen)

    def on_committed(self, listener: Listener[S]) -> None:
        """Call `listener(old, new, offset, records)` at every step of the committed state."""
        self._listeners.append(listener)

    # -- writing, in an epoch

    def become_leader(self, epoch: int) -> None:
        """Accept writes. Everything that the log holds has been replayed before."""
        if epoch <= self.epoch or self._pending:
            raise ValueError(f"cannot lead epoch {epoch} after {self.epoch} with {len(self._pending)} writes pending")
        self.epoch = epoch
        self._inactive = None

    def resign(self, error: KafkaError, epoch: int | None = None) -> None:
        """Stop writing. Held responses, and all later writes, get `error`.

        With `epoch`, only if that one is still led: a late message about an old epoch must not end a newer one.
        """
        if epoch is not None and epoch != self.epoch:
            return
        self._inactive = error
        abandoned = [*self._unseen, *self._pending]
        self._pending.clear()
        # Committed steps stay, because no replay brings them back. Their responses have failed.
        self._unseen = [_Step(step.offset, step.state, step.records, step.effects) for step in self._unseen]
        self._state = self._unseen[-1].state if self._unseen else self.committed
        for step in abandoned:
            if step.waiter is not None and not step.waiter.done():
                step.waiter.set_exception(_fresh(error))

    def check_writable(self) -> None:
        """Raise the error that any write would get now."""
        if self._inactive is not None:
            raise _fresh(self._inactive)
        if len(self._pending) + len(self._unseen) >= self._max_pending:
            raise self.machine.busy(f"{self.pending} writes wait to be committed: max_pending={self._max_pending}")

    def write(self, handler: Handler[S, R, T]) -> "asyncio.Future[T]":
        """Run `handler` now; its response is a future that is done when it may be seen.

        What is wrong already is raised, not put into the future: no leadership, a full queue, an error of the handler
        or of the append.
        """
        if self._inactive is not None or self._pending or self._unseen:
            self.check_writable()
        records, response, wait, effects = handler(self._state, self._clock.wall_ms())
        if effects and self._run_effects is None:
            raise ValueError(f"nothing was given that could run {effects}")
        waiter: asyncio.Future[T] = asyncio.Future()
        is_shown = not self._pending and not self._unseen
        if records:
            offset = self._append(records)
            is_shown = is_shown and offset <= self._port.committed_offset and self.machine.is_stable(self._state)
            if is_shown:
                old, self.committed, self.committed_offset = self.committed, self._state, offset
                self._tell(old, self._state, offset, self.machine.condensed(records))
        elif wait and not is_shown:
            offset = (self._pending or self._unseen)[-1].offset
        else:
            is_shown = True
        if is_shown:
            # A log with one replica commits with the append. To go by `_Step`, `commit` and `show` instead takes 15 %
            # longer per decision of the transaction coordinator (median of seven alternating runs).
            if effects:
                self._act(effects)
            waiter.set_result(response)
        else:
            condensed = self.machine.condensed(records)
            self._pending.append(_Step(offset, self._state, condensed, effects, response, waiter))
        return waiter

    def extend(self, records: Sequence[R], epoch: int) -> None:
        """Append a piece of something longer, in the epoch in which that was begun. A piece has no response."""
        if self._inactive is not None:
            raise _fresh(self._inactive)
        if epoch != self.epoch:
            raise self.machine.busy(f"what was begun in epoch {epoch} does not go on in epoch {self.epoch}")
        offset = self._append(records)
        self._pending.append(_Step(offset, self._state, self.machine.condensed(records)))

    def _append(self, records: Sequence[R]) -> int:
        base = self._port.end_offset
        # Before the append: records that cannot be applied must not reach the log, where every replay would meet them.
        state = self.machine.apply_all(self._state, enumerate(records, base))
        try:
            last = self._port.append(records, self.epoch)
        except Exception as error:
            raise self.machine.map_error(error) from error
        if last != base + len(records) - 1:
            misplaced = UnknownServerError(f"the log put records at {last} that were applied at {base}")
            self.resign(misplaced)
            raise misplaced
        self._state = state
        return last

    def commit(self, offset: int) -> None:
        """Everything up to and including `offset` is committed: show it and release its responses."""
        pending = self._pending
        if not pending or pending[0].offset > offset:
            return
        while pending and pending[0].offset <= offset:
            self._see_later(pending.popleft())
        self.show()

    def _see_later(self, step: _Step[S]) -> None:
        """A committed step waits to be shown. States that are never shown are not kept meanwhile: a metadata
        transaction has hundreds of them, and each differs from the next in a thousand nodes of its maps."""
        before = self._unseen[-1] if self._unseen else None
        if before is not None and before.waiter is None:
            is_stable = self.machine.is_stable
            if is_stable(step.state) or not is_stable(before.state):
                before.join(step)
                return
        self._unseen.append(step)

    # -- following: records that others wrote

    def load(self, batches: Iterable[Iterable[tuple[int, R]]]) -> None:
        """Replay committed (offset, record) pairs, batch by batch, and show the outcome once."""
        for entries in batches:
            self.replay(entries)
        self.show()

    def replay(self, entries: Iterable[tuple[int, R]]) -> None:
        """Apply committed records that this machine did not write. They are seen after the next `show`."""
        if self._pending:
            raise ValueError(f"cannot replay under {len(self._pending)} writes of epoch {self.epoch}")
        numbered = list(entries)
        if numbered:
            self._state = self.machine.apply_all(self._state, numbered)
            condensed = self.machine.condensed([record for _, record in numbered])
            self._see_later(_Step(numbered[-1][0], self._state, condensed))

    def restart(self) -> None:
        """Forget all that was replayed: a snapshot of everything comes next. Others see the old state until then."""
        if self._pending:
            raise ValueError(f"cannot start over under {len(self._pending)} writes of epoch {self.epoch}")
        self._unseen.clear()
        self._state = self.machine.initial()

    def show(self) -> None:
        """Show what is committed, as far as it is stable."""
        steps = self._unseen
        is_stable = self.machine.is_stable
        ready = len(steps)
        while ready and not is_stable(steps[ready - 1].state):
            ready -= 1
        if not ready:
            return
        shown, self._unseen = steps[:ready], steps[ready:]
        old, new, offset = self.committed, shown[-1].state, shown[-1].offset
        self.committed, self.committed_offset = new, offset
        if self._listeners:
            self._tell(old, new, offset, [record for step in shown for record in step.records])
        for step in shown:
            if step.effects:
                self._act(step.effects)
            if step.waiter is not None and not step.waiter.done():
                step.waiter.set_result(step.response)

    def _tell(self, old: S, new: S, offset: int, records: Sequence[Any]) -> None:
        for listener in self._listeners:
            try:
                listener(old, new, offset, records)
            except Exception:
                # The state is committed whatever a listener makes of it; the response must still be released.
                log.exception("a listener failed on the state committed at offset %d", offset)

    def _act(self, effects: Sequence[Any]) -> None:
        assert self._run_effects is not None  # `write` has looked
        try:
            self._run_effects(effects)
        except Exception:
            # The records are committed whatever becomes of their effects; the response must still be released.
            log.exception("the effects of a committed write failed: %s", effects)


def _fresh(error: KafkaError) -> KafkaError:
    """A copy to raise: one exception that is raised many times collects the tracebacks of all."""
    return type(error)(error.message)
