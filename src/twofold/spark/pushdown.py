"""Filters of a batch query that are answered by not reading: topic, partition, offset, and the start of a time.

Spark calls `pushFilters` only with `spark.sql.python.filterPushdown.enabled`, and refuses a reader that has the method
without it; so this reader is made only when the option pushDownFilters asks for it.

A filter on timestamps moves the start of a range to the first record that is not older; younger records before older
ones are possible, so Spark filters what is read once more.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from twofold.spark.offsets import MAX_OFFSET, Offsets, Range
from twofold.spark.source import BatchReader
from twofold.types import TopicPartition

if TYPE_CHECKING:
    from twofold.spark.offset_reader import OffsetReader

NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Selection:
    """What filters leave of the topics; None is everything."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start: int = 0
    until: int = MAX_OFFSET
    not_before_ms: int | None = None

    def has(self, tp: TopicPartition) -> bool:
        is_topic = self.topics is None or tp.topic in self.topics
        return is_topic and (self.partitions is None or tp.partition in self.partitions)

    @property
    def cuts(self) -> bool:
        """Whether offsets are left out, not only partitions."""
        return self != Selection(self.topics, self.partitions)


def narrowed(selection: Selection, entry: Filter) -> tuple[Selection, bool] | None:
    """The selection with one filter more, and whether that is all of it; None for one that is not understood."""
    column = entry.attribute[0] if len(getattr(entry, "attribute", ())) == 1 else None  # type: ignore[attr-defined]
    if isinstance(entry, IsNotNull):
        return (selection, True) if column in NEVER_NULL else None
    if column == "timestamp":
        return _from_time(selection, entry)
    if column == "topic":
        names = _chosen(entry, str)
        return None if names is None else (replace(selection, topics=_common(selection.topics, names)), True)
    if column == "partition":
        numbers = _chosen(entry, int)
        return (
            None if numbers is None else (replace(selection, partitions=_common(selection.partitions, numbers)), True)
        )
    if column == "offset":
        return _offsets(selection, entry)
    return None


def _chosen(entry: Filter, kind: type[Any]) -> frozenset[Any] | None:
    values = (entry.value,) if isinstance(entry, EqualTo) else entry.value if isinstance(entry, In) else ()
    return frozenset(values) if values and all(type(value) is kind for value in values) else None


def _common(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more


def _offsets(selection: Selection, entry: Filter) -> tuple[Selection, bool] | None:
    value = getattr(entry, "value", None)
    if type(value) is not int:
        return None
    start, until = 0, MAX_OFFSET
    if isinstance(entry, EqualTo):
        start, until = value, value + 1
    elif isinstance(entry, GreaterThanOrEqual):
        start = value
    elif isinstance(entry, GreaterThan):
        start = value + 1
    elif isinstance(entry, LessThan):
        until = value
    elif isinstance(entry, LessThanOrEqual):
        until = value + 1
    else:
        return None
    return replace(selection, start=max(selection.start, start), until=min(selection.until, until)), True


def _from_time(selection: Selection, entry: Filter) -> tuple[Selection, bool] | None:
    value = getattr(entry, "value", None)
    if not isinstance(entry, GreaterThan | GreaterThanOrEqual | EqualTo) or not isinstance(value, datetime):
        return None
    if value.tzinfo is None:
        return None  # a time without a zone is another type of column
    micros = (value - _EPOCH) // timedelta(microseconds=1)
    millis = micros // 1000 + 1 if isinstance(entry, GreaterThan) else -(-micros // 1000)
    known = selection.not_before_ms
    return replace(selection, not_before_ms=millis if known is None else max(known, millis)), False


class SelectiveReader(BatchReader):
    """Reads what the filters of the query leave."""

    _selection = Selection()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        left = []
        for entry in filters:
            found = narrowed(self._selection, entry)
            if found is not None:
                self._selection = found[0]
            if found is None or not found[1]:
                left.append(entry)
        return left

    def _bounds(self, reader: "OffsetReader") -> tuple[Offsets, Offsets]:
        starts, ends = super()._bounds(reader)
        starts = {tp: start for tp, start in starts.items() if self._selection.has(tp)}
        return starts, {tp: end for tp, end in ends.items() if tp in starts}

    def _narrow(self, reader: "OffsetReader", ranges: list[Range]) -> list[Range]:
        selection = self._selection
        if not selection.cuts:
            return ranges
        firsts: Offsets = {}
        if selection.not_before_ms is not None:
            firsts = reader.at_time([entry.tp for entry in ranges], selection.not_before_ms)
        return [self._cut(entry, firsts.get(entry.tp, 0)) for entry in ranges]

    def _cut(self, entry: Range, first: int) -> Range:
        until = min(entry.until, self._selection.until)
        start = max(entry.start, self._selection.start, first)
        return Range(entry.tp, min(start, until), until) if until > entry.start else entry._replace(until=entry.start)
