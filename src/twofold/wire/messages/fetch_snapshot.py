"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 59."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotId:
    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshot:
    partition: int
    current_leader_epoch: int
    snapshot_id: SnapshotId
    position: int
    replica_directory_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    name: str
    partitions: Sequence[PartitionSnapshot]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    """API key 59, versions 0-1."""

    cluster_id: str | None = None
    replica_id: int = -1
    max_bytes: int = 2147483647
    topics: Sequence[TopicSnapshot]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotIdResult:
    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshotResult:
    index: int
    error_code: int
    snapshot_id: SnapshotIdResult
    current_leader: LeaderIdAndEpoch
    size: int
    position: int
    unaligned_records: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshotResult:
    name: str
    partitions: Sequence[PartitionSnapshotResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotResponse:
    """API key 59, versions 0-1."""

    throttle_time_ms: int = 0
    error_code: int
    topics: Sequence[TopicSnapshotResult]
    node_endpoints: Sequence[NodeEndpoint] = ()
