"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 54."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo:
    candidate_id: int
    candidate_directory_id: UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    partition_index: int
    leader_id: int
    leader_epoch: int
    preferred_successors: Sequence[int] = ()
    preferred_candidates: Sequence[ReplicaInfo] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    topic_name: str
    partitions: Sequence[PartitionData]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderEndpoint:
    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest:
    """API key 54, versions 0-1."""

    cluster_id: str | None = None
    topics: Sequence[TopicData]
    leader_endpoints: Sequence[LeaderEndpoint] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDataResult:
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDataResult:
    topic_name: str
    partitions: Sequence[PartitionDataResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponse:
    """API key 54, versions 0-1."""

    error_code: int
    topics: Sequence[TopicDataResult]
    node_endpoints: Sequence[NodeEndpoint] = ()
