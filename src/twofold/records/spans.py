"""Records by their places: keys and bounds, without unpacking values, headers and times.

`batch.parse_records` reads the same bytes for callers that want the records. Half of what a pass of compaction costs is
spent here. Measured, median of seven alternating runs: 0.67 us per record, with a function per varint 1.69, by way of
`parse_records`, which does not know the places, 0.84. `test_spans_are_the_records_that_the_parser_finds` compares them.
"""

from collections.abc import Iterator
from typing import NamedTuple

from twofold.records.batch import Header
from twofold.records.varint import DECODED, decode_varint
from twofold.wire.errors import InvalidRecord

_NO_VALUE = 1  # the varint of -1


class Span(NamedTuple):
    """A record in a section of uncompressed records: where it stands, its key, and whether it has a value."""

    start: int
    time_at: int  # where its time delta stands
    end: int
    offset: int
    key: bytes | None
    is_tombstone: bool


def iter_spans(header: Header, section: bytes) -> Iterator[Span]:
    """The records of a batch, of which `section` has the uncompressed bytes. One loop, short varints read in place."""
    data, base_offset = section, header.base_offset
    decoded, varint, new_tuple = DECODED, decode_varint, tuple.__new__
    size = len(data)
    position = 0
    try:
        for _ in range(header.count):
            start = position
            if (low := data[position]) < 128:
                position += 1
                end = position + decoded[low]
            elif (high := data[position + 1]) < 128:
                position += 2
                end = position + decoded[low - 128 + (high << 7)]
            else:
                length, position = varint(data, position)
                end = position + length
            if not position < end <= size:
                raise InvalidRecord(f"a record claims to end at byte {end} of {size}")
            time_at = position = position + 1
            while data[position] >= 128:
                position += 1
            position += 1
            if (low := data[position]) < 128:
                position += 1
                offset = base_offset + decoded[low]
            elif (high := data[position + 1]) < 128:
                position += 2
                offset = base_offset + decoded[low - 128 + (high << 7)]
            else:
                delta, position = varint(data, position)
                offset = base_offset + delta
            if (low := data[position]) < 128:
                position += 1
                length = decoded[low]
            else:
                length, position = varint(data, position)
            if length >= 0:
                key = data[position : position + length]
                position += length
            else:
                key = None
            if position >= end:
                raise InvalidRecord(f"the record at offset {offset} ends inside its key")
            yield new_tuple(Span, (start, time_at, end, offset, key, data[position] == _NO_VALUE))
            position = end
    except IndexError:
        raise InvalidRecord(f"{size} bytes of records end before the {header.count} that the batch declares") from None
    if position != size:
        raise InvalidRecord(f"{size - position} bytes follow the {header.count} records that the batch declares")
