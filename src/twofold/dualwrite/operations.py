"""What the programs of a dual write ask for, and what they are told: plain values, for any driver, real or simulated.

An operation is about one of two places: the log (the transactional id at its coordinator) and the database (the row of
that id, and the rows of the caller, on one connection). An answer says what is known of its effect:

    Ok, RowFound, Kept, Locked, Prepared, LogEnded   it took effect
    Failed                                           it did not take effect, and never will
    Doubtful                                         it may have taken effect, or may yet; of COMMIT only
    Lost                                             the row has another owner
    FencedOff                                        the log has a later producer of this id
    Away                                             the log did not answer; what was asked for can be asked for again
    Contradicted                                     the log has aborted what the database has committed
"""

from dataclasses import dataclass, field

from twofold.client.transactions.prepared import PreparedTxnState

NOTHING = PreparedTxnState()
"""The state of no transaction."""
NO_OWNER = ""
"""Of a row that no program has taken over yet."""


@dataclass(frozen=True, slots=True)
class Row:
    """The row of a transactional id. `state` names the last transaction that the database has committed."""

    owner: str = NO_OWNER
    cluster: str = ""
    state: PreparedTxnState = NOTHING


@dataclass(frozen=True, slots=True)
class LastEnded:
    """The last two-phase transaction of the id that the log has ended."""

    state: PreparedTxnState
    committed: bool


# Operations: the database


@dataclass(frozen=True, slots=True)
class ReadRow:
    """The row as it is committed, without a lock. Where there is none, it is created first: no owner, no state."""


@dataclass(frozen=True, slots=True)
class BeginDatabase:
    """A new transaction, on a connection without one."""


@dataclass(frozen=True, slots=True)
class LockRow:
    """Wait until no other transaction has the row locked, lock it until the end of this transaction, and read it. If
    its owner is `owner`, make it `new_owner` and its cluster `cluster`; Lost, with the row, if it is another."""

    owner: str
    new_owner: str
    cluster: str


@dataclass(frozen=True, slots=True)
class CallerRows:
    """The caller's code: it writes rows and sends records. At its end every row has been sent to the database."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """Write the state into the row, where its owner is `owner`; Lost if it is another."""

    owner: str
    state: PreparedTxnState


@dataclass(frozen=True, slots=True)
class CommitDatabase:
    pass


@dataclass(frozen=True, slots=True)
class RollbackDatabase:
    """Always Ok. A connection that cannot roll back is closed: the database rolls back what it had not committed."""


# Operations: the log


@dataclass(frozen=True, slots=True)
class FenceLog:
    """Take the transactional id over and keep what is open: init_transactions(keep_prepared_txn=True)."""


@dataclass(frozen=True, slots=True)
class BeginLog:
    pass


@dataclass(frozen=True, slots=True)
class Prepare:
    """Wait until all records are on disk at the broker. From now on only a decision ends the transaction."""


@dataclass(frozen=True, slots=True)
class CompleteLog:
    """Commit the open transaction if `state` is its state, abort it if it is another."""

    state: PreparedTxnState


@dataclass(frozen=True, slots=True)
class AbortLog:
    pass


@dataclass(frozen=True, slots=True)
class AskLog:
    """What became of the transaction; for a program that cannot end it any more. Failed where the log does not say."""

    state: PreparedTxnState


Operation = (
    ReadRow
    | BeginDatabase
    | LockRow
    | CallerRows
    | StoreState
    | CommitDatabase
    | RollbackDatabase
    | FenceLog
    | BeginLog
    | Prepare
    | CompleteLog
    | AbortLog
    | AskLog
)


# Answers


@dataclass(frozen=True, slots=True)
class Ok:
    pass


@dataclass(frozen=True, slots=True)
class RowFound:
    """Of ReadRow."""

    row: Row


@dataclass(frozen=True, slots=True)
class Kept:
    """Of FenceLog: the open transaction (NOTHING: none is), and the one that was ended last, if the log says."""

    state: PreparedTxnState
    last: LastEnded | None = None


@dataclass(frozen=True, slots=True)
class Locked:
    """Of LockRow: the row before it was changed."""

    row: Row


@dataclass(frozen=True, slots=True)
class Lost:
    """Of LockRow and StoreState."""

    row: Row


@dataclass(frozen=True, slots=True)
class Prepared:
    """Of Prepare. NOTHING where no record was sent."""

    state: PreparedTxnState


@dataclass(frozen=True, slots=True)
class LogEnded:
    """Of CompleteLog and AskLog."""

    committed: bool


@dataclass(frozen=True, slots=True)
class Failed:
    error: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Doubtful:
    error: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class FencedOff:
    error: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Away:
    error: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Contradicted:
    error: BaseException | None = field(default=None, compare=False)


Answer = (
    Ok | RowFound | Kept | Locked | Lost | Prepared | LogEnded | Failed | Doubtful | FencedOff | Away | Contradicted
)
