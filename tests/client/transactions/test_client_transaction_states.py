"""The states of a transactional producer: a call is in the table or refused, whatever the state."""

from itertools import product

import pytest

from kits.client.transactions import TOPIC, World, play
from twofold.client import Producer, TopicPartition
from twofold.client.errors import Fenced, IllegalTransactionCall, ProducerFailed, TransactionFailed
from twofold.client.transactions.prepared import PreparedTxnState
from twofold.client.transactions.states import (
    ADVICE,
    TRANSITIONS,
    Call,
    ManagerEvent,
    ManagerState,
    after,
    allows,
    diagram,
)
from twofold.wire.errors import KafkaError, ProducerFenced, TransactionAbortable, UnknownServerError

SOME_STATE = PreparedTxnState("7:0")
CALLS = {
    Call.INIT: lambda producer: producer.init_transactions(),
    Call.RESUME: lambda producer: producer.resume("id", 7, 0),
    Call.BEGIN: lambda producer: producer.begin_transaction(),
    Call.SEND: lambda producer: producer.send(TOPIC, b"x"),
    Call.SEND_OFFSETS: lambda producer: producer.send_offsets_to_transaction({TopicPartition(TOPIC, 0): 1}, "g"),
    Call.PREPARE: lambda producer: producer.prepare_transaction(),
    Call.COMMIT: lambda producer: producer.commit_transaction(),
    Call.ABORT: lambda producer: producer.abort_transaction(),
    Call.COMPLETE: lambda producer: producer.complete_transaction(SOME_STATE),
}


def put_into(producer: Producer, state: ManagerState, error: KafkaError) -> None:
    producer._transactions.state = state
    if state in (ManagerState.ABORTABLE_ERROR, ManagerState.FATAL_ERROR):
        producer._transactions._error = error
    if state is ManagerState.PREPARED:
        producer._transactions.prepared = SOME_STATE


@pytest.mark.parametrize("state", ManagerState)
def test_every_call_that_is_not_in_the_table_is_refused_and_names_state_and_call(state: ManagerState) -> None:
    """The real producer, put into each state, against a broker that would hear of anything that is sent."""

    async def story(world: World) -> None:
        for call, make in CALLS.items():
            if allows(state, call):
                continue
            producer = world.producer(transaction_two_phase_commit_enable=True)
            put_into(producer, state, UnknownServerError("what happened"))
            with pytest.raises((IllegalTransactionCall, TransactionFailed, ProducerFailed)) as caught:
                await make(producer)
            assert f"{call.value}() in state {state.value}" in str(caught.value)
            assert "'id'" in str(caught.value)
            assert producer._transactions.state is state
            if state in (ManagerState.ABORTABLE_ERROR, ManagerState.FATAL_ERROR):
                assert "what happened" in str(caught.value)
                assert isinstance(caught.value.__cause__, UnknownServerError)
            else:
                assert isinstance(caught.value, IllegalTransactionCall) and caught.value.code == 48
                assert (caught.value.call, caught.value.state) == (call, state)
            producer._transactions.state = ManagerState.UNINITIALIZED  # nothing to be aborted at the end
        assert world.requests == []

    play(story)


def test_a_fenced_producer_says_so_at_every_call() -> None:
    async def story(world: World) -> None:
        producer = world.producer()
        put_into(producer, ManagerState.FATAL_ERROR, ProducerFenced("another one came"))
        with pytest.raises(Fenced, match=r"begin_transaction\(\) in state FATAL_ERROR.*another one came"):
            await producer.begin_transaction()

    play(story)


def test_what_a_call_or_an_event_leads_to_is_a_state_that_can_be_left_again() -> None:
    for state in ManagerState:
        if state is not ManagerState.FATAL_ERROR:
            assert any(start is state and target is not state for (start, _), target in TRANSITIONS.items())
    assert {target for (start, _), target in TRANSITIONS.items() if start is ManagerState.FATAL_ERROR} == {
        ManagerState.FATAL_ERROR
    }


def test_every_state_can_be_reached() -> None:
    reached, found = {ManagerState.UNINITIALIZED}, {ManagerState.UNINITIALIZED}
    while found:
        found = {target for (start, _), target in TRANSITIONS.items() if start in reached} - reached
        reached |= found
    assert reached == set(ManagerState)


def test_once_prepared_only_the_decision_is_left() -> None:
    allowed = {call for call in Call if allows(ManagerState.PREPARED, call)}
    assert allowed == {Call.COMMIT, Call.ABORT, Call.COMPLETE}


def test_what_failed_can_only_be_aborted_or_closed() -> None:
    assert {call for call in Call if allows(ManagerState.ABORTABLE_ERROR, call)} == {Call.ABORT}
    assert not any(allows(ManagerState.FATAL_ERROR, call) for call in Call)


def test_a_fatal_error_is_possible_everywhere_and_an_unknown_event_is_a_mistake() -> None:
    assert all(after(state, ManagerEvent.FATAL) is ManagerState.FATAL_ERROR for state in ManagerState)
    with pytest.raises(KeyError):
        after(ManagerState.READY, ManagerEvent.ENDED)


def test_each_state_has_its_advice() -> None:
    assert set(ADVICE) == set(ManagerState)


def test_the_diagram_has_every_change_of_state_but_the_fatal_ones() -> None:
    text = diagram()
    for (start, cause), target in TRANSITIONS.items():
        drawn = any(
            line.strip().startswith(f"{start.value} --> {target.value}:") and cause.value in line
            for line in text.splitlines()
        )
        assert drawn == (start is not target and cause is not ManagerEvent.FATAL)


def test_the_table_speaks_of_known_things_only() -> None:
    for (start, cause), target in TRANSITIONS.items():
        assert (
            isinstance(start, ManagerState)
            and isinstance(cause, Call | ManagerEvent)
            and isinstance(target, ManagerState)
        )
    pairs = set(product(ManagerState, [*Call, *ManagerEvent]))
    assert set(TRANSITIONS) < pairs


def test_the_errors_of_transactions_are_what_the_protocol_calls_them() -> None:
    assert issubclass(Fenced, ProducerFenced) and Fenced.fatal
    assert issubclass(TransactionFailed, TransactionAbortable) and TransactionFailed.abortable
    assert ProducerFailed.fatal and not IllegalTransactionCall.fatal
