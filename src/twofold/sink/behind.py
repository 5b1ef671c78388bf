"""How far a query is behind, in the words of Spark's Kafka connector. Pure.

1. A partition is behind by the records between where the last batch that is done ends and where the topic ends.
2. A partition that was found while the query ran is behind from its first record on.
3. A topic that was made anew ends before the batch did: that is no negative number, it is not behind.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from twofold.types import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Behind:
    """Offsets behind the latest: of the partition that is furthest, the nearest, and of all together."""

    partitions: int
    total: int
    most: int
    least: int

    @property
    def average(self) -> float:
        return self.total / self.partitions

    def words(self) -> dict[str, str]:
        """As the progress of Spark's Kafka connector has them, in `sources[].metrics`."""
        return {
            "avgOffsetsBehindLatest": str(self.average),
            "maxOffsetsBehindLatest": str(self.most),
            "minOffsetsBehindLatest": str(self.least),
        }


def behind(read: Mapping[Any, int], latest: Mapping[Any, int]) -> Behind | None:
    """None where there is no partition."""
    distances = [max(0, end - read.get(partition, 0)) for partition, end in latest.items()]
    if not distances:
        return None
    return Behind(len(distances), sum(distances), max(distances), min(distances))


def offsets_of(value: Any) -> Offsets | None:
    """Of a progress or a checkpoint, as text or read; None for a source that does not read topics, or has not begun."""
    try:
        topics = json.loads(value) if isinstance(value, str) else value
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in topics.items()
            if not topic.startswith(":")  # what our first batch remembers
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        return None


def offsets_of_lines(text: str) -> Offsets:
    """Of the sources of a batch, a line for each, as the journal of a sink has them."""
    found: Offsets = {}
    for line in text.splitlines():
        found |= offsets_of(line) or {}
    return found
