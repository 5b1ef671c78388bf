"""Offsets of a query: as Spark stores them, as options give them, how much of them one micro-batch takes. Pure.

1. What stands in a checkpoint is Spark's own connector's JSON, `{"topic": {"0": 23}}`, so that a query can change
   between the two.
2. Spark asks for the initial offset again when a query starts anew before its first batch was done. The version before
   kept the start of the first batch in that batch's end, under INITIAL: it is still read. No topic has such a name.
3. A mark that is never written (FRESH) tells the start of the first batch from every other start; it is never stored.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from twofold.types import TopicPartition

EARLIEST = -2
LATEST = -1
INITIAL = ":initial"
FRESH = ":fresh"

Offsets: TypeAlias = dict[TopicPartition, int]
OffsetJson: TypeAlias = dict[str, Any]
MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Everywhere:
    """EARLIEST or LATEST in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset, EARLIEST or LATEST for each partition."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The first record that is not older, for each partition."""

    timestamps: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record that is not older, in every partition."""

    timestamp_ms: int


Bound: TypeAlias = Everywhere | AtOffsets | AtTimestamps | AtTimestamp


class Range(NamedTuple):
    """Offsets from `start` up to, not including, `until`. It may start at EARLIEST and end at LATEST, which are then
    found when it is read."""

    tp: TopicPartition
    start: int
    until: int

    @property
    def size(self) -> int:
        return self.until - self.start


# JSON


def to_json(offsets: Mapping[TopicPartition, int]) -> OffsetJson:
    """In a fixed order: Spark compares offsets as texts."""
    topics: OffsetJson = {}
    for tp in sorted(offsets):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return topics


def from_json(value: Mapping[str, Any]) -> Offsets:
    """The offsets of a checkpoint, whatever else stands beside them."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in value.items()
        if not topic.startswith(":")
        for partition, offset in partitions.items()
    }


def fresh(offsets: Mapping[TopicPartition, int]) -> OffsetJson:
    """The initial offset of a query."""
    return to_json(offsets) | {FRESH: 1}


def is_fresh(start: Mapping[str, Any]) -> bool:
    return FRESH in start


def remembers_start(end: Mapping[str, Any]) -> bool:
    return INITIAL in end


def start_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> Offsets:
    """Where a batch starts: what its end remembers counts more than what is found now."""
    return from_json(end.get(INITIAL, start))


def parse_numbers(name: str, text: str, what: str) -> Offsets:
    """`{"topic": {"0": 23}}` of an option; ValueError says what was expected."""
    expected = f'{name}: expected JSON such as {{"topicA":{{"0":{what}}}}}, got {text}'
    try:
        value = json.loads(text)
        numbers = {
            TopicPartition(topic, int(partition)): number
            for topic, partitions in value.items()
            for partition, number in partitions.items()
        }
    except (ValueError, AttributeError):
        raise ValueError(expected) from None
    for tp, number in numbers.items():
        if type(number) is not int or abs(number) > MAX_OFFSET or tp.partition < 0:
            raise ValueError(expected)
    return numbers


def parse_partitions(name: str, text: str) -> tuple[TopicPartition, ...]:
    """`{"topic": [0, 1]}` of an option."""
    expected = f'{name}: expected JSON such as {{"topicA":[0,1]}}, got {text}'
    try:
        value = json.loads(text)
        found = [(topic, partition) for topic, partitions in value.items() for partition in partitions]
    except (ValueError, AttributeError, TypeError):
        raise ValueError(expected) from None
    if any(type(partition) is not int or partition < 0 for _, partition in found):
        raise ValueError(expected)
    return tuple(dict.fromkeys(TopicPartition(*pair) for pair in found))


# How much one micro-batch takes


def limited(limit: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """`end`, moved back so that about `limit` offsets are left, shared out in proportion to what each partition has.

    As Spark's own connector does it: a share below 1 counts as 1, so that no partition starves, and every other is
    rounded down.
    """
    sizes = {tp: end[tp] - start[tp] for tp in end if tp in start and end[tp] > start[tp]}
    total = float(sum(sizes.values()))
    found = dict(end)
    for tp, size in sizes.items():
        share = limit * (size / total)
        rounded = math.ceil(share) if share < 1 else math.floor(share)
        found[tp] = min(end[tp], start[tp] + rounded)
    return found


class TriggerDelay:
    """minOffsetsPerTrigger: holds a batch back until there is enough, or until it waited for so long.

    The first batch of a run is never held back.
    """

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._last_ms: float | None = None

    def holds_back(self, available: int, now_ms: float) -> bool:
        waited = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if not waited and available < self._min_offsets:
            return True
        self._last_ms = now_ms
        return False


# Ranges for tasks


def split(ranges: Iterable[Range], min_partitions: int | None, max_records: int | None) -> list[Range]:
    """Ranges without the empty ones, cut so that none is larger than `max_records` and that there are about
    `min_partitions`."""
    left = [entry for entry in ranges if entry.size > 0]
    if max_records is not None:
        left = [part for entry in left for part in _cut(entry, -(-entry.size // max_records))]
    if min_partitions is None or len(left) >= min_partitions:
        return left
    return _cut_in_proportion(left, min_partitions)


def with_ends(ranges: Iterable[Range], asked: Iterable[Range]) -> list[Range]:
    """Parts of what was asked for, their outer bounds EARLIEST and LATEST again where that was asked."""
    ends = {entry.tp: entry for entry in asked}
    found = list(ranges)
    first = {entry.tp: index for index, entry in reversed(list(enumerate(found)))}
    last = {entry.tp: index for index, entry in enumerate(found)}
    for tp, entry in ends.items():
        if tp in first and entry.start == EARLIEST:
            found[first[tp]] = found[first[tp]]._replace(start=entry.start)
        if tp in last and entry.until == LATEST:
            found[last[tp]] = found[last[tp]]._replace(until=entry.until)
    return found


def _cut_in_proportion(ranges: list[Range], count: int) -> list[Range]:
    # Small ranges stay whole and leave their tasks to the large ones.
    total = sum(entry.size for entry in ranges)
    small = {entry for entry in ranges if _parts(entry.size, total, count) == 1}
    total -= sum(entry.size for entry in small)
    count = max(1, count - len(small))
    return [
        part
        for entry in ranges
        for part in _cut(entry, 1 if entry in small else _parts(entry.size, total, count))
        if part.size > 0
    ]


def _parts(size: int, total: int, count: int) -> int:
    return max(1, math.floor(size / total * count + 0.5))


def _cut(entry: Range, parts: int) -> list[Range]:
    """Equal parts; what does not divide is in the later ones."""
    cut = []
    start, left = entry.start, entry.size
    for remaining in range(parts, 0, -1):
        size = left // remaining
        cut.append(Range(entry.tp, start, start + size))
        start, left = start + size, left - size
    return cut
