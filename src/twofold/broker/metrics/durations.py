"""How long things took, counted in buckets: a search among twenty numbers and two additions, no list that grows."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

# Upper bounds in seconds, inclusive. What is measured with the wall clock has milliseconds: nothing is finer there.
OF_TRANSACTIONS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
OF_REQUESTS_S = (0.0001, 0.0002, 0.0005, *OF_TRANSACTIONS_S[:-1])


class Durations:
    __slots__ = ("total_s", "counts", "_bounds_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.total_s = 0.0
        self._bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)  # by bucket, the last one without a bound

    def add(self, took_s: float) -> None:
        """Less than nothing, where the clock was set back, counts as nothing."""
        self.counts[bisect_left(self._bounds_s, took_s)] += 1
        if took_s > 0:
            self.total_s += took_s

    @property
    def count(self) -> int:
        return sum(self.counts)

    def buckets(self) -> Iterator[tuple[float, int]]:
        """Upper bounds in seconds, and how many took that long or less."""
        yield from zip((*self._bounds_s, float("inf")), accumulate(self.counts), strict=True)
