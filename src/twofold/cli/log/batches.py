"""Reading the batches of a segment one after the other, past what is damaged.

1. One batch is in memory at a time, and none of more than `MOST_BATCH_BYTES`: a length that was damaged must not decide
   how much is read.
2. What is no batch is told with its position. Then the next whole batch is looked for, which has a right CRC and an
   offset that may stand there; without one the file is done.
3. Batches that end before the offset asked for are passed over by their headers; their CRC is not looked at.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from twofold.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, MAGIC_POSITION, Header, crc_is_valid

MOST_BATCH_BYTES = 256 << 20
SEARCH_BYTES = 1 << 20
# How much of wrong beginnings is read in one search: bytes made to look like batches must not make it endless.
SEARCH_BUDGET_BYTES = 1 << 30
MOST_RELATIVE_OFFSET = 2**31

_HEADER = struct.Struct(">qiibIhiqqqhii")
_MAGIC_BYTE = bytes([MAGIC])
_KNOWN_ATTRIBUTES = 0x7F


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch and its bytes."""

    position: int
    header: Header
    data: bytes
    crc_is_right: bool


@dataclass(frozen=True, slots=True)
class BatchDamage:
    """What is wrong, where, and where reading goes on (None: nowhere in this file)."""

    position: int
    reason: str
    resumes_at: int | None


class FileBatches:
    """The batches of one file, from its beginning or from the batch that holds `from_offset`."""

    def __init__(
        self,
        file: BinaryIO,
        size: int,
        *,
        base_offset: int = 0,
        from_offset: int = 0,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._file = file
        self._size = size
        self._due = base_offset  # no batch may begin before this offset
        self._from_offset = from_offset
        self._advance = advance

    def read(self) -> Iterator[DumpedBatch | BatchDamage]:
        position = 0
        while position < self._size:
            found = self._at(position)
            if found is None:
                after = position + self._header(position).size
            else:
                yield from found
                last = found[-1]
                after = last.position + last.header.size if isinstance(last, DumpedBatch) else _end(last, self._size)
            self._advance(after - position)
            position = after

    def _at(self, position: int) -> list[DumpedBatch | BatchDamage] | None:
        """The batch at a position with what is wrong about it; None for one that is passed over."""
        wrong = self._framing(position)
        if wrong is not None:
            return [BatchDamage(position, wrong, self._search(position + 1))]
        header = self._header(position)
        if header.last_offset < self._from_offset and self._due <= header.base_offset:
            self._due = header.next_offset
            return None
        batch = self._load(position, header)
        if not batch.crc_is_right:
            return self._damaged(batch)
        due, self._due = self._due, header.next_offset
        if header.base_offset < due:
            reason = f"the batch has the offset {header.base_offset} where {due} is the least that may follow"
            return [BatchDamage(position, reason, position), batch]
        return [batch]

    def _damaged(self, batch: DumpedBatch) -> list[DumpedBatch | BatchDamage]:
        """Of a batch with a wrong CRC the length may be wrong as well: it is believed if another batch follows it."""
        header, after = batch.header, batch.position + batch.header.size
        reason = f"the batch at offset {header.base_offset} has a wrong CRC: {header.crc:08x} is stored"
        if after == self._size or self._framing(after) is None:
            if 0 <= header.base_offset - self._due < MOST_RELATIVE_OFFSET and header.last_offset_delta >= 0:
                self._due = header.next_offset
            return [BatchDamage(batch.position, reason, after if after < self._size else None), batch]
        resumes_at = self._search(batch.position + 1)
        return [BatchDamage(batch.position, f"{reason}, and no batch follows it", resumes_at)]

    def _framing(self, position: int) -> str | None:
        """Why no batch can begin here."""
        left = self._size - position
        start = self._bytes(position, min(left, HEADER_SIZE))
        if len(start) < HEADER_SIZE:
            return f"cut off: {len(start)} bytes are left, the header of a batch has {HEADER_SIZE}"
        header = Header._make(_HEADER.unpack(start))
        if not any(start):
            return f"zeros where a batch should begin, {left} bytes before the end"
        if header.magic in (0, 1):
            return f"message format v{header.magic}, or garbage: only record batches of magic 2 are read"
        if header.magic != MAGIC:
            return f"garbage: magic {header.magic} where 2 is known"
        if header.size < HEADER_SIZE:
            return f"garbage: a batch length of {header.batch_length}"
        if header.size > left:
            return f"cut off: a batch of {header.size} bytes at offset {header.base_offset}, {left} are left"
        if header.size > MOST_BATCH_BYTES:
            return f"a batch that claims {header.size} bytes; at most {MOST_BATCH_BYTES} are read"
        return None

    def _search(self, start: int) -> int | None:
        """Where the next whole batch begins."""
        budget = SEARCH_BUDGET_BYTES
        while self._size - start >= HEADER_SIZE and budget > 0:
            chunk = self._bytes(start, min(SEARCH_BYTES + HEADER_SIZE, self._size - start))
            if len(chunk) < HEADER_SIZE:
                return None  # the file became shorter meanwhile
            at = chunk.find(_MAGIC_BYTE, MAGIC_POSITION)
            while 0 <= at - MAGIC_POSITION <= len(chunk) - HEADER_SIZE:
                header = Header._make(_HEADER.unpack_from(chunk, at - MAGIC_POSITION))
                position = start + at - MAGIC_POSITION
                if self._is_plausible(header, self._size - position):
                    budget -= header.size
                    if self._load(position, header).crc_is_right:
                        return position
                at = chunk.find(_MAGIC_BYTE, at + 1)
            start += max(1, len(chunk) - HEADER_SIZE + 1)
        return None

    def _is_plausible(self, header: Header, left: int) -> bool:
        return (
            HEADER_SIZE <= header.size <= min(left, MOST_BATCH_BYTES)
            and 0 <= header.base_offset - self._due < MOST_RELATIVE_OFFSET
            and 0 <= header.attributes <= _KNOWN_ATTRIBUTES
            and header.last_offset_delta >= 0
            and header.count >= 0
        )

    def _header(self, position: int) -> Header:
        return Header._make(_HEADER.unpack(self._bytes(position, HEADER_SIZE)))

    def _load(self, position: int, header: Header) -> DumpedBatch:
        data = self._bytes(position, header.batch_length + LOG_OVERHEAD)
        return DumpedBatch(position, header, data, len(data) == header.size and crc_is_valid(data, 0, header))

    def _bytes(self, position: int, size: int) -> bytes:
        if self._file.tell() != position:
            self._file.seek(position)
        return self._file.read(size)


def _end(damage: BatchDamage, size: int) -> int:
    return size if damage.resumes_at is None else damage.resumes_at
