"""Filters that a batch query answers by not reading. Only ours has them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringContains,
)
from spark_kit import OLD_MS, Kit

from twofold.spark.offsets import MAX_OFFSET
from twofold.spark.pushdown import Selection, narrowed
from twofold.types import TopicPartition

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (EqualTo(("topic",), "a"), Selection(topics=frozenset("a"))),
        (In(("topic",), ("a", "b")), Selection(topics=frozenset("ab"))),
        (EqualTo(("partition",), 3), Selection(partitions=frozenset([3]))),
        (In(("partition",), (1, 2)), Selection(partitions=frozenset([1, 2]))),
        (EqualTo(("offset",), 5), Selection(start=5, until=6)),
        (GreaterThan(("offset",), 5), Selection(start=6)),
        (GreaterThanOrEqual(("offset",), 5), Selection(start=5)),
        (LessThan(("offset",), 5), Selection(until=5)),
        (LessThanOrEqual(("offset",), 5), Selection(until=6)),
        (IsNotNull(("offset",)), Selection()),
    ],
)
def test_filters_on_where_a_record_is_need_no_second_look(entry: Filter, expected: Selection) -> None:
    assert narrowed(Selection(), entry) == (expected, True)


@pytest.mark.parametrize(
    ("entry", "not_before_ms"),
    [
        (GreaterThanOrEqual(("timestamp",), NOON), NOON_MS),
        (GreaterThan(("timestamp",), NOON), NOON_MS + 1),
        (EqualTo(("timestamp",), NOON), NOON_MS),
        (GreaterThanOrEqual(("timestamp",), NOON + timedelta(microseconds=1)), NOON_MS + 1),
        (GreaterThan(("timestamp",), NOON + timedelta(microseconds=1)), NOON_MS + 1),
    ],
)
def test_filters_on_times_choose_a_start_and_are_asked_again(entry: Filter, not_before_ms: int) -> None:
    assert narrowed(Selection(), entry) == (Selection(not_before_ms=not_before_ms), False)


@pytest.mark.parametrize(
    "entry",
    [
        EqualTo(("value",), b"x"),
        IsNotNull(("key",)),
        LessThan(("timestamp",), NOON),
        GreaterThan(("timestamp",), NOON.replace(tzinfo=None)),
        EqualTo(("offset",), None),
        GreaterThan(("partition",), 1),
        EqualTo(("headers", "offset"), 1),
        StringContains(("topic",), "a"),
    ],
)
def test_other_filters_are_left_to_spark(entry: Filter) -> None:
    assert narrowed(Selection(), entry) is None


def test_filters_narrow_one_another() -> None:
    selection = Selection()
    for entry in (
        In(("partition",), (1, 2)),
        EqualTo(("partition",), 2),
        GreaterThan(("offset",), 3),
        LessThan(("offset",), 9),
        GreaterThan(("offset",), 1),
    ):
        found = narrowed(selection, entry)
        assert found is not None
        selection = found[0]
    assert selection == Selection(partitions=frozenset([2]), start=4, until=9)
    assert [selection.has(TopicPartition("a", number)) for number in (1, 2)] == [False, True]
    assert Selection().until == MAX_OFFSET


@pytest.fixture
def pushing(ours: Kit) -> Iterator[Kit]:
    name = "spark.sql.python.filterPushdown.enabled"
    ours.spark.conf.set(name, "true")
    yield ours
    ours.spark.conf.unset(name)


def test_filtered_partitions_and_offsets_are_not_read(pushing: Kit) -> None:
    topic = pushing.topic(4, retention_ms="-1")
    pushing.send(
        topic,
        ({"value": b"%d" % n, "partition": n % 4, "timestamp": OLD_MS + n * 1000} for n in range(40)),
    )
    frame = pushing.batch(subscribe=topic, pushDownFilters="true")

    def found(condition: str) -> tuple[list[int], int]:
        filtered = frame.where(condition)
        return sorted(int(row.value) for row in filtered.collect()), filtered.rdd.getNumPartitions()

    assert found("partition = 2") == (list(range(2, 40, 4)), 1)
    assert found("partition in (0, 3) and offset >= 8") == ([32, 35, 36, 39], 2)
    assert found("partition = 1 and offset < 2 and value is not null") == ([1, 5], 1)
    assert found(f"topic = '{topic}' and offset = 3")[0] == [12, 13, 14, 15]
    assert found(f"timestamp >= timestamp_millis({OLD_MS + 38_000})")[0] == [38, 39]
    assert found(f"timestamp < timestamp_millis({OLD_MS + 2_000})")[0] == [0, 1]
    assert found("partition = 9")[0] == []
