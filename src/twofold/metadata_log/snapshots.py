"""Snapshots of the metadata log: `%020d-%010d.checkpoint`, Kafka's format byte for byte.

A snapshot holds the state that all records below its end offset lead to, so that a start need not replay them.
The file is a little log of its own: offsets from 0, every batch with the epoch of the snapshot.

1. The first batch is a control batch with the header and, from kraft.version 1 on, the version and the voters; the last
   one is a control batch with the footer. A file without its footer was never finished and counts for nothing.
2. A snapshot appears under its name whole and synced, or not at all; until then it is a `.checkpoint.part`.
3. The one at offset 0 of epoch 0 is what `kafka-storage.sh format` leaves: it names the voters of an empty log. The
   file `bootstrap.checkpoint` beside the logs has the same form and holds the first records of an empty log.
"""

import contextlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from twofold.metadata_log.control import (
    KRAFT_VERSION,
    STATIC_VOTERS,
    Voter,
    add_voters,
    decode_kraft_version,
    decode_snapshot_header,
    decode_voters,
    encode_snapshot_footer,
    encode_snapshot_header,
)
from twofold.metadata_log.errors import CorruptSnapshot
from twofold.records.batch import BatchBuilder, Header, crc_is_valid, iter_headers, iter_records
from twofold.records.control import ControlType, control_key, parse_control_key
from twofold.runtime.api import Disk
from twofold.runtime.files import read_file
from twofold.wire.errors import CorruptMessage, InvalidRecord

SUFFIX = ".checkpoint"
PART_SUFFIX = ".part"
BOOTSTRAP_FILE = "bootstrap.checkpoint"
MAX_BATCH_BYTES = 1024 * 1024
HEADER_BYTES = 64 * 1024  # more than the first batch takes, even with many voters
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class SnapshotId(NamedTuple):
    """What a snapshot stands for: all below the end offset, the last of it written in this epoch."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}{SUFFIX}"


BOOTSTRAP_ID = SnapshotId(0, 0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as it was read; `values` are framed metadata records."""

    last_contained_timestamp_ms: int
    kraft_version: int
    voters: tuple[Voter, ...] | None
    values: list[bytes]


def list_snapshots(disk: Disk, directory: str) -> list[SnapshotId]:
    """The snapshots in a directory, oldest first; that of an empty log is not one of them."""
    if not disk.is_dir(directory):
        return []
    found = (_NAME.fullmatch(name) for name in disk.list(directory))
    ids = sorted(SnapshotId(int(match[1]), int(match[2])) for match in found if match)
    return [one for one in ids if one != BOOTSTRAP_ID]


def read_snapshot(disk: Disk, path: str) -> Snapshot:
    """Read and check a whole snapshot; FileNotFoundError where there is none."""
    data = read_file(disk, path)
    try:
        return decode_snapshot(data)
    except (CorruptMessage, InvalidRecord) as error:
        raise CorruptSnapshot(f"{path} is damaged ({error}); restore it from a copy") from error


def decode_snapshot(data: bytes) -> Snapshot:
    """CorruptMessage or InvalidRecord where it is not whole."""
    timestamp_ms, kraft_version, voters = -1, STATIC_VOTERS, None
    values: list[bytes] = []
    kinds: list[ControlType | None] = []
    for position, header in _checked(data):
        if not header.is_control:
            if kinds[:1] != [ControlType.SNAPSHOT_HEADER]:
                raise InvalidRecord("it does not begin with a snapshot header")
            values += (record.value or b"" for record in iter_records(data, position))
            continue
        for record in iter_records(data, position):
            kind = parse_control_key(record.key)
            kinds.append(kind)
            if kind is ControlType.SNAPSHOT_HEADER:
                timestamp_ms = decode_snapshot_header(record.value)
            elif kind is ControlType.KRAFT_VERSION:
                kraft_version = decode_kraft_version(record.value)
            elif kind is ControlType.KRAFT_VOTERS:
                voters = decode_voters(record.value)
    if kinds[:1] != [ControlType.SNAPSHOT_HEADER] or kinds[-1] is not ControlType.SNAPSHOT_FOOTER:
        raise InvalidRecord("it has no header, or no footer: it was never finished")
    return Snapshot(timestamp_ms, kraft_version, voters, values)


def _checked(data: bytes) -> Iterator[tuple[int, Header]]:
    """The batches, in an unbroken row to the last byte."""
    end = offset = 0
    for position, header in iter_headers(data):
        if header.base_offset != offset or not crc_is_valid(data, position, header):
            raise InvalidRecord(f"the batch at byte {position} is not what was written")
        yield position, header
        end, offset = position + header.size, header.next_offset
    if end != len(data):
        raise InvalidRecord(f"{len(data) - end} bytes at its end are no batch")


def encode_snapshot(
    values: Iterable[bytes],
    *,
    epoch: int,
    last_contained_timestamp_ms: int,
    timestamp_ms: int,
    voters: Sequence[Voter] | None = None,
    kraft_version: int = KRAFT_VERSION,
) -> Iterator[bytes]:
    """The batches of a snapshot. `voters` None writes none, which is how kraft.version 0 has it."""
    batch = BatchBuilder(control=True, leader_epoch=epoch)
    batch.add(
        control_key(ControlType.SNAPSHOT_HEADER), encode_snapshot_header(last_contained_timestamp_ms), timestamp_ms
    )
    if voters is not None:
        add_voters(batch, kraft_version, voters, timestamp_ms)
    yield batch.build()
    offset = batch.count
    batch = BatchBuilder(base_offset=offset, leader_epoch=epoch)
    for value in values:
        if batch.count and batch.size_estimate + len(value) > MAX_BATCH_BYTES:
            yield batch.build()
            offset += batch.count
            batch = BatchBuilder(base_offset=offset, leader_epoch=epoch)
        batch.add(None, value, timestamp_ms)
    if batch.count:
        yield batch.build()
        offset += batch.count
    footer = BatchBuilder(control=True, base_offset=offset, leader_epoch=epoch)
    footer.add(control_key(ControlType.SNAPSHOT_FOOTER), encode_snapshot_footer(), timestamp_ms)
    yield footer.build()


def write_snapshot(disk: Disk, path: str, batches: Iterable[bytes]) -> int:
    """Put a snapshot in place, durably, batch by batch; returns its size. Runs in a thread."""
    part = path + PART_SUFFIX
    try:
        size = _write_part(disk, part, batches)
        disk.rename(part, path)
    except Exception:
        with contextlib.suppress(OSError):
            disk.remove(part)
        raise
    disk.sync_dir(posixpath.dirname(path))
    return size


def _write_part(disk: Disk, path: str, batches: Iterable[bytes]) -> int:
    file = disk.open(path, create=True)
    size = 0
    try:
        file.truncate(0)
        for batch in batches:
            file.write(size, batch)
            size += len(batch)
        file.sync()
    finally:
        file.close()
    return size


def read_snapshot_time(disk: Disk, path: str) -> int:
    """The time of the last record that a snapshot stands for, from its header alone; CorruptSnapshot without one."""
    file = disk.open(path)
    try:
        data = file.read(0, HEADER_BYTES)
    finally:
        file.close()
    try:
        for position, header in iter_headers(data):
            if header.is_control and crc_is_valid(data, position, header):
                for record in iter_records(data, position):
                    if parse_control_key(record.key) is ControlType.SNAPSHOT_HEADER:
                        return decode_snapshot_header(record.value)
            break
    except (CorruptMessage, InvalidRecord) as error:
        raise CorruptSnapshot(f"{path} is damaged ({error}); restore it from a copy") from error
    raise CorruptSnapshot(f"{path} is damaged (it does not begin with a snapshot header); restore it from a copy")
