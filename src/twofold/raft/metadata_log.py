"""The metadata log `__cluster_metadata-0`, for a quorum whose only voter is this node.

Its files are Kafka's. Values are opaque here; what they mean is the controller's business.

1. An epoch is in `quorum-state`, synced, before it is used, and greater than every epoch in the log.
2. The first batch of an epoch is its LeaderChange.
3. A batch is committed when it is synced. One sync runs at a time and covers all that was appended before it began;
   commits are told in the order of the offsets.
4. What a crash left in the log beyond the last sync is part of it: with one voter nobody can have decided otherwise. It
   is committed, like the rest, by the first sync of the next epoch.
5. After a failed write or sync nothing is committed any more: what the disk holds is then unknown (KAFKA-10778).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from twofold.config.topic import LogConfig
from twofold.log.api import Bound, Origin
from twofold.log.environment import LogEnvironment
from twofold.log.files import FilePool
from twofold.log.log import PartitionLog
from twofold.log.opening import list_directory
from twofold.raft.control import leader_change_batch
from twofold.raft.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from twofold.records.batch import BatchBuilder, crc_is_valid, iter_headers, iter_records
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, KafkaStorageError, NotController, RecordListTooLarge

METADATA_PARTITION = TopicPartition("__cluster_metadata", 0)
METADATA_TOPIC_ID = UUID(int=1)
PARTITION_METADATA = "partition.metadata"
MAX_BATCH_BYTES = 8 * 1024 * 1024
READ_BYTES = 1024 * 1024
OPEN_FILES = 8

log = logging.getLogger(__name__)


class CorruptMetadataLog(Exception):
    """A batch in the middle of the metadata log is not what was written."""


class ReplayedBatch(NamedTuple):
    base_offset: int
    leader_epoch: int
    values: list[bytes]


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
    ) -> None:
        """`on_commit(offset)`: all up to and including it is durable. `on_failure`: nothing more ever will be."""
        self.directory = f"{log_dir}/{METADATA_PARTITION}"
        self.node_id = node_id
        self.epoch = 0
        self.is_leader = False
        self.committed_offset = -1
        self._runtime = runtime
        self._directory_id = directory_id
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._syncing: asyncio.Task[None] | None = None
        self._log = PartitionLog(
            LogEnvironment(
                runtime.disk,
                runtime.clock,
                runtime.random,
                runtime.blocking,
                runtime.spawn,
                FilePool(runtime.disk, OPEN_FILES),
            ),
            self.directory,
            METADATA_PARTITION,
            config or LogConfig(),
            topic_id=METADATA_TOPIC_ID,
            listing=list_directory(runtime.disk, self.directory) if runtime.disk.is_dir(self.directory) else None,
        )

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    # -- starting

    def replay(self) -> Iterator[ReplayedBatch]:
        """All data batches from the start of the log to its end; the first call cuts a torn tail."""
        self._log.ensure_open()
        offset = self._log.log_start_offset
        while offset < self._log.log_end_offset:
            data = self._log.read(offset, READ_BYTES, Bound.LOG_END).records
            for position, header in iter_headers(data):
                if header.base_offset != offset or not crc_is_valid(data, position, header):
                    raise CorruptMetadataLog(
                        f"{self.directory}: the batch at offset {offset} is damaged; restore the directory from a copy"
                    )
                if not header.is_control:
                    values = [record.value or b"" for record in iter_records(data, position)]
                    yield ReplayedBatch(offset, header.leader_epoch, values)
                offset = header.next_offset

    async def become_leader(self) -> int:
        """Begin a new epoch as its leader. It is committed by the first sync, together with what is appended next."""
        self._log.ensure_open()
        self.epoch = await self._runtime.blocking(self._vote, self._log.leader_epoch)
        self.is_leader = True
        first = self._log.log_end_offset == 0
        now_ms = self._runtime.clock.wall_ms()
        batch = leader_change_batch(self.node_id, self._directory_id, first=first, timestamp_ms=now_ms)
        self._append(batch)
        return self.epoch

    def _vote(self, epoch_in_log: int) -> int:
        """Persist the next epoch; runs in a thread, before anything else uses the directory."""
        disk, directory = self._runtime.disk, self.directory
        is_new = not disk.is_dir(directory)
        if is_new:
            disk.make_dirs(directory)
            file = disk.open(f"{directory}/{PARTITION_METADATA}", create=True)
            file.write(0, b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
            file.sync()
            file.close()
        epoch = max(read_quorum_state(disk, directory).leader_epoch, epoch_in_log) + 1
        write_quorum_state(disk, directory, QuorumState(leader_epoch=epoch, leader_id=self.node_id))
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
