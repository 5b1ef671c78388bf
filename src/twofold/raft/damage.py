"""Telling a torn end of the metadata log from damage in its middle.

The end may be torn by a crash: it was never synced, nobody was told of it, and opening the log cuts it off. Damage in
the middle must not be cut, for that would forget topics that were acknowledged. A damaged batch is in the middle

1. if the log was closed cleanly: then all of it was synced; or
2. if a whole batch of a later epoch follows it: an epoch begins after all that was there has been read and synced.
"""

from collections.abc import Iterator

from twofold.log.scan import InvalidBatch, iter_checked
from twofold.log.segment import LOG_SUFFIX
from twofold.raft.errors import CorruptMetadataLog
from twofold.records.batch import HEADER_SIZE, MAGIC, MAGIC_POSITION, Header, crc_is_valid, read_header
from twofold.runtime.api import Disk
from twofold.runtime.files import read_file
from twofold.wire.errors import CorruptMessage, InvalidRecord

_MAGIC_BYTE = bytes([MAGIC])


def refuse_damage(disk: Disk, directory: str, bases: tuple[int, ...], *, closed_cleanly: bool) -> None:
    """CorruptMetadataLog if a batch is damaged that no crash can have torn; the log is only read."""
    offset, epoch = bases[0] if bases else 0, -1
    paths = [f"{directory}/{base:020d}{LOG_SUFFIX}" for base in bases]
    for index, path in enumerate(paths):
        file = disk.open(path)
        try:
            for position, header, _, _ in iter_checked(file, 0, file.size()):
                if header.base_offset < offset:
                    raise InvalidBatch(position, f"offset {header.base_offset} where {offset} is due")
                offset, epoch = header.next_offset, header.leader_epoch
        except InvalidBatch as damage:
            if not closed_cleanly and not _later_epoch_follows(disk, paths[index:], damage.position, epoch):
                return
            why = "although the log was closed cleanly" if closed_cleanly else "and later epochs follow it"
            raise CorruptMetadataLog(
                f"{path}: the batch at offset {offset} is damaged ({damage}), {why}; restore the directory from a copy"
            ) from None
        finally:
            file.close()


def _later_epoch_follows(disk: Disk, paths: list[str], position: int, epoch: int) -> bool:
    """Whether a whole batch of a later epoch is behind `position` of the first file, or in the others."""
    for path in paths:
        if any(header.leader_epoch > epoch for header in _find_batches(read_file(disk, path), position)):
            return True
        position = 0
    return False


def _whole_batch(data: bytes, position: int) -> Header | None:
    try:
        header = read_header(data, position)
    except (CorruptMessage, InvalidRecord):
        return None
    return header if crc_is_valid(data, position, header) else None


def _find_batches(data: bytes, start: int) -> Iterator[Header]:
    """Every whole batch behind `start`, wherever it begins: the length of the damaged one cannot be believed."""
    at = data.find(_MAGIC_BYTE, start + MAGIC_POSITION)
    while at >= 0 and at - MAGIC_POSITION + HEADER_SIZE <= len(data):
        header = _whole_batch(data, at - MAGIC_POSITION)
        if header is not None:
            yield header
            at += header.size - 1
        at = data.find(_MAGIC_BYTE, at + 1)
