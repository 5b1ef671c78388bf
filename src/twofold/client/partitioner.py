"""Which partition a record goes to: the same choice as Apache Kafka's producer.

A key decides by its murmur2 hash. Records without a key stick to one random partition until a batch's worth of bytes
went there (KIP-794), so that batches fill.
"""

from collections.abc import Sequence
from random import Random

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """The 32-bit hash of Kafka's Java client, as an unsigned number."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        value = (value * _M & _MASK) ^ ((word ^ (word >> 24)) * _M & _MASK)
    if length != whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ (value >> 13)) * _M & _MASK
    return value ^ (value >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """The choice for records of one topic that have no key."""

    __slots__ = ("_available", "_bytes", "_partition", "_random", "_switch_bytes")

    def __init__(self, random: Random, switch_bytes: int) -> None:
        self._random = random
        self._switch_bytes = switch_bytes
        self._available: Sequence[int] = ()
        self._partition = -1
        self._bytes = 0

    def choose(self, available: Sequence[int], size: int) -> int:
        """`available` are the partitions that have a leader; `size` is about what the record takes."""
        # A new object means new metadata: only then may the chosen partition have lost its leader.
        if self._bytes >= self._switch_bytes or (available is not self._available and self._partition not in available):
            self._partition = self._random.choice(available)
            self._bytes = 0
        self._available = available
        self._bytes += size
        return self._partition
