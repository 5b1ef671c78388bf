"""The files of a metadata log and its snapshots, Twofold's or Apache Kafka's, also those of a running broker.

1. Files are only read. All that belong together are opened before the first one is read, so that what a broker deletes
   meanwhile can be read to its end. A file that vanishes between the listing and the opening means: list again.
2. A file is read up to the size that it had when it was opened: reading twice gives the same twice.
3. What is no batch is told with its place. With nothing whole behind it, it is the torn end of the log: a crash left
   it, or a broker writes it at this moment. It is told and not cut. Everything else is damage, and so is an offset that
   is missing: this log is never compacted.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from twofold.cli.common import CliError
from twofold.cli.log.batches import DumpedBatch, FileBatches
from twofold.metadata_log.metadata_log import METADATA_PARTITION
from twofold.metadata_log.quorum_state import FILE_NAME as QUORUM_STATE
from twofold.metadata_log.snapshots import BOOTSTRAP_ID, SnapshotId

LISTINGS = 20  # so often a folder is listed again when files vanish from it
MOST_REASON_LETTERS = 300

_SEGMENT = re.compile(r"(\d{20})\.log(?:\.deleted)?")
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint(?:\.deleted)?")


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that is open for reading, and how much of it counts."""

    path: Path
    file: BinaryIO
    size: int


@dataclass(frozen=True, slots=True)
class FileProblem:
    """What is wrong with a file, and where; the torn end of a log is none of those that must not be."""

    path: Path
    position: int
    reason: str
    is_torn_end: bool = False

    def __str__(self) -> str:
        what = "torn end" if self.is_torn_end else "damage"
        return f"{self.path}: {what} at byte {self.position}: {self.reason}"


class Located(NamedTuple):
    """A batch, and the file that it is in."""

    path: Path
    batch: DumpedBatch

    def problem(self, reason: str) -> FileProblem:
        return FileProblem(self.path, self.batch.position, reason[:MOST_REASON_LETTERS])


@dataclass(frozen=True, slots=True)
class Part:
    """Files that are read one after the other: a snapshot, or the segments of a log."""

    files: tuple[OpenedFile, ...]
    snapshot: SnapshotId | None = None

    @property
    def is_snapshot(self) -> bool:
        return self.snapshot is not None

    @property
    def size(self) -> int:
        return sum(opened.size for opened in self.files)

    def read(
        self, *, from_offset: int = 0, advance: Callable[[int], None] = lambda _: None
    ) -> Iterator[Located | FileProblem]:
        """The batches whose CRC is right, and what is wrong between them; those before `from_offset` are skipped."""
        due: int | None = None  # None: nothing says where the next batch must begin
        is_any = False
        for opened in self.files:
            due = self._base_offset(opened) if due is None else due
            reader = FileBatches(
                opened.file, opened.size, base_offset=due or 0, from_offset=from_offset, advance=advance
            )
            for found in reader.read():
                if not isinstance(found, DumpedBatch):
                    at_end = found.resumes_at is None and opened is self.files[-1] and not self.is_snapshot
                    reason = found.reason[:MOST_REASON_LETTERS]
                    yield FileProblem(opened.path, found.position, reason, is_torn_end=at_end and is_any)
                    due = None
                elif found.crc_is_right:
                    base = found.header.base_offset
                    if due is not None and base > max(due, from_offset):
                        yield FileProblem(opened.path, found.position, f"offset {base} follows where {due} is due")
                    due, is_any = found.header.next_offset, True
                    yield Located(opened.path, found)

    @property
    def begins_at(self) -> int | None:
        """The first offset; None where the name of the file does not tell."""
        return self._base_offset(self.files[0])

    def _base_offset(self, opened: OpenedFile) -> int | None:
        """A snapshot is a little log of its own; a segment has it in its name, unless the file was renamed."""
        match = _SEGMENT.fullmatch(opened.path.name)
        return 0 if self.is_snapshot else int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class _Found:
    """The files of one part, not yet opened."""

    paths: tuple[Path, ...]
    snapshot: SnapshotId | None = None


def open_parts(paths: Iterable[Path], stack: ExitStack) -> list[Part]:
    """What is to be dumped of files and folders; CliError for what holds no metadata.

    Of a folder that is its log, and before it the snapshot that replaces what was deleted of the log.
    """
    parts: list[Part] = []
    segments: dict[Path, list[Path]] = {}  # of files that were named one by one
    for path in paths:
        if path.is_dir():
            parts += _open_folder(folder_of(path), _history, stack)
        elif (found := _named(path)).snapshot is not None:
            parts.append(_open(found, stack))
        else:
            segments.setdefault(path.resolve().parent, []).append(path)
    parts += (_open(_Found(tuple(sorted(set(rows)))), stack) for rows in segments.values())
    return parts


def open_newest(path: Path, stack: ExitStack, damaged: Collection[SnapshotId] = ()) -> list[Part]:
    """What an image is made of: the newest snapshot of a folder and the log from its end on, or one file.

    Snapshots that are known to be damaged are passed over, as a broker does it.
    """
    if path.is_dir():
        return _open_folder(folder_of(path), lambda folder: _newest(folder, damaged), stack)
    return [_open(_named(path), stack)]


def folder_of(path: Path) -> Path:
    """The folder of the metadata log in, or at, a path."""
    inside = path / str(METADATA_PARTITION)
    try:
        if inside.is_dir():
            return inside
        names = {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None
    is_log = path.resolve().name == str(METADATA_PARTITION) or QUORUM_STATE in names
    if not is_log and not any(map(_SNAPSHOT.fullmatch, names)):
        raise CliError(
            f"{path}: no metadata log here: name a data folder, its {METADATA_PARTITION}, a segment (.log) of it or a "
            "snapshot (.checkpoint)"
        )
    return path


def _named(path: Path) -> _Found:
    if not path.exists():
        raise CliError(f"{path}: there is no such file or folder")
    if not path.is_file():
        raise CliError(f"{path}: neither a file nor a folder")
    match = _SNAPSHOT.fullmatch(path.name)
    if match or ".checkpoint" in path.suffixes:
        return _Found((path,), SnapshotId(int(match[1]), int(match[2])) if match else BOOTSTRAP_ID)
    if ".log" not in path.suffixes:
        raise CliError(f"{path}: neither a segment (.log) nor a snapshot (.checkpoint) of a metadata log")
    return _Found((path,))


def _open_folder(folder: Path, choose: Callable[[Path], list[_Found]], stack: ExitStack) -> list[Part]:
    for _ in range(LISTINGS):
        opened = ExitStack()
        try:
            with opened:
                parts = [_open(found, opened) for found in choose(folder)]
                stack.push(opened.pop_all())
                return parts
        except FileNotFoundError as error:
            missing = error.filename
    raise CliError(f"{missing}: the broker deletes it before it can be read; try again when the broker is less busy")


def _open(found: _Found, stack: ExitStack) -> Part:
    files = []
    for path in found.paths:
        try:
            file = stack.enter_context(path.open("rb", buffering=1 << 20))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CliError(f"{path}: {error.strerror}") from None
        files.append(OpenedFile(path, file, file.seek(0, 2)))
    return Part(tuple(files), found.snapshot)


def _listed(folder: Path) -> tuple[list[tuple[int, Path]], list[tuple[SnapshotId, Path]]]:
    """Segments and snapshots, oldest first."""
    segments, snapshots = [], []
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise CliError(f"{folder}: {error.strerror}") from None
    for path in entries:
        if path.name.endswith(".deleted"):
            continue
        if match := _SEGMENT.fullmatch(path.name):
            segments.append((int(match[1]), path))
        elif match := _SNAPSHOT.fullmatch(path.name):
            snapshots.append((SnapshotId(int(match[1]), int(match[2])), path))
    if not segments and not snapshots:
        raise CliError(f"{folder}: neither a segment nor a snapshot is in it")
    return segments, snapshots


def _history(folder: Path) -> list[_Found]:
    segments, snapshots = _listed(folder)
    start = segments[0][0] if segments else 1
    needed = [_Found((path,), one) for one, path in snapshots if start and one.end_offset >= start]
    if not segments:
        needed = [_Found((path,), one) for one, path in snapshots[-1:]]
    log = [_Found(tuple(path for _, path in segments))] if segments else []
    return needed[:1] + log


def _newest(folder: Path, damaged: Collection[SnapshotId]) -> list[_Found]:
    segments, snapshots = _listed(folder)
    # That of an empty log only counts where there is nothing else.
    usable = [(one, path) for one, path in snapshots if one not in damaged and (one != BOOTSTRAP_ID or not segments)]
    end = usable[-1][0].end_offset if usable else 0
    # The last segment that begins at or before the end of the snapshot, and those behind it.
    first = max((at for at, (base, _) in enumerate(segments) if base <= end), default=0)
    log = [_Found(tuple(path for _, path in segments[first:]))] if segments else []
    return [*(_Found((path,), one) for one, path in usable[-1:]), *log]
