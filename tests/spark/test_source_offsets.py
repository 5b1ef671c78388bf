"""Offsets: as Spark stores them, how much a batch takes, how ranges are divided. No Spark needed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.spark import offsets as o
from twofold.types import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("a", 1)
partitions = st.builds(TopicPartition, st.sampled_from(["a", "b.c", "d-e"]), st.integers(0, 12))
positions = st.dictionaries(partitions, st.integers(0, 10**12))


@given(positions)
def test_offsets_are_the_json_of_sparks_own_connector(offsets: o.Offsets) -> None:
    text = json.dumps(o.to_json(offsets))
    assert o.from_json(json.loads(text)) == offsets
    assert json.dumps(o.to_json(dict(reversed(offsets.items())))) == text  # Spark compares texts


def test_the_start_that_the_version_before_kept_in_the_first_end_is_still_read() -> None:
    end = {"a": {"0": 8, "1": 7}, ":initial": {"a": {"0": 5, "1": 7}}}
    later = o.fresh({A: 100, B: 100})  # what "latest" is when the query starts again
    assert o.remembers_start(end)
    assert o.start_of(later, end) == {A: 5, B: 7}
    assert o.from_json(end) == {A: 8, B: 7}
    assert o.start_of(end, o.to_json({A: 9, B: 9})) == {A: 8, B: 7}
    assert not o.is_fresh(end)


def test_a_batch_starts_where_the_one_before_ended_and_the_first_where_it_was_found() -> None:
    start, end = o.fresh({A: 5}), o.to_json({A: 8})
    assert o.is_fresh(start) and not o.remembers_start(end)
    assert o.start_of(start, end) == {A: 5}
    assert o.start_of(end, o.to_json({A: 9})) == {A: 8}


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(7, {A: 13, B: 3}), (1, {A: 11, B: 1}), (0, {A: 10, B: 0}), (20, {A: 20, B: 10}), (10**20, {A: 20, B: 10})],
)
def test_a_limit_is_shared_in_proportion_and_no_partition_starves(limit: int, expected: o.Offsets) -> None:
    assert o.limited(limit, {A: 10, B: 0}, {A: 20, B: 10}) == expected


def test_a_limit_leaves_alone_what_has_nothing_new_or_no_start() -> None:
    start, end = {A: 10}, {A: 10, B: 4}
    assert o.limited(3, start, end) == end
    assert o.limited(3, {A: 12}, {A: 10}) == {A: 10}  # went back: for the planning to report


@given(positions, st.dictionaries(partitions, st.integers(0, 10**6)), st.integers(0, 10**7))
def test_a_limit_never_goes_past_the_end_nor_before_the_start(start: o.Offsets, sizes: o.Offsets, limit: int) -> None:
    end = {tp: offset + sizes.get(tp, 0) for tp, offset in start.items()}
    found = o.limited(limit, start, end)
    assert all(start[tp] <= found[tp] <= end[tp] for tp in end)
    if limit:
        assert all(found[tp] > start[tp] for tp in end if end[tp] > start[tp]) or limit < 1
    assert sum(found[tp] - start[tp] for tp in end) <= max(limit, 1) + len(end)


def test_the_first_batch_of_a_run_is_never_held_back() -> None:
    delay = o.TriggerDelay(10, 1000)
    assert not delay.holds_back(0, 0.0)
    assert delay.holds_back(9, 999.0)
    assert not delay.holds_back(10, 999.0)
    assert delay.holds_back(9, 1998.0)
    assert not delay.holds_back(9, 1999.0)


ranges = st.lists(
    st.builds(
        lambda tp, start, size: o.Range(tp, start, start + size), partitions, st.integers(0, 99), st.integers(0, 999)
    ),
    unique_by=lambda entry: entry.tp,
)


@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(1, 50))
def test_dividing_keeps_every_offset_once_and_in_order(
    whole: list[o.Range], count: int | None, most: int | None
) -> None:
    parts = o.split(whole, count, most)
    for entry in whole:
        pieces = [part for part in parts if part.tp == entry.tp]
        covered = [offset for part in pieces for offset in range(part.start, part.until)]
        assert covered == list(range(entry.start, entry.until))
    assert all(part.size > 0 for part in parts)
    if most is not None:
        assert all(part.size <= most for part in parts)


def test_dividing_gives_the_tasks_to_those_with_most() -> None:
    large, small = o.Range(A, 0, 900), o.Range(B, 0, 100)
    assert [part.tp for part in o.split([large, small], 10, None)].count(A) == 9
    assert o.split([large, small], 2, None) == [large, small]
    assert o.split([o.Range(A, 5, 5)], 3, None) == []


def test_parts_of_a_late_range_are_late_at_their_outer_ends() -> None:
    asked = [o.Range(A, o.EARLIEST, o.LATEST), o.Range(B, 3, o.LATEST)]
    parts = [o.Range(A, 0, 4), o.Range(A, 4, 8), o.Range(B, 3, 9)]
    assert o.with_ends(parts, asked) == [
        o.Range(A, o.EARLIEST, 4),
        o.Range(A, 4, o.LATEST),
        o.Range(B, 3, o.LATEST),
    ]
    assert o.with_ends([], asked) == []
    assert o.with_ends([o.Range(A, 5, 7)], [o.Range(A, o.LATEST, 7)]) == [o.Range(A, 5, 7)]
