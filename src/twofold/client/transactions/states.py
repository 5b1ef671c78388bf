"""Where a transactional producer stands, and what it may do there: one table, and nothing else decides.

    call   what the application asks for; a pair that is not in the table is refused
    event  what came of it; a pair that is not in the table is a mistake of ours

Three states need a word. PREPARED: the records are in the log and only the outside decision is missing, whether the
transaction was prepared here, kept from an earlier producer, or resumed. NOTHING_KEPT: an earlier producer's
transaction was to be kept and there was none. Completing then changes nothing: it tells what became of the state that
the application holds, as often as it is asked. There is nothing to be committed.
ABORTABLE_ERROR: the transaction is lost and the producer is not.
"""

from enum import Enum


class State(Enum):
    UNINITIALIZED = "UNINITIALIZED"
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    IN_TRANSACTION = "IN_TRANSACTION"
    PREPARING = "PREPARING"
    PREPARED = "PREPARED"
    NOTHING_KEPT = "NOTHING_KEPT"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"
    ABORTABLE_ERROR = "ABORTABLE_ERROR"
    FATAL_ERROR = "FATAL_ERROR"


class Call(Enum):
    INIT = "init_transactions"
    RESUME = "resume"
    BEGIN = "begin_transaction"
    SEND = "send"
    SEND_OFFSETS = "send_offsets_to_transaction"
    PREPARE = "prepare_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    COMPLETE = "complete_transaction"


class Event(Enum):
    INITIALIZED = "initialized"
    KEPT = "a transaction was kept"
    NONE_KEPT = "there was none to keep"
    REFUSED = "refused"
    FLUSHED = "all records are in the log"
    ENDED = "ended"
    RESUMED_ENDED = "the resumed one ended"
    ABORTABLE = "abortable error"
    FATAL = "fatal error"


Cause = Call | Event

TRANSITIONS: dict[tuple[State, Cause], State] = {
    (State.UNINITIALIZED, Call.INIT): State.INITIALIZING,
    (State.UNINITIALIZED, Call.RESUME): State.PREPARED,
    (State.INITIALIZING, Call.INIT): State.INITIALIZING,  # again, when the first attempt ran out of time
    (State.INITIALIZING, Event.INITIALIZED): State.READY,
    (State.INITIALIZING, Event.KEPT): State.PREPARED,
    (State.INITIALIZING, Event.NONE_KEPT): State.NOTHING_KEPT,
    (State.INITIALIZING, Event.REFUSED): State.UNINITIALIZED,
    (State.READY, Call.BEGIN): State.IN_TRANSACTION,
    (State.NOTHING_KEPT, Call.BEGIN): State.IN_TRANSACTION,
    (State.NOTHING_KEPT, Call.ABORT): State.READY,
    (State.NOTHING_KEPT, Call.COMPLETE): State.NOTHING_KEPT,  # tells what became of an earlier one
    (State.IN_TRANSACTION, Call.SEND): State.IN_TRANSACTION,
    (State.IN_TRANSACTION, Call.SEND_OFFSETS): State.IN_TRANSACTION,
    (State.IN_TRANSACTION, Call.PREPARE): State.PREPARING,
    (State.IN_TRANSACTION, Call.COMMIT): State.COMMITTING,
    (State.IN_TRANSACTION, Call.ABORT): State.ABORTING,
    (State.IN_TRANSACTION, Event.ABORTABLE): State.ABORTABLE_ERROR,
    (State.PREPARING, Call.PREPARE): State.PREPARING,  # again, when the first was interrupted
    (State.PREPARING, Call.ABORT): State.ABORTING,
    (State.PREPARING, Event.FLUSHED): State.PREPARED,
    (State.PREPARING, Event.ABORTABLE): State.ABORTABLE_ERROR,
    (State.PREPARED, Call.COMMIT): State.COMMITTING,
    (State.PREPARED, Call.ABORT): State.ABORTING,
    (State.PREPARED, Call.COMPLETE): State.PREPARED,  # goes on as one of the two above
    (State.PREPARED, Event.ABORTABLE): State.ABORTABLE_ERROR,  # only without two-phase commit, which promises more
    (State.COMMITTING, Call.COMMIT): State.COMMITTING,  # again, when the first attempt ran out of time
    (State.COMMITTING, Call.COMPLETE): State.COMMITTING,
    (State.COMMITTING, Event.ENDED): State.READY,
    (State.COMMITTING, Event.RESUMED_ENDED): State.UNINITIALIZED,
    (State.COMMITTING, Event.ABORTABLE): State.ABORTABLE_ERROR,
    (State.ABORTING, Call.ABORT): State.ABORTING,
    (State.ABORTING, Call.COMPLETE): State.ABORTING,
    (State.ABORTING, Event.ENDED): State.READY,
    (State.ABORTING, Event.RESUMED_ENDED): State.UNINITIALIZED,
    (State.ABORTING, Event.ABORTABLE): State.ABORTING,  # it ends that way already
    (State.ABORTABLE_ERROR, Call.ABORT): State.ABORTING,
    (State.ABORTABLE_ERROR, Event.ABORTABLE): State.ABORTABLE_ERROR,
    **{(state, Event.FATAL): State.FATAL_ERROR for state in State},
}

ADVICE: dict[State, str] = {
    State.UNINITIALIZED: "call init_transactions() first",
    State.INITIALIZING: "init_transactions() has not succeeded yet: call it again",
    State.READY: "there is no transaction: call begin_transaction() first",
    State.IN_TRANSACTION: "a transaction is open: call commit_transaction() or abort_transaction() first",
    State.PREPARING: "the transaction is being prepared: call prepare_transaction() again, or abort_transaction()",
    State.PREPARED: "the transaction is prepared: only commit_transaction(), abort_transaction() and "
    "complete_transaction() are allowed",
    State.NOTHING_KEPT: "there was no transaction to keep: complete_transaction() with the stored state tells what "
    "became of it, begin_transaction() starts the next one",
    State.COMMITTING: "the commit has not succeeded yet: call commit_transaction() again",
    State.ABORTING: "the abort has not succeeded yet: call abort_transaction() again",
    State.ABORTABLE_ERROR: "the transaction failed: call abort_transaction(), then begin again",
    State.FATAL_ERROR: "the producer failed: close it and start another",
}
"""What to do instead of the call that was refused."""


def allows(state: State, call: Call) -> bool:
    return (state, call) in TRANSITIONS


def after(state: State, cause: Cause) -> State:
    """KeyError for what the table does not have."""
    return TRANSITIONS[state, cause]


def diagram() -> str:
    """The table as a Mermaid state diagram, without fatal errors, which lead away from everywhere, and what stays."""
    lines = ["stateDiagram-v2", "    [*] --> UNINITIALIZED"]
    labels: dict[tuple[State, State], list[str]] = {}
    for (state, cause), target in TRANSITIONS.items():
        if cause is not Event.FATAL and state is not target:
            labels.setdefault((state, target), []).append(cause.value)
    lines += [
        f"    {state.value} --> {target.value}: {', '.join(causes)}" for (state, target), causes in labels.items()
    ]
    return "\n".join(lines)
