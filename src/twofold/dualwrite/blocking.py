"""`DualWrite`: a database and the log in step, for code without asyncio.

    with DualWrite(engine, bootstrap_servers="127.0.0.1:9092", transactional_id="shop") as dual:
        with dual.transaction() as (db, log):
            db.execute(insert(orders).values(item="a teapot"))
            log.send("orders", b"a teapot")

1. The protocol decides (`protocol.py`); here its operations are carried out, one after the other, on one connection
   and one producer.
2. One program runs at a time: a transaction in another thread waits until the one before has ended.
3. An interrupt between two operations is a crash of the program: the connection is rolled back, nothing is decided,
   and the next transaction takes over first.
4. What is left unsettled is settled in the background, and before the next transaction.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from twofold.dualwrite.database import Database, Guard, Target, own_options
from twofold.dualwrite.errors import Disagreement, DualWriteError, NotDone, TakenOver, Unsuitable
from twofold.dualwrite.footing import Footing
from twofold.dualwrite.log import BlockingLog, Records, producer_config
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

DEFAULT_LEASE_S = 30.0
DEFAULT_LOCK_TIMEOUT_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Between two attempts of the background to settle."""

log = logging.getLogger(__name__)


class DualWrite:
    """The writer of one transactional id. `transaction` takes over first where that is needed; `take_over` does it
    now. `options` are those of `twofold.Producer`."""

    def __init__(
        self,
        engine: Engine,
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
        self.own_engine = engine.execution_options(**own_options(engine))
        self.transactional_id = transactional_id
        self.database = Database(engine, table, transactional_id, int(lease_s * 1000), lock_timeout_s)
        self.observer = observer
        self.log = BlockingLog(config)
        self._footing = Footing(self.transactional_id, self.database.table.fullname)
        self._turn = _Turn(self.transactional_id)
        self._closed = threading.Event()
        self._settler: threading.Thread | None = None

    def __enter__(self) -> "DualWrite":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """What is not settled waits for the next process with this transactional id."""
        self._footing.closed = True
        self._closed.set()
        settler = self._settler
        if settler is not None and settler is not threading.current_thread():
            settler.join()
        self.log.close()

    @property
    def token(self) -> str:
        """What the row calls its owner while this is the writer: new in every process, at every start."""
        return self._footing.token

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken the transactional id over: this writer is over."""
        return self._footing.is_lost

    @property
    def in_doubt(self) -> bool:
        """Whether the caller was told of a transaction whose end is not known yet: `settle` tells."""
        return self._footing.in_doubt is not None

    @property
    def is_settled(self) -> bool:
        """Whether nothing of an earlier transaction is left to be ended."""
        return not self._footing.is_unsettled

    def transaction(self, session: "Session | scoped_session[Any] | None" = None) -> "DualBlock":
        """`with dual.transaction() as (db, log)`: `db` is a Connection in a transaction, or the session that was
        given, which must have none. Leaving the block commits both, an exception rolls both back."""
        self._footing.refuse_fork()
        return DualBlock(self, session() if isinstance(session, scoped_session) else session)

    def take_over(self, *, expected: str | None = None) -> Settled | None:
        """Become the writer, and end what an earlier one left open: tells what, if anything. Does nothing where this
        is the writer already. With `expected`, TakenOver is raised unless the row has that owner."""
        self._footing.refuse_fork()
        with self._turn:
            return self._ready(expected)

    def release(self) -> None:
        """End the lease: the id is free for the next process, which need not wait until the lease has run out."""
        with self._turn:
            if self._footing.lets_go():
                with self.own_engine.connect() as connection:
                    self.database.release(connection, self._footing.token)

    def settle(self) -> Settled | None:
        """End what a transaction of this writer left open, and tell what became of the last one whose end was not known
        (OutcomeUnknown, DecidedNotVisible); None where there was none, or where it was told before. While the database
        or the log does not answer, the same exception is raised again. Another process may have ended it."""
        self._footing.refuse_fork()
        with self._turn:
            if self._footing.is_unsettled:
                try:
                    self._ready()
                except NotDone as error:
                    if not (self._footing.is_lost and self._footing.in_doubt):
                        raise self._footing.still(error) from error
            if self._footing.is_lost and (state := self._footing.in_doubt):
                self._footing.hear(self.log.ask(state), self._read_row())
            return self._footing.tell()

    # How

    def _ready(self, expected: str | None = None) -> Settled | None:
        """Be the writer, with nothing left open. In turn."""
        if not self._footing.must_take_over():
            return None
        self._find_cluster()
        run = Run(self, self._footing.take_over(expected))
        result = run.to_end()
        self.observer(TAKE_OVER_END)
        return self._footing.after_take_over(result, run.cause)

    def _find_cluster(self) -> None:
        """Each time: what answers at this address may be another cluster than before."""
        try:
            self._footing.cluster = self.log.cluster_id()
        except KafkaError as error:
            raise NotDone(
                f"{self.transactional_id!r} could not be taken over: {error}",
                transactional_id=self.transactional_id,
            ) from error

    def _read_row(self) -> Answer:
        try:
            with self.own_engine.connect() as connection:
                return self.database.read(connection)
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
        if self._settler is None or not self._settler.is_alive():
            self._settler = threading.Thread(
                target=self._keep_settling, name=f"twofold-settle-{self.transactional_id}", daemon=True
            )
            self._settler.start()

    def _keep_settling(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closed.wait(pause_s):
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            with self._turn:
                if not self._footing.is_unsettled or self._closed.is_set():
                    return
                try:
                    settled = self._ready()
                    log.info("%r is settled: %s", self.transactional_id, settled)
                    return
                except (Disagreement, TakenOver, Unsuitable) as error:
                    log.error("%r cannot be settled: %s", self.transactional_id, error)
                    return
                except Exception as error:
                    log.warning("%r is not settled yet: %s", self.transactional_id, error)


class DualBlock:
    """The block of one transaction. `result` is Done after it has ended without an exception."""

    def __init__(self, dual: DualWrite, session: Session | None) -> None:
        self._dual = dual
        self._session = session
        self._run: Run | None = None
        self._records: Records | None = None
        self.result: Done | None = None

    def __enter__(self) -> "tuple[Any, Records]":
        dual = self._dual
        dual._turn.take()
        try:
            dual._ready()
            run = self._run = Run(dual, dual._footing.write(), self._session)
            result = run.to_caller()
            if result is not None:
                failure = dual._after_write(result)
                assert isinstance(failure, DualWriteError)
                if isinstance(run.cause, Unsuitable):
                    raise run.cause
                raise failure from run.cause
            self._records = Records(dual.log.producer, dual.transactional_id)
            return run.target, self._records
        except BaseException:
            dual._turn.give()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        dual, run = self._dual, self._run
        assert run is not None and self._records is not None
        self._records.end()
        try:
            result = run.after_caller(error)
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


class Run:
    """One program on one connection. `cause` is the first error that it met, `callers_error` that of the block."""

    def __init__(self, dual: DualWrite, first: Next, session: Session | None = None) -> None:
        self._dual = dual
        self._session = session
        self._program: Program = first[0]
        self._operation: Operation | ProgramResult = first[1]
        self._guard = Guard(dual.transactional_id)
        self.target: Target | None = None
        self.cause: BaseException | None = None
        self.callers_error: BaseException | None = None

    def to_caller(self) -> ProgramResult | None:
        """None: the caller's code is next."""
        with self._crash_is_told():
            while not isinstance(self._operation, ProgramResult | CallerRows):
                self._advance(self._perform())
            if isinstance(self._operation, ProgramResult):
                return self._operation
            self._observe()
            return None

    def after_caller(self, error: BaseException | None) -> ProgramResult:
        """Go on after the caller's code, which has left by an exception, or has not."""
        with self._crash_is_told():
            answer = self._close_block() if error is None else Failed(error)
            self._advance(answer)
            if isinstance(answer, Failed):
                self.callers_error = answer.error
            return self.to_end()

    def to_end(self) -> ProgramResult:
        with self._crash_is_told():
            while not isinstance(self._operation, ProgramResult):
                self._advance(self._perform())
            return self._operation

    def _advance(self, answer: Answer) -> None:
        error = getattr(answer, "error", None)
        if self.cause is None and error is not None:
            self.cause = error
        self._program, self._operation = step(self._program, answer)

    @contextmanager
    def _crash_is_told(self) -> Iterator[None]:
        """An interrupt, or a mistake of ours, ends the program where it is, wherever that is."""
        try:
            yield
        except BaseException:
            self._drop_target()
            self._dual._abandon()
            raise

    def _observe(self) -> None:
        self._dual.observer(self._program.at.value)

    def _close_block(self) -> Answer:
        assert self.target is not None
        try:
            self._dual.database.close_block(self.target, self._guard)
            return Ok()
        except Exception as error:
            return Failed(error)

    def _perform(self) -> Answer:
        operation, part = self._operation, self._dual.log
        self._observe()
        match operation:
            case ReadRow():
                return self._dual._read_row()
            case FenceLog():
                return part.fence()
            case BeginLog():
                return part.begin()
            case Prepare():
                return part.prepare()
            case CompleteLog(state):
                return part.complete(state)
            case AbortLog():
                return part.abort()
            case AskLog(state):
                return part.ask(state)
        assert not isinstance(operation, ProgramResult)
        return self._in_database(operation)

    def _in_database(self, operation: Operation) -> Answer:
        database = self._dual.database
        if isinstance(operation, BeginDatabase):
            return self._begin()
        assert self.target is not None
        match operation:
            case LockRow():
                return database.lock(self.target, operation, block=self._program.at is At.LOCK)
            case StoreState():
                return database.store(self.target, operation)
            case CommitDatabase():
                answer = database.commit(self.target)
                if answer == Ok():
                    self._drop_target(roll_back=False)
                return answer
            case RollbackDatabase():
                self._drop_target()
                return Ok()
        raise AssertionError(f"{operation} is not of the database")

    def _begin(self) -> Answer:
        """Only the first transaction is on the caller's session: what comes after an error is on a new connection."""
        of_block = self._program.at is At.BEGIN
        try:
            if of_block and self._session is not None:
                self._dual.database.check_session(self._session)
                self.target = self._session
            else:
                self.target = (self._dual.engine if of_block else self._dual.own_engine).connect()
        except Exception as error:
            return Failed(error)
        answer = self._dual.database.begin(self.target, self._guard if of_block else None)
        if answer != Ok():
            self._drop_target()
        return answer

    def _drop_target(self, *, roll_back: bool = True) -> None:
        target, self.target = self.target, None
        self._guard.finish()
        if target is None:
            return
        if roll_back:
            self._dual.database.roll_back(target, self._guard)
        if isinstance(target, Connection):
            target.close()


class _Turn:
    """One program at a time. A thread that has the turn and asks for it again would wait for itself."""

    def __init__(self, transactional_id: str) -> None:
        self._lock = threading.Lock()
        self._transactional_id = transactional_id
        self._thread: int | None = None

    def take(self) -> None:
        if self._thread == threading.get_ident():
            raise Unsuitable(
                f"transaction() of {self._transactional_id!r} inside a block of its own: one at a time",
                transactional_id=self._transactional_id,
            )
        self._lock.acquire()
        self._thread = threading.get_ident()

    def give(self) -> None:
        self._thread = None
        self._lock.release()

    def __enter__(self) -> None:
        self.take()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give()
