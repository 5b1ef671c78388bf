"""Opening a partition log: what is on disk becomes segments, producers and epochs again.

1. Below the recovery point everything on disk is trusted: segments, indexes, snapshots, epochs. Beyond it only batches
   with a right CRC in an unbroken row are trusted, and all the rest is derived from them. Compaction leaves gaps, in
   segments that were synced before: below the cleaner's checkpoint a gap is no hole either.
2. Recovery starts with the segment that holds the last offset below the recovery point (its indexes may not be on disk
   even where its end is the recovery point), from the newest good snapshot at or below its base, and ends at the first
   batch that is not whole. A segment beyond the recovery point that does not start where the one before it ends is
   behind a hole: it is removed.
3. A cut is on disk before anything is appended.
"""

import contextlib
import logging
from bisect import bisect_left
from dataclasses import dataclass, field

from twofold.config.topic import LogConfig
from twofold.log.cleaning.leftovers import complete_swaps
from twofold.log.environment import LogEnvironment
from twofold.log.indexes.offset_index import MAX_RELATIVE_OFFSET
from twofold.log.producers.replay import replay, replay_batch
from twofold.log.producers.snapshot_store import SNAPSHOT_SUFFIX, SnapshotStore
from twofold.log.producers.snapshots import encode_snapshot
from twofold.log.producers.table import ProducerTable
from twofold.log.producers.times import FILE as TIMES
from twofold.log.producers.times import ProducerTime, read_times, remove_times
from twofold.log.producers.windows import deepen_windows
from twofold.log.recovery.epochs import EPOCH_CHECKPOINT, CorruptCheckpoint, EpochCache
from twofold.log.segments.scan import InvalidBatch, iter_checked
from twofold.log.segments.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    Segment,
)
from twofold.records.batch import Buffer, Header
from twofold.runtime.api import Disk
from twofold.runtime.files import TEMPORARY_SUFFIX, read_file

log = logging.getLogger("twofold.log")

GARBAGE_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, TEMPORARY_SUFFIX)
_DIGITS = 20
READ_AHEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """The names in a partition's directory."""

    bases: tuple[int, ...] = ()
    snapshots: tuple[int, ...] = ()
    garbage: tuple[str, ...] = ()


def list_directory(disk: Disk, directory: str) -> DirectoryListing:
    names = disk.list(directory)
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        complete_swaps(disk, directory, names)
        names = disk.list(directory)
    bases = {int(name[:_DIGITS]) for name in names if _is_numbered(name, LOG_SUFFIX)}
    snapshots = tuple(int(name[:_DIGITS]) for name in names if _is_numbered(name, SNAPSHOT_SUFFIX))
    garbage = [name for name in names if name.endswith(GARBAGE_SUFFIXES)]
    for suffix in SEGMENT_SUFFIXES:
        garbage += (name for name in names if _is_numbered(name, suffix) and int(name[:_DIGITS]) not in bases)
    return DirectoryListing(tuple(sorted(bases)), snapshots, tuple(garbage))


def _is_numbered(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and len(name) == _DIGITS + len(suffix) and name[:_DIGITS].isdigit()


def read_ahead(disk: Disk, directory: str, listing: DirectoryListing) -> None:
    """Read what an opening after a clean shutdown reads, so that the opening finds it in memory; may run in any thread.
    Errors are ignored here: the opening reports them."""
    names = [EPOCH_CHECKPOINT, TIMES]
    if listing.snapshots:
        names.append(f"{max(listing.snapshots):020d}{SNAPSHOT_SUFFIX}")
    if listing.bases:
        names += [f"{listing.bases[-1]:020d}{suffix}" for suffix in SEGMENT_SUFFIXES]
    for name in names:
        with contextlib.suppress(OSError):
            file = disk.open(f"{directory}/{name}")
            try:
                file.read(max(0, file.size() - READ_AHEAD_BYTES), READ_AHEAD_BYTES)
            finally:
                file.close()


@dataclass(slots=True)
class OpenedLog:
    segments: list[Segment]
    producers: ProducerTable
    epochs: EpochCache
    snapshots: SnapshotStore
    log_start_offset: int
    log_end_offset: int = 0
    recovery_point: int = 0
    aborted_bases: list[int] = field(default_factory=list)
    derived_point: int = 0
    recovered: bool = False
    times_are_kept: bool = True  # `producer-times` on disk is complete


class LogOpener:
    """One opening of one log."""

    def __init__(
        self,
        environment: LogEnvironment,
        directory: str,
        config: LogConfig,
        listing: DirectoryListing,
        *,
        recovery_point: int,
        log_start_offset: int,
        high_watermark: int,
        cleaned_offset: int = 0,
    ) -> None:
        self._environment = environment
        self._disk = environment.disk
        self._directory = directory
        self._config = config
        self._listing = listing
        self._segments_removed = False
        self._was_cut = False
        self._times: dict[int, ProducerTime] = {}
        self._now_ms = environment.clock.wall_ms()
        self._solid_point = max(recovery_point, cleaned_offset)
        segments = [
            Segment(environment.files, environment.indexes, directory, base, self._size_of(base), self._now_ms)
            for base in listing.bases
        ]
        producers = ProducerTable()
        producers.high_watermark = high_watermark
        snapshots = SnapshotStore(self._disk, directory, list(listing.snapshots))
        self.result = OpenedLog(segments, producers, self._read_epochs(), snapshots, log_start_offset)
        self.result.recovery_point = recovery_point

    def _size_of(self, base_offset: int) -> int:
        return self._disk.file_size(f"{self._directory}/{base_offset:020d}{LOG_SUFFIX}")

    def open(self, *, clean: bool) -> OpenedLog:
        result = self.result
        self._remove_garbage()
        self._drop_below_log_start()
        if not clean:
            self._drop_behind_lost_start()
        result.log_end_offset = result.log_start_offset
        self._drop_unfounded_snapshots()
        if result.segments:
            if not (clean and self._trust()):
                self._recover()
            result.log_start_offset = max(result.log_start_offset, result.segments[0].base_offset)
        if result.log_end_offset < result.log_start_offset:
            self._restart_at_log_start()
        result.recovery_point = min(result.recovery_point, result.log_end_offset)
        result.snapshots.remove_above(result.log_end_offset)
        result.snapshots.remove_strays({segment.base_offset for segment in result.segments})
        self._recall()
        # A power cut may bring removed files back. Index files and snapshots do no harm: the recovery point passes them
        # only after a sync of the directory. A segment could be taken for a new one of its name.
        if self._segments_removed or self._was_cut:
            self._disk.sync_dir(self._directory)
        return result

    # With a clean shutdown

    def _trust(self) -> bool:
        """Take over what a clean shutdown left; False when it is not what a clean shutdown leaves."""
        result = self.result
        active = result.segments[-1]
        try:
            result.log_end_offset = active.load_tail()
        except InvalidBatch as error:
            log.warning("%s: %s, although it was closed cleanly; recovering it", active.log_path, error)
            result.recovery_point = active.base_offset
            return False
        result.epochs.truncate_from_end(result.log_end_offset + 1)
        self._load_producers(result.log_end_offset)
        self._note_aborts(result.segments)
        result.derived_point = active.base_offset
        return True

    # Without

    def _recover(self) -> None:
        result = self.result
        result.recovered = True
        bases = [segment.base_offset for segment in result.segments]
        first = max(0, bisect_left(bases, result.recovery_point) - 1)
        start = result.log_end_offset = result.derived_point = bases[first]
        result.epochs.truncate_from_end(start)
        result.snapshots.remove_above(start)
        self._load_producers(start)
        self._note_aborts(result.segments[:first])
        if first and start not in result.snapshots:
            self._snapshot(start)
            result.snapshots.sync(start)
        for at in range(first, len(result.segments)):
            segment = result.segments[at]
            if self._is_behind_hole(segment):
                reason = f"it begins at {segment.base_offset}, the segment before it ends at {result.log_end_offset}"
                log.warning("%s: %s; removing it and all after it", segment.log_path, reason)
                self._drop(at)
                break
            result.log_end_offset = segment.base_offset
            if at > first:
                self._snapshot(segment.base_offset)
            if not self._recover_segment(segment):
                self._drop(at + 1)
                break
        for segment in result.segments[first:-1]:
            segment.seal()
            self._environment.indexes.touch(segment)
        result.producers.end_offset = result.log_end_offset

    def _is_behind_hole(self, segment: Segment) -> bool:
        """Whether the bytes before a segment were lost. Below the solid point it was compaction that took them."""
        if segment.base_offset <= self._solid_point:
            return False
        return 0 < segment.base_offset - self.result.log_end_offset <= MAX_RELATIVE_OFFSET

    def _recover_segment(self, segment: Segment) -> bool:
        """Derive all that follows from a segment's batches; cuts it at the first bad one and returns False there."""
        size = segment.size
        segment.discard_txn_index()
        segment.start_empty()
        try:
            file = self._environment.files.get(segment.log_path)
            for position, header, buffer, at in iter_checked(file, 0, size):
                self._take(segment, position, header, buffer, at)
        except InvalidBatch as error:
            self._was_cut = True
            log.warning(
                "%s: %s; cutting %d bytes at offset %d",
                segment.log_path,
                error,
                size - segment.size,
                self.result.log_end_offset,
            )
            file = self._environment.files.get(segment.log_path)
            file.truncate(segment.size)
            file.sync()
            return False
        return True

    def _take(self, segment: Segment, position: int, header: Header, buffer: Buffer, at: int) -> None:
        result = self.result
        if header.base_offset < result.log_end_offset or not segment.fits(header.last_offset):
            raise InvalidBatch(position, f"offset {header.base_offset} where {result.log_end_offset} is due")
        if header.leader_epoch < result.epochs.latest:  # not covered by the CRC, but it never falls
            raise InvalidBatch(position, f"leader epoch {header.leader_epoch} after {result.epochs.latest}")
        segment.note(header, header.base_offset, position, self._config.index_interval_bytes)
        segment.size = position + header.size
        if header.leader_epoch > result.epochs.latest:
            result.epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0:
            aborted = replay_batch(result.producers, header, buffer, at)
            if aborted is not None:
                segment.note_aborted(aborted)
                if not result.aborted_bases or result.aborted_bases[-1] != segment.base_offset:
                    result.aborted_bases.append(segment.base_offset)
        result.log_end_offset = header.next_offset

    # Parts

    def _snapshot(self, offset: int) -> None:
        """Write the state that was just derived; a file that was there may be torn."""
        self.result.snapshots.write(offset, encode_snapshot(self.result.producers.entries.values()))

    def _load_producers(self, end_offset: int) -> None:
        """The producers' state at `end_offset`, of which everything below is trusted."""
        result = self.result
        self._times = read_times(self._disk, self._directory)
        loaded = result.snapshots.load(end_offset)
        start = result.segments[0].base_offset
        if loaded is not None:
            start, entries = loaded
            result.producers.reset(entries, start)
            self._recall()
            result.producers.expire(self._now_ms, self._environment.producer_id_expiration_ms)
            deepen_windows(result.producers, result.segments, start)
        replay(result.producers, result.segments, start, end_offset)

    def _recall(self) -> None:
        self.result.times_are_kept &= self.result.producers.recall(self._times, self._now_ms)
        if self._was_cut:
            remove_times(self._disk, self._directory)
            self.result.times_are_kept = False

    def _note_aborts(self, segments: list[Segment]) -> None:
        self.result.aborted_bases = [segment.base_offset for segment in segments if segment.has_txn_index()]

    def _read_epochs(self) -> EpochCache:
        path = f"{self._directory}/{EPOCH_CHECKPOINT}"
        try:
            return EpochCache.decode(read_file(self._disk, path))
        except FileNotFoundError:
            return EpochCache()
        except CorruptCheckpoint as error:
            log.warning("%s: %s; it starts empty", path, error)
            return EpochCache()

    def _remove_garbage(self) -> None:
        for name in self._listing.garbage:
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(f"{self._directory}/{name}")

    def _drop_below_log_start(self) -> None:
        segments = self.result.segments
        while len(segments) > 1 and segments[1].base_offset <= self.result.log_start_offset:
            self._remove_files(segments.pop(0))

    def _drop_unfounded_snapshots(self) -> None:
        """Remove snapshots before the first segment: a snapshot says nothing without the batches after it."""
        result = self.result
        if result.segments:
            result.snapshots.remove_below(result.segments[0].base_offset)
        else:
            result.snapshots.remove_above(-1)
            result.epochs = EpochCache()
            result.recovered = True

    def _drop_behind_lost_start(self) -> None:
        """The first segments were never synced, and the power cut took their names: what follows is behind a hole."""
        result = self.result
        if not result.segments:
            return
        first = result.segments[0]
        if 0 < first.base_offset - max(result.recovery_point, result.log_start_offset) <= MAX_RELATIVE_OFFSET:
            log.warning(
                "%s: it begins at %d, the recovery point is %d; removing it and all after it",
                first.log_path,
                first.base_offset,
                result.recovery_point,
            )
            self._drop(0)
            result.recovered = True

    def _drop(self, first: int) -> None:
        for segment in self.result.segments[first:]:
            self._was_cut = True
            self._remove_files(segment)
        del self.result.segments[first:]

    def _restart_at_log_start(self) -> None:
        """All records from the log start on were lost: none of them may come back."""
        result = self.result
        log.warning(
            "%s: the log ends at %d, before its start %d; it starts empty there",
            self._directory,
            result.log_end_offset,
            result.log_start_offset,
        )
        self._drop(0)
        result.snapshots.remove_above(-1)
        result.epochs = EpochCache()
        result.producers.reset((), result.log_start_offset)
        result.aborted_bases = []
        result.log_end_offset = result.recovery_point = result.derived_point = result.log_start_offset

    def _remove_files(self, segment: Segment) -> None:
        segment.close_files()
        for path in segment.paths():
            self._disk.remove(path)
        self._segments_removed = True
