"""How long things took, counted in buckets: a search among sixteen numbers and two additions, no list that grows."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

# Upper bounds, inclusive. The wall clock has milliseconds: below one there is nothing to tell apart.
BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)


class Durations:
    __slots__ = ("total_ms", "_counts")

    def __init__(self) -> None:
        self.total_ms = 0
        self._counts = [0] * (len(BOUNDS_MS) + 1)

    def add(self, took_ms: int) -> None:
        """Less than nothing, where the clock was set back, counts as nothing."""
        if took_ms > 0:
            self._counts[bisect_left(BOUNDS_MS, took_ms)] += 1
            self.total_ms += took_ms
        else:
            self._counts[0] += 1

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Upper bounds in seconds, and how many took that long or less."""
        yield from zip((*(bound / 1000 for bound in BOUNDS_MS), float("inf")), accumulate(self._counts), strict=True)
