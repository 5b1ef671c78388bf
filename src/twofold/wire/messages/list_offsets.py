"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 2."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition:
    partition_index: int
    timestamp: int
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic:
    name: str
    partitions: Sequence[ListOffsetsPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest:
    """API key 2, versions 1-11."""

    replica_id: int
    topics: Sequence[ListOffsetsTopic]
    isolation_level: int = 0
    timeout_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartitionResponse:
    partition_index: int
    error_code: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopicResponse:
    name: str
    partitions: Sequence[ListOffsetsPartitionResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse:
    """API key 2, versions 1-11."""

    topics: Sequence[ListOffsetsTopicResponse]
    throttle_time_ms: int = 0
