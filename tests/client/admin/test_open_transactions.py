"""Which open transactions count as hanging (KIP-664), and which must not be ended by hand."""

import asyncio

import pytest

from twofold.cli.common import CliError, OutputFormat
from twofold.cli.txn.end import _abort_whole
from twofold.cli.txn.shown import open_for
from twofold.client import Admin
from twofold.client.admin.hanging import (
    NO_TIME_MS,
    Began,
    PartitionTransaction,
    Reason,
    ToldBy,
    began,
    why_hanging,
)
from twofold.client.admin.transaction_model import (
    AbortTransactionSpec,
    Decided,
    TransactionDescription,
    TransactionState,
)
from twofold.types import TopicPartition

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
OPEN = PartitionTransaction(TP, 7, 3, -1, 100, 5)


def owner(
    state: TransactionState,
    *,
    epoch: int = 3,
    partitions: tuple[TopicPartition, ...] = (TP,),
    decided: tuple[int, int, bool] | None = None,
):
    shown = None if decided is None else Decided(*decided)
    return TransactionDescription("x", 1, state, 7, epoch, 60_000, 1, partitions, decided=shown)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, Reason.UNKNOWN),
        (owner(TransactionState.ONGOING), None),
        (owner(TransactionState.ONGOING, partitions=(OTHER,)), Reason.NOT_MEMBER),
        (owner(TransactionState.ONGOING, epoch=4), Reason.EPOCH),
        (owner(TransactionState.ONGOING, epoch=2), Reason.EPOCH),
        # While it is ended the coordinator has the epoch of the marker, and lists what has none yet.
        (owner(TransactionState.PREPARE_COMMIT, epoch=4), None),
        (owner(TransactionState.PREPARE_ABORT, epoch=4), None),
        (owner(TransactionState.PREPARE_ABORT, epoch=4, partitions=(OTHER,)), Reason.NOT_MEMBER),
        (owner(TransactionState.COMPLETE_COMMIT, epoch=4, partitions=()), Reason.UNPROVEN),
        (owner(TransactionState.EMPTY, partitions=()), Reason.UNPROVEN),
        # The record says how it was decided, so the partition has lost the marker.
        (owner(TransactionState.COMPLETE_COMMIT, epoch=4, partitions=(), decided=(7, 3, True)), Reason.COMMIT_LOST),
        (owner(TransactionState.COMPLETE_ABORT, epoch=4, partitions=(), decided=(7, 3, False)), Reason.ABORT_LOST),
        (owner(TransactionState.COMPLETE_COMMIT, epoch=5, partitions=(), decided=(7, 4, True)), Reason.UNPROVEN),
        (owner(TransactionState.PREPARE_COMMIT, epoch=4, decided=(7, 3, True)), None),
    ],
)
def test_why_a_transaction_hangs(found, reason):
    assert why_hanging(OPEN, found) is reason


TOLD = OPEN._replace(began_ms=3000)


@pytest.mark.parametrize(
    ("row", "found", "first_timestamp", "age"),
    [
        (TOLD, owner(TransactionState.ONGOING), 9, (1, ToldBy.COORDINATOR)),
        (TOLD, owner(TransactionState.PREPARE_COMMIT, epoch=4), 9, (1, ToldBy.COORDINATOR)),
        (TOLD, None, 9, (3000, ToldBy.LEADER)),
        (TOLD, owner(TransactionState.ONGOING, epoch=4), 9, (3000, ToldBy.LEADER)),
        (TOLD, owner(TransactionState.ONGOING, partitions=(OTHER,)), 9, (3000, ToldBy.LEADER)),
        (TOLD._replace(began_is_bound=True), None, 9, (3000, ToldBy.BOUND)),
        (OPEN, None, 9, (9, ToldBy.RECORD)),
        (OPEN, None, NO_TIME_MS, (NO_TIME_MS, ToldBy.NOBODY)),
    ],
)
def test_an_age_is_the_coordinators_then_the_leaders_then_what_the_records_say(row, found, first_timestamp, age):
    assert began(row, found, first_timestamp) == age


@pytest.mark.parametrize(
    ("since", "text"),
    [
        (Began(1000, ToldBy.COORDINATOR), "60 s"),
        (Began(1000, ToldBy.LEADER), "60 s"),
        (Began(1000, ToldBy.BOUND), "at least 60 s"),
        (Began(1000, ToldBy.RECORD), "60 s by its records"),
        (Began(NO_TIME_MS, ToldBy.NOBODY), "-"),
    ],
)
def test_what_is_not_certain_about_an_age_is_said_with_it(since, text):
    assert open_for(since, 61_000) == text


def test_states_that_are_not_known_are_unknown():
    assert TransactionState.parse("Ongoing") is TransactionState.ONGOING
    assert TransactionState.parse("SomethingNew") is TransactionState.UNKNOWN
    assert TransactionState.ONGOING.is_open and not TransactionState.UNKNOWN.is_open


@pytest.mark.parametrize("given", [{"start_offset": 1, "coordinator_epoch": 0}, {"start_offset": -1}])
def test_what_to_abort_is_said_in_one_way(given):
    with pytest.raises(ValueError, match="start_offset"):
        AbortTransactionSpec(tp=TP, producer_id=7, producer_epoch=3, **given)


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_what_is_decided_is_not_aborted_by_hand(state):
    """Neither as a whole nor here: the marker is on its way. (The broker is not asked for anything.)"""

    async def scenario():
        admin = Admin(bootstrap_servers="127.0.0.1:1")
        await _abort_whole(admin, OPEN, owner(state, epoch=4), True, OutputFormat.TABLE)

    with pytest.raises(CliError, match=f"'x' is decided .{state.value}. and is writing the marker of t-0: wait"):
        asyncio.run(scenario())
