"""`<base>.txnindex`: the aborted transactions whose markers lie in a segment.

An entry has 34 bytes: version 0 (int16), producer id, first offset, last offset (the marker's), last stable offset when
the marker was written. Last offsets increase strictly; a segment without aborts has no file.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from twofold.log.indexes.offset_index import CorruptIndex
from twofold.types import ProducerId

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size
CHUNK_BYTES = 64 * ENTRY_SIZE

_new_tuple = tuple.__new__


class AbortedEntry(NamedTuple):
    producer_id: ProducerId
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex:
    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    @classmethod
    def parse(cls, data: bytes, base_offset: int) -> "TxnIndex":
        if len(data) % ENTRY_SIZE:
            raise CorruptIndex(f"{len(data)} bytes are not a multiple of {ENTRY_SIZE}")
        before = base_offset - 1
        for version, _, _, last_offset, _ in _ENTRY.iter_unpack(data):
            if version != VERSION:
                raise CorruptIndex(f"an entry has the version {version}")
            if last_offset <= before:
                raise CorruptIndex(f"the marker at {last_offset} follows {before}")
            before = last_offset
        index = cls()
        index._data += data
        return index

    def __len__(self) -> int:
        return len(self._data) // ENTRY_SIZE

    def append(self, entry: AbortedEntry) -> None:
        self._data += _ENTRY.pack(VERSION, *entry)

    def entries(self, from_offset: int = 0) -> Iterator[AbortedEntry]:
        """Entries whose marker is at `from_offset` or later, in order."""
        data = self._data
        first = bisect_left(range(len(self)), from_offset, key=lambda at: _ENTRY.unpack_from(data, at * ENTRY_SIZE)[3])
        for at in range(first * ENTRY_SIZE, len(data), CHUNK_BYTES):
            # A copy: a bytearray that is being read cannot grow, and a reader may stop half-way.
            for _, producer_id, first_offset, last_offset, stable in _ENTRY.iter_unpack(data[at : at + CHUNK_BYTES]):
                yield _new_tuple(AbortedEntry, (producer_id, first_offset, last_offset, stable))

    def encode(self, start: int = 0) -> bytes:
        return bytes(self._data[start * ENTRY_SIZE :])
