"""`AsyncDualWrite`: a database and the log in step, for asyncio.

    async with AsyncDualWrite(engine, bootstrap_servers="127.0.0.1:9092", transactional_id="shop") as dual:
        async with dual.transaction() as (db, log):
            await db.execute(insert(orders).values(item="a teapot"))
            await log.send("orders", b"a teapot")

The rules are those of `blocking.py`. What a cancellation does:

1. While a block is entered, or in a take-over: a crash of the program. The connection is rolled back, nothing is
   decided, and the next transaction takes over first.
2. In the caller's code: both are rolled back, as by any other exception.
3. At the end of the block: the program goes on by itself, to its end, and the next transaction waits for it. The
   task that was cancelled is not told how it ended.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

from twofold.dualwrite.blocking import (
    DEFAULT_LEASE_S,
    DEFAULT_LOCK_TIMEOUT_S,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
)
from twofold.dualwrite.database import Database, Guard, own_options
from twofold.dualwrite.errors import Disagreement, DualWriteError, NotDone, TakenOver, Unsuitable
from twofold.dualwrite.footing import Footing
from twofold.dualwrite.log import AioLog, AsyncRecords, producer_config
from twofold.dualwrite.operations import (
    AbortLog,
    Answer,
    AskLog,
    BeginDatabase,
    BeginLog,
    CallerRows,
    CommitDatabase,
    CompleteLog,
    Failed,
    FenceLog,
    LockRow,
    Ok,
    Operation,
    Prepare,
    ReadRow,
    RollbackDatabase,
    StoreState,
)
from twofold.dualwrite.protocol import At, Next, Program, ProgramResult, step
from twofold.dualwrite.steps import TAKE_OVER_END, WRITE_END, Reached, unobserved
from twofold.dualwrite.table import DEFAULT_TABLE
from twofold.dualwrite.verdict import (
    Done,
    Settled,
    is_for_the_caller,
    note_of,
)
from twofold.wire.errors import KafkaError

log = logging.getLogger(__name__)


class AsyncDualWrite:
    """See `twofold.dualwrite.DualWrite`. `options` are those of `twofold.aio.Producer`."""

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        bootstrap_servers: str,
        transactional_id: str,
        table: str = DEFAULT_TABLE,
        lease_s: float = DEFAULT_LEASE_S,
        lock_timeout_s: float = DEFAULT_LOCK_TIMEOUT_S,
        observer: Reached = unobserved,
        **options: Any,
    ) -> None:
        config = producer_config(transactional_id, {**options, "bootstrap_servers": bootstrap_servers})
        self.engine = engine
        self.own_engine = engine.execution_options(**own_options(engine.sync_engine))
        self.transactional_id = transactional_id
        self.database = Database(engine.sync_engine, table, transactional_id, int(lease_s * 1000), lock_timeout_s)
        self.observer = observer
        self.log = AioLog(config)
        self._footing = Footing(self.transactional_id, self.database.table.fullname)
        self._turn = _Turn(transactional_id)
        self._closing = asyncio.Event()
        self._settler: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> "AsyncDualWrite":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for blocks that are ending. What is not settled waits for the next process with this id."""
        self._footing.closed = True
        self._closing.set()
        if self._settler is not None:
            self._settler.cancel()
            await asyncio.wait((self._settler,))
        if self._ending:
            await asyncio.wait(tuple(self._ending))
        await self.log.close()

    @property
    def token(self) -> str:
        """What the row calls its owner while this is the writer: new in every process, at every start."""
        return self._footing.token

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken the transactional id over: this writer is over."""
        return self._footing.is_lost

    @property
    def is_ready(self) -> bool:
        """Whether the next transaction can begin at once."""
        return self.is_settled and not self._ending

    @property
    def in_doubt(self) -> bool:
        """Whether the caller was told of a transaction whose end is not known yet: `settle` tells."""
        return self._footing.in_doubt is not None

    @property
    def is_settled(self) -> bool:
        """Whether nothing of an earlier transaction is left to be ended."""
        return not self._footing.is_unsettled

    def transaction(self, session: "AsyncSession | async_scoped_session[Any] | None" = None) -> "AsyncBlock":
        """`async with dual.transaction() as (db, log)`: `db` is an AsyncConnection in a transaction, or the session
        that was given, which must have none."""
        self._footing.refuse_fork()
        return AsyncBlock(self, session() if isinstance(session, async_scoped_session) else session)

    async def take_over(self, *, expected: str | None = None) -> Settled | None:
        """See `DualWrite.take_over`."""
        self._footing.refuse_fork()
        async with self._turn:
            return await self._ready(expected)

    async def release(self) -> None:
        """See `DualWrite.release`."""
        async with self._turn:
            if self._footing.lets_go():
                async with self.own_engine.connect() as connection:
                    await connection.run_sync(self.database.release, self._footing.token)

    async def settle(self) -> Settled | None:
        """See `DualWrite.settle`."""
        self._footing.refuse_fork()
        async with self._turn:
            if self._footing.is_unsettled:
                try:
                    await self._ready()
                except NotDone as error:
                    if not (self._footing.is_lost and self._footing.in_doubt):
                        raise self._footing.still(error) from error
            if self._footing.is_lost and (state := self._footing.in_doubt):
                self._footing.hear(await self.log.ask(state), await self._read_row())
            return self._footing.tell()

    # How

    async def _ready(self, expected: str | None = None) -> Settled | None:
        """Be the writer, with nothing left open. In turn."""
        if not self._footing.must_take_over():
            return None
        await self._find_cluster()
        run = AsyncRun(self, self._footing.take_over(expected))
        result = await run.to_end()
        self.observer(TAKE_OVER_END)
        return self._footing.after_take_over(result, run.cause)

    async def _find_cluster(self) -> None:
        """Each time: what answers at this address may be another cluster than before."""
        try:
            self._footing.cluster = await self.log.cluster_id()
        except KafkaError as error:
            raise NotDone(
                f"{self.transactional_id!r} could not be taken over: {error}",
                transactional_id=self.transactional_id,
            ) from error

    async def _read_row(self) -> Answer:
        try:
            async with self.own_engine.connect() as connection:
                return await connection.run_sync(self.database.read)
        except Exception as error:
            return Failed(error)

    def _after_write(self, result: ProgramResult) -> Done | DualWriteError:
        outcome = self._footing.after_write(result)
        self._settle_in_background()
        return outcome

    def _abandon(self) -> None:
        """A program did not come to its end."""
        self._footing.abandon()
        self._settle_in_background()

    def _settle_in_background(self) -> None:
        if not self._footing.is_unsettled or self._footing.closed:
            return
        if self._settler is None or self._settler.done():
            self._settler = asyncio.create_task(self._keep_settling(), name=f"settle {self.transactional_id}")

    async def _keep_settling(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not await self._closes_within(pause_s):
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            async with self._turn:
                if not self._footing.is_unsettled or self._footing.closed:
                    return
                try:
                    settled = await self._ready()
                    log.info("%r is settled: %s", self.transactional_id, settled)
                    return
                except (Disagreement, TakenOver, Unsuitable) as error:
                    log.error("%r cannot be settled: %s", self.transactional_id, error)
                    return
                except Exception as error:
                    log.warning("%r is not settled yet: %s", self.transactional_id, error)

    async def _closes_within(self, seconds: float) -> bool:
        try:
            return await asyncio.wait_for(self._closing.wait(), seconds)
        except TimeoutError:
            return False

    def _ends(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Work that goes on when the task that waits for it is cancelled."""
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task


class AsyncBlock:
    """The block of one transaction. `result` is Done after it has ended without an exception."""

    def __init__(self, dual: AsyncDualWrite, session: AsyncSession | None) -> None:
        self._dual = dual
        self._session = session
        self._run: AsyncRun | None = None
        self._records: AsyncRecords | None = None
        self.result: Done | None = None

    async def __aenter__(self) -> "tuple[Any, AsyncRecords]":
        dual = self._dual
        await dual._turn.take()
        try:
            await dual._ready()
            run = self._run = AsyncRun(dual, dual._footing.write(), self._session)
            result = await run.to_caller()
            if result is not None:
                failure = dual._after_write(result)
                assert isinstance(failure, DualWriteError)
                if isinstance(run.cause, Unsuitable):
                    raise run.cause
                raise failure from run.cause
            self._records = AsyncRecords(dual.log.producer, dual.transactional_id)
            return run.target, self._records
        except BaseException:
            dual._turn.give()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._records is not None
        self._records.end()
        ending = self._dual._ends(self._end(error))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            if not ending.done():
                ending.add_done_callback(_tell_of)
            raise

    async def _end(self, error: BaseException | None) -> None:
        dual, run = self._dual, self._run
        assert run is not None
        try:
            result = await run.after_caller(error)
            outcome = dual._after_write(result)
            dual.observer(WRITE_END)
            if isinstance(outcome, Done):
                self.result = outcome
            elif run.callers_error is None:
                raise outcome from run.cause
            elif is_for_the_caller(run.callers_error, outcome):
                run.callers_error.add_note(note_of(result))
                if error is None:
                    raise run.callers_error
            else:
                raise outcome from run.callers_error
        finally:
            dual._turn.give()


def _tell_of(ending: "asyncio.Task[Any]") -> None:
    """The task that entered the block was cancelled: no other code hears of an error."""
    error = None if ending.cancelled() else ending.exception()
    if error is not None:
        log.warning("the end of a block whose task was cancelled: %s", error)


class AsyncRun:
    """One program on one connection. `cause` is the first error that it met, `callers_error` that of the block."""

    def __init__(self, dual: AsyncDualWrite, first: Next, session: AsyncSession | None = None) -> None:
        self._dual = dual
        self._session = session
        self._program: Program = first[0]
        self._operation: Operation | ProgramResult = first[1]
        self._guard = Guard(dual.transactional_id)
        self.target: AsyncConnection | AsyncSession | None = None
        self.cause: BaseException | None = None
        self.callers_error: BaseException | None = None

    async def to_caller(self) -> ProgramResult | None:
        """None: the caller's code is next."""
        while not isinstance(self._operation, ProgramResult | CallerRows):
            await self._step()
        if isinstance(self._operation, ProgramResult):
            return self._operation
        await self._guarded(self._observe)
        return None

    async def after_caller(self, error: BaseException | None) -> ProgramResult:
        """Go on after the caller's code, which has left by an exception, or has not."""
        answer: Answer = Failed(error)
        if error is None:
            answer = await self._guarded(self._close_block)
        self._advance(answer)
        if isinstance(answer, Failed):
            self.callers_error = answer.error
        return await self.to_end()

    async def to_end(self) -> ProgramResult:
        while not isinstance(self._operation, ProgramResult):
            await self._step()
        return self._operation

    async def _step(self) -> None:
        self._advance(await self._guarded(self._perform))

    def _advance(self, answer: Answer) -> None:
        error = getattr(answer, "error", None)
        if self.cause is None and error is not None:
            self.cause = error
        self._program, self._operation = step(self._program, answer)

    async def _guarded(self, perform: Callable[[], Awaitable[Answer]]) -> Answer:
        """A cancellation, or a mistake of ours, ends the program where it is."""
        try:
            return await perform()
        except BaseException:
            self._dual._abandon()
            await asyncio.shield(self._dual._ends(self._drop_target()))
            raise

    async def _observe(self) -> Answer:
        self._dual.observer(self._program.at.value)
        return Ok()

    async def _close_block(self) -> Answer:
        assert self.target is not None
        try:
            await self.target.run_sync(self._dual.database.close_block, self._guard)
            return Ok()
        except Exception as error:
            return Failed(error)

    async def _perform(self) -> Answer:
        operation, part = self._operation, self._dual.log
        await self._observe()
        match operation:
            case ReadRow():
                return await self._dual._read_row()
            case FenceLog():
                return await part.fence()
            case BeginLog():
                return await part.begin()
            case Prepare():
                return await part.prepare()
            case CompleteLog(state):
                return await part.complete(state)
            case AbortLog():
                return await part.abort()
            case AskLog(state):
                return await part.ask(state)
        assert not isinstance(operation, ProgramResult)
        return await self._in_database(operation)

    async def _in_database(self, operation: Operation) -> Answer:
        database = self._dual.database
        if isinstance(operation, BeginDatabase):
            return await self._begin()
        assert self.target is not None
        match operation:
            case LockRow():
                block = self._program.at is At.LOCK
                return await self.target.run_sync(database.lock, operation, block=block)
            case StoreState():
                return await self.target.run_sync(database.store, operation)
            case CommitDatabase():
                answer: Answer = await self.target.run_sync(database.commit)
                if answer == Ok():
                    await self._drop_target(roll_back=False)
                return answer
            case RollbackDatabase():
                await self._drop_target()
                return Ok()
        raise AssertionError(f"{operation} is not of the database")

    async def _begin(self) -> Answer:
        """Only the first transaction is on the caller's session: what comes after an error is on a new connection."""
        of_block = self._program.at is At.BEGIN
        try:
            if of_block and self._session is not None:
                self._dual.database.check_session(self._session.sync_session)
                self.target = self._session
            else:
                self.target = await (self._dual.engine if of_block else self._dual.own_engine).connect()
        except Exception as error:
            return Failed(error)
        answer: Answer = await self.target.run_sync(self._dual.database.begin, self._guard if of_block else None)
        if answer != Ok():
            await self._drop_target()
        return answer

    async def _drop_target(self, *, roll_back: bool = True) -> None:
        target, self.target = self.target, None
        self._guard.finish()
        if target is None:
            return
        if roll_back:
            await target.run_sync(self._dual.database.roll_back, self._guard)
        if isinstance(target, AsyncConnection):
            await target.close()


class _Turn:
    """One program at a time. A task that has the turn and asks for it again would wait for itself."""

    def __init__(self, transactional_id: str) -> None:
        self._lock = asyncio.Lock()
        self._transactional_id = transactional_id
        self._task: asyncio.Task[Any] | None = None

    async def take(self) -> None:
        if self._task is asyncio.current_task():
            raise Unsuitable(
                f"transaction() of {self._transactional_id!r} inside a block of its own: one at a time",
                transactional_id=self._transactional_id,
            )
        await self._lock.acquire()
        self._task = asyncio.current_task()

    def give(self) -> None:
        self._task = None
        self._lock.release()

    async def __aenter__(self) -> None:
        await self.take()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give()
