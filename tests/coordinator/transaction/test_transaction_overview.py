"""DescribeTransactions and ListTransactions."""

import sys
from importlib.util import find_spec
from typing import Any

import pytest

from kits.coordinator.transactions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    INVALID_REGULAR_EXPRESSION,
    INVALID_REQUEST,
    NOW,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TIMEOUT_MS,
    TRANSACTIONAL_ID_NOT_FOUND,
    TXN,
    P,
    World,
    a_transaction,
    a_world_in,
    partitions,
    told,
)
from twofold.coordinator.transaction.overview import Description, Filter, describe, list_transactions
from twofold.types import ProducerEpoch
from twofold.wire.errors import UnsupportedVersion

needs_re2 = pytest.mark.skipif(find_spec("re2") is None, reason="patterns need the extra [re2]")

# --- describing ---


def test_describe_unknown():
    assert told(lambda: describe(None, "nobody")) == TRANSACTIONAL_ID_NOT_FOUND


def test_describe_empty_id():
    assert told(lambda: describe(None, "")) == INVALID_REQUEST
    assert told(lambda: describe(a_transaction(EMPTY), "")) == INVALID_REQUEST


def test_describe_ongoing():
    entry = a_transaction(ONGOING, of=partitions("t-2", "t-0", "a-1"))
    assert describe(entry, TXN) == Description("Ongoing", TIMEOUT_MS, NOW, P, ProducerEpoch(5), {"a": [1], "t": [0, 2]})


def test_describe_prepare_lists_only_what_still_lacks_its_marker():
    entry = a_transaction(PREPARE_COMMIT, of=partitions("t-0", "t-1", "u-0"))
    assert describe(entry, TXN, partitions("t-1")).topics == {"t": [1]}
    assert describe(entry, TXN, partitions()).topics == {}
    assert describe(entry, TXN).topics == {"t": [0, 1], "u": [0]}, "before the first marker is sent"


def test_describe_expiring():
    """An id whose removal is on its way is described as it is: that removal may still fail."""
    assert describe(a_transaction(COMPLETE_COMMIT), TXN).state == "CompleteCommit"


def test_describe_start_survives_until_the_next_init():
    world = World()
    world.init()
    assert describe(world.now, TXN).start_ms == -1
    world.transaction()
    assert describe(world.now, TXN).start_ms == NOW
    assert describe(world.now, TXN).topics == {}
    world.init()
    assert describe(world.now, TXN).start_ms == -1


def test_describe_shows_the_writer_and_not_the_recovering_producer():
    world = a_world_in(ONGOING)
    assert world.keep() == (P, 6, P, 5)
    assert describe(world.now, TXN)[3:5] == (P, 5)


# --- listing ---

ENTRIES = {
    "a-empty": a_transaction(EMPTY, producer_id=1),
    "a-open": a_transaction(ONGOING, producer_id=2, start_ms=NOW - 5000),
    "b-open": a_transaction(ONGOING, producer_id=3, start_ms=NOW - 1000),
    "b-commit": a_transaction(PREPARE_COMMIT, producer_id=4, start_ms=NOW - 9000),
    "c-abort": a_transaction(PREPARE_ABORT, producer_id=5, start_ms=NOW),
    "c-done": a_transaction(COMPLETE_COMMIT, producer_id=6, start_ms=NOW - 7000),
    "c-undone": a_transaction(COMPLETE_ABORT, producer_id=7, start_ms=NOW - 7000),
}


def listed(*args, **kwargs) -> set[str]:
    return {row.transactional_id for row in list_transactions(ENTRIES, Filter.of(*args, **kwargs), NOW)}


FILTERS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "list-filters: none": ({}, set(ENTRIES)),
    "list-filters: one state": ({"states": ["Ongoing"]}, {"a-open", "b-open"}),
    "list-filters: two states": ({"states": ["PrepareCommit", "PrepareAbort"]}, {"b-commit", "c-abort"}),
    "list-filters: an unknown state beside a known one": ({"states": ["Ongoing", "nope"]}, {"a-open", "b-open"}),
    "list-filters: only unknown states": ({"states": ["nope"]}, set()),
    "list-filters: states are case-sensitive": ({"states": ["ongoing"]}, set()),
    "list-filters: states that nothing has": ({"states": ["Dead", "PrepareEpochFence"]}, set()),
    "list-filters: producer ids": ({"producer_ids": [2, 4, 99]}, {"a-open", "b-commit"}),
    "list-filters: duration": ({"duration_ms": 5000}, {"a-empty", "b-commit", "c-done", "c-undone"}),
    "list-filters: duration is exclusive": ({"duration_ms": 4999}, listed() - {"b-open", "c-abort"}),
    "list-filters: duration zero": ({"duration_ms": 0}, set(ENTRIES) - {"c-abort"}),
    "list-filters: negative duration": ({"duration_ms": -7}, set(ENTRIES)),
    "list-filters: pattern": ({"pattern": "c-.*"}, {"c-abort", "c-done", "c-undone"}),
    "list-filters: the whole id must match": ({"pattern": "open"}, set()),
    "list-filters: alternatives match as a whole": ({"pattern": "a-open|b"}, {"a-open"}),
    "list-filters: empty pattern": ({"pattern": ""}, set(ENTRIES)),
    "list-filters: all kinds at once": (
        {"states": ["Ongoing", "PrepareCommit"], "producer_ids": [2, 3, 4], "duration_ms": 2000, "pattern": "b.*"},
        {"b-commit"},
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=needs_re2) if "pattern" in FILTERS[case][0] else case for case in FILTERS]
)
def test_list_filters(case):
    filters, expected = FILTERS[case]
    assert listed(**filters) == expected


def test_list_rows():
    (row,) = list_transactions(ENTRIES.items(), Filter.of(producer_ids=[4]), NOW)
    assert row == ("b-commit", 4, "PrepareCommit")


def test_list_unknown_states_are_given_back():
    names = ["Ongoing", "nope", "Dead", "PrepareEpochFence", "empty", "nope"]
    assert Filter.of(names).unknown_states == ("nope", "empty")


@needs_re2
@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "[", "*", r"(a)\1", "(?=a)", "\\"])
def test_list_bad_regex(pattern):
    assert told(lambda: Filter.of(pattern=pattern)) == INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize("pattern", ["a.*", "(", "(a*)*b"])
def test_without_re2_every_pattern_is_refused_and_none_is_given_to_another_engine(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert told(lambda: Filter.of(pattern=pattern)) == UnsupportedVersion.code
    assert listed(states=["Ongoing"]), "other filters work"


@needs_re2
def test_list_pattern_cannot_stop_the_broker():
    """A pattern that takes other engines time exponential in the id."""
    evil = Filter.of(pattern="(a*)*b")
    assert list_transactions([("a" * 50_000, a_transaction(EMPTY))], evil, NOW) == []


@needs_re2
def test_list_pattern_takes_any_characters():
    entries = [("заказ-1", a_transaction(EMPTY)), ("é", a_transaction(EMPTY))]
    assert [row.transactional_id for row in list_transactions(entries, Filter.of(pattern="за.*"), NOW)] == ["заказ-1"]
    assert [row.transactional_id for row in list_transactions(entries, Filter.of(pattern="."), NOW)] == ["é"]
