"""Telling a torn end of the metadata log from damage in its middle.

A crash may tear the end: opening the log cuts it off. Damage in the middle must not be cut, because that would forget
topics that were acknowledged. The offsets of the log have no gaps, and a new epoch begins with a control batch. What
breaks these two rules is damage, too, because no checksum covers them. Damage is in the middle

1. if the log was closed cleanly: then all of it was synced;
2. if a snapshot ends behind it: what a snapshot stands for was committed;
3. if a later segment is not empty: a segment is begun after all before it was synced;
4. if a whole batch of a later epoch follows it: an epoch begins after all that was there has been read and synced;
5. if a whole batch follows it that is known to have been committed (`committed_offset.py`).

A power cut may bring back some of the segments that trimming removed, with a gap behind them. A gap below the snapshot
that the node starts from is of that kind: what lies before the gap does not count.
"""

from collections.abc import Iterator
from typing import NamedTuple

from twofold.log.recovery.rescue import mark_sync_failed
from twofold.log.segments.scan import InvalidBatch, iter_checked
from twofold.log.segments.segment import LOG_SUFFIX
from twofold.metadata_log.errors import CorruptMetadataLog
from twofold.records.batch import HEADER_SIZE, MAGIC, MAGIC_POSITION, Header, crc_is_valid, read_header
from twofold.runtime.api import Disk
from twofold.runtime.files import read_file
from twofold.wire.errors import CorruptMessage, InvalidRecord

_MAGIC_BYTE = bytes([MAGIC])


class TornTail(NamedTuple):
    """What has to be cut: the file from a position on, and the segments after it, which are empty."""

    path: str
    position: int
    reason: str


class Inspection(NamedTuple):
    """What there is of a log: offsets from `start_offset` up to `end_offset`, and maybe a torn tail behind them."""

    start_offset: int = 0
    end_offset: int = 0
    tail: TornTail | None = None


class Known(NamedTuple):
    """What is known about a log beside its segments."""

    closed_cleanly: bool = False
    committed_offset: int = -1
    snapshot_end: int = 0  # of the newest snapshot, be it damaged or not
    start_from: int = 0  # where reading begins


class _Damage(NamedTuple):
    segment: int  # its place among the others
    position: int
    offset: int
    epoch: int  # of the batch before, -1 where there is none
    reason: str


def inspect_log(disk: Disk, directory: str, bases: tuple[int, ...], known: Known) -> Inspection:
    """Read the whole log and change nothing; CorruptMetadataLog if a batch is damaged that no crash can have torn."""
    if not bases:
        return Inspection()
    paths = [f"{directory}/{base:020d}{LOG_SUFFIX}" for base in bases]
    start = offset = bases[0]
    epoch = -1
    for index, path in enumerate(paths):
        base = bases[index]
        damage = None
        if offset < base <= known.start_from:
            start, offset, epoch = base, base, -1
        elif offset != base:
            damage = _Damage(index - 1, disk.file_size(paths[index - 1]), offset, epoch, f"the next begins at {base}")
        if damage is None:
            offset, epoch, invalid = _read_segment(disk, path, offset, epoch)
            if invalid is not None:
                damage = _Damage(index, invalid.position, offset, epoch, str(invalid))
        if damage is not None:
            why = _why_in_the_middle(disk, paths, damage, known)
            if why is None:
                return Inspection(start, offset, TornTail(paths[damage.segment], damage.position, damage.reason))
            raise CorruptMetadataLog(
                f"{paths[damage.segment]}: the batch at offset {damage.offset} is damaged ({damage.reason}), {why}; "
                "restore the directory from a copy"
            )
    return Inspection(start, offset)


def cut_tail(disk: Disk, directory: str, bases: tuple[int, ...], tail: TornTail) -> tuple[int, ...]:
    """Cut a torn tail off, durably; returns the segments that are left."""
    kept = [base for base in bases if f"{directory}/{base:020d}{LOG_SUFFIX}" <= tail.path]
    for base in bases[len(kept) :]:
        disk.remove(f"{directory}/{base:020d}{LOG_SUFFIX}")
    file = disk.open(tail.path)
    try:
        file.truncate(tail.position)
        file.sync()
    except OSError:
        mark_sync_failed(disk, directory)
        raise
    finally:
        file.close()
    disk.sync_dir(directory)
    return tuple(kept)


def _read_segment(disk: Disk, path: str, offset: int, epoch: int) -> tuple[int, int, InvalidBatch | None]:
    """(next offset, last epoch, what is wrong with the batch there)."""
    file = disk.open(path)
    try:
        for position, header, _, _ in iter_checked(file, 0, file.size()):
            if header.base_offset != offset:
                return offset, epoch, InvalidBatch(position, f"offset {header.base_offset} where {offset} is due")
            if header.leader_epoch != epoch and not _begins_epoch(header, epoch):
                return offset, epoch, InvalidBatch(position, f"epoch {header.leader_epoch} in epoch {epoch}")
            offset, epoch = header.next_offset, header.leader_epoch
    except InvalidBatch as error:
        return offset, epoch, error
    finally:
        file.close()
    return offset, epoch, None


def _begins_epoch(header: Header, epoch: int) -> bool:
    return epoch < 0 or (header.leader_epoch > epoch and header.is_control)


def _why_in_the_middle(disk: Disk, paths: list[str], damage: _Damage, known: Known) -> str | None:
    if known.closed_cleanly:
        return "although the log was closed cleanly"
    if damage.offset < known.snapshot_end:
        return f"although a snapshot stands for all below offset {known.snapshot_end}"
    if any(disk.file_size(path) for path in paths[damage.segment + 1 :]):
        return "and later segments follow it"
    epoch = damage.epoch
    for position, header in _find_batches(read_file(disk, paths[damage.segment]), damage.position):
        epoch = header.leader_epoch if epoch < 0 else epoch
        if position > damage.position and header.leader_epoch > epoch:
            return "and later epochs follow it"
        if header.base_offset > damage.offset and header.last_offset <= known.committed_offset:
            return f"and acknowledged batches follow it, up to offset {known.committed_offset}"
    return None


def _whole_batch(data: bytes, position: int) -> Header | None:
    try:
        header = read_header(data, position)
    except (CorruptMessage, InvalidRecord):
        return None
    return header if crc_is_valid(data, position, header) else None


def _find_batches(data: bytes, start: int) -> Iterator[tuple[int, Header]]:
    """Every whole batch from `start` on, wherever it begins: the length of the damaged one cannot be believed."""
    at = data.find(_MAGIC_BYTE, start + MAGIC_POSITION)
    while at >= 0 and at - MAGIC_POSITION + HEADER_SIZE <= len(data):
        header = _whole_batch(data, at - MAGIC_POSITION)
        if header is not None:
            yield at - MAGIC_POSITION, header
            at += header.size - 1
        at = data.find(_MAGIC_BYTE, at + 1)
