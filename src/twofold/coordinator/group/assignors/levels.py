"""The subscribers of a topic by their load, read from both ends: which is next to take a partition, and which to give
one.

Both ends are levels. The lowest level is served left to right; when each of its members had its turn, it rises by one
and takes in those that are there. The highest level gives right to left; when each had its turn, it falls by one and
takes in those that are there. A member of the highest level with nothing to give is passed over from then on.
"""

from collections.abc import Sequence


class Levels:
    """`loads` is that of every member of the group. The caller changes it after each turn: the taker has one partition
    more, the giver one less."""

    def __init__(self, subscribers: Sequence[int], loads: Sequence[int]) -> None:
        self._loads = loads
        self._sorted = sorted(subscribers, key=loads.__getitem__)  # stable: equal loads keep the order of members
        self._lowest = loads[self._sorted[0]] - 1
        self._low_end = self._low_next = 0
        self._highest = loads[self._sorted[-1]] + 1
        self._high_start = self._high_end = len(self._sorted)
        self._high_next = len(self._sorted) - 1

    @property
    def are_even(self) -> bool:
        return self._highest - self._lowest <= 1

    def next_lowest(self) -> int:
        if self._low_next >= self._low_end:
            self._lowest += 1
            while self._low_end < len(self._sorted) and self._load_at(self._low_end) == self._lowest:
                self._low_end += 1
            self._low_next = 0
        self._low_next += 1
        return self._sorted[self._low_next - 1]

    def next_highest(self) -> int | None:
        """None when no subscriber is left that could give."""
        if self._high_next < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:
                self._highest = self._load_at(self._high_start - 1)  # all of the level were passed over
            else:
                self._highest -= 1
            while self._high_start > 0 and self._load_at(self._high_start - 1) == self._highest:
                self._high_start -= 1
            self._high_next = self._high_end - 1
        if self._high_next < 0:
            return None
        self._high_next -= 1
        return self._sorted[self._high_next + 1]

    def pass_over(self) -> None:
        """The member that `next_highest` gave last: it changes places with the end of the level, which it leaves."""
        last, end = self._high_next + 1, self._high_end - 1
        self._sorted[last], self._sorted[end] = self._sorted[end], self._sorted[last]
        self._high_end = end

    def _load_at(self, place: int) -> int:
        return self._loads[self._sorted[place]]
