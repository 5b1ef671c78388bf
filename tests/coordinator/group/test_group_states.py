"""The table of transitions."""

from itertools import product

import pytest

from twofold.coordinator.group.states import (
    COMMIT,
    HEARTBEAT,
    SYNC,
    TRANSITIONS,
    GroupEvent,
    GroupState,
    RefusedGroupTransition,
    may,
    next_state,
)


@pytest.mark.parametrize(("state", "event"), list(product(GroupState, GroupEvent)), ids=lambda value: value.name)
def test_every_pair_is_in_the_table_or_refused(state: GroupState, event: GroupEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert may(state, event)
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        assert not may(state, event)
        with pytest.raises(RefusedGroupTransition):
            next_state(state, event)


def test_the_table_is_kafkas() -> None:
    """Which states may come before which, as Kafka's own check has it."""
    before = {state: {was for (was, _), following in TRANSITIONS.items() if following is state} for state in GroupState}
    assert before == {
        GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
        GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
        GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
        GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
        GroupState.DEAD: set(GroupState) - {GroupState.DEAD},
    }


def test_every_state_is_reachable_and_only_death_is_final() -> None:
    reached = {GroupState.EMPTY}
    while more := {TRANSITIONS[pair] for pair in TRANSITIONS if pair[0] in reached} - reached:
        reached |= more
    assert reached == set(GroupState)
    assert {state for state in GroupState if not any(may(state, event) for event in GroupEvent)} == {GroupState.DEAD}


@pytest.mark.parametrize("table", [HEARTBEAT, SYNC, COMMIT], ids=["heartbeat", "sync", "commit"])
def test_requests_have_an_answer_in_every_state(table: dict[GroupState, object]) -> None:
    assert set(table) == set(GroupState)
