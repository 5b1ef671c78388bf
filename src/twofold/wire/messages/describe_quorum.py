"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 55."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    topic_name: str
    partitions: Sequence[PartitionData]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumRequest:
    """API key 55, versions 0-2."""

    topics: Sequence[TopicData]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    replica_id: int
    log_end_offset: int
    last_fetch_timestamp: int = -1
    last_caught_up_timestamp: int = -1
    replica_directory_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDataResult:
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int
    high_watermark: int
    current_voters: Sequence[ReplicaState]
    observers: Sequence[ReplicaState]
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDataResult:
    topic_name: str
    partitions: Sequence[PartitionDataResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    node_id: int
    listeners: Sequence[Listener]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumResponse:
    """API key 55, versions 0-2."""

    error_code: int
    topics: Sequence[TopicDataResult]
    error_message: str | None = None
    nodes: Sequence[Node] = ()
