"""Which partition a record goes to: the same choice as Apache Kafka's producer.

A key decides by its hash (`records.key_hash`). Records without a key stick to one random partition until a batch's
worth of bytes went there (KIP-794), so that batches fill.
"""

from collections.abc import Callable, Sequence
from random import Random


class StickyPartitioner:
    """The choice for records of one topic that have no key (KIP-794).

    A partition is left when about a batch's worth of bytes went there and its last batch is full, or at the latest
    after two. The next is any of those with a leader; with `load`, which tells how many batches wait for a partition,
    one with a short line is more likely than one with a long line.
    """

    __slots__ = ("_available", "_bytes", "_load", "_partition", "_random", "_switch_bytes")

    def __init__(self, random: Random, switch_bytes: int, load: Callable[[int], int] | None = None) -> None:
        self._random = random
        self._switch_bytes = max(1, switch_bytes)
        self._load = load
        self._available: Sequence[int] = ()
        self._partition = -1
        self._bytes = 0

    def current(self, available: Sequence[int]) -> int:
        """`available` are the partitions that have a leader."""
        # A new object means new metadata: only then may the chosen partition have lost its leader.
        if available is not self._available:
            self._available = available
            if self._partition not in available:
                self._switch()
        return self._partition

    def on_added(self, size: int, *, batch_is_full: bool) -> None:
        """A record of about `size` bytes went to the current partition."""
        self._bytes += size
        if self._bytes >= self._switch_bytes and (batch_is_full or self._bytes >= 2 * self._switch_bytes):
            self._switch()

    def _switch(self) -> None:
        self._bytes = 0
        if self._load is not None:
            lines = [self._load(partition) for partition in self._available]
            longest = max(lines)
            if min(lines) != longest:
                weights = [longest + 1 - line for line in lines]
                self._partition = self._random.choices(self._available, weights)[0]
                return
        self._partition = self._random.choice(self._available)
