"""Record batches, right or wrong in any field, built and read without the code under test."""

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cramjam
import crc32c

T0 = 1_600_000_000_000
"""A time long ago: timestamps near the present are masked in comparisons, this one is not."""

HEADER = struct.Struct(">qiibIhiqqqhii")
AFTER_CRC = 21

COMPRESS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: lambda data: bytes(cramjam.gzip.compress(data)),
    2: lambda data: xerial(bytes(cramjam.snappy.compress_raw(data))),
    3: lambda data: lz4_frame(data),
    4: lambda data: bytes(cramjam.zstd.compress(data)),
}


def xerial(block: bytes) -> bytes:
    """One raw snappy block in the frame that Kafka's Java clients write."""
    return b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block


def lz4_frame(data: bytes) -> bytes:
    """Kafka reads only frames whose blocks do not refer to each other."""
    compressor = cramjam.lz4.Compressor(level=4, content_checksum=False, block_linked=False)
    compressor.compress(data)
    return bytes(compressor.finish())


class Record(NamedTuple):
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    timestamp_delta: int = 0
    offset_delta: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def batch(
    records: Sequence[Record] | int = 1,
    *,
    base_offset: int = 0,
    length: int | None = None,
    leader_epoch: int = -1,
    magic: int = 2,
    crc: int | None = None,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = T0,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    count: int | None = None,
    payload: bytes | None = None,
) -> bytes:
    """A batch of the given records (or that many small ones); whatever is not given is what a good client writes."""
    if isinstance(records, int):
        records = [Record(value=b"value-%d" % index) for index in range(records)]
    if payload is None:
        plain = b"".join(_record(record, index) for index, record in enumerate(records))
        payload = COMPRESS.get(attributes & 7, bytes)(plain)
    newest = max((record.timestamp_delta for record in records), default=0)
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        len(records) - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        base_timestamp + newest if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records) if count is None else count,
    )
    tail += payload
    checksum = crc32c.crc32c(tail) if crc is None else crc
    body = struct.pack(">ibI", leader_epoch, magic, checksum) + tail
    return struct.pack(">qi", base_offset, len(body) if length is None else length) + body


def idempotent(producer_id: int, sequence: int, records: int = 1, *, epoch: int = 0, **fields: Any) -> bytes:
    return batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields)


def old_message(magic: int) -> bytes:
    """A message set of one message in format 0 or 1."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", T0) if magic else b"")
    body += struct.pack(">i", 1) + b"k" + struct.pack(">i", 1) + b"v"
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


def describe(data: bytes | None) -> list[dict[str, Any]] | None:
    """What a fetch gave: every whole batch with its header fields and, unless compressed, its record bytes."""
    if data is None:
        return None
    batches = []
    position = 0
    while position + 12 <= len(data):
        base_offset, length = struct.unpack_from(">qi", data, position)
        end = position + 12 + length
        if end > len(data):
            batches.append({"partial": True})
            break
        names = "leader_epoch magic crc attributes last_offset_delta base_timestamp max_timestamp"
        names += " producer_id producer_epoch base_sequence count"
        row: dict[str, Any] = dict(zip(names.split(), HEADER.unpack_from(data, position)[2:], strict=True))
        row["crc"] = "good" if row["crc"] == crc32c.crc32c(data[position + AFTER_CRC : end]) else "bad"
        row["base_offset"] = base_offset
        row["records"] = data[position + HEADER.size : end].hex()
        batches.append(row)
        position = end
    return batches


def _record(record: Record, index: int) -> bytes:
    body = b"\0" + varint(record.timestamp_delta)
    body += varint(index if record.offset_delta is None else record.offset_delta)
    body += _bytes(record.key) + _bytes(record.value) + varint(len(record.headers))
    for name, value in record.headers:
        body += _bytes(name.encode()) + _bytes(value)
    return varint(len(body)) + body


def _bytes(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def varint(value: int) -> bytes:
    """Zigzag and base 128, as record fields use it."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
