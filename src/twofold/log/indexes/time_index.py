"""`<base>.timeindex`: from which offset on a segment holds a timestamp.

An entry (timestamp int64, relative offset int32) says: no batch up to this offset has a greater timestamp, and the
batch that ends here has this one. Timestamps grow strictly from entry to entry. Control batches are left out, because a
look-up by time must find records.
"""

import struct
from array import array
from bisect import bisect_right
from operator import lt

from twofold.log.indexes.offset_index import CorruptIndex
from twofold.types import NO_TIMESTAMP

ENTRY_SIZE = 12


class TimeIndex:
    __slots__ = ("base_offset", "_timestamps", "_offsets")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")

    @classmethod
    def parse(cls, base_offset: int, data: bytes) -> "TimeIndex":
        count, rest = divmod(len(data), ENTRY_SIZE)
        if rest:
            raise CorruptIndex(f"{len(data)} bytes are not a multiple of {ENTRY_SIZE}")
        numbers = struct.unpack(">" + "qi" * count, data)
        index = cls(base_offset)
        index._timestamps = array("q", numbers[0::2])
        index._offsets = array("i", numbers[1::2])
        timestamps, offsets = index._timestamps, index._offsets
        if not (all(map(lt, timestamps, timestamps[1:])) and all(map(lt, offsets, offsets[1:]))):
            raise CorruptIndex("its entries do not increase")
        if count and (offsets[0] < 0 or timestamps[0] <= NO_TIMESTAMP):
            raise CorruptIndex(f"its first entry is ({timestamps[0]}, {offsets[0]})")
        return index

    def __len__(self) -> int:
        return len(self._offsets)

    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry, or (-1, base)."""
        if not self._offsets:
            return NO_TIMESTAMP, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry unless it says nothing new."""
        if timestamp > (self._timestamps[-1] if self._timestamps else NO_TIMESTAMP):
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self.base_offset)

    def lookup(self, timestamp: int) -> int:
        """An offset such that all batches before the one that holds it are older than `timestamp`."""
        at = bisect_right(self._timestamps, timestamp) - 1
        return self.base_offset + self._offsets[at] if at >= 0 else self.base_offset

    def encode(self, start: int = 0) -> bytes:
        pack = struct.Struct(">qi").pack
        return b"".join(map(pack, self._timestamps[start:], self._offsets[start:]))
