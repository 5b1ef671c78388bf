"""Record batches of format v2 as views over bytes: the header, its fields that a leader rewrites, the records inside.

1. Reading a header costs one `struct.unpack_from` and copies nothing; the hot path needs no more than that and the CRC.
2. The CRC covers the bytes from the attributes to the end. Base offset and leader epoch lie before it, so that a leader
   stamps both without touching it.
3. Bytes that lie about themselves raise CorruptMessage (the framing) or InvalidRecord (the content), nothing else.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from twofold.records.compression import MAX_DECOMPRESSED_BYTES, Codec, compress, decompress
from twofold.records.crc import crc32c
from twofold.records.varint import DECODED, ENCODED, NULL_LENGTH, decode_varint, encode_varint
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, ProducerEpoch, ProducerId
from twofold.wire.errors import CorruptMessage, InvalidRecord

Buffer: TypeAlias = bytes | bytearray | memoryview
RecordHeader: TypeAlias = tuple[str, bytes | None]
R = TypeVar("R", bound=tuple[Any, ...])

HEADER_SIZE = 61
LOG_OVERHEAD = 12  # base offset and batch length: what stands before the bytes that batch_length counts
MAGIC = 2
MAGIC_POSITION = 16
SEQUENCE_MAX = 2**31 - 1

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

_HEADER = struct.Struct(">qiibIhiqqqhii")
_unpack_header = _HEADER.unpack_from
_LENGTH_POSITION = 8
_CRC_POSITION = 17
_CRC_START = 21
_ATTRIBUTES_POSITION = 21
_MAX_TIMESTAMP_POSITION = 35
_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_PRODUCER_POSITION = 43
_unpack_producer = struct.Struct(">qhi").unpack_from
_unpack_attributes = _ATTRIBUTES.unpack_from
_SMALLEST_LENGTH = HEADER_SIZE - LOG_OVERHEAD
# The header in two: what the CRC does not cover, which ends with it, and the rest.
_pack_uncovered = struct.Struct(">qiibI").pack
_pack_covered = struct.Struct(">hiqqqhii").pack
_RECORD_START = b"\x00\x00\x00"  # no attributes, both deltas 0


def increment_sequence(sequence: int, by: int) -> int:
    """The sequence number `by` after this one; 2147483647 is followed by 0."""
    return sequence + by if sequence <= SEQUENCE_MAX - by else by - (SEQUENCE_MAX - sequence) - 1


def decrement_sequence(sequence: int, by: int) -> int:
    """The sequence number `by` before this one; 0 is preceded by 2147483647."""
    return sequence - by if sequence >= by else SEQUENCE_MAX - (by - sequence) + 1


class Header(NamedTuple):
    """The fixed part of a batch, in the order of its bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which a header does not need

    @property
    def size(self) -> int:
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> int:
        """Bits 0-2; a value above Codec.ZSTD is possible in bytes that a client sent."""
        return self.attributes & CODEC_MASK

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        return bool(self.attributes & DELETE_HORIZON)


class Record(NamedTuple):
    """One record, its offset and timestamp made absolute.

    Header keys that are not UTF-8 keep their bytes as lone surrogates (PEP 383), and the builder writes them back.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[RecordHeader, ...] = ()


_new_tuple = tuple.__new__


def read_header(buf: Buffer, position: int = 0) -> Header:
    """The header at `position` of a batch that lies in `buf` completely."""
    try:
        header = _new_tuple(Header, _unpack_header(buf, position))
    except struct.error:
        raise _short_header(buf, position) from None
    if header[3] != MAGIC or not _SMALLEST_LENGTH <= header[1] <= len(buf) - position - LOG_OVERHEAD:
        raise _bad_header(header, position, len(buf))
    return header


def iter_headers(buf: Buffer, start: int = 0, end: int | None = None) -> Iterator[tuple[int, Header]]:
    """Positions and headers of the batches in buf[start:end]; stops before one that is cut off."""
    position = start
    end = len(buf) if end is None else min(end, len(buf))
    while end - position >= HEADER_SIZE:
        header = _new_tuple(Header, _unpack_header(buf, position))
        length = header[1]
        if header[3] != MAGIC or length < _SMALLEST_LENGTH:
            raise _bad_header(header, position, end)
        after = position + LOG_OVERHEAD + length
        if after > end:
            return
        yield position, header
        position = after


def _short_header(buf: Buffer, position: int) -> CorruptMessage | InvalidRecord:
    left = max(0, len(buf) - position)
    if position >= 0 and left > MAGIC_POSITION and buf[position + MAGIC_POSITION] in (0, 1):
        return _old_magic(buf[position + MAGIC_POSITION])
    return CorruptMessage(f"{left} bytes at position {position} are too few for a batch header of {HEADER_SIZE}")


def _bad_header(header: Header, position: int, end: int) -> CorruptMessage | InvalidRecord:
    if header.magic in (0, 1):
        return _old_magic(header.magic)
    if header.magic != MAGIC:
        return CorruptMessage(f"invalid magic {header.magic} in the batch at position {position}: 2 is known")
    return CorruptMessage(
        f"the batch at position {position} claims {header.size} bytes: a batch has at least {HEADER_SIZE} "
        f"and {end - position} are there"
    )


def _old_magic(magic: int) -> InvalidRecord:
    return InvalidRecord(f"message format v{magic} is not supported, only record batches of magic 2")


def attributes_of(buf: Buffer) -> int:
    """The attributes of the batch at the start of these bytes; 0 for bytes that are no batch of this format."""
    if len(buf) < HEADER_SIZE or buf[MAGIC_POSITION] != MAGIC:
        return 0
    attributes: int = _unpack_attributes(buf, _ATTRIBUTES_POSITION)[0]
    return attributes


def producer_of(buf: Buffer) -> tuple[ProducerId, ProducerEpoch, int]:
    """The producer id, its epoch and the first sequence number of the batch at the start of these bytes."""
    return _unpack_producer(buf, _PRODUCER_POSITION)


def crc_is_valid(buf: Buffer, position: int, header: Header) -> bool:
    """Whether the stored CRC-32C is that of the batch's bytes."""
    return compute_crc(buf, position, header.batch_length + LOG_OVERHEAD) == header.crc


def compute_crc(buf: Buffer, position: int, size: int) -> int:
    """The CRC-32C that belongs into the batch of `size` bytes at `position`."""
    return crc32c(memoryview(buf)[position + _CRC_START : position + size])


def stamp(
    buf: bytearray | memoryview,
    position: int,
    *,
    base_offset: int,
    leader_epoch: int,
    max_timestamp: int | None = None,
    log_append_time: bool | None = None,
) -> None:
    """Write what the leader decides into the batch at `position`, in place.

    `log_append_time` sets or clears the timestamp type and `max_timestamp` replaces the batch's; None leaves either as
    it is. The CRC is computed anew only when one of these two changed: offset and epoch are not covered by it.
    """
    _OFFSET.pack_into(buf, position, base_offset)
    _EPOCH.pack_into(buf, position + LOG_OVERHEAD, leader_epoch)
    if log_append_time is None and max_timestamp is None:
        return
    header = read_header(buf, position)
    attributes = header.attributes
    if log_append_time is not None:
        attributes = attributes | LOG_APPEND_TIME if log_append_time else attributes & ~LOG_APPEND_TIME
    if max_timestamp is None:
        max_timestamp = header.max_timestamp
    if attributes == header.attributes and max_timestamp == header.max_timestamp:
        return
    _ATTRIBUTES.pack_into(buf, position + _ATTRIBUTES_POSITION, attributes)
    _TIMESTAMP.pack_into(buf, position + _MAX_TIMESTAMP_POSITION, max_timestamp)
    _CRC.pack_into(buf, position + _CRC_POSITION, compute_crc(buf, position, header.size))


def records_section(buf: Buffer, position: int, header: Header, *, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """The records of a batch as one run of uncompressed bytes."""
    section = memoryview(buf)[position + HEADER_SIZE : position + header.size]
    return decompress(header.codec, section, limit=limit)


def iter_records(buf: Buffer, position: int = 0, *, limit: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """The records of the batch at `position`; the caller checks the CRC.

    A record's bytes are checked just before it is handed out: a batch whose third record is damaged yields two.
    """
    header = read_header(buf, position)
    return parse_records(header, records_section(buf, position, header, limit=limit))


def parse_records(header: Header, data: bytes) -> Iterator[Record]:
    """The records in an uncompressed records section."""
    return parse_framed(header, data, Record)


def parse_framed(
    header: Header,
    data: bytes,
    kind: type[R],
    before: tuple[object, ...] = (),
    after: tuple[object, ...] = (),
    position: int = 0,
    size: int | None = None,
) -> Iterator[R]:
    """The same as tuples of another kind, which have more fields before and after those of `Record`; from `position` of
    the data on, up to `size`."""
    # One long loop on purpose: a consumer spends its time here, and a call costs as much as the varint that it decodes.
    # Varints of one and two bytes are looked up in place, longer ones are rare enough for the function.
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.is_log_append_time else None
    decoded = DECODED
    varint = decode_varint
    new_tuple = _new_tuple
    begin = position
    if size is None:
        size = len(data)
    if header.count < 0:
        raise InvalidRecord(f"the batch declares {header.count} records")
    try:
        for _ in range(header.count):
            if (low := data[position]) < 128:
                position += 1
                end = position + decoded[low]
            elif (high := data[position + 1]) < 128:
                position += 2
                end = position + decoded[low - 128 + (high << 7)]
            else:
                length, position = varint(data, position)
                end = position + length
            if end > size:
                raise InvalidRecord(f"a record ends {end - size} bytes after its batch")

            position += 1  # the attributes of a record, none of which are in use
            if (low := data[position]) < 128:
                position += 1
                timestamp = base_timestamp + decoded[low]
            elif (high := data[position + 1]) < 128:
                position += 2
                timestamp = base_timestamp + decoded[low - 128 + (high << 7)]
            else:
                delta, position = varint(data, position, bits=64)
                timestamp = base_timestamp + delta

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
                start = position
                position += length
                key = data[start:position]
            else:
                key = None

            if (low := data[position]) < 128:
                position += 1
                length = decoded[low]
            elif (high := data[position + 1]) < 128:
                position += 2
                length = decoded[low - 128 + (high << 7)]
            else:
                length, position = varint(data, position)
            if length >= 0:
                start = position
                position += length
                value = data[start:position]
            else:
                value = None

            if data[position]:
                headers, position = _parse_headers(data, position)
            else:
                headers = ()
                position += 1
            if position != end:
                raise InvalidRecord(f"the record at offset {offset} has {end - position} bytes more than its fields")
            if append_time is not None:
                timestamp = append_time
            yield new_tuple(kind, before + (offset, timestamp, key, value, headers) + after)  # noqa: RUF005 (slower)
    except IndexError:
        raise InvalidRecord(
            f"{size - begin} bytes of records end before the {header.count} that the batch declares"
        ) from None
    if position != size:
        raise InvalidRecord(f"{size - position} bytes follow the {header.count} records that the batch declares")


def _parse_headers(data: bytes, position: int) -> tuple[tuple[RecordHeader, ...], int]:
    count, position = decode_varint(data, position)
    if not 0 <= count <= (len(data) - position) // 2:
        raise InvalidRecord(f"a record claims {count} headers where {len(data) - position} bytes are left")
    headers: list[RecordHeader] = []
    for _ in range(count):
        if (low := data[position]) < 128:
            length = DECODED[low]
            position += 1
        else:
            length, position = decode_varint(data, position)
        if length < 0:
            raise InvalidRecord(f"a header key has the length {length}")
        key = str(data[position : position + length], "utf-8", "surrogateescape")
        position += length
        if (low := data[position]) < 128:
            length = DECODED[low]
            position += 1
        else:
            length, position = decode_varint(data, position)
        if length < 0:
            headers.append((key, None))
        else:
            headers.append((key, data[position : position + length]))
            position += length
    return tuple(headers), position


class BatchBuilder:
    """Collects records and builds one batch of them.

    The producer fields only enter the header, so they may be set until `build`: a producer learns its sequence number
    when it sends, not when it collects.
    """

    __slots__ = (
        "base_offset",
        "base_sequence",
        "codec",
        "control",
        "count",
        "leader_epoch",
        "level",
        "log_append_time",
        "producer_epoch",
        "producer_id",
        "transactional",
        "_base_timestamp",
        "_data",
        "_last_delta",
        "_max_timestamp",
    )

    def __init__(
        self,
        codec: Codec = Codec.NONE,
        *,
        base_offset: int = 0,
        leader_epoch: int = -1,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
        log_append_time: bool = False,
        level: int | None = None,
    ) -> None:
        self.codec = codec
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.transactional = transactional
        self.control = control
        self.log_append_time = log_append_time
        self.level = level
        self.count = 0
        self._data = bytearray()
        self._last_delta = -1
        self._base_timestamp = NO_TIMESTAMP
        self._max_timestamp = NO_TIMESTAMP

    @property
    def size_estimate(self) -> int:
        """The size of the batch if nothing in it could be compressed."""
        return HEADER_SIZE + len(self._data)

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: Iterable[RecordHeader] = (),
        offset_delta: int | None = None,
    ) -> int:
        """Append a record; returns `size_estimate`. `offset_delta` defaults to the one after the last record's and may
        leave gaps.

        ValueError, and nothing is added, where the record does not fit: an offset out of order, or a timestamp further
        from the first one than an int64 reaches.
        """
        last = self._last_delta
        if offset_delta is None:
            offset_delta = last + 1
        elif offset_delta <= last:
            raise ValueError(f"offset delta {offset_delta} does not follow {last}: offsets in a batch increase")
        small = ENCODED
        if self.count:
            delta = timestamp - self._base_timestamp
            time = small[delta] if 0 <= delta < 8192 else _encode_time(self._base_timestamp, timestamp)
            if timestamp > self._max_timestamp:
                self._max_timestamp = timestamp
        else:
            self._base_timestamp = self._max_timestamp = timestamp
            time = small[0]
        if key is None:
            key_length = NULL_LENGTH
            key = b""
        else:
            size = len(key)
            key_length = small[size] if size < 8192 else encode_varint(size)
        if value is None:
            value_length = NULL_LENGTH
            value = b""
        else:
            size = len(value)
            value_length = small[size] if size < 8192 else encode_varint(size)
        body = b"".join(
            (
                b"\x00",
                time,
                small[offset_delta] if offset_delta < 8192 else encode_varint(offset_delta),
                key_length,
                key,
                value_length,
                value,
                _encode_headers(headers) if headers else b"\x00",
            )
        )
        size = len(body)
        data = self._data
        data += small[size] if size < 8192 else encode_varint(size)
        data += body
        self._last_delta = offset_delta
        self.count += 1
        return HEADER_SIZE + len(data)

    def build(self) -> bytes:
        """The batch; ValueError without records."""
        if not self.count:
            raise ValueError("a batch needs at least one record")
        attributes = self.codec | (self.log_append_time and LOG_APPEND_TIME)
        attributes |= (self.transactional and TRANSACTIONAL) | (self.control and CONTROL)
        section = self._data if self.codec == Codec.NONE else compress(self.codec, self._data, level=self.level)
        return assemble(
            Header(
                self.base_offset,
                0,
                self.leader_epoch,
                MAGIC,
                0,
                attributes,
                self._last_delta,
                self._base_timestamp,
                self._max_timestamp,
                self.producer_id,  # type: ignore[arg-type]  # plain numbers of a client: to wrap costs a call per batch
                self.producer_epoch,  # type: ignore[arg-type]
                self.base_sequence,
                self.count,
            ),
            section,
        )


def assemble(header: Header, section: Buffer) -> bytes:
    """A batch of this header and (compressed) records section; length and CRC are filled in."""
    out = bytearray(HEADER_SIZE)
    out += section
    seal(out, header)
    return bytes(out)


def seal(batch: bytearray, header: Header) -> None:
    """Write the header in front of the records that `batch` has after it; length and CRC are filled in."""
    _HEADER.pack_into(batch, 0, *header)
    _LENGTH.pack_into(batch, _LENGTH_POSITION, len(batch) - LOG_OVERHEAD)
    _CRC.pack_into(batch, _CRC_POSITION, compute_crc(batch, 0, len(batch)))


def single_record_batch(
    key: bytes, value: bytes | None, timestamp: int, base_offset: int, leader_epoch: int, log_append_time: bool
) -> tuple[Header, bytes]:
    """The batch that a builder makes of one record without headers, and its header. Coordinators write very many."""
    small = ENCODED
    size = len(key)
    key_length = small[size] if size < 8192 else encode_varint(size)
    if value is None:
        body = b"".join((_RECORD_START, key_length, key, NULL_LENGTH, b"\x00"))
    else:
        size = len(value)
        value_length = small[size] if size < 8192 else encode_varint(size)
        body = b"".join((_RECORD_START, key_length, key, value_length, value, b"\x00"))
    size = len(body)
    attributes = LOG_APPEND_TIME if log_append_time else 0
    covered = b"".join(
        (
            _pack_covered(attributes, 0, timestamp, timestamp, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, 1),
            small[size] if size < 8192 else encode_varint(size),
            body,
        )
    )
    crc = crc32c(covered)
    length = len(covered) + _CRC_START - LOG_OVERHEAD
    header = _new_tuple(
        Header,
        (
            base_offset, length, leader_epoch, MAGIC, crc, attributes, 0, timestamp, timestamp,
            NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, 1,
        ),
    )  # fmt: skip
    return header, _pack_uncovered(base_offset, length, leader_epoch, MAGIC, crc) + covered


def _encode_time(base_timestamp: int, timestamp: int) -> bytes:
    delta = timestamp - base_timestamp
    if not -(2**63) <= delta < 2**63:
        raise ValueError(
            f"the timestamps {base_timestamp} and {timestamp} are further apart than an int64 can say: "
            "they do not fit into one batch"
        )
    return encode_varint(delta)


def _encode_headers(headers: Iterable[RecordHeader]) -> bytes:
    parts: list[bytes] = []
    count = 0
    for key, value in headers:
        raw = key.encode("utf-8", "surrogateescape")
        parts += (encode_varint(len(raw)), raw)
        parts += (NULL_LENGTH,) if value is None else (encode_varint(len(value)), value)
        count += 1
    return encode_varint(count) + b"".join(parts)
