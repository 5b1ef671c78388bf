"""`AsyncDualWritePool`: several writers at once, for web applications on asyncio.

    async with AsyncDualWritePool(engine, bootstrap_servers="127.0.0.1:9092", prefix="web", size=16) as pool:
        async with pool.transaction() as (db, log):
            ...

The rules are those of `pool.py`. A request that is cancelled gives its slot back, wherever it was: while it waited for
a slot it had none; while its slot was taken over, the slot is dropped and its lease runs out; in its block both are
rolled back; at the end of the block the transaction goes on to its end, and the slot's next transaction waits for it.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session

from twofold.dualwrite.aio import AsyncBlock, AsyncDualWrite
from twofold.dualwrite.blocking import DEFAULT_LEASE_S, DEFAULT_LOCK_TIMEOUT_S
from twofold.dualwrite.database import is_transient, own_options
from twofold.dualwrite.errors import DualWriteError, NoFreeSlot, NotDone, TakenOver, Unsuitable
from twofold.dualwrite.leases import Leases, Reserved
from twofold.dualwrite.log import AsyncRecords
from twofold.dualwrite.pool import DEFAULT_BORROW_TIMEOUT_S, IDLE_ROUNDS, PAUSE_S, ROUNDS_PER_LEASE
from twofold.dualwrite.steps import Reached, unobserved
from twofold.dualwrite.table import DEFAULT_TABLE
from twofold.dualwrite.verdict import Done, Settled

T = TypeVar("T")
log = logging.getLogger(__name__)


class AsyncSlot:
    """A writer that this process holds."""

    def __init__(self, dual: AsyncDualWrite) -> None:
        self.dual = dual
        self.idle_rounds = 0


class AsyncDualWritePool:
    """See `twofold.dualwrite.DualWritePool`."""

    def __init__(
        self,
        engine: AsyncEngine,
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
        self._own_engine = engine.execution_options(**own_options(engine.sync_engine))
        self._leases = Leases(table, prefix, size, int(lease_s * 1000))
        self._prefix = prefix
        self._borrow_timeout_s = borrow_timeout_s
        self._round_s = lease_s / ROUNDS_PER_LEASE

        def make(transactional_id: str) -> AsyncDualWrite:
            return AsyncDualWrite(
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
        self._given_back = asyncio.Event()
        self._reserving = asyncio.Lock()
        self._idle: list[AsyncSlot] = []
        self._held: set[str] = set()
        self._in_doubt: dict[str, AsyncDualWrite] = {}  # the last of each slot that may be asked what became of it
        self._closing = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._dropped: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "AsyncDualWritePool":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def transaction(self, session: "AsyncSession | async_scoped_session[Any] | None" = None) -> "AsyncPoolBlock":
        """See `DualWritePool.transaction`."""
        return AsyncPoolBlock(self, session)

    async def settle(self, error: DualWriteError) -> Settled | None:
        """See `DualWritePool.settle`."""
        dual = self._in_doubt.get(error.transactional_id)
        settled = None if dual is None else await dual.settle()
        return settled if settled is not None and settled.state == error.state else None

    async def close(self) -> None:
        """Give all slots back. Blocks that are still open go on, and their slots are left to their leases."""
        self._closing.set()
        self._given_back.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
        slots, self._idle = self._idle, []
        for slot in slots:
            await self._give_up(slot)
        if self._dropped:
            await asyncio.wait(tuple(self._dropped))

    @property
    def held(self) -> list[str]:
        """The slots that this process has now."""
        return sorted(self._held)

    # Borrowing

    async def _borrow(self) -> AsyncSlot:
        """A slot whose writer is ready. In turns: an idle one of this process, or a free one of the table."""
        waits = max(1, int(self._borrow_timeout_s / PAUSE_S))
        for _ in range(waits):
            if self._closing.is_set():
                raise Unsuitable(f"the pool {self._prefix!r} is closed")
            if self._idle:
                return self._idle.pop()
            slot = await self._lease(dead_only=False)
            if slot is not None:
                return slot
            if not self._idle:
                self._given_back.clear()
                await _within(self._given_back, PAUSE_S)
        raise NoFreeSlot(
            f"no slot of pool {self._prefix!r} was free within {self._borrow_timeout_s:g} s: all "
            f"{len(self._leases.ids)} are in use, or their leases have not run out. Raise size, the number of slots of "
            "all processes together",
            transactional_id=self._prefix,
        )

    async def _lease(self, *, dead_only: bool) -> AsyncSlot | None:
        """Reserve a free slot and take it over; None where there is none."""
        async with self._reserving:
            try:
                await self._on_connection(self._leases.prepare)
                reserve = partial(self._leases.reserve, held=list(self._held), dead_only=dead_only)
                reserved = await self._on_connection(reserve)
            except DualWriteError:
                raise
            except Exception as error:
                if is_transient(error):
                    return None
                raise NotDone(
                    f"no slot of pool {self._prefix!r} could be reserved: {error}", transactional_id=self._prefix
                ) from error
            if reserved is None:
                return None
            self._held.add(reserved.transactional_id)
        return await self._take_over(reserved)

    async def _take_over(self, reserved: Reserved) -> AsyncSlot | None:
        slot = AsyncSlot(self._make(reserved.transactional_id))
        try:
            settled = await slot.dual.take_over(expected=reserved.owner)
        except TakenOver:
            self._drop(slot)
            return None
        except BaseException:
            self._drop(slot)
            raise
        if settled is not None:
            log.info("slot %r: %s", reserved.transactional_id, settled)
        if self._keeper is None and not self._closing.is_set():
            self._keeper = asyncio.create_task(self._keep(), name=f"pool {self._prefix}")
        return slot

    def _give_back(self, slot: AsyncSlot) -> None:
        """Never waits, so that a cancellation cannot come between."""
        slot.idle_rounds = 0
        if slot.dual.in_doubt:
            self._in_doubt[slot.dual.transactional_id] = slot.dual
        if slot.dual.is_lost or self._closing.is_set():
            self._drop(slot)
            return
        # One that is not settled, or whose last transaction is still ending, is for later.
        self._idle.insert(len(self._idle) if slot.dual.is_ready else 0, slot)
        self._given_back.set()

    def _drop(self, slot: AsyncSlot) -> None:
        task = asyncio.create_task(self._give_up(slot))
        self._dropped.add(task)
        task.add_done_callback(self._dropped.discard)

    async def _give_up(self, slot: AsyncSlot) -> None:
        """End the lease, so that another process need not wait for its end."""
        try:
            await slot.dual.release()
        except Exception as error:
            log.warning("slot %r was not given back: %s", slot.dual.transactional_id, error)
        await slot.dual.close()
        self._held.discard(slot.dual.transactional_id)

    async def _on_connection(self, function: Callable[[Connection], T]) -> T:
        async with self._own_engine.connect() as connection:
            return await connection.run_sync(function)

    # In the background

    async def _keep(self) -> None:
        while not await _within(self._closing, self._round_s):
            try:
                await self.keep_once()
            except Exception as error:
                log.warning("pool %r: %s", self._prefix, error)

    async def keep_once(self) -> None:
        """One round: renew the leases of idle slots, give back those that were idle for long, and end what dead
        processes left."""
        for _ in range(len(self._idle)):
            if not self._idle:
                break
            await self._keep_slot(self._idle.pop(0))
        while not self._closing.is_set() and (dead := await self._lease(dead_only=True)) is not None:
            await self._give_up(dead)

    async def _keep_slot(self, slot: AsyncSlot) -> None:
        slot.idle_rounds += 1
        name = slot.dual.transactional_id
        if slot.idle_rounds > IDLE_ROUNDS and slot.dual.is_ready:
            await self._give_up(slot)
            return
        is_ours = True
        try:
            is_ours = await self._on_connection(
                partial(self._leases.renew, transactional_id=name, owner=slot.dual.token)
            )
        except Exception as error:
            log.warning("the lease of slot %r was not renewed: %s", name, error)
        except BaseException:
            self._idle.append(slot)
            raise
        if is_ours:
            self._idle.append(slot)
            self._given_back.set()
        else:
            log.warning("slot %r was taken over by another process", name)
            self._drop(slot)


class AsyncPoolBlock:
    """The block of one transaction, in a slot that is borrowed for it."""

    def __init__(self, pool: AsyncDualWritePool, session: "AsyncSession | async_scoped_session[Any] | None") -> None:
        self._pool = pool
        self._session = session
        self._slot: AsyncSlot | None = None
        self._block: AsyncBlock | None = None

    @property
    def result(self) -> Done | None:
        """Done after the block has ended without an exception."""
        return None if self._block is None else self._block.result

    async def __aenter__(self) -> "tuple[Any, AsyncRecords]":
        while True:
            slot = self._slot = await self._pool._borrow()
            try:
                self._block = slot.dual.transaction(self._session)
                return await self._block.__aenter__()
            except TakenOver:
                # While it was idle here, paused perhaps: nothing was done, and the next slot will do.
                self._pool._give_back(slot)
            except BaseException:
                self._pool._give_back(slot)
                raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._slot is not None and self._block is not None
        try:
            await self._block.__aexit__(kind, error, trace)
        finally:
            self._pool._give_back(self._slot)


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event is set by then."""
    try:
        return await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
