"""The files beside a segment, entry by entry: indexes, producer snapshots, checkpoints.

An entry that cannot be right is shown and told; only where nothing can be made of a file it is told alone. Apache Kafka
keeps the indexes of the segment it writes to at their full size: zeros behind the last entry are its room to grow.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twofold.cli.log.values import Row
from twofold.log.indexes import offset_index, time_index, txn_index
from twofold.log.producers.snapshots import CorruptProducerSnapshot, decode_snapshot
from twofold.log.producers.times import CorruptTimes, decode_times
from twofold.log.recovery.checkpoints import decode_offsets
from twofold.log.recovery.epochs import CorruptCheckpoint, EpochCache
from twofold.records.batch import HEADER_SIZE, MAGIC, MAGIC_POSITION
from twofold.types import ProducerId

# Indexes are read whole; log.index.size.max.bytes is 10 MB unless it was changed.
MOST_INDEX_BYTES = 1 << 30

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_TXN_ENTRY = struct.Struct(">hqqqq")


class Unreadable(Exception):
    """Nothing can be made of the file."""


def damage(position: int, reason: str) -> Row:
    return {"what": "damage", "position": position, "reason": reason}


def read_small(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MOST_INDEX_BYTES:
        raise Unreadable(f"{size} bytes are too many for a file of its kind; at most {MOST_INDEX_BYTES} are read")
    return path.read_bytes()


def _entries(data: bytes, layout: struct.Struct, *, preallocated: bool) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Positions and fields of the whole entries, without the room to grow."""
    end = len(data) - len(data) % layout.size
    if preallocated and end > layout.size and not any(data[end - layout.size : end]):
        # The first entry may be all zeros itself: of the first batch of a segment.
        used = len(data.rstrip(b"\0"))
        end = max(layout.size, -(-used // layout.size) * layout.size) if used else 0
    for position in range(0, end, layout.size):
        yield position, layout.unpack_from(data, position)


def _rest(data: bytes, size: int) -> Iterator[Row]:
    if rest := len(data) % size:
        yield damage(len(data) - rest, f"cut off: {rest} bytes are left, an entry has {size}")


def offset_index_rows(path: Path, base_offset: int) -> Iterator[Row]:
    data = read_small(path)
    segment = path.with_name(path.name.replace(".index", ".log"))
    before = (-1, -1)
    with open(segment if segment.exists() else os.devnull, "rb") as log:
        size = segment.stat().st_size if segment.exists() else None
        for at, (relative, position) in _entries(data, _OFFSET_ENTRY, preallocated=True):
            offset = base_offset + relative
            yield {"what": "entry", "offset": offset, "position": position}
            if relative <= before[0] or position <= before[1]:
                yield damage(at, f"the entry ({offset}, {position}) does not come after the one before it")
            elif size is not None and (wrong := _no_batch(log, size, offset, position)):
                yield damage(at, wrong)
            before = (relative, position)
    yield from _rest(data, offset_index.ENTRY_SIZE)


def _no_batch(log: Any, size: int, offset: int, position: int) -> str | None:
    """Why the segment has no batch for this entry."""
    if position + HEADER_SIZE > size:
        return f"offset {offset} should be at position {position}, the segment has {size} bytes"
    log.seek(position)
    start = log.read(HEADER_SIZE)
    base_offset = struct.unpack_from(">q", start)[0]
    if start[MAGIC_POSITION] != MAGIC or base_offset > offset:
        return f"offset {offset} should be at position {position}, where the segment has no batch that holds it"
    return None


def time_index_rows(path: Path, base_offset: int) -> Iterator[Row]:
    data = read_small(path)
    before = (-2, -1)
    for at, (timestamp, relative) in _entries(data, _TIME_ENTRY, preallocated=True):
        yield {"what": "entry", "timestamp": timestamp, "offset": base_offset + relative}
        if timestamp <= before[0] or relative < max(before[1], 0):
            yield damage(at, f"the entry ({timestamp}, {base_offset + relative}) does not come after the one before it")
        before = (timestamp, relative)
    yield from _rest(data, time_index.ENTRY_SIZE)


def txn_index_rows(path: Path, base_offset: int) -> Iterator[Row]:
    data = read_small(path)
    before = base_offset - 1
    for at, (version, producer_id, first, last, stable) in _entries(data, _TXN_ENTRY, preallocated=False):
        entry = txn_index.AbortedEntry(ProducerId(producer_id), first, last, stable)
        yield {"what": "aborted", **entry._asdict()}
        if version != txn_index.VERSION:
            yield damage(at, f"an entry of the version {version}, {txn_index.VERSION} is known")
        elif last <= before or first > last:
            yield damage(at, f"the transaction {first} to {last} cannot follow one that ended at {before}")
        before = last
    yield from _rest(data, txn_index.ENTRY_SIZE)


def snapshot_rows(path: Path, _: int) -> Iterator[Row]:
    try:
        producers = decode_snapshot(read_small(path))
    except CorruptProducerSnapshot as error:
        raise Unreadable(str(error)) from None
    for entry in producers:
        window = entry.window[-1] if entry.window else None
        yield {
            "what": "producer",
            "producer_id": entry.producer_id,
            "producer_epoch": entry.epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "first_sequence": window.first_sequence if window else -1,
            "last_sequence": entry.last_sequence,
            "last_offset": window.last_offset if window else -1,
            "last_timestamp": entry.last_timestamp,
            "open_since_offset": entry.txn_first_offset if entry.txn_first_offset >= 0 else None,
        }


def producer_time_rows(path: Path, _: int) -> Iterator[Row]:
    try:
        times = decode_times(read_small(path))
    except CorruptTimes as error:
        raise Unreadable(str(error)) from None
    for producer_id, known in times.items():
        is_open = known.txn_first_offset >= 0
        yield {
            "what": "producer",
            "producer_id": producer_id,
            "producer_epoch": known.state.epoch,
            "last_offset": known.state.last_offset,
            "last_timestamp": known.state.last_timestamp,
            "appended_ms": known.appended_ms,
            "open_since_offset": known.txn_first_offset if is_open else None,
            "open_since_ms": known.since_ms if is_open else None,
            "is_exact": known.is_exact if is_open else None,
        }


def leader_epoch_rows(path: Path, _: int) -> Iterator[Row]:
    data = read_small(path)
    try:
        entries = EpochCache.decode(data).entries() if data else []
    except CorruptCheckpoint as error:
        raise Unreadable(str(error)) from None
    for epoch, start_offset in entries:
        yield {"what": "epoch", "epoch": epoch, "start_offset": start_offset}


def checkpoint_rows(path: Path, _: int) -> Iterator[Row]:
    data = read_small(path)
    try:
        offsets = decode_offsets(data) if data else {}  # empty where Apache Kafka has nothing to say
    except CorruptCheckpoint as error:
        raise Unreadable(str(error)) from None
    for (topic, partition), offset in offsets.items():
        yield {"what": "offset", "topic": topic, "partition": partition, "offset": offset}


def line_rows(path: Path, _: int) -> Iterator[Row]:
    """Files of `name=value` and the like: they can be read as they are."""
    try:
        text = read_small(path).decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is no text: {error}") from None
    for line in text.splitlines():
        if line.strip() not in ("", "#"):
            yield {"what": "line", "text": line}
