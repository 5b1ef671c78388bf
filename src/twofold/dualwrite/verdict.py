"""What the caller is told: the results of the protocol's programs in words. Both fronts use it."""

import os
import socket
import uuid
from dataclasses import dataclass

from twofold.client.errors import BufferExhausted, DeliveryTimeout, TransactionFailed
from twofold.client.transactions.prepared import PreparedTxnState
from twofold.connections.errors import GaveUp
from twofold.dualwrite.database import is_transient
from twofold.dualwrite.errors import (
    DatabaseBehind,
    DecidedNotVisible,
    Disagreement,
    DualWriteError,
    LogAborted,
    NotDone,
    OtherCluster,
    OutcomeUnknown,
    TakenOver,
)
from twofold.dualwrite.log import FENCING
from twofold.dualwrite.protocol import Claim, End, ProgramResult
from twofold.wire.errors import KafkaError

_OF_THE_LOG = (GaveUp, TransactionFailed, DeliveryTimeout, BufferExhausted)


@dataclass(frozen=True, slots=True)
class Done:
    """The database and the log have it. `state` names the transaction in the log; empty where no record was sent."""

    state: PreparedTxnState


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of an earlier transaction whose end was not known: both have it, or neither has."""

    state: PreparedTxnState
    is_done: bool


def new_token() -> str:
    """The name of this process's ownership: random, and with host and process for people who look at the table."""
    return f"{uuid.uuid4().hex}@{socket.gethostname()[:32]}:{os.getpid()}"


def outcome_of_write(result: ProgramResult, transactional_id: str) -> Done | DualWriteError:
    """What a write has come to; an error is to be raised from what has caused it."""
    state = result.prepared
    match result.end:
        case End.DONE:
            return Done(state)
        case End.NOT_DONE if result.claim is Claim.LOST:
            return _taken_over(result, transactional_id)
        case End.NOT_DONE:
            return NotDone(
                f"neither the database nor the log has the transaction of {transactional_id!r}: it can be repeated",
                transactional_id=transactional_id,
                state=state,
            )
        case End.DECIDED:
            return DecidedNotVisible(
                f"the database has committed transaction {state} of {transactional_id!r}, and the log has not answered "
                "yet: it commits as soon as it can be reached, from here or from the next process with this id. Do not "
                "repeat it",
                transactional_id=transactional_id,
                state=state,
            )
        case End.LOG_ABORTED:
            return log_aborted(state, transactional_id)
        case End.DATABASE_BEHIND:
            return _commits_lost(result, transactional_id)
    where = f"transaction {state} of {transactional_id!r}" if state else f"the transaction of {transactional_id!r}"
    tells = "settle() finds out, and so does the next transaction(). Do not repeat it before"
    if not state:
        tells = "it had no records, so the table cannot tell: look at its rows before you repeat it"
    return OutcomeUnknown(
        f"the database did not answer the COMMIT of {where}, which may be done or not: {tells}",
        transactional_id=transactional_id,
        state=state,
    )


def failure_of_take_over(
    result: ProgramResult, transactional_id: str, cluster: str, table: str
) -> DualWriteError | None:
    """Why this process is not the writer; None where it is."""
    row = result.row
    match result.end:
        case End.TAKEN:
            return None
        case End.OTHER_CLUSTER:
            assert row is not None
            return OtherCluster(
                f"the row of {transactional_id!r} in {table} belongs to cluster {row.cluster}, and this is cluster "
                f"{cluster}: its state names nothing here, and nothing was ended. Check bootstrap_servers and the "
                "database, or use another transactional_id",
                transactional_id=transactional_id,
                state=row.state,
            )
        case End.DATABASE_BEHIND:
            return _database_behind(result, transactional_id, table)
        case End.LOG_ABORTED:
            assert row is not None
            return log_aborted(row.state, transactional_id)
    if result.claim is Claim.LOST:
        return _taken_over(result, transactional_id)
    return NotDone(
        f"{transactional_id!r} could not be taken over: the database or the log did not do its part. Nothing was "
        "written; what an earlier writer left open waits for the next attempt",
        transactional_id=transactional_id,
    )


def is_for_the_caller(error: BaseException, outcome: DualWriteError) -> bool:
    """Whether an exception that has left a block goes on as it is. What a second attempt may not meet again is the
    cause of `outcome` instead."""
    if isinstance(error, KafkaError):
        lost = isinstance(outcome, TakenOver) or isinstance(error, FENCING)
        return not lost and not error.retriable and not isinstance(error, _OF_THE_LOG)
    return not is_transient(error)


def note_of(result: ProgramResult) -> str:
    """For an exception that goes on, of code that did not come to its end."""
    if result.claim is Claim.LOST:
        return "dual write: neither the database nor the log has it, and another process has taken over"
    return "dual write: neither the database nor the log has it"


def _taken_over(result: ProgramResult, transactional_id: str) -> TakenOver:
    owner = "" if result.row is None else result.row.owner
    by = f" (owner {owner})" if owner else ""
    return TakenOver(
        f"another process has taken {transactional_id!r} over{by}: nothing was written here. Only one process writes "
        "under a transactional id; give each its own, or use DualWritePool",
        transactional_id=transactional_id,
        state=result.prepared,
    )


def log_aborted(state: PreparedTxnState, transactional_id: str) -> LogAborted:
    return LogAborted(
        f"the database has committed transaction {state} of {transactional_id!r}, and the log has aborted it, by an "
        "administrator or because its records are gone: the rows have no records. Write the records again or take the "
        f"rows back, then accept it with `twofold recover --accept {transactional_id}`",
        transactional_id=transactional_id,
        state=state,
    )


def again(error: DualWriteError) -> DualWriteError:
    """The same, to be raised another time."""
    return type(error)(str(error), transactional_id=error.transactional_id, state=error.state)


def _commits_lost(result: ProgramResult, transactional_id: str) -> DatabaseBehind:
    assert result.row is not None
    return DatabaseBehind(
        f"the database has lost a transaction of {transactional_id!r} that it had committed: its row is back at "
        f"{result.row.state or 'no state'}. A replica without the last commits was promoted, or the server crashed "
        "without fsync. Nothing was begun. Bring the database up to date, or accept what it has with `twofold recover "
        f"--accept {transactional_id}`, and start a new writer",
        transactional_id=transactional_id,
        state=result.row.state,
    )


def _database_behind(result: ProgramResult, transactional_id: str, table: str) -> Disagreement:
    row, last, kept = result.row, result.last, result.kept
    assert row is not None
    if last is not None and last.committed:
        found = f"the log has committed transaction {last.state}, and the row has {row.state or 'no state'}"
        state = last.state
    else:
        found = f"the log has transaction {kept} open, and the row was never owned by a writer"
        state = kept
    return DatabaseBehind(
        f"the row of {transactional_id!r} in {table} is older than the log: {found}. The database comes from a backup "
        "or from a replica without the last commits, or it is another database. Nothing was ended. Bring the database "
        f"up to date, or accept what it has with `twofold recover --accept {transactional_id}`",
        transactional_id=transactional_id,
        state=state,
    )
