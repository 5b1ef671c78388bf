"""What is done with a log after one of its syncs failed, before anything in it is trusted again.

1. After a failed sync the operating system may treat the pages that it could not write as written: they can be read,
   the next sync succeeds, and a power cut loses them. What was not synced before is therefore written anew, into new
   files.
2. A mark in the partition's directory says so to the next process. The mark needs no sync, because it has to outlive a
   process and not a power cut: after a power cut only what is on disk can be read.
3. Indexes and snapshots beyond the recovery point are thrown away; they follow from the log.
"""

import contextlib
import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence

from twofold.log.recovery.checkpoints import PARTITION_METADATA
from twofold.log.segments.segment import INDEX_SUFFIXES, LOG_SUFFIX
from twofold.runtime.api import Disk
from twofold.runtime.files import TEMPORARY_SUFFIX

log = logging.getLogger("twofold.log")

MARK = "sync-failed"
COPY_BYTES = 1 << 20


class RescueCancelled(OSError):
    """The log was given up meanwhile; its directory may be another's by now."""


def mark_sync_failed(disk: Disk, directory: str) -> None:
    """Leave the mark that a sync of this log failed, if the directory can be written to."""
    with contextlib.suppress(OSError):
        disk.open(f"{directory}/{MARK}", create=True).close()


def has_sync_failed(disk: Disk, directory: str) -> bool:
    return disk.exists(f"{directory}/{MARK}")


def write_anew(
    disk: Disk, directory: str, bases: Sequence[int], recovery_point: int, is_over: Callable[[], bool] = lambda: False
) -> None:
    """Write everything anew that may not be on disk; may run in any thread."""
    for base in bases[max(0, bisect_left(bases, recovery_point) - 1) :]:
        prefix = f"{directory}/{base:020d}"
        _copy(disk, prefix + LOG_SUFFIX, is_over)
        for suffix in INDEX_SUFFIXES:
            if disk.exists(prefix + suffix):
                disk.remove(prefix + suffix)
        log.warning("%s: written anew, a sync failed and its pages cannot be trusted", prefix + LOG_SUFFIX)
    if disk.exists(f"{directory}/{PARTITION_METADATA}"):
        _copy(disk, f"{directory}/{PARTITION_METADATA}", is_over)
    disk.sync_dir(directory)
    if has_sync_failed(disk, directory):
        disk.remove(f"{directory}/{MARK}")


def _check(is_over: Callable[[], bool], path: str) -> None:
    if is_over():
        raise RescueCancelled(f"{path} is not used any more")


def _copy(disk: Disk, path: str, is_over: Callable[[], bool]) -> None:
    """Replace a file by one with the same bytes, which are on disk when the name is changed."""
    _check(is_over, path)
    temporary = path + TEMPORARY_SUFFIX
    if disk.exists(temporary):
        disk.remove(temporary)  # its pages cannot be trusted either
    source = disk.open(path)
    try:
        target = disk.open(temporary, create=True)
        try:
            position, size = 0, source.size()
            while position < size:
                chunk = source.read(position, min(COPY_BYTES, size - position))
                if not chunk:
                    break
                target.write(position, chunk)
                position += len(chunk)
            target.sync()
        finally:
            target.close()
    finally:
        source.close()
    _check(is_over, path)
    disk.rename(temporary, path)
