"""The metadata log `__cluster_metadata-0`, for a quorum whose only voter is this node.

Its files are Kafka's. Values are opaque here; what they mean is the controller's business.

1. An epoch is in `quorum-state`, synced, before it is used, and greater than every epoch in the log.
2. The first batch of an epoch is its LeaderChange.
3. A batch is committed when it is synced. One sync runs at a time and covers all that was appended before it began;
   commits are told in the order of the offsets.
4. What a crash left in the log beyond the last sync is part of it: with one voter nobody can have decided otherwise. It
   is committed, like the rest, by the first sync of the next epoch.
5. After a failed write or sync nothing is committed any more: what the disk holds is then unknown (KAFKA-10778).
6. What is there is synced before a new epoch begins, so that a damaged batch before a later epoch was damaged after it
   was acknowledged. Such a log is refused, not cut.
7. A start reads the newest snapshot and the log from its end on. The newest voters and kraft.version in either hold.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from twofold.config.topic import LogConfig
from twofold.log.api import Bound, Origin
from twofold.log.checkpoints import encode_uuid
from twofold.log.environment import LogEnvironment
from twofold.log.files import FilePool
from twofold.log.log import PartitionLog
from twofold.log.opening import Listing, list_directory
from twofold.raft.control import (
    KRAFT_VERSION,
    STATIC_VOTERS,
    Voter,
    decode_kraft_version,
    decode_voters,
    leader_change_batch,
)
from twofold.raft.damage import refuse_damage
from twofold.raft.errors import CorruptMetadataLog, ForeignQuorum
from twofold.raft.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from twofold.raft.snapshots import (
    BOOTSTRAP_FILE,
    BOOTSTRAP_ID,
    Snapshot,
    SnapshotId,
    encode_snapshot,
    list_snapshots,
    read_snapshot,
    write_snapshot,
)
from twofold.records.batch import BatchBuilder, crc_is_valid, iter_headers, iter_records
from twofold.records.control import ControlType, parse_control_key
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import InvalidRecord, KafkaError, KafkaStorageError, NotController, RecordListTooLarge

METADATA_PARTITION = TopicPartition("__cluster_metadata", 0)
METADATA_TOPIC_ID = UUID(int=1)
PARTITION_METADATA = "partition.metadata"
MAX_BATCH_BYTES = 8 * 1024 * 1024
READ_BYTES = 1024 * 1024
OPEN_FILES = 8

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


class MetadataLog:
    def __init__(
        self,
        runtime: Runtime,
        log_dir: str,
        *,
        node_id: int,
        directory_id: UUID,
        on_commit: Callable[[int], None],
        on_failure: Callable[[KafkaError], None],
        config: LogConfig | None = None,
        closed_cleanly: bool = False,
    ) -> None:
        """`on_commit(offset)`: all up to and including it is durable. `on_failure`: nothing more ever will be.

        `closed_cleanly`: whoever had the directory before says that all of it was synced.
        """
        self.directory = f"{log_dir}/{METADATA_PARTITION}"
        self.node_id = node_id
        self.epoch = 0
        self.is_leader = False
        self.committed_offset = -1
        self.kraft_version = STATIC_VOTERS
        self.voters: tuple[Voter, ...] | None = None  # None while nothing names them
        self._runtime = runtime
        self._log_dir = log_dir
        self._closed_cleanly = closed_cleanly
        self._directory_id = directory_id
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._syncing: asyncio.Task[None] | None = None
        self._files = FilePool(runtime.disk, OPEN_FILES)
        exists = runtime.disk.is_dir(self.directory)
        self._listing = list_directory(runtime.disk, self.directory) if exists else Listing()
        snapshots = list_snapshots(runtime.disk, self.directory)
        self.latest_snapshot: SnapshotId | None = snapshots[-1] if snapshots else None
        first = self._listing.bases[0] if self._listing.bases else 0
        self._log = PartitionLog(
            LogEnvironment(
                runtime.disk,
                runtime.clock,
                runtime.random,
                runtime.blocking,
                runtime.spawn,
                self._files,
            ),
            self.directory,
            METADATA_PARTITION,
            config or LogConfig(),
            topic_id=METADATA_TOPIC_ID,
            listing=self._listing if exists else None,
            log_start_offset=first,
        )

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    # -- starting

    def replay(self) -> Iterator[ReplayedBatch]:
        """The newest snapshot and all data batches after it; the first call cuts a torn tail."""
        start = self._open()
        if self.latest_snapshot is not None:
            snapshot = self._read_snapshot(self.latest_snapshot)
            yield ReplayedBatch(start - 1, self.latest_snapshot.epoch, snapshot.values, is_snapshot=True)
        offset = max(start, self._log.log_start_offset)
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

    def _open(self) -> int:
        """Open the log and return the offset at which to begin reading it."""
        bases, snapshot = self._listing.bases, self.latest_snapshot
        start = 0 if snapshot is None else snapshot.end_offset
        if bases and bases[0] > start:
            known = "there is no snapshot" if snapshot is None else f"the newest snapshot is {snapshot.file_name}"
            raise CorruptMetadataLog(
                f"{self.directory}: the log begins at offset {bases[0]} and {known}: what was before it is missing; "
                "restore the directory from a copy"
            )
        refuse_damage(self._runtime.disk, self.directory, bases, closed_cleanly=self._closed_cleanly)
        self._log.ensure_open()
        if self._log.log_end_offset < start:
            raise CorruptMetadataLog(
                f"{self.directory}: the log ends at offset {self._log.log_end_offset}, before the snapshot "
                f"{snapshot.file_name if snapshot else ''} does; restore the directory from a copy"
            )
        return start

    def _read_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        snapshot = read_snapshot(self._runtime.disk, f"{self.directory}/{snapshot_id.file_name}")
        self.kraft_version, self.voters = snapshot.kraft_version, snapshot.voters
        return snapshot

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
        """What the node promised, after a replay; ForeignQuorum unless it, in this directory, is the one voter."""
        disk = self._runtime.disk
        if self._log.log_end_offset == 0 and disk.exists(f"{self.directory}/{BOOTSTRAP_ID.file_name}"):
            self._read_snapshot(BOOTSTRAP_ID)
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
        self._log.ensure_open()
        first = self._log.log_end_offset == 0
        state = self.check_quorum()
        if not first:
            await self._sync_what_is_there()
        self.epoch = await self._runtime.blocking(self._vote, state, self._log.leader_epoch)
        self.is_leader = True
        now_ms = self._runtime.clock.wall_ms()
        voters = self.voters or (Voter(self.node_id, self._directory_id),)
        if first:
            self.kraft_version, self.voters = KRAFT_VERSION, voters
        batch = leader_change_batch(self.node_id, voters, first=first, timestamp_ms=now_ms)
        self._append(batch)
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
        return self._append(builder.build())

    def _append(self, batch: bytes) -> int:
        try:
            last_offset = self._log.append(batch, origin=Origin.RAFT, leader_epoch=self.epoch).last_offset
        except KafkaStorageError as error:
            self._fail(error)
            raise
        if self._syncing is None:
            self._syncing = self._runtime.spawn(self._sync(), name="metadata log sync")
        return last_offset

    async def _sync(self) -> None:
        """Sync until all that was appended is committed."""
        try:
            while self.committed_offset < (end := self._log.log_end_offset) - 1:
                await self._log.sync()
                self._log.advance_high_watermark(end)
                self.committed_offset = end - 1
                self._on_commit(self.committed_offset)
                self._wake()
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

    async def write_snapshot(self, values: Iterable[bytes], end_offset: int) -> SnapshotId:
        """Put what all records below `end_offset`, the last of them of this epoch, come to into a snapshot."""
        snapshot_id = SnapshotId(end_offset, self.epoch)
        now_ms = self._runtime.clock.wall_ms()
        batches = encode_snapshot(
            values,
            epoch=self.epoch,
            last_contained_timestamp_ms=now_ms,
            timestamp_ms=now_ms,
            voters=self.voters,
            kraft_version=self.kraft_version,
        )
        path = f"{self.directory}/{snapshot_id.file_name}"
        await self._runtime.blocking(write_snapshot, self._runtime.disk, path, batches)
        self.latest_snapshot = snapshot_id
        return snapshot_id

    def abandon(self) -> None:
        """Leave a log that cannot be used as it was found."""
        self._files.close()

    async def close(self) -> None:
        """Commit what is there and leave."""
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        self.is_leader = False
        plan = self._log.prepare_close()
        if plan is not None:
            try:
                await self._runtime.blocking(plan.run)
            finally:
                self._log.finish_close(plan)


def _listed(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) or "none"
