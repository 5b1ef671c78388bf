"""The table of transitions."""

from itertools import product

import pytest

from twofold.coordinator.group.states import (
    COMMIT,
    HEARTBEAT,
    SYNC,
    TRANSITIONS,
    Event,
    RefusedTransition,
    State,
    may,
    next_state,
)


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)), ids=lambda value: value.name)
def test_every_pair_is_in_the_table_or_refused(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert may(state, event)
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        assert not may(state, event)
        with pytest.raises(RefusedTransition):
            next_state(state, event)


def test_the_table_is_kafkas() -> None:
    """Which states may come before which, as Kafka's own check has it."""
    before = {state: {was for (was, _), following in TRANSITIONS.items() if following is state} for state in State}
    assert before == {
        State.EMPTY: {State.PREPARING_REBALANCE},
        State.PREPARING_REBALANCE: {State.STABLE, State.COMPLETING_REBALANCE, State.EMPTY},
        State.COMPLETING_REBALANCE: {State.PREPARING_REBALANCE},
        State.STABLE: {State.COMPLETING_REBALANCE},
        State.DEAD: set(State) - {State.DEAD},
    }


def test_every_state_is_reachable_and_only_death_is_final() -> None:
    reached = {State.EMPTY}
    while more := {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] in reached} - reached:
        reached |= more
    assert reached == set(State)
    assert {state for state in State if not any(may(state, event) for event in Event)} == {State.DEAD}


@pytest.mark.parametrize("table", [HEARTBEAT, SYNC, COMMIT], ids=["heartbeat", "sync", "commit"])
def test_requests_have_an_answer_in_every_state(table: dict[State, object]) -> None:
    assert set(table) == set(State)
