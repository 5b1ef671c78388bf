"""The table of states, and the page of the docs that is drawn from it."""

import subprocess
import sys
from pathlib import Path

import pytest

from kits.coordinator.transactions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    RECORDED_STATES,
    a_transaction,
    ids_from,
)
from twofold.coordinator.transaction import transitions
from twofold.coordinator.transaction.states import (
    EXPIRABLE,
    RECORDED,
    TRANSITIONS,
    Event,
    RefusedTransition,
    State,
    diagram,
    next_state,
    table,
)
from twofold.types import ProducerEpoch, ProducerId

ROOT = Path(__file__).parent.parent.parent.parent

# The legal previous states, as Apache Kafka has them. PREPARE_EPOCH_FENCE, through which Kafka goes from ONGOING to
# PREPARE_ABORT, is never written; here that is one step.
LEGAL_PREVIOUS = {
    EMPTY: {None, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
    ONGOING: {ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
    PREPARE_COMMIT: {ONGOING},
    PREPARE_ABORT: {ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
    COMPLETE_COMMIT: {PREPARE_COMMIT},
    COMPLETE_ABORT: {PREPARE_ABORT},
    State.DEAD: {EMPTY, COMPLETE_ABORT, COMPLETE_COMMIT},
    State.PREPARE_EPOCH_FENCE: set(),
}


def test_numbers_and_names_are_those_of_the_log_and_of_the_wire():
    assert [(state.value, state.wire_name) for state in State] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
        (6, "Dead"),
        (7, "PrepareEpochFence"),
    ]


@pytest.mark.parametrize("new", State, ids=lambda state: state.wire_name)
def test_a_state_follows_only_its_legal_predecessors(new):
    assert {source for (source, _), target in TRANSITIONS.items() if target is new} == LEGAL_PREVIOUS[new]


@pytest.mark.parametrize("state", [None, *State])
@pytest.mark.parametrize("event", Event)
def test_every_pair_of_state_and_event_is_in_the_table_or_refused(state, event):
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(RefusedTransition, match="cannot take"):
            next_state(state, event)


def test_only_states_without_an_open_transaction_expire():
    assert {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT} == EXPIRABLE


def test_dead_and_epoch_fence_are_never_written():
    assert set(RECORDED_STATES) == RECORDED


BUILDERS = {
    Event.INIT: lambda entry: transitions.initialized(
        entry, (ProducerId(1), ProducerEpoch(2)), ProducerId(1), ProducerEpoch(-1), 1000, 0, 0
    ),
    Event.KEEP: lambda entry: transitions.kept(entry, ids_from(9), 1000, 0, 0),
    Event.ADD: lambda entry: transitions.added(entry, frozenset(), 2, 0),
    Event.COMMIT: lambda entry: transitions.ended_with_epoch_kept(entry, True, 0),
    Event.ABORT: lambda entry: transitions.ended_with_epoch_raised(entry, Event.ABORT, 0, ids_from(9)),
    Event.FENCE: lambda entry: transitions.fenced_without_retry(entry, 0, ids_from(9)),
    Event.COMPLETE: lambda entry: transitions.completed(entry, 0),
}


@pytest.mark.parametrize("event", BUILDERS)
@pytest.mark.parametrize("state", RECORDED_STATES, ids=lambda state: state.wire_name)
def test_a_transition_is_built_only_where_the_table_allows_it(state, event):
    entry = a_transaction(state)
    if (state, event) in TRANSITIONS:
        assert BUILDERS[event](entry).state is TRANSITIONS[state, event]
    else:
        with pytest.raises(RefusedTransition):
            BUILDERS[event](entry)


def test_the_diagram_has_an_arrow_for_each_step():
    steps = {(old, new) for (old, _), new in TRANSITIONS.items()}
    text = diagram()
    assert text.startswith("stateDiagram-v2\n")
    assert len(text.splitlines()) == 1 + len(steps)
    assert "[*] --> Empty: InitProducerId" in text
    assert "PrepareCommit --> CompleteCommit: every marker is written" in text


def test_the_table_has_a_cell_for_each_row():
    assert sum(cell.strip() != "" for line in table().splitlines()[2:] for cell in line.split("|")[2:-1]) == len(
        TRANSITIONS
    )


def test_the_page_of_transactions_is_generated_from_the_table():
    tool = ROOT / "tools" / "generate_states.py"
    found = subprocess.run([sys.executable, tool, "--check"], check=False)
    assert found.returncode == 0, "docs/transactions.md is stale: run python tools/generate_states.py"
