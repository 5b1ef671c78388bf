"""Whole-file helpers over any `Disk`."""

import contextlib
import posixpath

from twofold.runtime.api import Data, Disk

TEMPORARY_SUFFIX = ".tmp"


def read_file(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def write_atomically(disk: Disk, path: str, data: Data) -> None:
    """Replace `path` so that a crash at any point leaves the old content or the new, never a mix.

    When this returns the new content survives a power cut. When it raises, the old content may still be there or,
    if only the last step failed, the new one may be visible without being durable.
    """
    temporary = path + TEMPORARY_SUFFIX
    try:
        _write_and_sync(disk, temporary, data)
        disk.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.remove(temporary)
        raise
    disk.sync_dir(posixpath.dirname(path) or ".")


def _write_and_sync(disk: Disk, path: str, data: Data) -> None:
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, data)
        file.sync()
    finally:
        file.close()
