"""A partition of which this broker holds a replica.

1. Only the leader of the current epoch appends and answers clients.
2. The high watermark moves in one place (`maybe_advance_high_watermark`). With one replica it follows the log's end,
   and waits for the disk where flush.messages asks for that, or the writer does (`durable`: what a two-phase
   transaction is told is written must survive a power cut); with more it will follow the in-sync replicas.
3. A request that waits for bytes or for safety hears of every move: `changes` counts them, so that an answer prepared
   earlier is known to be current when the number is the same.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from twofold.broker.partitions.purgatory import DelayedProduce, Interest, Unseen
from twofold.log.api import AppendResult, Bound, Origin, TransactionMarker
from twofold.log.log import PartitionLog
from twofold.records.batch import HEADER_SIZE
from twofold.records.control import END_MARKER_SIZE
from twofold.runtime.api import Spawn
from twofold.types import TopicPartition
from twofold.wire.errors import (
    FencedLeaderEpoch,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from twofold.broker.network.context import Buffer

ALL_REPLICAS = -1
RECORD_OVERHEAD_BYTES = HEADER_SIZE + 16  # of a batch with one record without headers, at most

log = logging.getLogger(__name__)


class Partition:
    """One replica, here the leader."""

    __slots__ = (
        "topic_partition", "topic_id", "log", "changes", "is_leader", "is_deleted", "leader_id", "leader_epoch", "isr",
        "replicas", "two_phase", "messages_in", "bytes_in", "bytes_out",
        "_spawn", "_syncing", "_sync_again", "_sync_failed", "_beyond_hw", "_beyond_lso", "_last_lso",
        "_watching_end", "_watching_hw", "_watching_lso",
        "_waiting",
    )  # fmt: skip

    def __init__(self, topic_partition: TopicPartition, topic_id: UUID, partition_log: PartitionLog, spawn: Spawn):
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = partition_log
        self.changes = 0
        self.is_leader = False
        self.is_deleted = False
        self.leader_id = -1
        self.leader_epoch = -1
        self.isr: tuple[int, ...] = ()
        self.replicas: tuple[int, ...] = ()
        # For metrics, since the partition was first used; plain numbers, because every append and fetch passes here.
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        # Producers with an open transaction here whose coordinator was asked: whether it is a two-phase one.
        self.two_phase: dict[int, bool] = {}
        self._spawn = spawn
        self._syncing = False
        self._sync_again = False
        self._sync_failed = False
        self._beyond_hw = Unseen()
        self._beyond_lso = Unseen()
        self._last_lso = partition_log.last_stable_offset
        # In order of arrival. Three attributes and not a table by bound: an enum member is slow to hash.
        self._watching_end: dict[Interest, None] = {}
        self._watching_hw: dict[Interest, None] = {}
        self._watching_lso: dict[Interest, None] = {}
        self._waiting: dict[DelayedProduce, int] = {}

    def __str__(self) -> str:
        return str(self.topic_partition)

    @property
    def failed(self) -> bool:
        """A write or a sync failed: the log takes nothing more until it was opened again."""
        return self._sync_failed or self.log.failure is not None

    def take_log(self, partition_log: PartitionLog) -> None:
        """Go on with a log that was opened anew, because the one before had failed. All of it is on disk."""
        self.log = partition_log
        self._sync_failed = False
        if self.is_leader:
            partition_log.assign_leader_epoch(self.leader_epoch)
        self._beyond_hw = Unseen()
        self._beyond_lso = Unseen()
        self._last_lso = partition_log.last_stable_offset
        self.changes += 1
        self.maybe_advance_high_watermark()
        self._wake_fetches()

    # --- leadership ---

    def become_leader(self, leader_id: int, leader_epoch: int, isr: tuple[int, ...], replicas: tuple[int, ...]) -> None:
        """Lead in `leader_epoch`; also called when only the in-sync replicas changed."""
        if leader_epoch < self.leader_epoch:
            return
        if self.leader_epoch < 0:
            self._sync_recovered()
        if leader_epoch > self.leader_epoch:
            self.log.assign_leader_epoch(leader_epoch)
        self.is_leader = True
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.replicas = replicas
        self.changes += 1
        self.maybe_advance_high_watermark()

    def _sync_recovered(self) -> None:
        if must_sync_first(self.log):
            self.log.flush()

    def resign(self, leader_id: int, leader_epoch: int) -> None:
        """Another broker leads: what waits here must be asked for there."""
        self.is_leader = False
        self.leader_id = leader_id
        self.leader_epoch = max(leader_epoch, self.leader_epoch)
        self.changes += 1
        self._wake_fetches()
        for produce in list(self._waiting):
            produce.finish()

    def delete(self) -> None:
        """Its topic is gone: what waits here is told so."""
        self.is_deleted = True
        self.resign(-1, self.leader_epoch)

    def not_leading(self) -> KafkaError:
        """The error for a client that needs the leader, where this broker is not the leader any more."""
        if self.is_deleted:
            return UnknownTopicOrPartition(f"{self}: topic {self.topic_partition.topic} was deleted")
        return NotLeaderOrFollower(f"{self}: broker {self.leader_id} leads, not this one")

    def _wake_fetches(self) -> None:
        for interest in (*self._watching_end, *self._watching_hw, *self._watching_lso):
            if interest.fetch is not None:  # none where an earlier one belonged to the same fetch
                interest.fetch.wake()

    def check_leader(self, current_leader_epoch: int = -1) -> None:
        """Refuse a client whose idea of the leader is older or newer than ours."""
        if self.is_deleted:
            raise self.not_leading()
        if current_leader_epoch not in (-1, self.leader_epoch):
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpoch(
                    f"{self}: leader epoch {current_leader_epoch} of the request is older than {self.leader_epoch}"
                )
            raise UnknownLeaderEpoch(
                f"{self}: leader epoch {current_leader_epoch} of the request is newer than {self.leader_epoch}"
            )
        if not self.is_leader:
            raise self.not_leading()

    @property
    def min_in_sync_replicas(self) -> int:
        """min.insync.replicas, which no partition with fewer replicas could ever reach."""
        return min(self.log.config.min_insync_replicas, max(1, len(self.replicas)))

    @property
    def has_enough_in_sync_replicas(self) -> bool:
        return len(self.isr) >= self.min_in_sync_replicas

    # --- appending ---

    def append(
        self,
        records: "Buffer",
        acks: int,
        *,
        origin: Origin = Origin.CLIENT,
        guard: int | None = None,
        transaction_version: int = 2,
        durable: bool = False,
    ) -> AppendResult:
        """Append as leader: one batch of a client, or what a coordinator wrote. An error leaves the log as it was.

        With `durable` the high watermark passes it when it is synced.
        """
        self._check_writable(acks)
        result = self.log.append(
            records,
            origin=origin,
            leader_epoch=self.leader_epoch,
            transaction_version=transaction_version,
            guard=guard,
            defer_flush=True,
        )
        if not result.duplicate:
            self._appended(result, len(records), durable)
        return result

    def append_record(self, key: bytes, value: bytes, *, durable: bool = False) -> AppendResult:
        """One record of a coordinator that waits until all replicas have it."""
        self._check_writable(ALL_REPLICAS)
        partition_log = self.log
        size = len(key) + len(value) + RECORD_OVERHEAD_BYTES
        limit = partition_log.config.max_message_bytes
        if size > limit:
            raise MessageTooLarge(f"{self}: a record of {size} bytes, more than max.message.bytes ({limit}) allows")
        result = partition_log.append_record(key, value, leader_epoch=self.leader_epoch, defer_flush=True)
        self._appended(result, size, durable)
        return result

    def append_markers(self, markers: Sequence[TransactionMarker], *, durable: bool = False) -> list[int | KafkaError]:
        """End transactions for a coordinator, which waits until all replicas have them: the outcome of each marker."""
        self._check_writable(ALL_REPLICAS)
        outcomes, appended = self.log.append_markers(markers, leader_epoch=self.leader_epoch, defer_flush=True)
        if appended is not None:
            self._appended(appended, (appended.last_offset + 1 - appended.base_offset) * END_MARKER_SIZE, durable)
            if self.two_phase:
                for marker, outcome in zip(markers, outcomes, strict=True):
                    if type(outcome) is int:
                        self.two_phase.pop(marker.producer_id, None)
        return outcomes

    def delete_records(self, offset: int) -> None:
        """Let no client read below `offset` any more; `LogManager` keeps the log start where that must last."""
        self.log.advance_log_start(offset)
        self.changes += 1
        self.stable_offset_may_have_moved()

    def _check_writable(self, acks: int) -> None:
        if not self.is_leader:
            raise self.not_leading()
        if acks != ALL_REPLICAS or len(self.isr) >= self.log.config.min_insync_replicas:
            return
        if not self.has_enough_in_sync_replicas:
            raise NotEnoughReplicas(
                f"{self}: {len(self.isr)} replicas are in sync and min.insync.replicas={self.min_in_sync_replicas}"
            )

    def _appended(self, result: AppendResult, size: int, durable: bool) -> None:
        base_offset, last_offset, _, _, _, flush_due = result
        end_offset = last_offset + 1
        self.messages_in += end_offset - base_offset
        self.bytes_in += size
        if self._watching_end:
            _tell(self._watching_end, size)
        if durable or flush_due:
            self._sync()
        beyond_lso = self._beyond_lso
        partition_log = self.log
        if self._syncing or self._beyond_hw.chunks:
            self._beyond_hw.appended(end_offset, size)
            beyond_lso.appended(end_offset, size)
            self.maybe_advance_high_watermark()
            return
        # Almost always: safe at once, and nothing before it is not.
        partition_log.advance_high_watermark(end_offset)
        self.changes += 1
        if self._watching_hw:
            _tell(self._watching_hw, size)
        if self._waiting:
            self._acknowledge(end_offset)
        if beyond_lso.chunks or partition_log.last_stable_offset != end_offset:
            beyond_lso.appended(end_offset, size)
            self.stable_offset_may_have_moved()
        else:
            self._last_lso = end_offset
            if self._watching_lso:
                _tell(self._watching_lso, size)

    def _sync(self) -> None:
        if self._syncing:
            self._sync_again = True
            return
        self._syncing = True
        self._spawn(self._sync_then_advance(), name=f"flush {self}")

    async def _sync_then_advance(self) -> None:
        """One sync serves all requests that waited when it began; later ones share the next sync."""
        try:
            while True:
                self._sync_again = False
                end_offset = self.log.log_end_offset
                await self.log.sync()
                self._move_high_watermark(end_offset)
                if not self._sync_again:
                    break
        except (OSError, KafkaStorageError) as error:
            log.critical("%s: cannot be synced, its records are not acknowledged: %s", self, error)
            self._sync_failed = True
            for produce in list(self._waiting):
                produce.finish()
            return
        finally:
            self._syncing = False
        self.maybe_advance_high_watermark()

    # --- moves ---

    def maybe_advance_high_watermark(self) -> None:
        if not self._syncing:
            self._move_high_watermark(self.log.log_end_offset)

    def _move_high_watermark(self, offset: int) -> None:
        if self.log.advance_high_watermark(offset):
            high_watermark = self.log.high_watermark
            self.changes += 1
            size = self._beyond_hw.reached(high_watermark)
            if self._watching_hw:
                _tell(self._watching_hw, size)
            if self._waiting:
                self._acknowledge(high_watermark)
        self.stable_offset_may_have_moved()

    def stable_offset_may_have_moved(self) -> None:
        """Called after a marker or anything else that may end a transaction."""
        stable = self.log.last_stable_offset
        if stable != self._last_lso:
            self._last_lso = stable
            self.changes += 1
            size = self._beyond_lso.reached(stable)
            if self._watching_lso:
                _tell(self._watching_lso, size)

    def _acknowledge(self, high_watermark: int) -> None:
        for produce, offset in list(self._waiting.items()):
            if offset < high_watermark:
                del self._waiting[produce]
                produce.passed(self)

    # --- waiting ---

    def watch(self, interest: Interest) -> None:
        self._watching(interest.bound)[interest] = None

    def unwatch(self, interest: Interest) -> None:
        self._watching(interest.bound).pop(interest, None)

    def _watching(self, bound: Bound) -> dict[Interest, None]:
        if bound is Bound.HIGH_WATERMARK:
            return self._watching_hw
        return self._watching_lso if bound is Bound.LAST_STABLE else self._watching_end

    def wait_for_high_watermark(self, offset: int, produce: DelayedProduce) -> None:
        self._waiting[produce] = offset

    def stop_waiting(self, produce: DelayedProduce) -> None:
        self._waiting.pop(produce, None)


def must_sync_first(partition_log: PartitionLog) -> bool:
    """Whether the log is synced before it is used. A client that repeats what a killed process left unsynced is told
    that it is written, so it must be as safe as what is written from now on. An open transaction may be a two-phase
    one."""
    unsynced = partition_log.log_end_offset - partition_log.recovery_point
    if not unsynced:
        return False
    return unsynced >= partition_log.config.flush_messages or partition_log.oldest_open_transaction() is not None


def _tell(interests: dict[Interest, None], size: int) -> None:
    if size:
        for interest in tuple(interests):
            interest.grew(size)
