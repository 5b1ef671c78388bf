"""Fetch and FetchSnapshot of `__cluster_metadata`, as the active controller of Apache Kafka 4.3 answers them.

Rules of Fetch, the first to fail decides: another cluster id is 104 at the top, without rows; another topic or
partition 42 at the top; a negative epoch or offset, or a last epoch above the leader's, 42 in the row; an older leader
epoch 74, a newer one 75; a snapshot that replaces what is asked for; a log that
is no prefix of this one; records, committed or not. At the end the request waits for an append, or, if it named its own
high watermark, for a commit. Every row names the leader, and every answer its address.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from twofold.metadata_log.metadata_log import METADATA_TOPIC_ID, MetadataLog
from twofold.metadata_log.snapshots import SnapshotId as LogSnapshotId
from twofold.runtime.api import Runtime
from twofold.wire import errors
from twofold.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from twofold.wire.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    PartitionSnapshotResult,
    SnapshotIdResult,
    TopicSnapshotResult,
)
from twofold.wire.messages.fetch_snapshot import LeaderIdAndEpoch as SnapshotLeader
from twofold.wire.messages.fetch_snapshot import NodeEndpoint as SnapshotNode

METADATA_TOPIC = "__cluster_metadata"
TOPIC_IDS_SINCE = 13
OWN_WATERMARK_SINCE = 18
MAX_BYTES = 1024 * 1024


class ActiveController(NamedTuple):
    """Which node leads, and where it listens."""

    node_id: int
    epoch: int
    host: str
    port: int


class MetadataFetches:
    """`active` tells which node leads the log now. A standby has no log to serve from: `log` None."""

    def __init__(
        self, runtime: Runtime, cluster_id: str, active: Callable[[], ActiveController], log: MetadataLog | None
    ) -> None:
        self._runtime = runtime
        self._cluster_id = cluster_id
        self._active = active
        self._log = log
        self._waiting: list[asyncio.Future[None]] = []
        self.fetched_to: dict[int, int] = {}  # the offset that each replica has asked for last
        if log is not None:
            log.watch(self._moved)

    @property
    def high_watermark(self) -> int:
        return 0 if self._log is None else self._log.committed_offset + 1

    async def fetch(self, request: FetchRequest, version: int) -> FetchResponse:
        if request.cluster_id is not None and request.cluster_id != self._cluster_id:
            return FetchResponse(error_code=errors.InconsistentClusterId.code, responses=())
        if not _is_metadata(request, version):
            return FetchResponse(error_code=errors.InvalidRequest.code, responses=())
        asked = request.topics[0].partitions[0]
        replica_id = request.replica_state.replica_id if version >= 15 else request.replica_id
        deadline = self._runtime.clock.monotonic() + request.max_wait_ms / 1000
        while True:
            row = self._row(asked, min(request.max_bytes, MAX_BYTES))
            if not self._is_worth_waiting(row, asked, version) or not await self._wait(deadline):
                break
        if row.error_code == errors.NONE and self._log is not None:
            self.fetched_to[replica_id] = asked.fetch_offset
        return self._response(row)

    def _response(self, row: PartitionData) -> FetchResponse:
        active = self._active()
        topic = FetchableTopicResponse(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=(row,))
        endpoint = NodeEndpoint(node_id=active.node_id, host=active.host, port=active.port)
        return FetchResponse(responses=(topic,), node_endpoints=(endpoint,))

    def _row(self, asked: FetchPartition, max_bytes: int) -> PartitionData:
        epoch, offset, last = asked.current_leader_epoch, asked.fetch_offset, asked.last_fetched_epoch
        active = self._active()
        if epoch < 0 or offset < 0 or last < 0 or last > epoch:
            return self._refusal(errors.InvalidRequest)
        if epoch < active.epoch:
            return self._refusal(errors.FencedLeaderEpoch)
        if epoch > active.epoch:
            return self._refusal(errors.UnknownLeaderEpoch)
        log = self._log
        if log is None:
            return self._refusal(errors.NotLeaderOrFollower)
        snapshot = log.latest_snapshot
        if snapshot is not None and (offset == 0 or offset < log.start_offset):
            return self._found(snapshot_id=SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch))
        known, end = log.end_of_epoch(last)
        if offset > 0 and (known != last or end < offset):
            return self._found(diverging_epoch=EpochEndOffset(epoch=known, end_offset=end))
        return self._found(records=log.read(offset, max_bytes))

    def _leader(self) -> LeaderIdAndEpoch:
        active = self._active()
        return LeaderIdAndEpoch(leader_id=active.node_id, leader_epoch=active.epoch)

    def _refusal(self, error: type[errors.KafkaError]) -> PartitionData:
        return PartitionData(
            partition_index=0,
            error_code=error.code,
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
            current_leader=self._leader(),
        )

    def _found(
        self,
        records: bytes = b"",
        diverging_epoch: EpochEndOffset = EpochEndOffset(),  # noqa: B008  (a message is a value)
        snapshot_id: SnapshotId = SnapshotId(),  # noqa: B008
    ) -> PartitionData:
        return PartitionData(
            partition_index=0,
            error_code=errors.NONE,
            high_watermark=self.high_watermark,
            log_start_offset=0 if self._log is None else self._log.start_offset,
            aborted_transactions=None,
            current_leader=self._leader(),
            records=records,
            diverging_epoch=diverging_epoch,
            snapshot_id=snapshot_id,
        )

    def _is_worth_waiting(self, row: PartitionData, asked: FetchPartition, version: int) -> bool:
        if row.error_code or row.records or row.diverging_epoch.epoch >= 0 or row.snapshot_id.end_offset >= 0:
            return False
        if row.diverging_epoch.end_offset >= 0:
            return False
        return not (version >= OWN_WATERMARK_SINCE and asked.high_watermark < self.high_watermark)

    async def _wait(self, deadline: float) -> bool:
        """Until something was appended or committed; False at the deadline."""
        left = deadline - self._runtime.clock.monotonic()
        if left <= 0:
            return False
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        timer = self._runtime.timers.call_later(left, lambda: _wake(waiter))
        try:
            await waiter
        finally:
            timer.cancel()
        return True

    def _moved(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            _wake(waiter)

    # -- snapshots

    def fetch_snapshot(self, request: FetchSnapshotRequest, version: int) -> FetchSnapshotResponse:
        """Every refusal is -1 at the top without rows: 4.3.1 fails while it encodes the real one."""
        refused = FetchSnapshotResponse(error_code=errors.UnknownServerError.code, topics=())
        if request.cluster_id is not None and request.cluster_id != self._cluster_id:
            return FetchSnapshotResponse(error_code=errors.InconsistentClusterId.code, topics=())
        active = self._active()
        asked = request.topics[0].partitions[0]
        if self._log is None or asked.current_leader_epoch != active.epoch:
            return refused
        found = LogSnapshotId(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
        data = self._log.read_snapshot_file(found)
        if data is None or not 0 <= asked.position < len(data):
            return refused
        row = PartitionSnapshotResult(
            index=0,
            error_code=errors.NONE,
            snapshot_id=SnapshotIdResult(end_offset=found.end_offset, epoch=found.epoch),
            current_leader=SnapshotLeader(leader_id=active.node_id, leader_epoch=active.epoch),
            size=len(data),
            position=asked.position,
            unaligned_records=data[asked.position : asked.position + min(request.max_bytes, MAX_BYTES)],
        )
        return FetchSnapshotResponse(
            error_code=errors.NONE,
            topics=(TopicSnapshotResult(name=METADATA_TOPIC, partitions=(row,)),),
            node_endpoints=(SnapshotNode(node_id=active.node_id, host=active.host, port=active.port),),
        )


def _is_metadata(request: FetchRequest, version: int) -> bool:
    if len(request.topics) != 1 or [row.partition for row in request.topics[0].partitions] != [0]:
        return False
    topic = request.topics[0]
    return topic.topic_id == METADATA_TOPIC_ID if version >= TOPIC_IDS_SINCE else topic.topic == METADATA_TOPIC


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
