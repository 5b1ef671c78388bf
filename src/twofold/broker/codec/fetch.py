"""Fetch responses by hand: the record bytes go from the log to the socket as they are, between pieces of header.

`tests/broker/codec` holds the result against `twofold.wire.codec` in every version.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from twofold.broker.codec.produce import Endpoint
from twofold.broker.network.context import Buffer, Frame
from twofold.wire.compile import uvarint

FLEXIBLE = 12
TOPIC_IDS = 13
# Below this a copy is cheaper than one more piece to hand to the kernel.
INLINE_BYTES = 1024

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_LEADER = struct.Struct(">ii")
_EPOCH_END = struct.Struct(">iq")
_ROW_4 = struct.Struct(">ihqq")
_ROW_5 = struct.Struct(">ihqqq")
_TOP = struct.Struct(">ihi")


class FetchRow(NamedTuple):
    """What one partition is answered with."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = ()
    records: Buffer = b""
    diverging_epoch: tuple[int, int] | None = None  # epoch and end offset
    current_leader: tuple[int, int] | None = None  # id and epoch


def encode_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[str | UUID | None, Sequence[FetchRow]]],
    *,
    error_code: int = 0,
    session_id: int = 0,
    endpoints: Iterable[Endpoint] = (),
) -> Frame:
    """The whole frame as pieces. `endpoints` are those of the current leaders named in rows (version 16 and later)."""
    flexible = version >= FLEXIBLE
    out = bytearray(8)
    if flexible:
        out.append(0)
    out += _TOP.pack(0, error_code, session_id) if version >= 7 else bytes(4)  # the first int32 is the throttle time
    parts: list[Buffer] = []
    out += uvarint(len(topics) + 1) if flexible else _INT32.pack(len(topics))
    for key, rows in topics:
        _put_topic(out, version, key)
        if flexible:
            out += uvarint(len(rows) + 1)
            for row in rows:
                out = _put_flexible(parts, out, version, row)
            out.append(0)
        else:
            out += _INT32.pack(len(rows))
            for row in rows:
                out = _put_plain(parts, out, version, row)
    if flexible:
        _put_endpoints(out, list(endpoints) if version >= 16 else [])
    parts.append(out)
    first = parts[0]
    assert isinstance(first, bytearray)
    _LEADER.pack_into(first, 0, sum(map(len, parts)) - 4, correlation_id)
    return Frame(parts)


def _put_topic(out: bytearray, version: int, key: str | UUID | None) -> None:
    if version >= TOPIC_IDS:
        out += key.bytes if isinstance(key, UUID) else bytes(16)
        return
    raw = str(key).encode()
    out += uvarint(len(raw) + 1) if version >= FLEXIBLE else _INT16.pack(len(raw))
    out += raw


def _put_plain(parts: list[Buffer], out: bytearray, version: int, row: FetchRow) -> bytearray:
    out += _ROW_5.pack(*row[:5]) if version >= 5 else _ROW_4.pack(*row[:4])
    if row.aborted is None:
        out += b"\xff\xff\xff\xff"
    else:
        out += _INT32.pack(len(row.aborted))
        if row.aborted:
            out += struct.pack(">" + "qq" * len(row.aborted), *chain.from_iterable(row.aborted))
    if version >= 11:
        out += b"\xff\xff\xff\xff"  # no preferred read replica
    out += _INT32.pack(len(row.records))
    return _put_records(parts, out, row.records)


def _put_flexible(parts: list[Buffer], out: bytearray, version: int, row: FetchRow) -> bytearray:
    out += _ROW_5.pack(*row[:5])
    aborted = row.aborted
    if aborted is None:
        out.append(0)
    elif not aborted:
        out.append(1)
    else:
        out += uvarint(len(aborted) + 1)
        # Each with no tagged fields: a byte that is 0.
        out += struct.pack(">" + "qqx" * len(aborted), *chain.from_iterable(aborted))
    out += b"\xff\xff\xff\xff"  # no preferred read replica
    out += uvarint(len(row.records) + 1)
    out = _put_records(parts, out, row.records)
    if row.diverging_epoch is None and row.current_leader is None:
        out.append(0)
        return out
    tags = bytearray()
    if row.diverging_epoch is not None:
        tags += b"\x00\x0d" + _EPOCH_END.pack(*row.diverging_epoch) + b"\x00"
    if row.current_leader is not None:
        tags += b"\x01\x09" + _LEADER.pack(*row.current_leader) + b"\x00"
    out.append((row.diverging_epoch is not None) + (row.current_leader is not None))
    out += tags
    return out


def _put_records(parts: list[Buffer], out: bytearray, records: Buffer) -> bytearray:
    if len(records) < INLINE_BYTES:
        out += records
        return out
    parts.append(out)
    parts.append(records)
    return bytearray()


def _put_endpoints(out: bytearray, endpoints: list[Endpoint]) -> None:
    if not endpoints:
        out.append(0)
        return
    body = bytearray(uvarint(len(endpoints) + 1))
    for node_id, host, port, rack in endpoints:
        name = host.encode()
        body += _INT32.pack(node_id) + uvarint(len(name) + 1) + name + _INT32.pack(port)
        if rack is None:
            body += b"\x00\x00"
        else:
            name = rack.encode()
            body += uvarint(len(name) + 1) + name + b"\x00"
    out += b"\x01\x00" + uvarint(len(body)) + body
