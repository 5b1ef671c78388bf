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


class ManagerState(Enum):
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


class ManagerEvent(Enum):
    INITIALIZED = "initialized"
    KEPT = "a transaction was kept"
    NONE_KEPT = "there was none to keep"
    REFUSED = "refused"
    FLUSHED = "all records are in the log"
    ENDED = "ended"
    RESUMED_ENDED = "the resumed one ended"
    ABORTABLE = "abortable error"
    FATAL = "fatal error"


Cause = Call | ManagerEvent

TRANSITIONS: dict[tuple[ManagerState, Cause], ManagerState] = {
    (ManagerState.UNINITIALIZED, Call.INIT): ManagerState.INITIALIZING,
    (ManagerState.UNINITIALIZED, Call.RESUME): ManagerState.PREPARED,
    (ManagerState.INITIALIZING, Call.INIT): ManagerState.INITIALIZING,  # again, when the first attempt ran out of time
    (ManagerState.INITIALIZING, ManagerEvent.INITIALIZED): ManagerState.READY,
    (ManagerState.INITIALIZING, ManagerEvent.KEPT): ManagerState.PREPARED,
    (ManagerState.INITIALIZING, ManagerEvent.NONE_KEPT): ManagerState.NOTHING_KEPT,
    (ManagerState.INITIALIZING, ManagerEvent.REFUSED): ManagerState.UNINITIALIZED,
    (ManagerState.READY, Call.BEGIN): ManagerState.IN_TRANSACTION,
    (ManagerState.NOTHING_KEPT, Call.BEGIN): ManagerState.IN_TRANSACTION,
    (ManagerState.NOTHING_KEPT, Call.ABORT): ManagerState.READY,
    (ManagerState.NOTHING_KEPT, Call.COMPLETE): ManagerState.NOTHING_KEPT,  # tells what became of an earlier one
    (ManagerState.IN_TRANSACTION, Call.SEND): ManagerState.IN_TRANSACTION,
    (ManagerState.IN_TRANSACTION, Call.SEND_OFFSETS): ManagerState.IN_TRANSACTION,
    (ManagerState.IN_TRANSACTION, Call.PREPARE): ManagerState.PREPARING,
    (ManagerState.IN_TRANSACTION, Call.COMMIT): ManagerState.COMMITTING,
    (ManagerState.IN_TRANSACTION, Call.ABORT): ManagerState.ABORTING,
    (ManagerState.IN_TRANSACTION, ManagerEvent.ABORTABLE): ManagerState.ABORTABLE_ERROR,
    (ManagerState.PREPARING, Call.PREPARE): ManagerState.PREPARING,  # again, when the first was interrupted
    (ManagerState.PREPARING, Call.ABORT): ManagerState.ABORTING,
    (ManagerState.PREPARING, ManagerEvent.FLUSHED): ManagerState.PREPARED,
    (ManagerState.PREPARING, ManagerEvent.ABORTABLE): ManagerState.ABORTABLE_ERROR,
    (ManagerState.PREPARED, Call.COMMIT): ManagerState.COMMITTING,
    (ManagerState.PREPARED, Call.ABORT): ManagerState.ABORTING,
    (ManagerState.PREPARED, Call.COMPLETE): ManagerState.PREPARED,  # goes on as one of the two above
    (
        ManagerState.PREPARED,
        ManagerEvent.ABORTABLE,
    ): ManagerState.ABORTABLE_ERROR,  # only without two-phase commit, which promises more
    (ManagerState.COMMITTING, Call.COMMIT): ManagerState.COMMITTING,  # again, when the first attempt ran out of time
    (ManagerState.COMMITTING, Call.COMPLETE): ManagerState.COMMITTING,
    (ManagerState.COMMITTING, ManagerEvent.ENDED): ManagerState.READY,
    (ManagerState.COMMITTING, ManagerEvent.RESUMED_ENDED): ManagerState.UNINITIALIZED,
    (ManagerState.COMMITTING, ManagerEvent.ABORTABLE): ManagerState.ABORTABLE_ERROR,
    (ManagerState.ABORTING, Call.ABORT): ManagerState.ABORTING,
    (ManagerState.ABORTING, Call.COMPLETE): ManagerState.ABORTING,
    (ManagerState.ABORTING, ManagerEvent.ENDED): ManagerState.READY,
    (ManagerState.ABORTING, ManagerEvent.RESUMED_ENDED): ManagerState.UNINITIALIZED,
    (ManagerState.ABORTING, ManagerEvent.ABORTABLE): ManagerState.ABORTING,  # it ends that way already
    (ManagerState.ABORTABLE_ERROR, Call.ABORT): ManagerState.ABORTING,
    (ManagerState.ABORTABLE_ERROR, ManagerEvent.ABORTABLE): ManagerState.ABORTABLE_ERROR,
    **{(state, ManagerEvent.FATAL): ManagerState.FATAL_ERROR for state in ManagerState},
}

ADVICE: dict[ManagerState, str] = {
    ManagerState.UNINITIALIZED: "call init_transactions() first",
    ManagerState.INITIALIZING: "init_transactions() has not succeeded yet: call it again",
    ManagerState.READY: "there is no transaction: call begin_transaction() first",
    ManagerState.IN_TRANSACTION: "a transaction is open: call commit_transaction() or abort_transaction() first",
    ManagerState.PREPARING: "the transaction is being prepared: call prepare_transaction() again, or "
    "abort_transaction()",
    ManagerState.PREPARED: "the transaction is prepared: only commit_transaction(), abort_transaction() and "
    "complete_transaction() are allowed",
    ManagerState.NOTHING_KEPT: "there was no transaction to keep: complete_transaction() with the stored state tells "
    "what became of it, begin_transaction() starts the next one",
    ManagerState.COMMITTING: "the commit has not succeeded yet: call commit_transaction() again",
    ManagerState.ABORTING: "the abort has not succeeded yet: call abort_transaction() again",
    ManagerState.ABORTABLE_ERROR: "the transaction failed: call abort_transaction(), then begin again",
    ManagerState.FATAL_ERROR: "the producer failed: close it and start another",
}
"""What to do instead of the call that was refused."""


def allows(state: ManagerState, call: Call) -> bool:
    return (state, call) in TRANSITIONS


def after(state: ManagerState, cause: Cause) -> ManagerState:
    """KeyError for what the table does not have."""
    return TRANSITIONS[state, cause]


def diagram() -> str:
    """The table as a Mermaid state diagram, without fatal errors, which lead away from everywhere, and what stays."""
    lines = ["stateDiagram-v2", "    [*] --> UNINITIALIZED"]
    labels: dict[tuple[ManagerState, ManagerState], list[str]] = {}
    for (state, cause), target in TRANSITIONS.items():
        if cause is not ManagerEvent.FATAL and state is not target:
            labels.setdefault((state, target), []).append(cause.value)
    lines += [
        f"    {state.value} --> {target.value}: {', '.join(causes)}" for (state, target), causes in labels.items()
    ]
    return "\n".join(lines)
