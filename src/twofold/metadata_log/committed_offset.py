"""The file `committed-offset` of the metadata log: up to where it was known to be committed.

It is written after every commit and never synced. What it says was true when it was written, so it is a lower bound
whatever a power cut leaves of it; after the death of the process alone it is exact. It tells a batch that was damaged
later, with acknowledged ones behind it, from what a power cut left of batches that were never acknowledged.
"""

import logging
import zlib

from twofold.runtime.api import Disk, File
from twofold.runtime.files import read_file

FILE_NAME = "committed-offset"
UNKNOWN = -1

log = logging.getLogger(__name__)


def encode_committed_offset(offset: int) -> bytes:
    text = b"%020d" % offset
    return text + b" %08x\n" % zlib.crc32(text)


def read_committed_offset(disk: Disk, directory: str) -> int:
    """The last offset that is known to have been committed; -1 where nothing, or nothing whole, says so."""
    try:
        data = read_file(disk, f"{directory}/{FILE_NAME}")
    except OSError:
        return UNKNOWN
    text = data[:20]
    if not text.isdigit() or data != encode_committed_offset(int(text)):
        return UNKNOWN
    return int(text)


class CommittedOffsetFile:
    """The leader keeps it open. A failed write is no reason to stop: the file only says less then."""

    __slots__ = ("_file", "_path")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._path = f"{directory}/{FILE_NAME}"
        self._file: File | None = None
        try:
            self._file = disk.open(self._path, create=True)
        except OSError as error:
            self._give_up(error)

    def write(self, offset: int) -> None:
        if self._file is None:
            return
        try:
            self._file.write(0, encode_committed_offset(offset))
        except OSError as error:
            self.close()
            self._give_up(error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        log.warning("%s cannot be written: %s; until the next start it says less than is known", self._path, error)
