"""A partition of which this broker holds a replica.

1. Only the leader of the current epoch appends and answers clients.
2. The leader's high watermark moves in one place (`maybe_advance_high_watermark`). With one replica it follows the
   log's end, with more the in-sync replicas (`twofold.replication.leader` decides). It waits for the disk as well where
   flush.messages asks for that, or the writer does (`durable`: what a two-phase transaction is told is written must
   survive a power cut).
3. A request that waits for bytes or for safety hears of every move: `changes` counts them, so that an answer prepared
   earlier is known to be current when the number is the same.
4. While it follows, `leading` is None, and nothing here touches the log: the follower's part does (`following.py`).
"""

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from twofold.broker.partitions.neighbours import Neighbours
from twofold.broker.partitions.purgatory import DelayedProduce, Interest, Unseen, Until
from twofold.controller.image import PartitionState
from twofold.log.api import AppendResult, Bound, Origin, TransactionMarker
from twofold.log.log import PartitionLog
from twofold.records.batch import HEADER_SIZE
from twofold.records.control import END_MARKER_SIZE
from twofold.replication.isr import IsrChange, Reaction
from twofold.replication.leader import FollowerFetch, LeaderState
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
from twofold.wire.messages.alter_partition import PartitionDataResult

if TYPE_CHECKING:
    from twofold.broker.network.context import Buffer

ALL_REPLICAS = -1
RECORD_OVERHEAD_BYTES = HEADER_SIZE + 16  # of a batch with one record without headers, at most
UNKNOWN_SIZE = 1  # of what came to light and was written before this broker led

log = logging.getLogger(__name__)


class Partition:
    """One replica: it leads, or it follows."""

    __slots__ = (
        "topic_partition", "topic_id", "log", "changes", "is_leader", "is_deleted", "leader_id", "leader_epoch",
        "partition_epoch", "isr", "replicas", "leading", "two_phase", "messages_in", "bytes_in", "bytes_out",
        "_spawn", "_neighbours", "_held", "_syncing", "_sync_again", "_sync_failed",
        "_beyond_hw", "_beyond_lso", "_last_lso",
        "_watching_end", "_watching_hw", "_watching_lso",
        "_waiting", "_waiting_for_disk", "_waiting_for_deletion",
    )  # fmt: skip

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: UUID,
        partition_log: PartitionLog,
        spawn: Spawn,
        neighbours: Neighbours,
    ):
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = partition_log
        self.changes = 0
        self.is_leader = False
        self.is_deleted = False
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.isr: tuple[int, ...] = ()  # as the controller has committed it
        self.replicas: tuple[int, ...] = ()
        self.leading: LeaderState | None = None
        # For metrics, since the partition was first used; plain numbers, because every append and fetch passes here.
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        # Producers with an open transaction here whose coordinator was asked: whether it is a two-phase one.
        self.two_phase: dict[int, bool] = {}
        self._spawn = spawn
        self._neighbours = neighbours
        self._held = False  # the high watermark does not follow the log's end at once: by followers, or by a sync
        self._syncing = False
        self._sync_again = False
        self._sync_failed = False
        self._beyond_hw = Unseen()
        self._beyond_lso = Unseen()
        self._last_lso = -1  # until it leads: a log is opened for a follower when it begins to fetch
        # In order of arrival. Three attributes and not a table by bound: an enum member is slow to hash.
        self._watching_end: dict[Interest, None] = {}
        self._watching_hw: dict[Interest, None] = {}
        self._watching_lso: dict[Interest, None] = {}
        self._waiting: dict[DelayedProduce, int] = {}
        self._waiting_for_disk: dict[DelayedProduce, int] = {}
        self._waiting_for_deletion: dict[DelayedProduce, int] = {}

    def __str__(self) -> str:
        return str(self.topic_partition)

    @property
    def is_syncing(self) -> bool:
        """Whether something that was appended waits for the disk."""
        return self._syncing

    @property
    def failed(self) -> bool:
        """A write or a sync failed: the log takes nothing more until it was opened again."""
        return self._sync_failed or self.log.failure is not None

    def take_log(self, partition_log: PartitionLog) -> None:
        """Go on with a log that was opened anew, because the one before had failed. All of it is on disk."""
        is_shorter = partition_log.log_end_offset < self.log.log_end_offset
        self.log = partition_log
        self._sync_failed = False
        if is_shorter and self._has_followers:
            # They may have what is lost here. To write other records in its place takes another leader epoch.
            log.critical("%s: its log is shorter since it was opened anew: start this broker again", self)
            self.is_leader, self.leading = False, None
            self._end_waits()
        if self.is_leader:
            partition_log.assign_leader_epoch(self.leader_epoch)
        self._beyond_hw = Unseen()
        self._beyond_lso = Unseen()
        self._last_lso = partition_log.last_stable_offset
        self.changes += 1
        self.maybe_advance_high_watermark()
        self._wake_fetches()

    # --- leadership ---

    def become_leader(self, state: PartitionState, now_ms: int) -> None:
        """Lead in the epoch of `state`; also called when only the replicas, or those in sync, have changed.

        `now_ms` is of the clock of `Neighbours`.
        """
        epoch, leading = state.leader_epoch, self.leading
        if epoch < self.leader_epoch or (leading is None and epoch == self.leader_epoch):
            return  # a broker that has stopped leading in an epoch does not begin again in it
        if leading is not None and epoch == self.leader_epoch:
            leading = leading.updated(state)
        else:
            self._last_lso = self.log.last_stable_offset  # this opens the log: what follows needs its real end
            if leading is None and must_sync_first(self.log):
                self.log.flush()
            self.log.assign_leader_epoch(epoch)
            leading = LeaderState.begin(self._neighbours.node_id, state, self.log.log_end_offset, now_ms)
            self._wake_fetches()  # of the epoch before
        self.is_leader = True
        self.leader_id = state.leader
        self.leader_epoch = epoch
        self._take(leading)
        self.maybe_advance_high_watermark()
        self._look_at_deletions()

    def _take(self, leading: LeaderState) -> None:
        """The state of the partition is as the controller, or the metadata, has just said."""
        self.leading = leading
        self.partition_epoch = leading.partition_epoch
        self.replicas = leading.replicas
        self.isr = leading.isr.committed
        self._held = self._syncing or bool(leading.followers)
        self.changes += 1

    def follow(self, state: PartitionState) -> None:
        """Another broker leads, or none: what waits here must be asked for there."""
        self.is_leader = False
        self.leading = None
        self.leader_id = state.leader
        self.leader_epoch = max(state.leader_epoch, self.leader_epoch)
        self.partition_epoch = max(state.partition_epoch, self.partition_epoch)
        self.replicas = state.replicas
        self.isr = state.isr
        self._held = self._syncing
        self.two_phase.clear()
        self._beyond_hw.clear()
        self._beyond_lso.clear()
        self.changes += 1
        self._wake_fetches()
        self._end_waits()

    def delete(self) -> None:
        """Its topic is gone: what waits here is told so."""
        self.is_deleted = True
        self.is_leader = False
        self.leading = None
        self.leader_id = -1
        self.changes += 1
        self._wake_fetches()
        self._end_waits()

    def _end_waits(self) -> None:
        for produce in (*self._waiting, *self._waiting_for_disk, *self._waiting_for_deletion):
            produce.finish()

    def not_leading(self) -> KafkaError:
        """The error for a client that needs the leader, where this broker is not the leader any more."""
        if self.is_deleted:
            return UnknownTopicOrPartition(f"{self}: topic {self.topic_partition.topic} was deleted")
        return NotLeaderOrFollower(f"{self}: broker {self.leader_id} leads, not this one")

    def _wake_fetches(self) -> None:
        _wake((*self._watching_end, *self._watching_hw, *self._watching_lso))

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
        """For what was appended. One that is about to join counts: it holds the high watermark back already."""
        pending = None if self.leading is None else self.leading.isr.pending
        joining = pending is not None and pending.joining is not None
        return len(self.isr) + joining >= self.min_in_sync_replicas

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
        if self._has_followers:
            _wake(self._watching_end)  # so that they hear of it

    def _check_writable(self, acks: int) -> None:
        if not self.is_leader:
            raise self.not_leading()
        if acks != ALL_REPLICAS or len(self.isr) >= self.log.config.min_insync_replicas:
            return
        if len(self.isr) < self.min_in_sync_replicas:
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
        if self._held or self._beyond_hw.chunks:
            self._beyond_hw.appended(end_offset, size)
            beyond_lso.appended(end_offset, size)
            self.changes += 1
            if len(self.isr) <= 1:  # otherwise it is a follower's fetch that moves it
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
        self._syncing = self._held = True
        self._spawn(self._sync_then_advance(), name=f"flush {self}")

    async def _sync_then_advance(self) -> None:
        """One sync serves all requests that waited when it began; later ones share the next sync."""
        try:
            while True:
                self._sync_again = False
                end_offset = self.log.log_end_offset
                await self.log.sync()
                self._move_high_watermark(end_offset)
                _pass(self._waiting_for_disk, end_offset, self)
                if not self._sync_again:
                    break
        except (OSError, KafkaStorageError) as error:
            log.critical("%s: cannot be synced, its records are not acknowledged: %s", self, error)
            self._sync_failed = True
            self._end_waits()
            return
        finally:
            self._syncing = False
            self._held = self._has_followers
        self.maybe_advance_high_watermark()

    # --- moves ---

    def maybe_advance_high_watermark(self) -> None:
        if not self._syncing:
            self._move_high_watermark(self.log.log_end_offset)

    def _move_high_watermark(self, offset: int) -> None:
        leading = self.leading
        if leading is None:
            return
        if leading.followers:
            offset = min(offset, self._replicated(leading))
        if self.log.advance_high_watermark(offset):
            high_watermark = self.log.high_watermark
            self.changes += 1
            size = self._beyond_hw.reached(high_watermark)
            if self._watching_hw:
                _tell(self._watching_hw, size or UNKNOWN_SIZE)
            if self._waiting:
                self._acknowledge(high_watermark)
        self.stable_offset_may_have_moved()

    def _replicated(self, leading: LeaderState) -> int:
        neighbours, partition_log = self._neighbours, self.log
        return leading.high_watermark(
            partition_log.high_watermark,
            partition_log.log_end_offset,
            min_in_sync=partition_log.config.min_insync_replicas,
            brokers=neighbours.broker,
            now_ms=neighbours.now_ms(),
            lag_ms=neighbours.lag_ms(),
        )

    def stable_offset_may_have_moved(self) -> None:
        """Called after a marker or anything else that may end a transaction."""
        stable = self.log.last_stable_offset
        if stable != self._last_lso:
            self._last_lso = stable
            self.changes += 1
            size = self._beyond_lso.reached(stable)
            if self._watching_lso:
                _tell(self._watching_lso, size or UNKNOWN_SIZE)

    def _acknowledge(self, high_watermark: int) -> None:
        _pass(self._waiting, high_watermark, self)

    # --- followers ---

    @property
    def _has_followers(self) -> bool:
        return self.leading is not None and bool(self.leading.followers)

    def check_follower(self, replica: int, current_leader_epoch: int) -> None:
        """Refuse a broker that fetches as a replica and is none, as far as is known here."""
        leading = self.leading
        if leading is not None and replica in leading.followers:
            return
        text = f"{self}: broker {replica} holds none of the replicas {self.replicas}"
        raise NotLeaderOrFollower(text) if current_leader_epoch < 0 else UnknownLeaderEpoch(text)

    def followed(self, replica: int, fetch: FollowerFetch) -> None:
        """A follower, which `check_follower` has let pass, asks for what comes after its log end."""
        leading, neighbours = self.leading, self._neighbours
        assert leading is not None
        if leading.is_stale(fetch, neighbours.broker(replica)):
            raise NotLeaderOrFollower(f"{self}: broker {replica} has started again since epoch {fetch.broker_epoch}")
        before = leading.followers[replica]
        leading = self.leading = leading.fetched(replica, fetch, self.log.log_end_offset, neighbours.now_ms())
        if replica not in self.isr:
            change = leading.expansion(replica, self.log.high_watermark, neighbours.broker)
            if change is not None:
                self._propose(leading, change)
        if fetch.offset != before.end_offset:
            self.maybe_advance_high_watermark()
        if self._waiting_for_deletion and fetch.log_start_offset != before.log_start_offset:
            self._look_at_deletions()

    def look_at_followers(self) -> None:
        """From time to time, and when brokers come or go: let go which is too far behind."""
        leading, neighbours = self.leading, self._neighbours
        if leading is None or not leading.followers:
            return
        end = self.log.log_end_offset
        change = leading.shrinking(end, neighbours.now_ms(), neighbours.lag_ms())
        if change is not None:
            log.info("%s: of its in-sync replicas %s, %s are left", self, self.isr, change.broker_ids)
            self._propose(leading, change)
        if self.log.high_watermark < end:
            self.maybe_advance_high_watermark()
        self._look_at_deletions()

    def _propose(self, leading: LeaderState, change: IsrChange) -> None:
        self.leading = leading.asking(change)
        self._neighbours.propose(self, change)

    def is_pending(self, change: IsrChange) -> bool:
        """Whether the controller's word on a change is still of use."""
        return self.leading is not None and self.leading.isr.pending == change

    def isr_answered(self, change: IsrChange, row: PartitionDataResult) -> bool:
        """The controller has answered; True where it has to be asked again."""
        if self.leading is None:
            return False
        leading, reaction = self.leading.answered(change, row)
        if reaction is Reaction.COMMITTED:
            log.info("%s: in sync are %s now, in partition epoch %d", self, row.isr, row.partition_epoch)
            neighbours = self._neighbours
            neighbours.isr_expands += len(row.isr) > len(self.isr)
            neighbours.isr_shrinks += len(row.isr) < len(self.isr)
            self._take(leading)
            self.maybe_advance_high_watermark()
        else:
            self.leading = leading
        return reaction is Reaction.SEND_AGAIN

    @property
    def knows_what_is_committed(self) -> bool:
        """Not at the beginning of an epoch, when the high watermark may be behind what the leader before has told."""
        return self.leading is None or self.log.high_watermark >= self.leading.epoch_start

    @property
    def low_watermark(self) -> int:
        """Below it, no replica that lives has records."""
        log_start = self.log.log_start_offset
        return log_start if self.leading is None else self.leading.low_watermark(log_start, self._neighbours.broker)

    def _look_at_deletions(self) -> None:
        if self._waiting_for_deletion:
            _pass(self._waiting_for_deletion, self.low_watermark + 1, self)

    # --- waiting ---

    def watch(self, interest: Interest) -> None:
        self._watching(interest.bound)[interest] = None

    def unwatch(self, interest: Interest) -> None:
        self._watching(interest.bound).pop(interest, None)

    def _watching(self, bound: Bound) -> dict[Interest, None]:
        if bound is Bound.HIGH_WATERMARK:
            return self._watching_hw
        return self._watching_lso if bound is Bound.LAST_STABLE else self._watching_end

    def wait(self, produce: DelayedProduce, offset: int, until: Until) -> None:
        if until is Until.REPLICATED or (until is Until.SYNCED and not self._has_followers):
            self._waiting[produce] = offset
        elif until is Until.SYNCED:
            self._waiting_for_disk[produce] = offset
        else:
            self._waiting_for_deletion[produce] = offset

    def stop_waiting(self, produce: DelayedProduce) -> None:
        for waiting in (self._waiting, self._waiting_for_disk, self._waiting_for_deletion):
            waiting.pop(produce, None)


def must_sync_first(partition_log: PartitionLog) -> bool:
    """Whether an opened log is synced before it is led. A client that repeats what a killed process left unsynced is
    told that it is written, so it must be as safe as what is written from now on. An open transaction may be a
    two-phase one."""
    unsynced = partition_log.log_end_offset - partition_log.recovery_point
    if not unsynced:
        return False
    return unsynced >= partition_log.config.flush_messages or partition_log.oldest_open_transaction() is not None


def _pass(waiting: dict[DelayedProduce, int], bound: int, partition: Partition) -> None:
    """End the waits for what lies below `bound`."""
    for produce, offset in list(waiting.items()):
        if offset < bound and waiting.pop(produce, None) is not None:
            produce.passed(partition)


def _wake(interests: Iterable[Interest]) -> None:
    for interest in tuple(interests):
        if interest.fetch is not None:  # none where an earlier one belonged to the same fetch
            interest.fetch.wake()


def _tell(interests: dict[Interest, None], size: int) -> None:
    if size:
        for interest in tuple(interests):
            interest.grew(size)
