"""Walking the batches of a segment file without reading more of it than needed."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from twofold.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, Header, crc_is_valid
from twofold.runtime.api import File
from twofold.types import ProducerEpoch, ProducerId

CHUNK_BYTES = 8192
RECOVERY_CHUNK_BYTES = 1 << 20
MIN_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BOUNDS = struct.Struct(">qi11xi")  # of a header: base offset, batch length, last offset delta
_PRODUCER = struct.Struct(">qi9xhi8xqqhi")


class InvalidBatch(Exception):
    """The bytes at a position of a segment are not a batch, or not the one that belongs there."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"position {position}: {reason}")
        self.position = position
        self.reason = reason


def parse_header(data: bytes, at: int, position: int) -> Header:
    """The header in data[at:], which stands at `position` of the file; the rest of the batch need not be there."""
    header = Header._make(_HEADER.unpack_from(data, at))
    if header.magic != MAGIC:
        raise InvalidBatch(position, f"magic {header.magic} where 2 is known")
    if header.batch_length < MIN_BATCH_LENGTH:
        raise InvalidBatch(position, f"a batch length of {header.batch_length}")
    return header


def iter_headers(file: File, start: int, end: int) -> Iterator[tuple[int, Header]]:
    """Positions and headers of the batches in file[start:end], which were checked when they were written."""
    position = start
    step = CHUNK_BYTES
    while end - position >= HEADER_SIZE:
        chunk = file.read(position, min(step, end - position))
        if len(chunk) < HEADER_SIZE:
            raise InvalidBatch(position, f"{len(chunk)} bytes are left of {end - position}")
        at = 0
        while len(chunk) - at >= HEADER_SIZE:
            header = parse_header(chunk, at, position + at)
            yield position + at, header
            at += header.batch_length + LOG_OVERHEAD
        # Among large batches only the headers are wanted: a chunk would mostly hold what is skipped.
        step = HEADER_SIZE if at > len(chunk) + CHUNK_BYTES else CHUNK_BYTES
        position += at


def find_batch(file: File, start: int, end: int, offset: int) -> int:
    """The position of the first batch in file[start:end] that ends at `offset` or later; `end` where there is none.

    What `iter_headers` finds, by three fields of each header. Measured, median of seven runs each: a read at a random
    offset by 19 % cheaper (10.4 us, not 12.8).
    """
    position = start
    step = CHUNK_BYTES
    unpack = _BOUNDS.unpack_from
    while end - position >= HEADER_SIZE:
        chunk = file.read(position, min(step, end - position))
        last = len(chunk) - HEADER_SIZE
        at = 0
        while at <= last:
            base_offset, length, delta = unpack(chunk, at)
            if base_offset + delta >= offset:
                return position + at
            if length < MIN_BATCH_LENGTH:
                raise InvalidBatch(position + at, f"a batch length of {length}")
            at += length + LOG_OVERHEAD
        if not at:
            raise InvalidBatch(position, f"{len(chunk)} bytes are left of {end - position}")
        step = HEADER_SIZE if at > len(chunk) + CHUNK_BYTES else CHUNK_BYTES
        position += at
    return end


class ProducerFields(NamedTuple):
    """The fields of a header that concern its producer; `read_producer_fields` gives plain tuples of the same form."""

    base_offset: int
    batch_length: int
    attributes: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int


def read_producer_fields(file: File, start: int, end: int, before: int) -> list[ProducerFields]:
    """What the batches in file[start:end] say of their producers, up to the one that begins at offset `before`.

    What `iter_headers` finds, without a call and an object per header. Measured, median of seven runs each: finding
    the windows of 997 producers when a log is opened by 43 % cheaper (8.6 ms, not 15.1).
    """
    found: list[ProducerFields] = []
    position = start
    step = CHUNK_BYTES
    unpack = _PRODUCER.unpack_from
    while end - position >= HEADER_SIZE:
        chunk = file.read(position, min(step, end - position))
        last = len(chunk) - HEADER_SIZE
        at = 0
        while at <= last:
            fields = unpack(chunk, at)
            if fields[0] >= before:
                return found
            if fields[1] < MIN_BATCH_LENGTH:
                raise InvalidBatch(position + at, f"a batch length of {fields[1]}")
            found.append(fields)  # type: ignore[arg-type]
            at += fields[1] + LOG_OVERHEAD
        if not at:
            raise InvalidBatch(position, f"{len(chunk)} bytes are left of {end - position}")
        step = HEADER_SIZE if at > len(chunk) + CHUNK_BYTES else CHUNK_BYTES
        position += at
    return found


def iter_checked(file: File, start: int, end: int) -> Iterator[tuple[int, Header, bytes, int]]:
    """(position, header, buffer, place in the buffer) of every batch in file[start:end], its CRC verified.

    InvalidBatch at the first that is torn, damaged or no batch.
    """
    position = start
    step = RECOVERY_CHUNK_BYTES
    while position < end:
        chunk = file.read(position, min(step, end - position))
        at = 0
        while len(chunk) - at >= HEADER_SIZE:
            header = parse_header(chunk, at, position + at)
            after = at + header.batch_length + LOG_OVERHEAD
            if position + after > end:
                raise InvalidBatch(position + at, f"a batch of {after - at} bytes, {end - position - at} are left")
            if after > len(chunk):
                break
            if not crc_is_valid(chunk, at, header):
                raise InvalidBatch(position + at, f"the batch at offset {header.base_offset} has a wrong CRC")
            yield position + at, header, chunk, at
            at = after
        if at == 0:
            if len(chunk) < HEADER_SIZE or len(chunk) < min(step, end - position):
                raise InvalidBatch(position, f"{len(chunk)} bytes are no batch")
            step = parse_header(chunk, 0, position).batch_length + LOG_OVERHEAD
        else:
            step = RECOVERY_CHUNK_BYTES
        position += at
