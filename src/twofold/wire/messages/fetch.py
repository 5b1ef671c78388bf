"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    partition: int
    fetch_offset: int
    partition_max_bytes: int
    log_start_offset: int = -1
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    replica_directory_id: UUID | None = None
    high_watermark: int = 9223372036854775807


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic:
    topic: str = ""
    partitions: Sequence[FetchPartition]
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic:
    topic: str = ""
    partitions: Sequence[int] = ()
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    replica_id: int = -1
    replica_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """API key 1, versions 4-18."""

    replica_id: int = -1
    max_wait_ms: int
    min_bytes: int
    max_bytes: int = 2147483647
    isolation_level: int = 0
    topics: Sequence[FetchTopic]
    session_id: int = 0
    session_epoch: int = -1
    forgotten_topics_data: Sequence[ForgottenTopic] = ()
    rack_id: str = ""
    cluster_id: str | None = None
    replica_state: ReplicaState = ReplicaState()


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotId:
    end_offset: int = -1
    epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    partition_index: int
    error_code: int
    high_watermark: int
    last_stable_offset: int = -1
    aborted_transactions: Sequence[AbortedTransaction] | None
    records: bytes | bytearray | memoryview | None
    log_start_offset: int = -1
    preferred_read_replica: int = -1
    diverging_epoch: EpochEndOffset = EpochEndOffset()
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()
    snapshot_id: SnapshotId = SnapshotId()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchableTopicResponse:
    topic: str = ""
    partitions: Sequence[PartitionData]
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """API key 1, versions 4-18."""

    throttle_time_ms: int = 0
    responses: Sequence[FetchableTopicResponse]
    error_code: int = 0
    session_id: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()
