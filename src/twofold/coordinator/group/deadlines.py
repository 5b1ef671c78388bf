"""Deadlines by key: what is due, and when the next one may be.

1. Moving a deadline further into the future costs nothing but a dictionary entry: its old place in the heap is looked
   at when it comes up, and moved then. A heartbeat is such a move.
2. `next_at` may be too early, never too late.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    __slots__ = ("_at", "_heap", "_placed", "_count")

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        self._placed: dict[K, int] = {}  # where the earliest entry of the key stands in the heap
        self._heap: list[tuple[int, int, K]] = []
        self._count = 0  # breaks ties: first set, first due

    def set(self, key: K, at_ms: int) -> None:
        self._at[key] = at_ms
        placed = self._placed.get(key)
        if placed is None or at_ms < placed:
            self._place(key, at_ms)

    def cancel(self, key: K) -> None:
        self._at.pop(key, None)

    def get(self, key: K) -> int | None:
        return self._at.get(key)

    def __len__(self) -> int:
        return len(self._at)

    @property
    def next_at(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> K | None:
        """One key whose time has come, which is then without a deadline."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            at, _, key = heapq.heappop(heap)
            if self._placed.get(key) != at:
                continue  # an earlier place of a key that was moved forward
            del self._placed[key]
            wanted = self._at.get(key)
            if wanted is None:
                continue
            if wanted > now_ms:
                self._place(key, wanted)
                continue
            del self._at[key]
            return key
        return None

    def clear(self) -> None:
        self._at.clear()
        self._placed.clear()
        self._heap.clear()

    def _place(self, key: K, at_ms: int) -> None:
        self._count += 1
        self._placed[key] = at_ms
        heapq.heappush(self._heap, (at_ms, self._count, key))
