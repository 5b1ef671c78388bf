"""Produce by hand: requests read without copying records, responses written without a tree of objects.

kio's reader copies the records out of the frame, which for a request of 1 MB costs more than everything else that is
done with it. Here they are views into the frame. A test compares both functions with `twofold.wire.codec`.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from twofold.broker.network.context import Buffer, Frame
from twofold.wire.codec import Undecodable
from twofold.wire.compile import uvarint
from twofold.wire.errors import KafkaError

FLEXIBLE = 9
TOPIC_IDS = 13

# A name, or the 16 bytes of a topic id from version 13 on.
TopicKey: TypeAlias = str | bytes
# Partition and records. A KafkaError stands for records that were found bad on the way.
Partitions: TypeAlias = list[tuple[int, Buffer | KafkaError | None]]
Topics: TypeAlias = list[tuple[TopicKey, Partitions]]

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_ROW = struct.Struct(">ihqqq")
_ROW_BEFORE_5 = struct.Struct(">ihqq")
_LEADER = struct.Struct(">ii")


class ProduceRequest(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Topics


class ProduceRow(NamedTuple):
    """What became of one partition."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    current_leader: tuple[int, int] | None = None  # id and epoch


class Endpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


def decode_request(frame: Buffer, version: int, position: int) -> ProduceRequest:
    try:
        if version >= FLEXIBLE:
            return _decode_flexible(frame, version, position)
        return _decode_plain(frame, position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Undecodable(f"{type(error).__name__}: {error}") from None


def _decode_plain(frame: Buffer, position: int) -> ProduceRequest:
    view = memoryview(frame)
    transactional_id, position = _string(frame, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    (topic_count,) = _INT32.unpack_from(frame, position + 6)
    position += 10
    topics: Topics = []
    for _ in range(_count(topic_count)):
        name, position = _string(frame, position)
        if name is None:
            raise Undecodable("a topic without a name")
        (partition_count,) = _INT32.unpack_from(frame, position)
        position += 4
        partitions: Partitions = []
        for _ in range(_count(partition_count)):
            index, size = _LEADER.unpack_from(frame, position)
            position += 8
            if size < 0:
                partitions.append((index, None))
                continue
            partitions.append((index, view[position : position + size]))
            position += size
            if position > len(frame):
                raise Undecodable(f"{size} bytes of records in a request of {len(frame)}")
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _decode_flexible(frame: Buffer, version: int, position: int) -> ProduceRequest:
    view = memoryview(frame)
    transactional_id, position = _compact_string(frame, position)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    topic_count, position = _uvarint(frame, position + 6)
    topics: Topics = []
    for _ in range(_count(topic_count - 1)):
        key: TopicKey | None
        if version >= TOPIC_IDS:
            key = bytes(frame[position : position + 16])
            position += 16
        else:
            key, position = _compact_string(frame, position)
            if key is None:
                raise Undecodable("a topic without a name")
        partition_count, position = _uvarint(frame, position)
        partitions: Partitions = []
        for _ in range(_count(partition_count - 1)):
            (index,) = _INT32.unpack_from(frame, position)
            size, position = _uvarint(frame, position + 4)
            if size:
                end = position + size - 1
                if end > len(frame):
                    raise Undecodable(f"{size - 1} bytes of records in a request of {len(frame)}")
                partitions.append((index, view[position:end]))
                position = end
            else:
                partitions.append((index, None))
            position = _skip_tags(frame, position)
        position = _skip_tags(frame, position)
        topics.append((key, partitions))
    _skip_tags(frame, position)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _count(count: int) -> int:
    if count < 0:
        raise Undecodable("a null array where an array must be")
    return count


def _uvarint(frame: Buffer, position: int) -> tuple[int, int]:
    byte = frame[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    shift = 7
    while True:
        position += 1
        byte = frame[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise Undecodable("a varint of more than 32 bits")
    if value > 0xFFFFFFFF:
        raise Undecodable("a varint of more than 32 bits")
    return value, position + 1


def _string(frame: Buffer, position: int) -> tuple[str | None, int]:
    (length,) = _INT16.unpack_from(frame, position)
    position += 2
    if length < 0:
        return None, position
    return _text(frame, position, position + length)


def _compact_string(frame: Buffer, position: int) -> tuple[str | None, int]:
    length, position = _uvarint(frame, position)
    if not length:
        return None, position
    return _text(frame, position, position + length - 1)


def _text(frame: Buffer, position: int, end: int) -> tuple[str, int]:
    if end > len(frame):
        raise Undecodable(f"a string of {end - position} bytes in a request of {len(frame)}")
    return str(frame[position:end], "utf-8"), end


def _skip_tags(frame: Buffer, position: int) -> int:
    count = frame[position]
    position += 1
    if not count:
        return position
    count, position = _uvarint(frame, position - 1)
    for _ in range(count):
        _, position = _uvarint(frame, position)
        size, position = _uvarint(frame, position)
        position += size
        if position > len(frame):
            raise Undecodable("a tagged field reaches beyond its request")
    return position


def encode_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[TopicKey, Sequence[ProduceRow]]],
    endpoints: Iterable[Endpoint] = (),
) -> Frame:
    """The whole frame; `endpoints` are those of the current leaders named in rows (version 10 and later)."""
    out = bytearray(8)
    if version >= FLEXIBLE:
        out.append(0)
        _put_flexible(out, version, topics, list(endpoints))
    else:
        _put_plain(out, version, topics)
    _LEADER.pack_into(out, 0, len(out) - 4, correlation_id)
    return Frame([out])


def _put_flexible(
    out: bytearray, version: int, topics: Sequence[tuple[TopicKey, Sequence[ProduceRow]]], endpoints: list[Endpoint]
) -> None:
    out += uvarint(len(topics) + 1)
    for key, rows in topics:
        if isinstance(key, str):
            raw = key.encode()
            out += uvarint(len(raw) + 1)
            out += raw
        else:
            out += key
        out += uvarint(len(rows) + 1)
        for row in rows:
            out += _ROW.pack(*row[:5])
            if row.error_code:
                _put_error(out, version, row)
            else:
                out += b"\x01\x00\x00"  # no record errors, no message, no tagged fields
        out.append(0)
    out += bytes(4)  # throttle time
    if version >= 10 and endpoints:
        _put_endpoints(out, endpoints)
    else:
        out.append(0)


def _put_error(out: bytearray, version: int, row: ProduceRow) -> None:
    out += uvarint(len(row.record_errors) + 1)
    for index, message in row.record_errors:
        out += _INT32.pack(index)
        _put_compact_string(out, message)
        out.append(0)
    _put_compact_string(out, row.error_message)
    if version >= 10 and row.current_leader is not None:
        out += b"\x01\x00\x09"  # one tagged field: tag 0, 9 bytes
        out += _LEADER.pack(*row.current_leader)
    out.append(0)


def _put_endpoints(out: bytearray, endpoints: list[Endpoint]) -> None:
    body = bytearray(uvarint(len(endpoints) + 1))
    for node_id, host, port, rack in endpoints:
        body += _INT32.pack(node_id)
        _put_compact_string(body, host)
        body += _INT32.pack(port)
        _put_compact_string(body, rack)
        body.append(0)
    out += b"\x01\x00"
    out += uvarint(len(body))
    out += body


def _put_compact_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    raw = text.encode()
    out += uvarint(len(raw) + 1)
    out += raw


def _put_plain(out: bytearray, version: int, topics: Sequence[tuple[TopicKey, Sequence[ProduceRow]]]) -> None:
    out += _INT32.pack(len(topics))
    for key, rows in topics:
        assert isinstance(key, str)
        _put_string(out, key)
        out += _INT32.pack(len(rows))
        for row in rows:
            out += _ROW.pack(*row[:5]) if version >= 5 else _ROW_BEFORE_5.pack(*row[:4])
            if version >= 8:
                out += _INT32.pack(len(row.record_errors))
                for index, message in row.record_errors:
                    out += _INT32.pack(index)
                    _put_string(out, message)
                _put_string(out, row.error_message)
    out += bytes(4)  # throttle time


def _put_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += b"\xff\xff"
        return
    raw = text.encode()
    out += _INT16.pack(len(raw))
    out += raw
