"""The orders in which Apache Kafka's assignors go through members, topics and partitions: those of Java's hash tables.

A Java HashMap of n buckets, a power of two from 16 on, is read bucket by bucket; an entry lies in the bucket of the
lowest bits of its hash, after the higher half was folded into them. In a bucket Java keeps the order in which the
entries came, which depends on the history of the group; here they are in the order of their ids.

A table that grew by itself is at most three quarters full. One that was made as a copy of a collection is a little
larger.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

from twofold.types import TopicId

_FEWEST_BUCKETS = 16
_MASK = 0xFFFF_FFFF

Item = TypeVar("Item", str, int, TopicId)


def string_hash(text: str) -> int:
    """Java's String.hashCode, unsigned: a polynomial over UTF-16 code units."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = value * 31 + unit
        return value & _MASK
    units = text.encode("utf-16-be", "surrogatepass")
    for place in range(0, len(units), 2):
        value = value * 31 + (units[place] << 8) + units[place + 1]
    return value & _MASK


def topic_id_hash(topic_id: TopicId) -> int:
    """Of Kafka's Uuid, unsigned."""
    number = topic_id.int
    halves = (number >> 64) ^ number
    return ((halves >> 32) ^ halves) & _MASK


def bucket_of(hashed: int, buckets: int) -> int:
    return (hashed ^ hashed >> 16) & (buckets - 1)


def grown(count: int) -> int:
    """The buckets of a table that `count` entries were put into one by one."""
    buckets = _FEWEST_BUCKETS
    while count * 4 > buckets * 3:
        buckets *= 2
    return buckets


def copied(count: int) -> int:
    """The buckets of a table that was made of a collection: for one entry more than a third above `count`."""
    buckets = _FEWEST_BUCKETS
    while count * 4 // 3 + 1 > buckets:
        buckets *= 2
    return buckets


def by_bucket(items: Iterable[Item], hash_of: Callable[[Item], int], buckets: int) -> list[Item]:
    return [item for _, item in sorted((bucket_of(hash_of(item), buckets), item) for item in items)]


def _members(ids: Collection[str]) -> list[str]:
    return by_bucket(ids, string_hash, grown(len(ids)))


def _subscribed(topics: Collection[TopicId]) -> list[TopicId]:
    return by_bucket(topics, topic_id_hash, copied(len(topics)))


def _assigned(topics: Collection[TopicId]) -> list[TopicId]:
    return by_bucket(topics, topic_id_hash, grown(len(topics)))


def _partitions(numbers: Collection[int]) -> list[int]:
    return by_bucket(numbers, int, copied(len(numbers)))


@dataclass(frozen=True, slots=True)
class Orders:
    """Members of the group; topics that it subscribes to; topics in a target; partitions of a topic in a target."""

    members: Callable[[Collection[str]], list[str]] = _members
    subscribed: Callable[[Collection[TopicId]], list[TopicId]] = _subscribed
    assigned: Callable[[Collection[TopicId]], list[TopicId]] = _assigned
    partitions: Callable[[Collection[int]], list[int]] = _partitions


APACHE_KAFKAS = Orders()
