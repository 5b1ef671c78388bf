"""The image that the files of a metadata log come to: the newest snapshot, and the log from its end on.

1. It is made by the loader that brokers use: what belongs to an open transaction, or to an aborted one, is not in it.
2. Everything in the files counts as committed: which of it a quorum of several has agreed on is in none of them.
3. A damaged snapshot is passed over, as a broker does it, for an older one or for the log alone. It is told.
4. At damage, and at a record that cannot be applied, reading ends. What was before it is the image, and the problem is
   told with it; nothing at all before it is an error.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from twofold.cli.common import CliError
from twofold.cli.log.dump import records_of
from twofold.cli.metadata.files import FileProblem, Located, Part, open_newest
from twofold.controller.image import MetadataImage
from twofold.controller.records import MetadataRecord, UnsupportedRecord, decode_all
from twofold.controller.replay import InconsistentRecord, OpenMetadataTransaction
from twofold.machine.schema import MalformedRecord
from twofold.metadata_log.snapshots import Snapshot, SnapshotId, decode_snapshot
from twofold.quorum.loader import CommittedBatch, MetadataLoader
from twofold.wire.errors import CorruptMessage, InvalidRecord

_UNUSABLE = (UnsupportedRecord, MalformedRecord, InconsistentRecord, InvalidRecord, CorruptMessage)
_NO_EPOCH = _NO_TIME = -1


@dataclass(frozen=True, slots=True)
class Loaded:
    """An image, where it comes from, and what is not in it."""

    source: Path
    image: MetadataImage
    epoch: int  # of the last record of the image
    timestamp_ms: int
    snapshot: SnapshotId | None
    transaction: OpenMetadataTransaction | None
    transaction_records: int
    problem: FileProblem | None  # where reading ended early
    torn_end: FileProblem | None
    passed_over: tuple[str, ...] = ()  # snapshots that are damaged


def load_image(path: Path, started: Callable[[int], Callable[[int], None]]) -> Loaded:
    """Read what is at a path; CliError where there is no metadata. `started(bytes)` gives what to tell of progress."""
    damaged: dict[SnapshotId, str] = {}
    while True:
        with ExitStack() as stack:
            parts = open_newest(path, stack, damaged)
            advance = started(sum(part.size for part in parts))
            try:
                return _Loading(path, parts, advance, tuple(damaged.values())).run()
            except _DamagedSnapshot as error:
                if path.is_file():
                    raise CliError(str(error)) from None
                damaged[error.snapshot] = str(error)


class _DamagedSnapshot(Exception):
    """One that is not what was written; an older one may do."""

    def __init__(self, path: Path, snapshot: SnapshotId, why: Exception) -> None:
        super().__init__(f"{path}: the snapshot cannot be used: {why}")
        self.snapshot = snapshot


class _Loading:
    def __init__(
        self, source: Path, parts: list[Part], advance: Callable[[int], None], passed_over: tuple[str, ...]
    ) -> None:
        self._source = source
        self._parts = parts
        self._passed_over = passed_over
        self._advance = advance
        self._loader = MetadataLoader()
        self._epoch, self._timestamp_ms = _NO_EPOCH, _NO_TIME
        self._snapshot: SnapshotId | None = None
        self._problem: FileProblem | None = None
        self._torn_end: FileProblem | None = None
        self._is_any = False
        self._start = 0  # of the log: the snapshot says what was before it

    def run(self) -> Loaded:
        for part in self._parts:
            if part.snapshot is not None:
                self._load_snapshot(part, part.snapshot)
            else:
                self._load_log(part)
        if not self._is_any:
            told = [*self._passed_over, *([str(self._problem)] if self._problem else [])]
            raise CliError("\n".join(told) or f"{self._source}: there is no record in it yet")
        return Loaded(
            self._source,
            self._loader.image,
            self._epoch,
            self._timestamp_ms,
            self._snapshot,
            self._loader.transaction,
            self._loader.transaction_records,
            self._problem,
            self._torn_end,
            self._passed_over,
        )

    def _load_snapshot(self, part: Part, snapshot_id: SnapshotId) -> None:
        (opened,) = part.files
        opened.file.seek(0)
        try:
            snapshot = decode_snapshot(opened.file.read(opened.size))
            self._loader.load_snapshot(_records(snapshot), snapshot_id.end_offset - 1)
        except _UNUSABLE as error:
            raise _DamagedSnapshot(opened.path, snapshot_id, error) from None
        self._advance(opened.size)
        self._epoch, self._timestamp_ms = snapshot_id.epoch, snapshot.last_contained_timestamp_ms
        self._snapshot, self._start, self._is_any = snapshot_id, snapshot_id.end_offset, True

    def _load_log(self, part: Part) -> None:
        begin = part.begins_at or 0
        if begin > self._loader.image.offset + 1:
            known = "there is no snapshot" if self._snapshot is None else f"the snapshot ends at {self._start}"
            reason = f"the log begins at offset {begin} and {known}: what was before it is missing"
            self._problem = FileProblem(part.files[0].path, 0, reason)
            if self._snapshot is not None:
                return
            self._loader.load_snapshot((), begin - 1)  # what this file alone comes to
        self._start = self._loader.image.offset + 1
        for found in part.read(from_offset=self._start, advance=self._advance):
            if isinstance(found, Located):
                if not self._load_batch(found):
                    return
            elif found.is_torn_end:
                self._torn_end = found
            else:
                self._problem = found
                return

    def _load_batch(self, located: Located) -> bool:
        """False where reading ends."""
        header = located.batch.header
        entries: list[tuple[int, MetadataRecord]] = []
        try:
            if not header.is_control:
                records = records_of(located.batch)
                entries = decode_all((row.offset, row.value or b"") for row in records if row.offset >= self._start)
            published = self._loader.load([CommittedBatch(entries, header.last_offset, header.size)])
        except _UNUSABLE as error:
            self._problem = located.problem(f"the batch at offset {header.base_offset} cannot be applied: {error}")
            return False
        self._is_any = True
        if published:
            self._epoch, self._timestamp_ms = header.leader_epoch, header.max_timestamp
        return True


def _records(snapshot: Snapshot) -> Iterator[MetadataRecord]:
    return (record for _, record in decode_all(enumerate(snapshot.values)))
