"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 59."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class SnapshotId(Message):
    __slots__ = ("end_offset", "epoch")
    end_offset: int
    epoch: int

    def __init__(self, *, end_offset: int, epoch: int) -> None:
        self.end_offset = end_offset
        self.epoch = epoch


class PartitionSnapshot(Message):
    __slots__ = ("partition", "current_leader_epoch", "snapshot_id", "position", "replica_directory_id")
    partition: int
    current_leader_epoch: int
    snapshot_id: SnapshotId
    position: int
    replica_directory_id: UUID | None

    def __init__(
        self,
        *,
        partition: int,
        current_leader_epoch: int,
        snapshot_id: SnapshotId,
        position: int,
        replica_directory_id: UUID | None = None,
    ) -> None:
        self.partition = partition
        self.current_leader_epoch = current_leader_epoch
        self.snapshot_id = snapshot_id
        self.position = position
        self.replica_directory_id = replica_directory_id


class TopicSnapshot(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[PartitionSnapshot]

    def __init__(self, *, name: str, partitions: Sequence[PartitionSnapshot]) -> None:
        self.name = name
        self.partitions = partitions


class FetchSnapshotRequest(Message):
    """API key 59, versions 0-1."""

    __slots__ = ("cluster_id", "replica_id", "max_bytes", "topics")
    cluster_id: str | None
    replica_id: int
    max_bytes: int
    topics: Sequence[TopicSnapshot]

    def __init__(
        self,
        *,
        cluster_id: str | None = None,
        replica_id: int = -1,
        max_bytes: int = 2147483647,
        topics: Sequence[TopicSnapshot],
    ) -> None:
        self.cluster_id = cluster_id
        self.replica_id = replica_id
        self.max_bytes = max_bytes
        self.topics = topics


class SnapshotIdResult(Message):
    __slots__ = ("end_offset", "epoch")
    end_offset: int
    epoch: int

    def __init__(self, *, end_offset: int, epoch: int) -> None:
        self.end_offset = end_offset
        self.epoch = epoch


class LeaderIdAndEpoch(Message):
    __slots__ = ("leader_id", "leader_epoch")
    leader_id: int
    leader_epoch: int

    def __init__(self, *, leader_id: int, leader_epoch: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class PartitionSnapshotResult(Message):
    __slots__ = ("index", "error_code", "snapshot_id", "current_leader", "size", "position", "unaligned_records")
    index: int
    error_code: int
    snapshot_id: SnapshotIdResult
    current_leader: LeaderIdAndEpoch
    size: int
    position: int
    unaligned_records: bytes | bytearray | memoryview

    def __init__(
        self,
        *,
        index: int,
        error_code: int,
        snapshot_id: SnapshotIdResult,
        current_leader: LeaderIdAndEpoch,
        size: int,
        position: int,
        unaligned_records: bytes | bytearray | memoryview,
    ) -> None:
        self.index = index
        self.error_code = error_code
        self.snapshot_id = snapshot_id
        self.current_leader = current_leader
        self.size = size
        self.position = position
        self.unaligned_records = unaligned_records


class TopicSnapshotResult(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[PartitionSnapshotResult]

    def __init__(self, *, name: str, partitions: Sequence[PartitionSnapshotResult]) -> None:
        self.name = name
        self.partitions = partitions


class NodeEndpoint(Message):
    __slots__ = ("node_id", "host", "port")
    node_id: int
    host: str
    port: int

    def __init__(self, *, node_id: int, host: str, port: int) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port


class FetchSnapshotResponse(Message):
    """API key 59, versions 0-1."""

    __slots__ = ("throttle_time_ms", "error_code", "topics", "node_endpoints")
    throttle_time_ms: int
    error_code: int
    topics: Sequence[TopicSnapshotResult]
    node_endpoints: Sequence[NodeEndpoint]

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        topics: Sequence[TopicSnapshotResult],
        node_endpoints: Sequence[NodeEndpoint] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.topics = topics
        self.node_endpoints = node_endpoints
