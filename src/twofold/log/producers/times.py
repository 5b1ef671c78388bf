"""`producer-times`: when the producers of a partition wrote, by the clock of the broker that appended it.

A batch says when its client made it, and a `.snapshot` keeps that time, because its form is Apache Kafka's. The age of
an open transaction and the expiry of a producer go by the time of the append, so that is kept here, in a file of our
own beside the snapshots. Apache Kafka passes over it.

1. An entry names the state of its producer (epoch, last batch, open transaction). It counts only for a producer that is
   found in that very state. So the file never contradicts the log, even if a broker of another version or Apache Kafka
   wrote to the log since.
2. Losing the file loses no record and forgets no producer early: what is not known counts from the opening. It is
   therefore written without a sync, every minute where something changed and at a clean stop. A file that a power cut
   tore is recognized by its CRC.
3. The file is removed when the log is cut: the same batch may be appended again, at another time.

Header: version 1 (int16), CRC-32C of all that follows it (uint32), count (int32). An entry is 51 bytes.
"""

import contextlib
import logging
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from twofold.log.producers.entry import NO_OFFSET, ProducerEntry
from twofold.records.crc import crc32c
from twofold.runtime.api import Disk
from twofold.runtime.files import TEMPORARY_SUFFIX, read_file
from twofold.types import NO_PRODUCER_ID, NO_TIMESTAMP, ProducerId

log = logging.getLogger("twofold.log")

FILE = "producer-times"
VERSION = 1
_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhqqqqq?")
_CRC_END = 6


class CorruptTimes(Exception):
    """The file was torn, or belongs to another version: what it said is not known."""


class Opened(NamedTuple):
    """An open transaction: its producer, and since when it is open."""

    producer_id: ProducerId
    since_ms: int = NO_TIMESTAMP  # unknown only while a log is being opened or cut
    is_exact: bool = False  # else it began at `since_ms` or earlier


class ProducerState(NamedTuple):
    """The fields by which the entry of a producer is recognized."""

    epoch: int
    last_offset: int
    last_timestamp: int
    txn_first_offset: int


class ProducerTime(NamedTuple):
    state: ProducerState
    appended_ms: int
    since_ms: int  # of the open transaction
    is_exact: bool

    @property
    def txn_first_offset(self) -> int:
        return self.state.txn_first_offset


def state_of(entry: ProducerEntry) -> ProducerState:
    last_offset = entry.window[-1].last_offset if entry.window else NO_OFFSET
    return ProducerState(entry.epoch, last_offset, entry.last_timestamp, entry.txn_first_offset)


def times_of(entries: Iterable[ProducerEntry], opened: Mapping[int, Opened]) -> dict[int, ProducerTime]:
    """By producer id; `opened` is by first offset."""
    nothing = Opened(NO_PRODUCER_ID)
    return {
        entry.producer_id: ProducerTime(
            state_of(entry), entry.appended_ms, *opened.get(entry.txn_first_offset, nothing)[1:]
        )
        for entry in entries
    }


def encode_times(times: Mapping[int, ProducerTime]) -> bytes:
    packed = [
        _ENTRY.pack(producer_id, *state, appended_ms, since_ms, is_exact)
        for producer_id, (state, appended_ms, since_ms, is_exact) in times.items()
    ]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def decode_times(data: bytes) -> dict[int, ProducerTime]:
    if len(data) < _HEADER.size:
        raise CorruptTimes(f"{len(data)} bytes are fewer than its header has")
    version, crc, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CorruptTimes(f"it has the version {version}, {VERSION} is known")
    if crc32c(memoryview(data)[_CRC_END:]) != crc:
        raise CorruptTimes("its CRC-32C does not match")
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptTimes(f"it declares {count} producers in {len(data)} bytes")
    return {
        producer_id: ProducerTime(ProducerState(*state), appended_ms, since_ms, is_exact)
        for producer_id, *state, appended_ms, since_ms, is_exact in _ENTRY.iter_unpack(data[_HEADER.size :])
    }


def read_times(disk: Disk, directory: str) -> dict[int, ProducerTime]:
    """Nothing where the file is missing or cannot be read."""
    path = f"{directory}/{FILE}"
    try:
        return decode_times(read_file(disk, path))
    except FileNotFoundError:
        return {}
    except (CorruptTimes, OSError) as error:
        log.warning("%s: %s; when its producers wrote is not known, they count from now on", path, error)
        return {}


def remove_times(disk: Disk, directory: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        disk.remove(f"{directory}/{FILE}")


class TimesToKeep(NamedTuple):
    """What is to be written for a partition; may be written by any thread."""

    directory: str
    entries: list[ProducerEntry]
    opened: dict[int, Opened]

    def write(self, disk: Disk) -> None:
        """Without a sync. Does nothing where the partition was deleted meanwhile."""
        path = f"{self.directory}/{FILE}"
        with contextlib.suppress(FileNotFoundError):
            file = disk.open(path + TEMPORARY_SUFFIX, create=True)
            try:
                file.truncate(0)
                file.write(0, encode_times(times_of(self.entries, self.opened)))
            finally:
                file.close()
            disk.rename(path + TEMPORARY_SUFFIX, path)
