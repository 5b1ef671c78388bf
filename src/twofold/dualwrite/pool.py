"""`DualWritePool`: several writers at once, for web applications and workers in many processes.

    with DualWritePool(engine, bootstrap_servers="127.0.0.1:9092", prefix="web", size=16) as pool:
        with pool.transaction() as (db, log):
            ...

1. A slot is one transactional id with one writer. A transaction borrows one, and gives it back at its end, however it
   ends. A slot that was taken over by another process, or has failed, does not come back.
2. Which process has which slot is a lease in the table (`leases.py`). A process keeps the slots it has used lately, and
   renews their leases; a slot that was idle for some rounds is given back.
3. A slot that another process left is taken over by the protocol before it is used: what that process left open is
   ended. Slots of dead processes are also taken over in the background, so that readers need not wait until a slot is
   borrowed.
4. A slot that is taken over has a new, random token as its owner: a process that was paused, and one that was started
   again, are never mistaken for the owner.
"""

import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from twofold.dualwrite.blocking import DEFAULT_LEASE_S, DEFAULT_LOCK_TIMEOUT_S, DualBlock, DualWrite
from twofold.dualwrite.database import own_options
from twofold.dualwrite.errors import DualWriteError, NoFreeSlot, NotDone, TakenOver, Unsuitable
from twofold.dualwrite.leases import Leases, Reserved
from twofold.dualwrite.log import Records
from twofold.dualwrite.steps import Reached, unobserved
from twofold.dualwrite.table import DEFAULT_TABLE
from twofold.dualwrite.verdict import Done, Settled

T = TypeVar("T")

DEFAULT_BORROW_TIMEOUT_S = 30.0
ROUNDS_PER_LEASE = 3
IDLE_ROUNDS = 3
"""A slot that was not used for so many rounds is given back."""
PAUSE_S = 0.2
"""Between two looks for a free slot."""

log = logging.getLogger(__name__)


class PoolSlot:
    """A writer that this process holds."""

    def __init__(self, dual: DualWrite) -> None:
        self.dual = dual
        self.idle_rounds = 0


class DualWritePool:
    """`size` is the number of slots of all processes together: so many transactions can be open at once.
    `options` are those of `twofold.Producer`."""

    def __init__(
        self,
        engine: Engine,
        *,
        bootstrap_servers: str,
        prefix: str,
        size: int = 8,
        table: str = DEFAULT_TABLE,
        lease_s: float = DEFAULT_LEASE_S,
        lock_timeout_s: float = DEFAULT_LOCK_TIMEOUT_S,
        borrow_timeout_s: float = DEFAULT_BORROW_TIMEOUT_S,
        observer: Reached = unobserved,
        **options: Any,
    ) -> None:
        self.engine = engine
        self._own_engine = engine.execution_options(**own_options(engine))
        self._leases = Leases(table, prefix, size, int(lease_s * 1000))
        self._prefix = prefix
        self._pid = os.getpid()
        self._borrow_timeout_s = borrow_timeout_s
        self._round_s = lease_s / ROUNDS_PER_LEASE

        def make(transactional_id: str) -> DualWrite:
            return DualWrite(
                engine,
                bootstrap_servers=bootstrap_servers,
                transactional_id=transactional_id,
                table=table,
                lease_s=lease_s,
                lock_timeout_s=lock_timeout_s,
                observer=observer,
                **options,
            )

        self._make = make
        make(self._leases.ids[0])  # refuses wrong options now
        self._changed = threading.Condition()
        self._idle: list[PoolSlot] = []
        self._held: set[str] = set()
        self._in_doubt: dict[str, DualWrite] = {}  # the last of each slot that may be asked what became of it
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None

    def __enter__(self) -> "DualWritePool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def transaction(self, session: "Session | scoped_session[Any] | None" = None) -> "PoolBlock":
        """See `DualWrite.transaction`. Raises NoFreeSlot where all slots stay in use for `borrow_timeout_s`."""
        if os.getpid() != self._pid:
            raise Unsuitable(
                f"the pool {self._prefix!r} was made in process {self._pid}, and this is process {os.getpid()}: make "
                "one in each process, after the fork"
            )
        return PoolBlock(self, session)

    def settle(self, error: DualWriteError) -> Settled | None:
        """What became of the transaction of which the pool has raised OutcomeUnknown or DecidedNotVisible; None where
        that was told before, or a later transaction of the same slot was in doubt since. See `DualWrite.settle`."""
        with self._changed:
            dual = self._in_doubt.get(error.transactional_id)
        settled = None if dual is None else dual.settle()
        return settled if settled is not None and settled.state == error.state else None

    def close(self) -> None:
        """Give all slots back. Blocks that are still open go on, and their slots are left to their leases."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
            slots, self._idle = self._idle, []
        if self._keeper is not None:
            self._keeper.join()
        for slot in slots:
            self._give_up(slot)

    @property
    def held(self) -> list[str]:
        """The slots that this process has now."""
        with self._changed:
            return sorted(self._held)

    # Borrowing

    def _borrow(self) -> PoolSlot:
        """A slot whose writer is ready. In turns: an idle one of this process, or a free one of the table."""
        waits = max(1, int(self._borrow_timeout_s / PAUSE_S))
        for _ in range(waits):
            if self._closed.is_set():
                raise Unsuitable(f"the pool {self._prefix!r} is closed")
            slot = self._take_idle() or self._lease(dead_only=False)
            if slot is not None:
                return slot
            with self._changed:
                if not self._idle:
                    self._changed.wait(PAUSE_S)
        raise NoFreeSlot(
            f"no slot of pool {self._prefix!r} was free within {self._borrow_timeout_s:g} s: all "
            f"{len(self._leases.ids)} are in use, or their leases have not run out. Raise size, the number of slots of "
            "all processes together",
            transactional_id=self._prefix,
        )

    def _take_idle(self) -> PoolSlot | None:
        with self._changed:
            # The one that was used last: the others become idle for longer, and are given back.
            return self._idle.pop() if self._idle else None

    def _lease(self, *, dead_only: bool) -> PoolSlot | None:
        """Reserve a free slot and take it over; None where there is none."""
        with self._changed:
            held = list(self._held)
        try:
            self._on_connection(self._leases.prepare)
            reserved = self._on_connection(
                lambda connection: self._leases.reserve(connection, held, dead_only=dead_only)
            )
        except DualWriteError:
            raise
        except Exception as error:
            raise NotDone(
                f"no slot of pool {self._prefix!r} could be reserved", transactional_id=self._prefix
            ) from error
        if reserved is None:
            return None
        with self._changed:
            if reserved.transactional_id in self._held:
                return None
            self._held.add(reserved.transactional_id)
        return self._take_over(reserved)

    def _take_over(self, reserved: Reserved) -> PoolSlot | None:
        dual = self._make(reserved.transactional_id)
        slot = PoolSlot(dual)
        try:
            settled = dual.take_over(expected=reserved.owner)
        except TakenOver:
            self._forget(slot)
            return None
        except BaseException:
            self._forget(slot)
            raise
        if settled is not None:
            log.info("slot %r: %s", reserved.transactional_id, settled)
        self._start_keeper()
        return slot

    def _give_back(self, slot: PoolSlot) -> None:
        slot.idle_rounds = 0
        if slot.dual.in_doubt:
            with self._changed:
                self._in_doubt[slot.dual.transactional_id] = slot.dual
        if slot.dual.is_lost:
            self._forget(slot)
        elif self._closed.is_set():
            self._give_up(slot)
        else:
            self._put(slot)

    def _put(self, slot: PoolSlot) -> None:
        with self._changed:
            # One that is not settled is for later: it settles by itself.
            self._idle.insert(len(self._idle) if slot.dual.is_settled else 0, slot)
            self._changed.notify()

    def _give_up(self, slot: PoolSlot) -> None:
        """End the lease, so that another process need not wait for its end."""
        try:
            slot.dual.release()
        except Exception as error:
            log.warning("slot %r was not given back: %s", slot.dual.transactional_id, error)
        self._forget(slot)

    def _forget(self, slot: PoolSlot) -> None:
        with self._changed:
            self._held.discard(slot.dual.transactional_id)
        slot.dual.close()

    def _on_connection(self, function: Callable[[Connection], T]) -> T:
        with self._own_engine.connect() as connection:
            return function(connection)

    # In the background

    def _start_keeper(self) -> None:
        with self._changed:
            if self._keeper is None and not self._closed.is_set():
                self._keeper = threading.Thread(target=self._keep, name=f"twofold-pool-{self._prefix}", daemon=True)
                self._keeper.start()

    def _keep(self) -> None:
        while not self._closed.wait(self._round_s):
            try:
                self.keep_once()
            except Exception as error:
                log.warning("pool %r: %s", self._prefix, error)

    def keep_once(self) -> None:
        """One round: renew the leases of idle slots, give back those that were idle for long, and end what dead
        processes left."""
        with self._changed:
            count = len(self._idle)
        for _ in range(count):
            with self._changed:
                slot = self._idle.pop(0) if self._idle else None
            if slot is None:
                break
            self._keep_slot(slot)
        while not self._closed.is_set() and (dead := self._lease(dead_only=True)) is not None:
            self._give_up(dead)

    def _keep_slot(self, slot: PoolSlot) -> None:
        slot.idle_rounds += 1
        name = slot.dual.transactional_id
        if slot.idle_rounds > IDLE_ROUNDS and slot.dual.is_settled:
            self._give_up(slot)
            return
        is_ours = True
        try:
            is_ours = self._on_connection(lambda connection: self._leases.renew(connection, name, slot.dual.token))
        except Exception as error:
            log.warning("the lease of slot %r was not renewed: %s", name, error)
        if is_ours:
            with self._changed:
                self._idle.append(slot)
                self._changed.notify()
        else:
            log.warning("slot %r was taken over by another process", name)
            self._forget(slot)


class PoolBlock:
    """The block of one transaction, in a slot that is borrowed for it."""

    def __init__(self, pool: DualWritePool, session: "Session | scoped_session[Any] | None") -> None:
        self._pool = pool
        self._session = session
        self._slot: PoolSlot | None = None
        self._block: DualBlock | None = None

    @property
    def result(self) -> Done | None:
        """Done after the block has ended without an exception."""
        return None if self._block is None else self._block.result

    def __enter__(self) -> "tuple[Any, Records]":
        while True:
            slot = self._slot = self._pool._borrow()
            try:
                self._block = slot.dual.transaction(self._session)
                return self._block.__enter__()
            except TakenOver:
                # While it was idle here, paused perhaps: nothing was done, and the next slot will do.
                self._pool._give_back(slot)
            except BaseException:
                self._pool._give_back(slot)
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._slot is not None and self._block is not None
        try:
            self._block.__exit__(kind, error, trace)
        finally:
            self._pool._give_back(self._slot)
