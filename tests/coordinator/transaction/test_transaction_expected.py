"""InitProducerId of an administrator: it ends the transaction that was shown, or nothing."""

import pytest

from kits.coordinator.transactions import OK, P, World
from twofold.coordinator.transaction.coordinator import Expected
from twofold.coordinator.transaction.states import State
from twofold.types import ProducerEpoch
from twofold.wire.errors import ConcurrentTransactions, InvalidTxnState, TransactionalIdNotFound

GONE = InvalidTxnState.code
BUSY = ConcurrentTransactions.code
NONE_OPEN = -1


def shown(world):
    entry = world.now
    start_ms = entry.start_ms if entry.state is State.ONGOING else NONE_OPEN
    return Expected(entry.producer_id, entry.producer_epoch, start_ms)


def begun(tv):
    world = World(tv)
    world.init()
    world.add()
    return world


@pytest.mark.parametrize("tv", [0, 1, 2])
def test_what_was_shown_is_aborted_and_the_answer_is_success_at_once(tv):
    world = begun(tv)
    expected = shown(world)
    assert world.init(expected=expected) == (P, 1), "the pair that shuts the producer out"
    assert world.written[-1:] == [State.PREPARE_ABORT]
    assert world.init(expected=expected) == BUSY, "while its markers are written nobody is told anything"
    world.complete()
    assert world.init(expected=expected) == GONE, "a second administrator has ended nothing"
    assert world.written[-1:] == [State.COMPLETE_ABORT]
    assert world.init(expected=shown(world)) == (P, 2), "nothing is open now, and that was expected"


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("tv", [0, 1, 2])
def test_the_next_transaction_of_the_producer_is_left_alone(tv, commit):
    """Also below transaction.version 2, where it has the same producer id and epoch."""
    world = begun(tv)
    expected = shown(world)
    world.end(commit)
    world.complete()
    before = list(world.log)
    assert world.init(expected=expected) == GONE
    world.now_ms += 1
    world.add()
    assert (world.pair == (expected.producer_id, expected.producer_epoch)) == (tv < 2)
    assert world.init(expected=expected) == GONE
    assert len(world.log) == len(before) + 1 and world.now.state is State.ONGOING
    assert world.commit() in (OK, world.pair)


@pytest.mark.parametrize("tv", [0, 1, 2])
def test_where_none_was_open_one_that_has_begun_since_is_left_alone(tv):
    world = World(tv)
    world.init()
    expected = shown(world)
    world.add()
    assert world.init(expected=expected) == GONE
    assert world.now.state is State.ONGOING


def test_an_unknown_id_is_not_made_by_an_expectation():
    world = World(2)
    assert world.init(expected=Expected(P, ProducerEpoch(0), NONE_OPEN)) == TransactionalIdNotFound.code
    assert world.log == []


def test_only_the_expected_transaction_is_kept():
    """`twofold txn complete` takes a transaction over to end it: not another one."""
    world = World(2)
    world.init(enable_2pc=True)
    world.add()
    expected = shown(world)
    world.commit()
    world.complete()
    world.add()
    assert world.keep(expected=expected) == GONE
    assert world.now.next_producer_epoch == -1, "its producer is not shut out"
    assert world.keep(expected=shown(world)) == (P, 2, P, 1)
    assert world.keep(expected=shown(world)) == (P, 3, P, 1), "a kept one is still that transaction"
    assert world.init(expected=shown(world)) == (P, 4), "and can be ended by force"
