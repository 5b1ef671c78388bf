"""The protocol of a dual write, without I/O: two programs that ask for operations and are told answers.

    program, operation = write(me, cluster)          # or take_over(me, cluster)
    while not isinstance(operation, ProgramResult):
        program, operation = step(program, answer_of(operation))

A program is a frozen value, so that a search can visit every state once. The blocking front, the asyncio front and the
search of the tests drive the same functions.

`take_over` makes `me` the writer of a transactional id, and ends what an earlier writer left open:

    ReadRow, FenceLog, BeginDatabase, LockRow(before -> me), CommitDatabase, CompleteLog(the row's state)

`write` is one transaction in both places:

    BeginDatabase, LockRow(me), BeginLog, CallerRows, Prepare, StoreState, CommitDatabase, CompleteLog(that state)

The rules (decision 25):

1. Fence, own, decide: `take_over` fences the log, then owns the row, and decides by the state that it has read under
   that lock. From then on no earlier writer can change the log (it is fenced) or the row (it is not the owner).
2. The owner that `take_over` replaces is the one that it has read before it fenced. A take-over that was paused, and
   wakes up after another one has finished, loses instead of replacing the later one.
3. `write` locks the row before anything else, sees there that it is the owner, and keeps the lock until its database
   transaction ends. A take-over waits for that end.
4. Prepare comes after the caller's last row and before StoreState: an error of the caller's rows finds nothing
   prepared, and a state that is in the row is a state of what is on disk in the log.
5. The log commits only what the database has committed: after the Ok of COMMIT, or after the state was read in the row
   under its lock.
6. The log aborts only what the database can never commit: COMMIT was not sent and the transaction was rolled back, or
   the row was read without the state, under its lock, after COMMIT.
7. After an error the database is rolled back before anything is decided: the transaction's own, uncommitted state must
   not be mistaken for a committed one.
8. What cannot be known is not decided. A program that ends with Claim.UNSETTLED leaves it to the next take-over.
9. A row of another cluster names nothing in this one, and a row that is older than the log's last commit is no basis
   for a decision: both end the take-over before anything is completed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from twofold.client.transactions.prepared import PreparedTxnState
from twofold.dualwrite.operations import (
    NO_OWNER,
    NOTHING,
    AbortLog,
    Answer,
    AskLog,
    Away,
    BeginDatabase,
    BeginLog,
    CallerRows,
    CommitDatabase,
    CompleteLog,
    Contradicted,
    Doubtful,
    Failed,
    FencedOff,
    FenceLog,
    Kept,
    LastEnded,
    Locked,
    LockRow,
    LogEnded,
    Lost,
    Ok,
    Operation,
    Prepare,
    Prepared,
    ReadRow,
    RollbackDatabase,
    Row,
    RowFound,
    StoreState,
)


class End(Enum):
    """How a program ended. The first five are of `take_over`, the others of `write`."""

    TAKEN = "taken"
    """The row is ours, and what was open is ended."""
    NOT_TAKEN = "not taken"
    """The database or the log did not do its part: take over again."""
    OTHER_CLUSTER = "other cluster"
    """The row belongs to another cluster. Nothing was ended."""
    DATABASE_BEHIND = "database behind"
    """The row lacks what the log has committed. Nothing was ended. Also of `write`."""
    LOG_ABORTED = "log aborted"
    """The log has aborted what the row has committed. Also of `write`."""

    DONE = "done"
    NOT_DONE = "not done"
    """Neither place has it, and neither ever will."""
    DECIDED = "decided"
    """The database has it; the log will have it when it is completed, here or by another process."""
    UNKNOWN = "unknown"
    """COMMIT was sent, and what came of it is not known yet."""


class Claim(Enum):
    """Whether `me` may go on."""

    OWNER = "owner"
    UNSETTLED = "unsettled"
    """Take over again, from `me`, before the next write."""
    LOST = "lost"
    """Another process has the row, or the log."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    end: End
    claim: Claim
    prepared: PreparedTxnState = NOTHING
    """Of `write`: the state that it has prepared, if it came that far."""
    row: Row | None = None
    """The row as it was read last."""
    kept: PreparedTxnState = NOTHING
    """Of `take_over`: the transaction that was open. Once taken, it is committed if it is the row's state, and aborted
    otherwise."""
    last: LastEnded | None = None
    """Of `take_over`: what the log has ended before."""


class At(Enum):
    """The operation whose answer a program waits for."""

    READ = "take over: read row"
    FENCE = "take over: fence log"
    OWN_BEGIN = "take over: begin database"
    OWN = "take over: own row"
    OWN_COMMIT = "take over: commit database"
    SETTLE = "take over: complete log"

    BEGIN = "write: begin database"
    LOCK = "write: lock row"
    BEGIN_LOG = "write: begin log"
    CALLER = "write: caller's rows"
    PREPARE = "write: prepare"
    STORE = "write: store state"
    COMMIT = "write: commit database"
    COMPLETE = "write: complete log"

    ROLLBACK = "roll back database"
    ABORT = "write: abort log"
    DOUBT_BEGIN = "doubt: begin database"
    DOUBT = "doubt: lock row"
    ASK = "doubt: ask log"
    END = "end"


@dataclass(frozen=True, slots=True)
class Program:
    """`then` is where it goes on after a rollback; `result` is what it ends with, where that is known already."""

    at: At
    me: str
    cluster: str
    before: str | None = None
    kept: PreparedTxnState = NOTHING
    last: LastEnded | None = None
    row: Row | None = None
    prepared: PreparedTxnState = NOTHING
    stored: PreparedTxnState | None = None
    committed: bool = False
    then: At = At.END
    result: ProgramResult | None = None


Next = tuple[Program, Operation | ProgramResult]


def take_over(me: str, cluster: str, expected: str | None = None) -> Next:
    """`me` is a token of this process alone, and only one program with that token runs at a time. With `expected`, the
    row is taken from that owner or not at all; a process that settles its own work expects `me`."""
    return _to(Program(At.READ, me, cluster, before=expected))


def write(me: str, cluster: str, stored: PreparedTxnState | None = None) -> Next:
    """For a `me` whose take-over has ended with Claim.OWNER. `stored` is the state that the row has, for all that `me`
    knows: nobody but the owner changes it."""
    return _to(Program(At.BEGIN, me, cluster, stored=stored))


def step(program: Program, answer: Answer) -> Next:
    """The operation after this answer, or the result."""
    return AFTER[program.at](program, answer)


# Where a program goes


def _operation(program: Program) -> Operation | ProgramResult:
    """What a program does at its place."""
    match program.at:
        case At.READ:
            return ReadRow()
        case At.FENCE:
            return FenceLog()
        case At.OWN_BEGIN | At.BEGIN | At.DOUBT_BEGIN:
            return BeginDatabase()
        case At.OWN:
            assert program.before is not None
            return LockRow(program.before, program.me, program.cluster)
        case At.LOCK | At.DOUBT:
            return LockRow(program.me, program.me, program.cluster)
        case At.BEGIN_LOG:
            return BeginLog()
        case At.CALLER:
            return CallerRows()
        case At.PREPARE:
            return Prepare()
        case At.STORE:
            return StoreState(program.me, program.prepared)
        case At.OWN_COMMIT | At.COMMIT:
            return CommitDatabase()
        case At.SETTLE:
            assert program.row is not None
            return CompleteLog(program.row.state)
        case At.COMPLETE:
            return CompleteLog(program.prepared)
        case At.ROLLBACK:
            return RollbackDatabase()
        case At.ABORT:
            return AbortLog()
        case At.ASK:
            return AskLog(program.prepared)
        case At.END:
            assert program.result is not None
            return program.result


def _to(program: Program, at: At | None = None) -> Next:
    program = replace(program, at=at or program.at)
    return program, _operation(program)


def _end(program: Program, end: End, claim: Claim) -> Next:
    return _to(_with_result(program, end, claim), At.END)


def _with_result(program: Program, end: End, claim: Claim) -> Program:
    result = ProgramResult(end, claim, program.prepared, program.row, program.kept, program.last)
    return replace(program, result=result)


def _roll_back(program: Program, then: At) -> Next:
    return _to(replace(program, then=then), At.ROLLBACK)


def _roll_back_and_end(program: Program, end: End, claim: Claim) -> Next:
    return _roll_back(_with_result(program, end, claim), At.END)


def _roll_back_and_abort(program: Program, end: End, claim: Claim) -> Next:
    """Only before COMMIT was sent, or when the row was read since."""
    return _roll_back(_with_result(program, end, claim), At.ABORT)


# take_over


def _read(program: Program, answer: Answer) -> Next:
    match answer:
        case RowFound(row):
            program = replace(program, row=row)
            if program.before is not None and row.owner != program.before:
                return _end(program, End.NOT_TAKEN, Claim.LOST)
            if is_of_another_cluster(row, program.cluster):
                return _end(program, End.OTHER_CLUSTER, Claim.UNSETTLED)
            return _to(replace(program, before=row.owner), At.FENCE)
        case Failed():
            return _end(program, End.NOT_TAKEN, Claim.UNSETTLED)
    raise _unexpected(program, answer)


def _fence(program: Program, answer: Answer) -> Next:
    match answer:
        case Kept(state, last):
            return _to(replace(program, kept=state, last=last), At.OWN_BEGIN)
        case Failed() | Away() | FencedOff():
            return _end(program, End.NOT_TAKEN, Claim.UNSETTLED)
    raise _unexpected(program, answer)


def _own_begin(program: Program, answer: Answer) -> Next:
    match answer:
        case Ok():
            return _to(program, At.OWN)
        case Failed():
            return _end(program, End.NOT_TAKEN, Claim.UNSETTLED)
    raise _unexpected(program, answer)


def _own(program: Program, answer: Answer) -> Next:
    match answer:
        case Locked(row) if program.row is not None and row.state not in (program.row.state, program.kept):
            # Since the fence the owner can have committed only what is kept. It has another state, so it has taken over
            # again, from itself, and has the log.
            return _roll_back_and_end(replace(program, row=row), End.NOT_TAKEN, Claim.UNSETTLED)
        case Locked(row):
            program = replace(program, row=row)
            obstacle = obstacle_of(row, program.cluster, program.kept, program.last)
            if obstacle is not None:
                return _roll_back_and_end(program, obstacle, Claim.UNSETTLED)
            return _to(program, At.OWN_COMMIT)
        case Lost(row):
            return _roll_back_and_end(replace(program, row=row), End.NOT_TAKEN, Claim.LOST)
        case Failed():
            return _roll_back_and_end(program, End.NOT_TAKEN, Claim.UNSETTLED)
    raise _unexpected(program, answer)


def _own_commit(program: Program, answer: Answer) -> Next:
    match answer:
        case Ok() if program.kept:
            return _to(program, At.SETTLE)
        case Ok():
            return _end(program, End.TAKEN, Claim.OWNER)
        case Failed() | Doubtful():
            return _roll_back_and_end(program, End.NOT_TAKEN, Claim.UNSETTLED)
    raise _unexpected(program, answer)


def _settle(program: Program, answer: Answer) -> Next:
    match answer:
        case LogEnded():
            return _end(program, End.TAKEN, Claim.OWNER)
        case Failed() | Away():
            return _end(program, End.NOT_TAKEN, Claim.UNSETTLED)
        case FencedOff():
            return _end(program, End.NOT_TAKEN, Claim.LOST)
        case Contradicted():
            return _end(program, End.LOG_ABORTED, Claim.UNSETTLED)
    raise _unexpected(program, answer)


def is_of_another_cluster(row: Row, cluster: str) -> bool:
    return row.cluster not in ("", cluster)


def obstacle_of(row: Row, cluster: str, kept: PreparedTxnState, last: LastEnded | None) -> End | None:
    """Why the row must not decide about what the log has open; None where it may.

    In this protocol the database has what the log has committed, and a transaction is opened only when its row has had
    an owner. So a row that never had one, or that lacks the log's last commit, comes from a backup, from a replica
    without the last commits, or from another database.
    """
    if is_of_another_cluster(row, cluster):
        return End.OTHER_CLUSTER
    if kept and row.owner == NO_OWNER:
        return End.DATABASE_BEHIND
    if last is None:
        return None
    if last.committed and row.state not in (last.state, kept or last.state):
        return End.DATABASE_BEHIND
    if not last.committed and row.state == last.state:
        return End.LOG_ABORTED
    return None


# write


def _begin(program: Program, answer: Answer) -> Next:
    match answer:
        case Ok():
            return _to(program, At.LOCK)
        case Failed():
            return _end(program, End.NOT_DONE, Claim.OWNER)
    raise _unexpected(program, answer)


def _lock(program: Program, answer: Answer) -> Next:
    match answer:
        case Locked(row) if program.stored not in (None, row.state):
            # The database had committed it and has lost it: a replica was promoted, or a server crashed without fsync.
            program = replace(program, row=row)
            return _roll_back_and_end(program, End.DATABASE_BEHIND, Claim.UNSETTLED)
        case Locked():
            return _to(program, At.BEGIN_LOG)
        case Lost(row):
            return _roll_back_and_end(replace(program, row=row), End.NOT_DONE, Claim.LOST)
        case Failed():
            return _roll_back_and_end(program, End.NOT_DONE, Claim.OWNER)
    raise _unexpected(program, answer)


def _begin_log(program: Program, answer: Answer) -> Next:
    match answer:
        case Ok():
            return _to(program, At.CALLER)
        case FencedOff():
            return _roll_back_and_end(program, End.NOT_DONE, Claim.LOST)
        case Failed() | Away():
            return _roll_back_and_end(program, End.NOT_DONE, Claim.UNSETTLED)
    raise _unexpected(program, answer)


def _caller(program: Program, answer: Answer) -> Next:
    match answer:
        case Ok():
            return _to(program, At.PREPARE)
        case Failed():
            return _roll_back_and_abort(program, End.NOT_DONE, Claim.OWNER)
    raise _unexpected(program, answer)


def _prepare(program: Program, answer: Answer) -> Next:
    match answer:
        case Prepared(state) if state:
            return _to(replace(program, prepared=state), At.STORE)
        case Prepared():
            return _to(program, At.COMMIT)  # no record was sent: the row keeps the state that it has
        case FencedOff():
            return _roll_back_and_end(program, End.NOT_DONE, Claim.LOST)
        case Failed() | Away():
            return _roll_back_and_abort(program, End.NOT_DONE, Claim.OWNER)
    raise _unexpected(program, answer)


def _store(program: Program, answer: Answer) -> Next:
    match answer:
        case Ok():
            return _to(program, At.COMMIT)
        case Lost(row):
            return _roll_back_and_abort(replace(program, row=row), End.NOT_DONE, Claim.LOST)
        case Failed():
            return _roll_back_and_abort(program, End.NOT_DONE, Claim.OWNER)
    raise _unexpected(program, answer)


def _commit(program: Program, answer: Answer) -> Next:
    match answer:
        case Ok():
            return _to(replace(program, committed=True), At.COMPLETE)
        case Failed() | Doubtful() if program.prepared:
            return _roll_back(program, At.DOUBT_BEGIN)
        case Failed():
            return _roll_back_and_abort(program, End.NOT_DONE, Claim.OWNER)
        case Doubtful():  # of a transaction without records: no state in the row tells
            return _roll_back_and_abort(program, End.UNKNOWN, Claim.OWNER)
    raise _unexpected(program, answer)


def _complete(program: Program, answer: Answer) -> Next:
    match answer:
        case LogEnded(True):
            return _end(program, End.DONE, Claim.OWNER)
        case FencedOff():
            return _to(program, At.ASK)
        case Failed() | Away():
            return _end(program, End.DECIDED, Claim.UNSETTLED)
        case Contradicted() | LogEnded(False):
            return _end(program, End.LOG_ABORTED, Claim.UNSETTLED)
    raise _unexpected(program, answer)


def _rollback(program: Program, answer: Answer) -> Next:
    if answer != Ok():
        raise _unexpected(program, answer)
    return _to(program, program.then)


def _abort(program: Program, answer: Answer) -> Next:
    result = program.result
    assert result is not None
    match answer:
        case Ok():
            return _to(program, At.END)
        case FencedOff():  # the row does not have the state: the next writer aborts, too
            return _end(program, result.end, Claim.LOST)
        case Failed() | Away():
            claim = Claim.LOST if result.claim is Claim.LOST else Claim.UNSETTLED
            return _end(program, result.end, claim)
    raise _unexpected(program, answer)


# COMMIT was sent, and its answer is missing


def _doubt_begin(program: Program, answer: Answer) -> Next:
    match answer:
        case Ok():
            return _to(program, At.DOUBT)
        case Failed():
            return _end(program, End.UNKNOWN, Claim.UNSETTLED)
    raise _unexpected(program, answer)


def _doubt(program: Program, answer: Answer) -> Next:
    match answer:
        case Locked(row) if row.state == program.prepared:
            return _roll_back(replace(program, row=row, committed=True), At.COMPLETE)
        case Locked(row):
            return _roll_back_and_abort(replace(program, row=row), End.NOT_DONE, Claim.OWNER)
        case Lost(row) if row.state == program.prepared:
            return _roll_back(replace(program, row=row, committed=True), At.ASK)
        case Lost(row):
            return _roll_back(replace(program, row=row), At.ASK)
        case Failed():
            return _roll_back_and_end(program, End.UNKNOWN, Claim.UNSETTLED)
    raise _unexpected(program, answer)


def _ask(program: Program, answer: Answer) -> Next:
    """Another process took over. It has decided, or will, by the row as our transaction has left it."""
    match answer:
        case LogEnded(True):
            return _end(program, End.DONE, Claim.LOST)
        case LogEnded(False):
            return _end(program, End.LOG_ABORTED if program.committed else End.NOT_DONE, Claim.LOST)
        case Failed() | Away():
            return _end(program, End.DECIDED if program.committed else End.UNKNOWN, Claim.LOST)
    raise _unexpected(program, answer)


AFTER: dict[At, Callable[[Program, Answer], Next]] = {
    At.READ: _read,
    At.FENCE: _fence,
    At.OWN_BEGIN: _own_begin,
    At.OWN: _own,
    At.OWN_COMMIT: _own_commit,
    At.SETTLE: _settle,
    At.BEGIN: _begin,
    At.LOCK: _lock,
    At.BEGIN_LOG: _begin_log,
    At.CALLER: _caller,
    At.PREPARE: _prepare,
    At.STORE: _store,
    At.COMMIT: _commit,
    At.COMPLETE: _complete,
    At.ROLLBACK: _rollback,
    At.ABORT: _abort,
    At.DOUBT_BEGIN: _doubt_begin,
    At.DOUBT: _doubt,
    At.ASK: _ask,
}
"""What a program does after the answer to the operation at its place."""


def _unexpected(program: Program, answer: Answer) -> AssertionError:
    return AssertionError(f"{answer} is no answer at {program.at.value!r}")
