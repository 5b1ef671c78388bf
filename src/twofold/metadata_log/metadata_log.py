"""The metadata log `__cluster_metadata-0`, for a quorum whose only voter is this node.

Its files are Kafka's. Values are opaque here; what they mean is the controller's business.

1. An epoch is in `quorum-state`, synced, before it is used, and greater than every epoch in the log.
2. The first batch of an epoch is its LeaderChange.
3. A batch is committed when it is synced. One sync runs at a time and covers all that was appended before it began;
   the listener hears of commits in the order of the offsets.
4. What a crash left in the log beyond the last sync is part of it: with one voter no other node can have decided
   otherwise. It is committed, like the rest, by the first sync of the next epoch.
5. After a failed write or sync nothing is committed any more: what the disk holds is then unknown (KAFKA-10778).
6. What is there is synced before a new epoch begins, and before a new segment gets its first batch, so that a damaged
   batch before a later epoch or segment was damaged after it was acknowledged. Such a log is refused, not cut.
7. A start reads the newest snapshot and the log from its end on. The newest voters and kraft.version in either hold.
8. A snapshot stands for what is committed, and is on disk before anything goes because of it. Snapshots go before the
   segments do, oldest first; a crash in between leaves more than is needed, never less.
"""

import asyncio
import logging
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from twofold.log.api import Bound, Origin
from twofold.log.environment import LogEnvironment, NoOwner
from twofold.log.log import PartitionLog
from twofold.log.recovery.checkpoints import encode_uuid
from twofold.log.recovery.opening import list_directory
from twofold.log.segments.files import FilePool
from twofold.metadata_log.committed_offset import CommittedOffsetFile
from twofold.metadata_log.control import (
    KRAFT_VERSION,
    STATIC_VOTERS,
    Voter,
    decode_kraft_version,
    decode_voters,
    leader_change_batch,
)
from twofold.metadata_log.damage import cut_tail
from twofold.metadata_log.errors import CorruptMetadataLog, ForeignQuorum
from twofold.metadata_log.options import MetadataLogOptions
from twofold.metadata_log.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from twofold.metadata_log.retention import SegmentFile, count_forgettable
from twofold.metadata_log.snapshot_files import SnapshotFiles
from twofold.metadata_log.snapshots import (
    BOOTSTRAP_FILE,
    BOOTSTRAP_ID,
    Snapshot,
    SnapshotId,
    encode_snapshot,
    read_snapshot,
)
from twofold.metadata_log.starting import Start, find_start
from twofold.records.batch import BatchBuilder, crc_is_valid, iter_headers, iter_records
from twofold.records.control import ControlType, parse_control_key
from twofold.runtime.api import Runtime, TimerHandle
from twofold.runtime.files import read_file
from twofold.types import TopicPartition
from twofold.wire.errors import InvalidRecord, KafkaError, KafkaStorageError, NotController, RecordListTooLarge

METADATA_PARTITION = TopicPartition("__cluster_metadata", 0)
METADATA_TOPIC_ID = UUID(int=1)
PARTITION_METADATA = "partition.metadata"
MAX_BATCH_BYTES = 8 * 1024 * 1024
READ_BYTES = 1024 * 1024
OPEN_FILES = 8
SMALLEST_TO_ROLL_BYTES = 64 * 1024

log = logging.getLogger(__name__)


class ReplayedBatch(NamedTuple):
    """Values of the log with offsets from `base_offset` on, or those of a snapshot, which all stand for that offset."""

    base_offset: int
    leader_epoch: int
    values: list[bytes]
    is_snapshot: bool = False

    def numbered(self) -> Iterator[tuple[int, bytes]]:
        if self.is_snapshot:
            return ((self.base_offset, value) for value in self.values)
        return enumerate(self.values, self.base_offset)


class CommittedPoint(NamedTuple):
    """How far the log is committed."""

    offset: int = -1  # the last one
    bytes: int = 0  # of the batches up to it, counted from where this process began to read
    timestamp_ms: int = -1  # of the last batch


class _SyncsAtRoll(NoOwner):
    def segment_rolled(self, log: PartitionLog) -> None:
        """Before the new segment gets its first batch all before it is on disk."""
        log.flush()


def _ignore(_: object) -> None:
    """For a log without a listener."""


class MetadataLog:
    def __init__(
        self,
        runtime: Runtime,
        log_dir: str,
        *,
        node_id: int,
        directory_id: UUID,
        options: MetadataLogOptions | None = None,
        closed_cleanly: bool = False,
    ) -> None:
        """`closed_cleanly`: the process that had the directory before says that all of it was synced."""
        self.directory = f"{log_dir}/{METADATA_PARTITION}"
        self.node_id = node_id
        self.epoch = 0
        self.is_leader = False
        self.written_snapshot_bytes = 0  # of the last snapshot that this process wrote
        self.committed = CommittedPoint()
        self.kraft_version = STATIC_VOTERS
        self.voters: tuple[Voter, ...] | None = None  # None while neither log nor snapshot names them
        self._runtime = runtime
        self._options = options or MetadataLogOptions()
        self._log_dir = log_dir
        self._closed_cleanly = closed_cleanly
        self._directory_id = directory_id
        self._on_commit: Callable[[int], None] = _ignore
        self._on_failure: Callable[[KafkaError], None] = _ignore
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._watchers: list[Callable[[], None]] = []
        self._syncing: asyncio.Task[None] | None = None
        self._files = FilePool(runtime.disk, OPEN_FILES)
        self._snapshots = SnapshotFiles(runtime.disk, self.directory)
        self._log = self._new_log()
        self._is_open = False
        self._committed_file: CommittedOffsetFile | None = None
        self._written = CommittedPoint()  # what it will be when all that is in the log is committed
        self._doomed: list[tuple[int, list[str]]] = []
        self._removal: TimerHandle | None = None

    def listen(self, on_commit: Callable[[int], None], on_failure: Callable[[KafkaError], None]) -> None:
        """Call before the first append. `on_commit(offset)`: all up to and including this offset is durable.
        `on_failure`: nothing more ever will be."""
        self._on_commit = on_commit
        self._on_failure = on_failure

    def _new_log(self, start_offset: int = 0, solid_to: int = 0) -> PartitionLog:
        """`solid_to`: all below was committed, and with it all that is derived from it."""
        runtime = self._runtime
        environment = LogEnvironment(
            runtime.disk,
            runtime.clock,
            runtime.random,
            runtime.blocking,
            runtime.spawn,
            self._files,
            owner=_SyncsAtRoll(),
        )
        return PartitionLog(
            environment,
            self.directory,
            METADATA_PARTITION,
            self._options.log_config(),
            topic_id=METADATA_TOPIC_ID,
            listing=list_directory(runtime.disk, self.directory) if runtime.disk.is_dir(self.directory) else None,
            log_start_offset=start_offset,
            recovery_point=solid_to,
        )

    @property
    def committed_offset(self) -> int:
        return self.committed.offset

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self._snapshots.newest

    @property
    def size_bytes(self) -> int:
        """Of the log, without its snapshots."""
        return self._log.size_bytes

    # -- starting

    def replay(self) -> Iterator[ReplayedBatch]:
        """The newest snapshot and all data batches after it; the first call cuts a torn tail."""
        start = self._open()
        if start is None:
            newest = self._snapshots.newest
            snapshot = None if newest is None else self._read_snapshot(newest)
        else:
            newest, snapshot = start.snapshot_id, start.snapshot
        offset = self._log.log_start_offset
        if newest is not None and snapshot is not None:
            offset = newest.end_offset
            self.kraft_version, self.voters = snapshot.kraft_version, snapshot.voters
            yield ReplayedBatch(offset - 1, newest.epoch, snapshot.values, is_snapshot=True)
        size = 0
        timestamp_ms = -1 if snapshot is None else snapshot.last_contained_timestamp_ms
        while offset < self._log.log_end_offset:
            data = self._log.read(offset, READ_BYTES, Bound.LOG_END).records
            for position, header in iter_headers(data):
                if header.base_offset != offset or not crc_is_valid(data, position, header):
                    raise CorruptMetadataLog(
                        f"{self.directory}: the batch at offset {offset} is damaged; restore the directory from a copy"
                    )
                if header.is_control:
                    self._note_voters(data, position, offset)
                else:
                    values = [record.value or b"" for record in iter_records(data, position)]
                    yield ReplayedBatch(offset, header.leader_epoch, values)
                offset = header.next_offset
                size += header.size
                timestamp_ms = header.max_timestamp
        if not self.is_leader:
            self._written = CommittedPoint(offset - 1, size, timestamp_ms)

    def _open(self) -> Start | None:
        """Open the log if that did not happen yet, and say where to begin reading it."""
        if self._is_open:
            return None
        disk, directory = self._runtime.disk, self.directory
        bases = list_directory(disk, directory).bases if disk.is_dir(directory) else ()
        start = find_start(disk, directory, bases, self._snapshots.ids, closed_cleanly=self._closed_cleanly)
        inspection, tail = start.inspection, start.inspection.tail
        if tail is not None:
            size = disk.file_size(tail.path) - tail.position
            text = "%s: %s; cutting %d bytes at offset %d"
            log.warning(text, tail.path, tail.reason, size, inspection.end_offset)
            cut_tail(disk, directory, bases, tail)
        self._snapshots.settle(start.damaged, inspection.start_offset)
        self._log = self._new_log(inspection.start_offset, start.offset)
        self._log.ensure_open()
        self._is_open = True
        return start

    def _read_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        return read_snapshot(self._runtime.disk, self._snapshots.path(snapshot_id))

    def _note_voters(self, data: bytes, position: int, offset: int) -> None:
        try:
            for record in iter_records(data, position):
                kind = parse_control_key(record.key)
                if kind is ControlType.KRAFT_VERSION:
                    self.kraft_version = decode_kraft_version(record.value)
                elif kind is ControlType.KRAFT_VOTERS:
                    self.voters = decode_voters(record.value)
        except InvalidRecord as error:
            raise CorruptMetadataLog(
                f"{self.directory}: the control batch at offset {offset} cannot be read ({error}); restore the "
                "directory from a copy"
            ) from error

    def bootstrap_values(self) -> list[bytes]:
        """The first records of an empty log, as `kafka-storage.sh format` left them; none where it was not run."""
        disk = self._runtime.disk
        values: list[bytes] = []
        for path in (f"{self._log_dir}/{BOOTSTRAP_FILE}", f"{self.directory}/{BOOTSTRAP_ID.file_name}"):
            if disk.exists(path):
                values += read_snapshot(disk, path).values
        return values

    def check_quorum(self) -> QuorumState:
        """What the node promised, after a replay; ForeignQuorum unless it is the only voter, with this directory."""
        disk = self._runtime.disk
        if self._log.log_end_offset == 0 and disk.exists(f"{self.directory}/{BOOTSTRAP_ID.file_name}"):
            snapshot = self._read_snapshot(BOOTSTRAP_ID)
            self.kraft_version, self.voters = snapshot.kraft_version, snapshot.voters
        state = read_quorum_state(disk, self.directory)
        if self.kraft_version > KRAFT_VERSION:
            raise ForeignQuorum(
                f"{self.directory} has kraft.version {self.kraft_version}, known is {KRAFT_VERSION}: use a newer "
                "Twofold"
            )
        others = "Twofold leads a metadata quorum of one voter: open a directory of such a node, or remove the others"
        if self.voters is None:
            static = state.static_voter_ids or ()
            if any(voter_id != self.node_id for voter_id in static):
                raise ForeignQuorum(f"{self.directory}/quorum-state has the voters {_listed(static)}; {others}")
            return state
        found = [voter.voter_id for voter in self.voters]
        if found != [self.node_id]:
            raise ForeignQuorum(
                f"{self.directory} has the voters {_listed(found)} (kraft.version {self.kraft_version}); {others} with "
                "kafka-metadata-quorum.sh remove-controller"
            )
        if self.voters[0].directory_id != self._directory_id:
            found_id, own_id = encode_uuid(self.voters[0].directory_id), encode_uuid(self._directory_id)
            raise ForeignQuorum(
                f"{self.directory}: voter {self.node_id} has the directory id {found_id}, the directory has {own_id}: "
                "restore directory.id in meta.properties"
            )
        return state

    async def become_leader(self) -> int:
        """Begin a new epoch as its leader. It is committed by the first sync, together with what is appended next."""
        self._open()
        first = self._log.log_end_offset == 0
        state = self.check_quorum()
        if not first:
            await self._sync_what_is_there()
        self.epoch = await self._runtime.blocking(self._vote, state, self._log.leader_epoch)
        self._committed_file = CommittedOffsetFile(self._runtime.disk, self.directory)
        self.is_leader = True
        now_ms = self._runtime.clock.wall_ms()
        voters = self.voters or (Voter(self.node_id, self._directory_id),)
        if first:
            self.kraft_version, self.voters = KRAFT_VERSION, voters
        batch = leader_change_batch(self.node_id, voters, first=first, timestamp_ms=now_ms)
        self._append(batch, now_ms)
        return self.epoch

    async def _sync_what_is_there(self) -> None:
        try:
            await self._log.sync()
        except KafkaStorageError as error:
            self._fail(error)
            raise NotController(str(error)) from error

    def _vote(self, state: QuorumState, epoch_in_log: int) -> int:
        """Persist the next epoch; runs in a thread, before anything else uses the directory."""
        disk, directory = self._runtime.disk, self.directory
        is_new = not disk.is_dir(directory)
        if is_new:
            disk.make_dirs(directory)
            file = disk.open(f"{directory}/{PARTITION_METADATA}", create=True)
            file.write(0, b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
            file.sync()
            file.close()
        epoch = max(state.leader_epoch, epoch_in_log) + 1
        static = state.static_voter_ids if self.voters is None else None
        voted = QuorumState(leader_epoch=epoch, leader_id=self.node_id, static_voter_ids=static)
        write_quorum_state(disk, directory, voted)
        if is_new:
            disk.sync_dir(directory.rpartition("/")[0])
        return epoch

    # -- writing

    def append(self, values: Sequence[bytes], epoch: int) -> int:
        """Append one batch of these values and return its last offset; it is committed later."""
        if not self.is_leader or epoch != self.epoch:
            raise NotController(f"epoch {epoch} is over: the metadata log is at {self.epoch}")
        builder = BatchBuilder()
        now_ms = self._runtime.clock.wall_ms()
        for value in values:
            builder.add(None, value, now_ms)
        if builder.size_estimate > MAX_BATCH_BYTES:
            raise RecordListTooLarge(
                f"{len(values)} metadata records of one operation take {builder.size_estimate} bytes, "
                f"a batch may have {MAX_BATCH_BYTES}: do it in several operations"
            )
        return self._append(builder.build(), now_ms)

    def _append(self, batch: bytes, now_ms: int) -> int:
        try:
            last_offset = self._log.append(batch, origin=Origin.RAFT, leader_epoch=self.epoch).last_offset
        except KafkaStorageError as error:
            self._fail(error)
            raise
        self._written = CommittedPoint(last_offset, self._written.bytes + len(batch), now_ms)
        if self._syncing is None:
            self._syncing = self._runtime.spawn(self._sync(), name="metadata log sync")
        self._tell()
        return last_offset

    async def _sync(self) -> None:
        """Sync until all that was appended is committed."""
        try:
            while self.committed.offset < (written := self._written).offset:
                await self._log.sync()
                self._log.advance_high_watermark(written.offset + 1)
                self.committed = written
                if self._committed_file is not None:
                    self._committed_file.write(written.offset)
                self._on_commit(written.offset)
                self._wake()
                self._tell()
        except KafkaError as error:
            self._fail(error)
        finally:
            self._syncing = None

    def _wake(self) -> None:
        ready = [waiter for offset, waiter in self._waiting if offset <= self.committed_offset]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > self.committed_offset]
        for waiter in ready:
            if not waiter.done():
                waiter.set_result(None)

    def _fail(self, error: KafkaError) -> None:
        log.error("the metadata log is given up: %s", error)
        self.is_leader = False
        waiting, self._waiting = self._waiting, []
        for _, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(NotController(str(error)))
        self._on_failure(error)

    async def wait_committed(self, offset: int) -> None:
        """Return when everything up to and including `offset` is durable."""
        if offset <= self.committed_offset:
            return
        if not self.is_leader:
            raise NotController(f"offset {offset} will not be committed in epoch {self.epoch}")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, waiter))
        await waiter

    # -- readers on other nodes

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset`, committed or not; at least one, unless it is the end."""
        return self._log.read(offset, max_bytes, Bound.LOG_END).records if offset < self.end_offset else b""

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The last epoch up to this one that the log has, and its end; (-1, -1) where it has none."""
        return self._log.end_offset_for_epoch(epoch)

    def read_snapshot_file(self, snapshot_id: SnapshotId) -> bytes | None:
        """The whole file; None where it is not there, or not any more."""
        if snapshot_id not in self._snapshots.ids:
            return None
        return read_file(self._runtime.disk, self._snapshots.path(snapshot_id))

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` after every append and every commit."""
        self._watchers.append(watcher)

    def _tell(self) -> None:
        for watcher in self._watchers:
            watcher()

    # -- snapshots

    def begins_batch(self, offset: int) -> bool:
        """Whether a snapshot may end at `offset`: all before it is committed, and no batch lies across it."""
        if not self._log.log_start_offset < offset <= self.committed.offset + 1:
            return False
        if offset == self._log.log_end_offset:
            return True
        data = self._log.read(offset, 1, Bound.LOG_END).records
        return next((header.base_offset for _, header in iter_headers(data)), -1) == offset

    def snapshot_id(self, end_offset: int) -> SnapshotId:
        return SnapshotId(end_offset, self._log.epoch_for_offset(end_offset - 1))

    async def write_snapshot(
        self, values: Iterable[bytes], end_offset: int, *, last_contained_timestamp_ms: int | None = None
    ) -> SnapshotId:
        """Write a snapshot of the state below `end_offset`. `values` are asked for in a thread."""
        if not self.begins_batch(end_offset):
            raise ValueError(f"{self.directory}: no committed batch ends before offset {end_offset}")
        snapshot_id = self.snapshot_id(end_offset)
        if snapshot_id in self._snapshots.ids:
            return snapshot_id
        now_ms = self._runtime.clock.wall_ms()
        batches = encode_snapshot(
            values,
            epoch=snapshot_id.epoch,
            last_contained_timestamp_ms=now_ms if last_contained_timestamp_ms is None else last_contained_timestamp_ms,
            timestamp_ms=now_ms,
            voters=self.voters,
            kraft_version=self.kraft_version,
        )
        size = await self._runtime.blocking(self._snapshots.write, snapshot_id, batches)
        insort(self._snapshots.ids, snapshot_id)
        self.written_snapshot_bytes = size
        self._roll_after(snapshot_id, size)
        return snapshot_id

    def _roll_after(self, snapshot_id: SnapshotId, size: int) -> None:
        """Begin a new segment, so that this one can be trimmed later; not for fewer bytes than the snapshot has."""
        if not self.is_leader:
            return
        base_offset, active_size = self._log.segment_sizes()[-1]
        if base_offset < snapshot_id.end_offset and active_size > max(size, SMALLEST_TO_ROLL_BYTES):
            try:
                self._log.roll()
            except KafkaStorageError as error:
                self._fail(error)

    async def trim(self) -> int:
        """Remove old snapshots, as the retention limits say, and the log before those that stay; returns how many."""
        snapshots = list(self._snapshots.ids)
        described = await self._runtime.blocking(self._snapshots.describe, snapshots)
        count = count_forgettable(
            described,
            [SegmentFile(base, size) for base, size in self._log.segment_sizes()],
            retention_bytes=self._options.retention_bytes,
            retention_ms=self._options.retention_ms,
            now_ms=self._runtime.clock.wall_ms(),
        )
        if count:
            forgotten = snapshots[:count]
            renamed = await self._runtime.blocking(self._snapshots.take_away, forgotten)
            del self._snapshots.ids[:count]
            self._doomed.append((self._steady_ms() + self._options.delete_delay_ms, renamed))
            log.info("%s: snapshots before %s are forgotten", self.directory, snapshots[count].file_name)
        if self.is_leader:
            self._drop_old_segments(snapshots[count].end_offset if count else self._log.log_start_offset)
        if count:
            self._schedule_removal()
        return count

    def _drop_old_segments(self, start_offset: int) -> None:
        try:
            self._log.advance_log_start(start_offset)
            self._log.delete_old_segments()
        except KafkaStorageError as error:
            self._fail(error)

    def _steady_ms(self) -> int:
        return int(self._runtime.clock.monotonic() * 1000)

    def _schedule_removal(self) -> None:
        if self._removal is None:
            delay_s = (self._options.delete_delay_ms + 1) / 1000
            self._removal = self._runtime.timers.call_later(delay_s, self._remove_deleted)

    def _remove_deleted(self) -> None:
        """Remove files that were renamed long enough ago; the next start removes what a stop leaves."""
        self._removal = None
        now_ms = self._steady_ms()
        due = [path for at_ms, paths in self._doomed if at_ms <= now_ms for path in paths]
        self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        due += self._log.take_deleted_files(now_ms)
        if due:
            self._runtime.spawn(self._remove(due), name="metadata log removal")
        if self._doomed:
            self._schedule_removal()

    async def _remove(self, paths: list[str]) -> None:
        try:
            await self._runtime.blocking(self._snapshots.remove, paths)
        except OSError as error:
            log.warning("%s: cannot remove old files: %s", self.directory, error)

    # -- the end

    def abandon(self) -> None:
        """Leave a log that cannot be used as it was found."""
        self._stop_files()
        self._files.close()

    def _stop_files(self) -> None:
        if self._removal is not None:
            self._removal.cancel()
            self._removal = None
        if self._committed_file is not None:
            self._committed_file.close()
            self._committed_file = None

    async def close(self) -> None:
        """Commit all that was appended, and close the log. Raises if the log is not whole: a write or a sync failed."""
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        self.is_leader = False
        self._stop_files()
        if self._log.failure is not None:
            raise KafkaStorageError(f"{METADATA_PARTITION}: {self._log.failure}")
        plan = self._log.prepare_close()
        if plan is not None:
            try:
                await self._runtime.blocking(plan.run)
            finally:
                self._log.finish_close(plan)


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) or "none"
