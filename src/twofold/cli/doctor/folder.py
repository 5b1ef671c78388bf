"""The data folder as a broker would find it. Nothing in it is changed."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from twofold.cli.common import plural
from twofold.cli.doctor.findings import Finding, note, ok, problem, warning
from twofold.config.settings import Settings
from twofold.log.directory.identity import METADATA_DIRECTORY, DataDirectoryError, parse_meta_properties
from twofold.log.manager import LOCK
from twofold.log.recovery.checkpoints import CLEAN_SHUTDOWN, META_PROPERTIES

IN_MEMORY = {"tmpfs", "ramfs"}
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "virtiofs"}
LITTLE_SHARE = 0.05
FEW_FILES = 10_000
GB = 1 << 30


def existing(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    found = path.absolute()
    while not os.path.exists(found):  # False, too, where this user may not look
        found = found.parent
    return found


def check_folder(path: Path, settings: Settings) -> Iterator[Finding]:
    here = existing(path)
    if not here.is_dir():
        yield problem("folder", f"{here} is a file, and logs need a directory", "choose another path with --data")
        return
    if not os.access(here, os.W_OK | os.X_OK):
        yield problem("folder", f"{here} cannot be written to by this user", "change its owner, or choose another")
    elif here != path.absolute():
        yield ok("folder", f"{path} is not there yet; a start makes it")
    else:
        yield from _check_content(path, settings)
    yield from _check_room(here, settings)
    yield from _check_kind(here)


def _check_content(path: Path, settings: Settings) -> Iterator[Finding]:
    meta = path / META_PROPERTIES
    try:
        found = parse_meta_properties(str(meta), meta.read_bytes(), settings.int("node.id"))
    except FileNotFoundError:
        partitions = _partitions(path)
        if partitions:
            text = f"{meta} is missing, but {partitions[0]} is there"
            yield problem("folder", text, "restore the file from a copy, or choose another folder")
        else:
            yield ok("folder", f"{path} is empty" if not any(path.iterdir()) else f"{path} holds no broker's data yet")
        return
    except (DataDirectoryError, OSError) as error:
        yield problem("folder", str(error))
        return
    count = sum(name != METADATA_DIRECTORY for name in _partitions(path))
    yield ok("folder", f"{path}: {plural(count, 'partition')}, cluster {found.cluster_id}")
    if is_locked(path / LOCK):
        yield note("folder", "a broker is using it now")
    elif not (path / CLEAN_SHUTDOWN).exists():
        yield note(
            "folder", "the last broker did not stop in order", "the next start recovers its logs, which takes longer"
        )


def _partitions(path: Path) -> list[str]:
    """The metadata log among them: without `meta.properties` it says as much as any."""
    return sorted(entry.name for entry in path.iterdir() if entry.name.rpartition("-")[2].isdigit() and entry.is_dir())


def is_locked(path: Path) -> bool:
    """Whether a broker holds the lock; asked without taking it, because a broker may start now."""
    command = getattr(fcntl, "F_OFD_GETLK", None)
    if command is None or not path.exists():
        return False
    with open(path, "rb+") as file:
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer: bytes = fcntl.fcntl(file.fileno(), command, asked)
    return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)


def _check_room(here: Path, settings: Settings) -> Iterator[Finding]:
    status = os.statvfs(here)
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    reserve = settings.int("log.reserve.bytes")
    text = f"{free / GB:,.1f} of {total / GB:,.1f} GB are free"
    if free < 2 * reserve:
        yield problem(
            "folder", f"{text}, and log.reserve.bytes={reserve:,} are kept for the end of transactions", "make room"
        )
    elif total and free / total < LITTLE_SHARE:
        yield warning("folder", text, "make room, or lower log.retention.bytes: a full disk refuses writes")
    else:
        yield ok("folder", text)
    if status.f_files and status.f_favail < FEW_FILES:
        yield warning(
            "folder", f"the filesystem has room for {status.f_favail:,} more files", "partitions need four each"
        )


def _check_kind(here: Path) -> Iterator[Finding]:
    kind = filesystem(here)
    if kind in IN_MEMORY:
        yield warning("folder", f"{here} is in memory ({kind}): a restart of the machine loses it", "choose a disk")
    elif kind in REMOTE:
        yield warning("folder", f"{here} is on {kind}: locks and syncs may not hold there", "choose a local disk")


def filesystem(path: Path) -> str:
    """The kind of the filesystem; empty where the system does not tell."""
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in mounts:
        _, place, found, *_ = line.split(" ")
        place = place.replace("\\040", " ")
        is_above = place == "/" or str(path) == place or str(path).startswith(f"{place}/")
        if is_above and len(place) >= len(best):
            best, kind = place, found
    return kind


def newest_ms(path: Path) -> int | None:
    """When something at the top of the folder was changed last; a broker may remove things meanwhile."""
    found: list[int] = []
    with suppress(OSError):
        for entry in path.iterdir():
            with suppress(FileNotFoundError):
                found.append(entry.lstat().st_mtime_ns // 1_000_000)
    return max(found, default=None)
