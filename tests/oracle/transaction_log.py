"""Records of `__transaction_state`, written into the log of a server that is down: a short way to rare states.

Built from the format alone, without the code under test.
"""

import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from oracle.batches import Record, batch, describe

TOPIC = "__transaction_state"
STATUS = {"Empty": 0, "Ongoing": 1, "PrepareCommit": 2, "PrepareAbort": 3, "CompleteCommit": 4, "CompleteAbort": 5}
DAY_MS = 86_400_000


class Entry(NamedTuple):
    """What the log says of an id; times are those before now."""

    producer_id: int
    epoch: int = 0
    state: str = "Empty"
    partitions: Mapping[str, Sequence[int]] = {}
    timeout_ms: int = 60_000
    updated_ago_ms: int = 0
    started_ago_ms: int = 0
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_version: int = 2


def key(transactional_id: str, version: int = 0) -> bytes:
    text = transactional_id.encode()
    return struct.pack(">hh", version, len(text)) + text


def value(entry: Entry, version: int = 1) -> bytes:
    """Version 0 has neither tags nor compact lengths; anything but 0 is written as version 1 is."""
    now = int(time.time() * 1000)
    started = -1 if entry.state == "Empty" else now - entry.started_ago_ms
    data = struct.pack(">hqhib", version, entry.producer_id, entry.epoch, entry.timeout_ms, STATUS[entry.state])
    data += _partitions(entry, flexible=version != 0)
    data += struct.pack(">qq", now - entry.updated_ago_ms, started)
    return data if version == 0 else data + _tags(entry)


def _partitions(entry: Entry, *, flexible: bool) -> bytes:
    if entry.state == "Empty":
        return b"\0" if flexible else struct.pack(">i", -1)
    count = len(entry.partitions)
    data = bytes([count + 1]) if flexible else struct.pack(">i", count)
    for name, indexes in entry.partitions.items():
        text = name.encode()
        data += (bytes([len(text) + 1]) if flexible else struct.pack(">h", len(text))) + text
        data += bytes([len(indexes) + 1]) if flexible else struct.pack(">i", len(indexes))
        data += struct.pack(f">{len(indexes)}i", *indexes) + (b"\0" if flexible else b"")
    return data


def _tags(entry: Entry) -> bytes:
    tags = [
        (0, struct.pack(">q", entry.previous_producer_id), entry.previous_producer_id != -1),
        (1, struct.pack(">q", entry.next_producer_id), entry.next_producer_id != -1),
        (2, struct.pack(">h", entry.client_version), entry.client_version != 0),
    ]
    written = [(tag, data) for tag, data, is_set in tags if is_set]
    return bytes([len(written)]) + b"".join(bytes([tag, len(data)]) + data for tag, data in written)


def append(data: Path, partition: int, records: Sequence[tuple[bytes, bytes | None]]) -> None:
    """To the last segment of a partition of a server that does not run."""
    segment = max((data / f"{TOPIC}-{partition}").glob("*.log"))
    written = segment.read_bytes()
    rows = describe(written) or []
    offset = rows[-1]["base_offset"] + rows[-1]["last_offset_delta"] + 1 if rows else int(segment.stem)
    epoch = rows[-1]["leader_epoch"] if rows else 0
    stamped = int(time.time() * 1000)
    with segment.open("ab") as stream:
        for name, content in records:
            record = [Record(key=name, value=content)]
            stream.write(batch(record, base_offset=offset, leader_epoch=epoch, base_timestamp=stamped))
            offset += 1
