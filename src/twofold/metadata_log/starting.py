"""Where a node begins to read its metadata: the newest good snapshot, and the log from its end on.

1. A damaged snapshot is passed over if an older one is good and the log reaches back to its end, or if the log reaches
   back to its own beginning. Otherwise the node does not start, and the message names the file.
2. The log must reach to the end of the newest snapshot: less of it was never committed.
3. Nothing is changed here.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from twofold.metadata_log.committed_offset import read_committed_offset
from twofold.metadata_log.damage import Inspection, Known, inspect_log
from twofold.metadata_log.errors import CorruptMetadataLog, CorruptSnapshot
from twofold.metadata_log.snapshots import Snapshot, SnapshotId, read_snapshot
from twofold.runtime.api import Disk

log = logging.getLogger(__name__)


class Start(NamedTuple):
    """What was found in a directory."""

    inspection: Inspection
    snapshot_id: SnapshotId | None = None
    snapshot: Snapshot | None = None
    damaged: tuple[SnapshotId, ...] = ()  # passed over

    @property
    def offset(self) -> int:
        """From where on the log is to be read."""
        return 0 if self.snapshot_id is None else self.snapshot_id.end_offset


def find_start(
    disk: Disk, directory: str, bases: tuple[int, ...], snapshots: Sequence[SnapshotId], *, closed_cleanly: bool
) -> Start:
    found, snapshot, failures = _newest_good(disk, directory, bases, snapshots)
    newest_end = snapshots[-1].end_offset if snapshots else 0
    committed = read_committed_offset(disk, directory)
    start_from = 0 if found is None else found.end_offset
    inspection = inspect_log(disk, directory, bases, Known(closed_cleanly, committed, newest_end, start_from))
    if inspection.end_offset < newest_end:
        raise CorruptMetadataLog(
            f"{directory}: the log ends at offset {inspection.end_offset}, before the snapshot "
            f"{snapshots[-1].file_name} does; restore the directory from a copy"
        )
    for failure in failures.values():
        instead = "the log from its beginning on" if found is None else found.file_name
        log.error("%s; reading %s instead", failure, instead)
    if inspection.end_offset <= committed:
        text = "%s: the log ends at offset %d, although all up to offset %d was acknowledged: the disk has lost it"
        log.error(text, directory, inspection.end_offset, committed)
    return Start(inspection, found, snapshot, tuple(failures))


def _newest_good(
    disk: Disk, directory: str, bases: tuple[int, ...], snapshots: Sequence[SnapshotId]
) -> tuple[SnapshotId | None, Snapshot | None, dict[SnapshotId, CorruptSnapshot]]:
    first = bases[0] if bases else 0
    failures: dict[SnapshotId, CorruptSnapshot] = {}
    for found in reversed(snapshots):
        if first > found.end_offset:
            break
        try:
            return found, _read(disk, f"{directory}/{found.file_name}"), failures
        except CorruptSnapshot as error:
            failures[found] = error
    if first == 0:
        return None, None, failures
    for failure in failures.values():
        raise CorruptSnapshot(f"{failure}: the log begins at offset {first} and no other snapshot reaches it")
    known = "there is no snapshot" if not snapshots else f"the newest snapshot is {snapshots[-1].file_name}"
    raise CorruptMetadataLog(
        f"{directory}: the log begins at offset {first} and {known}: what was before it is missing; "
        "restore the directory from a copy"
    )


def _read(disk: Disk, path: str) -> Snapshot:
    try:
        return read_snapshot(disk, path)
    except OSError as error:
        raise CorruptSnapshot(f"{path} cannot be read ({error}); restore it from a copy") from error
