"""Processes that follow the protocol in the two places, one operation at a time, with everything that may go wrong.

A move is one operation of one process with its answer, the loss of an answer, an error, a crash, or something that the
database or the network does with what a client has given up. A pause needs no move: a process that does not move while
the others do is paused. Nor does a request that is on its way when its process is killed: it took effect, and then the
process was killed. Nor does the end of a process that holds no lock: to the others it is one that is paused for ever.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kits.dualwrite.places import (
    HERE,
    NO_EPOCH,
    Client,
    Isolation,
    Late,
    Log,
    ModelRow,
    Transaction,
    epoch_of,
    last_of,
    row_of,
    state_of,
)
from twofold.dualwrite import protocol
from twofold.dualwrite.operations import (
    AbortLog,
    Answer,
    AskLog,
    Away,
    BeginDatabase,
    BeginLog,
    CallerRows,
    CommitDatabase,
    CompleteLog,
    Doubtful,
    Failed,
    FencedOff,
    FenceLog,
    Kept,
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
    RowFound,
    StoreState,
)
from twofold.dualwrite.protocol import Claim, End, Program, ProgramResult

ENDED = -1
ITEMS_PER_PROCESS = 2


class Violation(Exception):
    """Something that must hold does not."""


class Process(NamedTuple):
    program: int  # its number in the table of programs, or ENDED
    writes: int = 0  # left
    tries: int = 0  # take-overs left after the first
    half: bool = False  # the first half of the operation is done
    owned: bool = False  # once
    stored: int = NO_EPOCH  # what the row has, for all that this process knows
    connection: Transaction | None = None
    client: Client | None = None


class Faults(NamedTuple):
    """How many are left."""

    errors: int = 1  # of the database: deadlock, lock timeout, unique violation, a COMMIT that is refused
    doubts: int = 1  # COMMITs whose answer is lost
    silences: int = 1  # requests to the log that stay without an answer
    slips: int = 0  # deadlocks that roll the whole transaction back, and a caller that goes on in a new one (MariaDB)


class State(NamedTuple):
    processes: tuple[Process, ...]
    row: ModelRow = ModelRow()
    table: int = 0  # items
    log: Log = Log()
    adrift: Transaction | None = None  # a COMMIT whose client has gone
    late: tuple[Late, ...] = ()
    denied: int = 0  # items whose writer was told "not done"
    faults: Faults = Faults()


class Protocol(NamedTuple):
    """The functions of `twofold.dualwrite.protocol`, or a variant with a bug in it."""

    take_over: Callable[..., protocol.Next] = protocol.take_over
    write: Callable[..., protocol.Next] = protocol.write
    step: Callable[[Program, Answer], protocol.Next] = protocol.step
    sends_after_prepare: bool = False
    """Our client refuses that; the broker would not notice."""


OURS = Protocol()


class Script(NamedTuple):
    """What a process does after it has taken over."""

    name: str
    writes: int = 0
    tries: int = 1


Moves = Iterator[tuple[str, State]]


class World:
    def __init__(self, isolation: Isolation, scripts: tuple[Script, ...], rules: Protocol = OURS) -> None:
        self.isolation = isolation
        self._scripts = scripts
        self.slips = False
        self.rules = rules
        self._programs: list[protocol.Next] = []
        self._numbers: dict[Program, int] = {}
        self._steps: dict[tuple[int, Answer], int] = {}

    def start(self, faults: Faults) -> State:
        self.slips = bool(faults.slips)
        first = [self._number(self.rules.take_over(script.name, HERE)) for script in self._scripts]
        given = zip(first, self._scripts, strict=True)
        return State(tuple(Process(at, script.writes, script.tries) for at, script in given), faults=faults)

    # What can happen next

    def moves(self, state: State) -> Moves:
        for number, process in enumerate(state.processes):
            if process.program >= 0 and self._is_private(process):
                # Nobody sees it, and it sees nobody: whatever the others do before it, they can do after it.
                yield from self._moves_of(state, number, process)
                return
        for number, process in enumerate(state.processes):
            if process.program >= 0:
                yield from self._moves_of(state, number, process)
        yield from self._moves_of_nobody(state)

    def kills(self, state: State) -> Moves:
        """Of those that hold the lock."""
        for number, process in enumerate(state.processes):
            if process.connection is not None and process.connection.holds_lock:
                yield self._label(number, "is killed"), _with(state, number, _ENDED)

    def _moves_of(self, state: State, number: int, process: Process) -> Moves:
        operation = self._programs[process.program][1]
        assert not isinstance(operation, ProgramResult)
        return OPERATIONS[type(operation)](self, state, number, process, operation)

    def _is_private(self, process: Process) -> bool:
        operation, mine = self._programs[process.program][1], process.connection
        if isinstance(operation, BeginLog):
            return True
        if isinstance(operation, BeginDatabase):
            return mine is None and self.isolation in (Isolation.READ_COMMITTED, Isolation.DIRTY)
        if isinstance(operation, RollbackDatabase):
            return mine is None or not mine.holds_lock
        if isinstance(operation, LockRow | StoreState):
            return mine is not None and mine.holds_lock and self.isolation is not Isolation.DIRTY
        return isinstance(operation, CallerRows) and process.half and not self.slips

    def _moves_of_nobody(self, state: State) -> Moves:
        if state.adrift is not None:
            yield "the database commits what is adrift", _committed(state, state.adrift)._replace(adrift=None)
            yield "the database rolls back what is adrift", state._replace(adrift=None)
        for late in state.late:
            log = state.log.fence() if late.fence else state.log.end(late.epoch, commit=late.commit)
            left = tuple(other for other in state.late if other is not late)
            yield f"the log gets {late}", state._replace(late=left, log=log or state.log)

    # The database

    def read_row(self, state: State, number: int, process: Process, _: Operation) -> Moves:
        yield self._told(state, number, process, RowFound(row_of(state.row)))
        if self.isolation is Isolation.DIRTY:
            for holder in _transactions(state):
                if holder.row is not None and holder.row != state.row:
                    yield self._told(state, number, process, RowFound(row_of(holder.row)))
        yield from self._error(state, number, process)

    def begin_database(self, state: State, number: int, process: Process, _: Operation) -> Moves:
        yield from self._error(state, number, process)
        if process.connection is not None:  # only a variant begins what is begun: it goes on in what it has
            yield self._told(state, number, process, Ok())
            return
        whole = self.isolation is Isolation.WHOLE
        if not (whole and _is_locked(state)):
            snapshot = state.row if self.isolation is Isolation.SNAPSHOT else None
            yield self._told(state, number, process._replace(connection=Transaction(snapshot, whole)), Ok())

    def lock_row(self, state: State, number: int, process: Process, operation: LockRow) -> Moves:
        yield from self._error(state, number, process)
        found = self._lock(state, process)
        if found is None:
            return
        if isinstance(found, Failed):
            yield self._told(state, number, process, found)
            return
        current = found.row or state.row
        if current.owner != operation.owner:
            yield self._told(state, number, process._replace(connection=found), Lost(row_of(current)))
            return
        after = found._replace(row=ModelRow(operation.new_owner, operation.cluster, current.epoch))
        yield self._told(state, number, process._replace(connection=after), Locked(row_of(current)))

    def store_state(self, state: State, number: int, process: Process, operation: StoreState) -> Moves:
        yield from self._error(state, number, process)
        found = self._lock(state, process)
        if found is None:
            return
        if isinstance(found, Failed):
            yield self._told(state, number, process, found)
            return
        current = found.row or state.row
        if current.owner != operation.owner:
            yield self._told(state, number, process._replace(connection=found), Lost(row_of(current)))
            return
        after = found._replace(row=current._replace(epoch=epoch_of(operation.state)))
        yield self._told(state, number, process._replace(connection=after), Ok())

    def _lock(self, state: State, process: Process) -> Transaction | Failed | None:
        """None while another one has the lock."""
        mine = process.connection
        if mine is None:
            raise Violation("a row is locked outside a transaction")
        if mine.holds_lock:
            return mine
        if _is_locked(state):
            return None
        if self.isolation is Isolation.SNAPSHOT and mine.snapshot != state.row:
            return Failed()
        return mine._replace(snapshot=None, holds_lock=True)

    def caller_rows(self, state: State, number: int, process: Process, _: Operation) -> Moves:
        item, client, mine = self._item(number, process), process.client, process.connection
        assert client is not None and mine is not None
        if not process.half:
            log = state.log.take(client.epoch, item, 0)
            sent = client._replace(refused=True) if log is None else client._replace(has_sent=True)
            after = _with(state, number, process._replace(client=sent, half=True))
            yield self._label(number, "sends a record"), after._replace(log=log or state.log)
            return
        yield from self._error(state, number, process._replace(half=False))
        after_it = process._replace(half=False, client=client._replace(unsent=item))
        written = mine._replace(items=mine.items | item)
        yield self._told(state, number, after_it._replace(connection=written), Ok())
        if state.faults.slips:
            less = state._replace(faults=state.faults._replace(slips=state.faults.slips - 1))
            yield self._told(less, number, after_it._replace(connection=Transaction(items=item)), Ok())

    def commit_database(self, state: State, number: int, process: Process, _: Operation) -> Moves:
        mine, faults = process.connection, state.faults
        assert mine is not None
        me = self._scripts[number].name
        # A transaction that has asked for COMMIT commits at any time from now on: the check is the same at all of them.
        if mine.items and state.row.owner != me:
            raise Violation(f"{me} changes the table although the row belongs to {state.row.owner!r}")
        without = process._replace(connection=None)
        yield self._told(_committed(state, mine), number, without, Ok())
        if faults.errors:
            less = state._replace(faults=faults._replace(errors=faults.errors - 1))
            yield self._told(less, number, process, Failed())  # "database is locked": it stays open
            yield self._told(less, number, without, Failed())  # rolled back
        if faults.doubts:
            less = state._replace(faults=faults._replace(doubts=faults.doubts - 1))
            yield self._told(less._replace(adrift=mine), number, without, Doubtful())

    def rollback_database(self, state: State, number: int, process: Process, _: Operation) -> Moves:
        yield self._told(state, number, process._replace(connection=None), Ok())

    # The log

    def fence_log(self, state: State, number: int, process: Process, _: Operation) -> Moves:
        """Two requests: the second one asks what was ended last."""
        if process.half:
            assert process.client is not None
            kept = Kept(state_of(process.client.prepared), last_of(state.log.last))
            yield self._told(state, number, process._replace(half=False), kept)
            return
        log = state.log.fence()
        fenced = Client(log.epoch, NO_EPOCH if log.open is None else log.open.epoch)
        after = _with(state, number, process._replace(client=fenced, half=True))
        yield self._label(number, "fences the log"), after._replace(log=log)
        yield from self._silence(state, number, process, Late(True))

    def begin_log(self, state: State, number: int, process: Process, _: Operation) -> Moves:
        client = process.client
        assert client is not None
        if client.prepared != NO_EPOCH:
            raise Violation("a transaction begins while another one is kept")
        yield self._told(state, number, process._replace(client=Client(client.epoch)), Ok())

    def prepare(self, state: State, number: int, process: Process, _: Operation) -> Moves:
        client = process.client
        assert client is not None
        log = None if client.refused else state.log
        if log is not None and client.unsent:
            log = state.log.take(client.epoch, 0, client.unsent)
        if log is None:
            yield self._told(state, number, process, FencedOff())
            return
        epoch = client.epoch if client.has_sent or self.rules.sends_after_prepare else NO_EPOCH
        after = process._replace(client=client._replace(prepared=epoch, unsent=0))
        yield self._told(state._replace(log=log), number, after, Prepared(state_of(epoch)))
        if state.faults.silences:
            yield self._told(_quieter(state), number, process, Away())

    def complete_log(self, state: State, number: int, process: Process, operation: CompleteLog) -> Moves:
        assert process.client is not None
        commit = epoch_of(operation.state) == process.client.prepared
        yield from self._end(state, number, process, LogEnded(commit), commit=commit)

    def abort_log(self, state: State, number: int, process: Process, _: Operation) -> Moves:
        yield from self._end(state, number, process, Ok(), commit=False)

    def _end(self, state: State, number: int, process: Process, answer: Answer, *, commit: bool) -> Moves:
        client = process.client
        assert client is not None
        if not client.has_sent and client.prepared == NO_EPOCH:  # the log has not heard of it
            yield self._told(state, number, process._replace(client=Client(client.epoch)), answer)
            return
        flushed = state.log.take(client.epoch, 0, client.unsent) if commit and client.unsent else state.log
        log = None if flushed is None else flushed.end(client.epoch, commit=commit)
        if log is None:
            yield self._told(state, number, process, FencedOff())
            return
        after = process._replace(client=Client(log.epoch))
        yield self._told(state._replace(log=log), number, after, answer)
        yield from self._silence(state, number, process, Late(False, client.epoch, commit))

    def ask_log(self, state: State, number: int, process: Process, operation: AskLog) -> Moves:
        last = state.log.last
        known = last is not None and last[0] == epoch_of(operation.state)
        yield self._told(state, number, process, LogEnded(last[1]) if last is not None and known else Failed())

    # Faults

    def _error(self, state: State, number: int, process: Process) -> Moves:
        """Of the database. What was done before it in the transaction stays there until it is rolled back."""
        faults = state.faults
        if faults.errors:
            less = state._replace(faults=faults._replace(errors=faults.errors - 1))
            yield self._told(less, number, process, Failed())

    def _silence(self, state: State, number: int, process: Process, late: Late) -> Moves:
        if state.faults.silences:
            less = _quieter(state)
            yield self._told(less._replace(late=(*state.late, late)), number, process, Away())

    # What a process makes of an answer

    def _told(self, state: State, number: int, process: Process, answer: Answer) -> tuple[str, State]:
        key = process.program, answer
        after = self._steps.get(key)
        if after is None:
            program = self._programs[process.program][0]
            after = self._steps[key] = self._number(self.rules.step(program, answer))
        label = self._label(number, f"{type(self._programs[process.program][1]).__name__} -> {answer}")
        result = self._programs[after][1]
        if not isinstance(result, ProgramResult):
            return label, _with(state, number, process._replace(program=after))
        if process.connection is not None:
            raise Violation(f"{self._scripts[number].name} ends with {result.end} and a transaction open")
        return label, self._ended(state, number, process, result)

    def _ended(self, state: State, number: int, process: Process, result: ProgramResult) -> State:
        name = self._scripts[number].name
        if result.end in (End.OTHER_CLUSTER, End.DATABASE_BEHIND, End.LOG_ABORTED):
            raise Violation(f"{name} is told {result.end} in a world where nobody did that")
        if result.end in (End.TAKEN, End.NOT_TAKEN):
            if result.end is End.TAKEN:
                assert result.row is not None
                process = process._replace(owned=True, stored=epoch_of(result.row.state))
        else:
            state = self._judge(state, name, self._item(number, process), result.end)
            stored = epoch_of(result.prepared) if result.end is End.DONE else process.stored
            process = process._replace(writes=process.writes - 1, stored=stored)
        if result.claim is Claim.LOST:
            return _with(state, number, _ENDED)
        if result.claim is Claim.UNSETTLED:
            if not process.tries:
                return _with(state, number, _ENDED)
            following = self.rules.take_over(name, HERE, name if process.owned else None)
            return _with(state, number, process._replace(program=self._number(following), tries=process.tries - 1))
        if not process.writes:
            return _with(state, number, _ENDED)
        following = self.rules.write(name, HERE, state_of(process.stored))
        return _with(state, number, process._replace(program=self._number(following)))

    def _judge(self, state: State, name: str, item: int, end: End) -> State:
        in_table, in_log = bool(state.table & item), bool(state.log.first & state.log.second & item)
        if end is End.DONE and not (in_table and in_log):
            raise Violation(f"{name} is told DONE: in the table {in_table}, in the log {in_log}")
        if end is End.DECIDED and not in_table:
            raise Violation(f"{name} is told DECIDED, and the table does not have it")
        if end is End.NOT_DONE:
            return state._replace(denied=state.denied | item)
        return state

    def _item(self, number: int, process: Process) -> int:
        return 1 << (number * ITEMS_PER_PROCESS + process.writes - 1)

    def _label(self, number: int, what: str) -> str:
        return f"{self._scripts[number].name}: {what}"

    def _number(self, following: protocol.Next) -> int:
        program = following[0]
        number = self._numbers.get(program)
        if number is None:
            number = self._numbers[program] = len(self._programs)
            self._programs.append(following)
        return number


_ENDED = Process(ENDED)


def _with(state: State, number: int, process: Process) -> State:
    before = state.processes
    return state._replace(processes=(*before[:number], process, *before[number + 1 :]))


def _transactions(state: State) -> list[Transaction]:
    found = [process.connection for process in state.processes if process.connection is not None]
    return found if state.adrift is None else [*found, state.adrift]


def _is_locked(state: State) -> bool:
    return any(found.holds_lock for found in _transactions(state))


def _committed(state: State, transaction: Transaction) -> State:
    return state._replace(row=transaction.row or state.row, table=state.table | transaction.items)


def _quieter(state: State) -> State:
    return state._replace(faults=state.faults._replace(silences=state.faults.silences - 1))


OPERATIONS: dict[type[Operation], Callable[..., Moves]] = {
    ReadRow: World.read_row,
    BeginDatabase: World.begin_database,
    LockRow: World.lock_row,
    CallerRows: World.caller_rows,
    StoreState: World.store_state,
    CommitDatabase: World.commit_database,
    RollbackDatabase: World.rollback_database,
    FenceLog: World.fence_log,
    BeginLog: World.begin_log,
    Prepare: World.prepare,
    CompleteLog: World.complete_log,
    AbortLog: World.abort_log,
    AskLog: World.ask_log,
}
