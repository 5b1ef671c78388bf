"""The state of a prepared transaction: a value that survives being written down."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold import PreparedTxnState

PRODUCER_IDS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, 2**15 - 1)


@given(producer_id=PRODUCER_IDS, epoch=EPOCHS)
@settings(deadline=None)
def test_its_text_is_producer_id_and_epoch_and_round_trips(producer_id: int, epoch: int) -> None:
    state = PreparedTxnState.of(producer_id, epoch)
    assert str(state) == f"{producer_id}:{epoch}"
    assert PreparedTxnState(str(state)) == state
    assert (state.producer_id, state.epoch) == (producer_id, epoch)
    assert state and hash(PreparedTxnState(str(state))) == hash(state)


def test_the_empty_state_is_the_empty_text() -> None:
    assert PreparedTxnState() == PreparedTxnState("") == PreparedTxnState.of(-1, -1)
    assert (str(PreparedTxnState()), bool(PreparedTxnState())) == ("", False)
    assert (PreparedTxnState().producer_id, PreparedTxnState().epoch) == (-1, -1)
    assert PreparedTxnState() != PreparedTxnState("0:0")


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PreparedTxnState("1:2").epoch = 3  # type: ignore[misc]
    assert len({PreparedTxnState("1:2"), PreparedTxnState("1:2"), PreparedTxnState("1:3")}) == 2


@pytest.mark.parametrize(
    "text", ["1", ":", "1:", ":1", "-1:-1", "1:-1", "-1:0", "a:b", "1:2:3", " 1:2", "1:2\n", "1:32768", "\u0661:1"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a prepared transaction's state"):
        PreparedTxnState(text)


def test_an_identity_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError):
        PreparedTxnState.of(2**63, 0)
    with pytest.raises(ValueError):
        PreparedTxnState.of(5, -1)


def test_it_shows_what_it_is() -> None:
    assert repr(PreparedTxnState("42:7")) == "PreparedTxnState('42:7')"
