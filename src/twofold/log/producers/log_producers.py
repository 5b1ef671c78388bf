"""The producers of one log: the table, the snapshots of it on disk, and when its producers wrote.

1. A snapshot at an offset is the table as the batches below that offset made it.
2. A snapshot is synced before the recovery point passes it, or before the segments below it stop being looked at.
3. The file `producer-times` is removed before the log is cut: it would tell of batches that are gone.
"""

import logging
from collections.abc import Sequence

from twofold.log.environment import LogContext
from twofold.log.producers.entry import NO_OFFSET
from twofold.log.producers.replay import replay
from twofold.log.producers.snapshot_store import SnapshotStore
from twofold.log.producers.snapshots import encode_snapshot
from twofold.log.producers.table import ProducerTable
from twofold.log.producers.times import TimesToKeep, remove_times, times_of
from twofold.log.producers.windows import deepen_windows
from twofold.log.segments.segment import Segment
from twofold.types import ProducerEpoch, ProducerId

log = logging.getLogger("twofold.log")


class LogProducers:
    __slots__ = ("snapshots", "table", "_context", "_times_kept_at")

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self.table = ProducerTable()
        self.snapshots = SnapshotStore(context.environment.disk, context.directory)
        self._times_kept_at = NO_OFFSET  # the log end when the file `producer-times` was written

    def adopt(self, table: ProducerTable, snapshots: SnapshotStore, *, times_are_kept: bool) -> None:
        """Take over what an opening found."""
        self.table = table
        self.snapshots = snapshots
        self._times_kept_at = table.end_offset if times_are_kept else NO_OFFSET

    # Snapshots

    def snapshot_at(self, offset: int) -> None:
        """Write the table as it is now, unless there is a snapshot at `offset`, the log end."""
        if offset not in self.snapshots:
            self.snapshots.write(offset, encode_snapshot(self.table.entries.values()))

    def reload(self, segments: Sequence[Segment], end_offset: int) -> None:
        """Bring the table back to what it was at `end_offset`, where the log was cut."""
        table = self.table
        known = times_of(*table.times())
        loaded = self.snapshots.load(end_offset)
        start, entries = loaded if loaded is not None else (segments[0].base_offset, [])
        table.reset(entries, start)
        deepen_windows(table, segments, start)
        table.clear_verifications()
        replay(table, segments, start, end_offset)
        table.recall(known, self._context.environment.clock.wall_ms())

    def start_empty_at(self, offset: int) -> None:
        self.table.reset((), offset)
        self.table.clear_verifications()

    # When producers wrote

    def take_times(self) -> TimesToKeep | None:
        """When producers wrote, to be written to a file; None where the file is up to date."""
        table = self.table
        if not table.entries or self._times_kept_at == table.end_offset:
            return None
        self._times_kept_at = table.end_offset
        return TimesToKeep(self._context.directory, *table.times())

    def keep_times(self) -> None:
        times = self.take_times()
        if times is not None:
            try:
                times.write(self._context.environment.disk)
            except OSError as error:
                log.warning("%s: the times of its producers cannot be stored: %s", self._context.directory, error)

    def forget_times(self) -> None:
        """The log is about to be cut."""
        self._times_kept_at = NO_OFFSET
        remove_times(self._context.environment.disk, self._context.directory)

    # What is asked about a producer

    def start_verification(
        self, producer_id: ProducerId, epoch: ProducerEpoch, sequence: int, supports_epoch_bump: bool
    ) -> int | None:
        environment = self._context.environment
        now_ms, guard = environment.clock.wall_ms(), next(environment.guards)
        return self.table.start_verification(producer_id, epoch, sequence, supports_epoch_bump, now_ms, guard)

    def was_ended_by_hand(self, producer_id: ProducerId, epoch: ProducerEpoch, since_ms: int) -> bool:
        entry = self.table.entries.get(producer_id)
        if entry is None or entry.epoch != epoch or entry.txn_first_offset != NO_OFFSET or not entry.window:
            return False
        return entry.last_timestamp > since_ms

    def has_open_transaction_before(self, offset: int, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        entry = self.table.entries.get(producer_id)
        return entry is not None and entry.has_open_transaction(epoch) and entry.txn_first_offset < offset

    def expire(self, now_ms: int) -> int:
        return self.table.expire(now_ms, self._context.environment.producer_id_expiration_ms)
