"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 52."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    partition_index: int
    replica_epoch: int
    replica_id: int
    last_offset_epoch: int
    last_offset: int
    replica_directory_id: UUID | None = None
    voter_directory_id: UUID | None = None
    pre_vote: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    topic_name: str
    partitions: Sequence[PartitionData]


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """API key 52, versions 0-2."""

    cluster_id: str | None = None
    topics: Sequence[TopicData]
    voter_id: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDataResult:
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int
    vote_granted: bool


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
class VoteResponse:
    """API key 52, versions 0-2."""

    error_code: int
    topics: Sequence[TopicDataResult]
    node_endpoints: Sequence[NodeEndpoint] = ()
