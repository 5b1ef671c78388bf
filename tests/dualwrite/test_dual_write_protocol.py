"""The protocol's table of answers, and what a row must not decide. The search of every state is in
`test_dualwrite_search.py`."""

from contextlib import suppress

import pytest

from twofold.client.admin.transaction_model import (
    NO_TIMEOUT_MS,
    EndedTwoPhase,
    TransactionDescription,
    TransactionState,
)
from twofold.client.transactions.prepared import PreparedTxnState
from twofold.dualwrite.operations import (
    NOTHING,
    Answer,
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
    Prepare,
    Prepared,
    ReadRow,
    Row,
    RowFound,
    StoreState,
)
from twofold.dualwrite.protocol import (
    AFTER,
    At,
    Claim,
    End,
    Program,
    ProgramResult,
    obstacle_of,
    step,
    take_over,
    write,
)
from twofold.dualwrite.recovery import Action, StoredRow, judge
from twofold.types import Ending

S1, S2, S3 = (PreparedTxnState.of(7, epoch) for epoch in (1, 2, 3))
OURS = Row("me", "here", S1)
ANSWERS: list[Answer] = [
    *(Ok(), RowFound(OURS), Kept(S2), Locked(OURS), Lost(OURS), Prepared(S2), Prepared(NOTHING), LogEnded(True)),
    *(LogEnded(False), Failed(), Doubtful(), FencedOff(), Away(), Contradicted()),
]


def operations(first, answers):
    """What is asked for, and what it came to."""
    program, operation = first
    asked = []
    for answer in answers:
        asked.append(type(operation))
        program, operation = step(program, answer)
    assert isinstance(operation, ProgramResult)
    return asked, operation


def test_a_write_prepares_last_stores_commits_and_completes():
    answers = [Ok(), Locked(OURS), Ok(), Ok(), Prepared(S2), Ok(), Ok(), LogEnded(True)]
    asked, result = operations(write("me", "here"), answers)
    assert asked == [BeginDatabase, LockRow, BeginLog, CallerRows, Prepare, StoreState, CommitDatabase, CompleteLog]
    assert result.end is End.DONE and result.prepared == S2


def test_a_take_over_fences_owns_and_then_decides_by_the_row():
    before, after = Row("other", "here", S1), Row("other", "here", S2)
    answers = [RowFound(before), Kept(S2), Ok(), Locked(after), Ok(), LogEnded(True)]
    asked, result = operations(take_over("me", "here"), answers)
    assert asked == [ReadRow, FenceLog, BeginDatabase, LockRow, CommitDatabase, CompleteLog]
    assert result.end is End.TAKEN and result.kept == S2 and result.row == after


@pytest.mark.parametrize("at", [at for at in At if at is not At.END], ids=lambda at: at.value)
def test_every_answer_leads_on_or_is_refused(at):
    result = ProgramResult(End.NOT_DONE, Claim.OWNER)
    program = Program(at, "me", "here", before="other", kept=S2, row=OURS, prepared=S2, then=At.END, result=result)
    handled = []
    for answer in ANSWERS:
        with suppress(AssertionError):
            handled.append(step(program, answer))
    assert handled and at in AFTER
    for after, operation in handled:
        assert (after.at is At.END) == isinstance(operation, ProgramResult)


def test_an_answer_that_does_not_belong_to_the_operation_is_refused():
    program, _ = take_over("me", "here")
    with pytest.raises(AssertionError, match="is no answer at 'take over: read row'"):
        step(program, Prepared(S1))


@pytest.mark.parametrize(
    ("row", "kept", "last", "expected"),
    [
        (Row("me", "here", S1), NOTHING, LastEnded(S1, True), None),
        (Row("me", "here", S1), S2, LastEnded(S1, True), None),  # prepared, and the database rolled back
        (Row("me", "here", S2), S2, LastEnded(S1, True), None),  # prepared and decided
        (Row("me", "here", S1), NOTHING, LastEnded(S2, False), None),  # a later one was aborted
        (Row("me", "here", S1), NOTHING, None, None),  # Apache Kafka does not say
        (Row(), NOTHING, None, None),
        (Row("me", "there", S1), NOTHING, None, End.OTHER_CLUSTER),
        (Row(), S1, None, End.DATABASE_BEHIND),  # what is open was not opened by a writer of this row
        (Row("me", "here", S1), NOTHING, LastEnded(S2, True), End.DATABASE_BEHIND),
        (Row("me", "here", S1), S3, LastEnded(S2, True), End.DATABASE_BEHIND),
        (Row("me", "here", S1), NOTHING, LastEnded(S1, False), End.LOG_ABORTED),
    ],
)
def test_a_row_that_contradicts_the_log_is_no_basis_for_a_decision(row, kept, last, expected):
    assert obstacle_of(row, "here", kept, last) is expected


def described(name, state=NOTHING, last=None, *, two_phase=True):
    is_open = bool(state)
    return TransactionDescription(
        name,
        1,
        TransactionState.ONGOING if is_open else TransactionState.EMPTY,
        state.producer_id if is_open else 7,
        state.epoch if is_open else 9,
        NO_TIMEOUT_MS if two_phase else 60_000,
        1_000 if is_open else -1,
        (),
        last,
    )


def test_a_recovery_ends_what_has_a_row_here_and_nothing_else():
    def stored(name, row, lease_left_ms=0):
        return {name: StoredRow(name, row, lease_left_ms, 0)}

    rows = (
        stored("decided", Row("a", "here", S2))
        | stored("rolled back", Row("a", "here", S1))
        | stored("alive", Row("a", "here", S1), lease_left_ms=5_000)
        | stored("elsewhere", Row("a", "there", S2))
        | stored("behind", Row("a", "here", S1))
        | stored("quiet", Row("a", "here", S1))
        | stored("plain", Row("a", "here", S1))
    )
    log = [
        *(described(name, S2) for name in ("decided", "rolled back", "alive", "elsewhere", "unknown")),
        described("behind", last=EndedTwoPhase(S2, Ending.COMMITTED)),
        described("quiet", last=EndedTwoPhase(S1, Ending.COMMITTED)),
        described("plain", S2, two_phase=False),
    ]
    found = {each.transactional_id: each.action for each in judge(rows, log, "here", heed_leases=True)}
    assert found == {
        "decided": Action.COMMIT,
        "rolled back": Action.ABORT,
        "alive": Action.WAIT,
        "elsewhere": Action.OTHER_CLUSTER,
        "unknown": Action.NO_ROW,
        "behind": Action.DISAGREES,
    }
    at_once = {each.transactional_id: each.action for each in judge(rows, log, "here", heed_leases=False)}
    assert at_once["alive"] is Action.ABORT
