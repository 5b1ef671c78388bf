"""`%020d.snapshot`: the producers of a partition as of an offset (the name, exclusive).

Header: version 1 (int16), CRC-32C of all that follows it (uint32), count (int32). An entry is 46 bytes. Only the latest
batch of each producer is kept, as Apache Kafka does; the rest of its window is looked up in the log (`windows`).
"""

import struct
from collections.abc import Iterable

from twofold.log.producers.entry import NO_OFFSET, BatchMetadata, ProducerEntry
from twofold.records.crc import crc32c
from twofold.types import NO_SEQUENCE, ProducerEpoch, ProducerId

VERSION = 1
_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_END = 6


class CorruptProducerSnapshot(Exception):
    """A snapshot that was torn or belongs to another version; an older one and the log take its place."""


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    packed = [_ENTRY.pack(*_row(entry)) for entry in entries]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def _row(entry: ProducerEntry) -> tuple[int, ...]:
    sequence, offset, delta = NO_SEQUENCE, NO_OFFSET, 0
    if entry.window:
        sequence, offset, delta, _ = entry.window[-1]
    return (
        entry.producer_id,
        entry.epoch,
        sequence,
        offset,
        delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.txn_first_offset,
    )


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    if len(data) < _HEADER.size:
        raise CorruptProducerSnapshot(f"{len(data)} bytes are fewer than its header has")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptProducerSnapshot(f"it has the version {version}, {VERSION} is known")
    if crc32c(memoryview(data)[_CRC_END:]) != crc:
        raise CorruptProducerSnapshot("its CRC-32C does not match")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptProducerSnapshot(f"it declares {count} producers in {len(data)} bytes")
    return [_entry(*row) for row in _ENTRY.iter_unpack(data[_HEADER.size :])]


def _entry(
    producer_id: ProducerId,
    epoch: ProducerEpoch,
    sequence: int,
    offset: int,
    delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> ProducerEntry:
    window = () if offset == NO_OFFSET else (BatchMetadata(sequence, offset, delta, timestamp),)
    return ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, txn_first_offset, window)
