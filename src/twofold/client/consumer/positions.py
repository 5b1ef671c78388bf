"""Positions that are not known yet, or not known to be right.

1. A partition without a position gets the offset that the group has committed, and where there is none, or no group,
   the end that `auto_offset_reset` names; with "none" that is an error.
2. A position has the leader epoch of the record before it. When another leader takes over, its log is asked where that
   epoch ends (KIP-320). A position beyond that end was read from a log that is gone: with `auto_offset_reset` the
   position goes back to where the logs part, otherwise LogTruncated tells the application.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from twofold.client.admin.group_model import OffsetAndMetadata
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.metadata import PartitionMetadata
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.assigned import NO_EPOCH, Assigned
from twofold.client.consumer.offsets import OffsetSpec, list_offsets
from twofold.client.errors import LogTruncated, NoOffset
from twofold.connections.waiting import Deadline, spawn_shared
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import KafkaError, error_for
from twofold.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

log = logging.getLogger(__name__)

OFFSET_FOR_LEADER_EPOCH = KEYS["OffsetForLeaderEpoch"]
CONSUMER = -1
RESETS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}

CommittedLookup = Callable[[Iterable[TopicPartition], Deadline], Awaitable[dict[TopicPartition, OffsetAndMetadata]]]


class Hooks(NamedTuple):
    """What the owner does about a partition."""

    report: Callable[[KafkaError], None]  # to the application, at the next poll
    pause: Callable[[Assigned], None]  # leave it alone for a while
    wake: Callable[[], None]
    refresh: Callable[[], None]  # ask for newer metadata


class Positions:
    """Owned by one Fetcher."""

    def __init__(self, runtime: Runtime, config: ConsumerConfig, cluster: Cluster, hooks: Hooks) -> None:
        self.committed: CommittedLookup | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._hooks = hooks

    @property
    def default_reset(self) -> OffsetSpec | None:
        return RESETS.get(self._config.auto_offset_reset)

    # Finding

    def find(self, entries: Iterable[Assigned], now: float) -> None:
        """Start to look for the positions of those that have none."""
        by_commit, by_reset = [], []
        for entry in entries:
            if entry.position is not None or entry.finding or now < entry.not_before:
                continue
            if entry.from_commit and self.committed is not None:
                by_commit.append(entry)
            elif entry.reset is not None:
                by_reset.append(entry)
            else:
                entry.not_before = now + self._config.retry_backoff_ms / 1000
                what = f"{entry.tp} has no position" + (", and its group has committed none" if self.committed else "")
                self._hooks.report(NoOffset(f"{what}: seek to one, or set auto_offset_reset to earliest or latest"))
                self._hooks.wake()
        if by_commit:
            self._start(by_commit, self._find_committed, "consumer asks for committed offsets")
        if by_reset:
            self._start(by_reset, self._reset, "consumer resets offsets")

    async def _find_committed(self, batch: "_Batch") -> None:
        assert self.committed is not None
        try:
            found = await self.committed([entry.tp for entry in batch.entries], self._cluster.deadline())
        except KafkaError as error:
            self._hooks.report(error)
            for entry in batch.unmoved():
                self._hooks.pause(entry)
            return
        for entry in batch.unmoved():
            entry.from_commit = False
            offset = found.get(entry.tp)
            if offset is not None:
                entry.seek(offset.offset, offset.leader_epoch)

    async def _reset(self, batch: "_Batch") -> None:
        wanted = {entry.tp: int(entry.reset) for entry in batch.entries if entry.reset is not None}
        try:
            found = await list_offsets(self._cluster, wanted, self._config.isolation, self._cluster.deadline())
        except KafkaError as error:
            self._hooks.report(error)
            found = {}
        for entry in batch.unmoved():
            if entry.tp in found:
                entry.seek(found[entry.tp].offset)
            else:
                self._hooks.pause(entry)

    # Comparing

    def compare(self, leader: int, rows: Sequence[tuple[Assigned, PartitionMetadata]]) -> None:
        """Start to compare positions with the log of a leader that is new."""
        for entry, _ in rows:
            entry.reread()  # what the leader before has sent is not handed out before the answer is here
        self._start(
            [entry for entry, _ in rows],
            lambda batch: self._compare(batch, leader, rows),
            f"consumer compares positions with the log of {leader}",
        )

    async def _compare(self, batch: "_Batch", leader: int, rows: Sequence[tuple[Assigned, PartitionMetadata]]) -> None:
        epochs = {entry.tp: row.leader_epoch for entry, row in rows}
        try:
            ends = await self._ask_ends(leader, rows)
        except KafkaError as error:
            for entry in batch.unmoved():
                self._on_error(entry, error)
            return
        for entry in batch.unmoved():
            end = ends.get(entry.tp)
            if ends and end is None:
                self._hooks.pause(entry)
            elif end is not None and end.error_code:
                self._on_error(entry, error_for(end.error_code)(f"OffsetForLeaderEpoch of {entry.tp} at {leader}"))
            elif end is None or self._agrees(entry, end):
                entry.leader_epoch = epochs[entry.tp]

    async def _ask_ends(
        self, leader: int, rows: Sequence[tuple[Assigned, PartitionMetadata]]
    ) -> dict[TopicPartition, EpochEndOffset]:
        """Where the epochs of the positions end; empty where the broker is too old to say."""
        deadline = self._cluster.deadline(self._config.request_timeout_ms, "request_timeout_ms")
        connection = await self._cluster.connection(leader, deadline)
        if not connection.supports(OFFSET_FOR_LEADER_EPOCH, 2):
            return {}
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for entry, row in rows:
            topics.setdefault(entry.tp.topic, []).append(
                OffsetForLeaderPartition(
                    partition=entry.tp.partition, current_leader_epoch=row.leader_epoch, leader_epoch=entry.epoch
                )
            )
        request = OffsetForLeaderEpochRequest(
            replica_id=CONSUMER,
            topics=[OffsetForLeaderTopic(topic=topic, partitions=asked) for topic, asked in topics.items()],
        )
        response: OffsetForLeaderEpochResponse = await self._cluster.ask(
            connection, request, "OffsetForLeaderEpoch", deadline
        )
        return {
            TopicPartition(topic.topic, end.partition): end for topic in response.topics for end in topic.partitions
        }

    def _agrees(self, entry: Assigned, end: EpochEndOffset) -> bool:
        """Whether the leader's log has what was read; otherwise the position is moved or reported."""
        assert entry.position is not None
        is_known = end.end_offset >= 0 and end.leader_epoch != NO_EPOCH
        if is_known and end.end_offset >= entry.position:
            return True
        position, reset = entry.position, self.default_reset
        parted = f"its log parts from what was read at offset {end.end_offset}" if is_known else "its log has no trace"
        words = f"{entry.tp} was cut: the position is {position} in leader epoch {entry.epoch}, and {parted} of it"
        if reset is None:
            self._hooks.report(
                LogTruncated(
                    f"{words}. Records that were read are gone; seek to where reading goes on (auto_offset_reset is "
                    "none)",
                    entry.tp,
                    position,
                    end.end_offset,
                )
            )
            self._hooks.pause(entry)
        elif is_known:
            log.warning("%s: reading goes on at %d", words, end.end_offset)
            entry.seek(end.end_offset, end.leader_epoch)
        else:
            log.warning("%s: going to the %s offset", words, reset.name.lower())
            entry.seek_by(reset)
        return False

    def _on_error(self, entry: Assigned, error: KafkaError) -> None:
        self._hooks.pause(entry)
        if error.retriable:
            log.debug("%s: %s", entry.tp, error)
            self._hooks.refresh()
        else:
            self._hooks.report(error)

    # Tasks

    def _start(self, entries: Sequence[Assigned], work: "Callable[[_Batch], Awaitable[None]]", name: str) -> None:
        batch = _Batch(entries)
        for entry in entries:
            entry.finding = True

        async def run() -> None:
            try:
                await work(batch)
            finally:
                for entry in batch.unmoved():
                    entry.finding = False
                self._hooks.wake()

        task = spawn_shared(self._runtime, run(), name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class _Batch:
    """Partitions whose positions one task is about."""

    __slots__ = ("_generations", "entries")

    def __init__(self, entries: Sequence[Assigned]) -> None:
        self.entries = entries
        self._generations = [entry.generation for entry in entries]

    def unmoved(self) -> list[Assigned]:
        """Those that neither the application nor this task has moved since the task began."""
        rows = zip(self.entries, self._generations, strict=True)
        return [entry for entry, generation in rows if entry.generation == generation]
