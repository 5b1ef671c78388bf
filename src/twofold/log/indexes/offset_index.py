"""`<base>.index`: the position of one batch every few kilobytes of a segment.

An entry is 8 bytes: the batch's last offset relative to the segment's base (int32) and its position (int32). Both grow
from entry to entry. In memory they are two arrays of machine integers, searched by bisection.
"""

import sys
from array import array
from bisect import bisect_right
from operator import lt

ENTRY_SIZE = 8
MAX_RELATIVE_OFFSET = 2**31 - 1


class CorruptIndex(Exception):
    """An index file that is damaged. It can be built anew from the segment."""


class OffsetIndex:
    __slots__ = ("base_offset", "_offsets", "_positions")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("i")
        self._positions = array("i")

    @classmethod
    def parse(cls, base_offset: int, data: bytes, segment_size: int) -> "OffsetIndex":
        if len(data) % ENTRY_SIZE:
            raise CorruptIndex(f"{len(data)} bytes are not a multiple of {ENTRY_SIZE}")
        numbers = array("i", data)
        if sys.byteorder == "little":
            numbers.byteswap()
        index = cls(base_offset)
        index._offsets = numbers[0::2]
        index._positions = numbers[1::2]
        if not (_increases(index._offsets) and _increases(index._positions)):
            raise CorruptIndex("its entries do not increase")
        if len(index) and index._positions[-1] >= segment_size:
            raise CorruptIndex(f"its last entry points to {index._positions[-1]}, the segment has {segment_size} bytes")
        return index

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, last_offset: int, position: int) -> None:
        self._offsets.append(last_offset - self.base_offset)
        self._positions.append(position)

    def lookup(self, offset: int) -> tuple[int, int]:
        """(last offset, position) of the last entry at or below `offset`; (base - 1, 0) before the first."""
        at = bisect_right(self._offsets, min(offset - self.base_offset, MAX_RELATIVE_OFFSET)) - 1
        return (self.base_offset + self._offsets[at], self._positions[at]) if at >= 0 else (self.base_offset - 1, 0)

    def floor_position(self, position: int) -> int:
        """The greatest indexed position at or below `position`, or 0."""
        at = bisect_right(self._positions, min(position, MAX_RELATIVE_OFFSET)) - 1
        return self._positions[at] if at >= 0 else 0

    def encode(self, start: int = 0) -> bytes:
        """The entries from number `start` on, as they stand in the file."""
        numbers = array("i", bytes(ENTRY_SIZE * (len(self) - start)))
        numbers[0::2] = self._offsets[start:]
        numbers[1::2] = self._positions[start:]
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers.tobytes()


def _increases(numbers: "array[int]") -> bool:
    return (not numbers or numbers[0] >= 0) and all(map(lt, numbers, numbers[1:]))
