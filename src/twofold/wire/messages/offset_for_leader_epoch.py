"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 23."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderPartition:
    partition: int
    current_leader_epoch: int = -1
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderTopic:
    topic: str
    partitions: Sequence[OffsetForLeaderPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochRequest:
    """API key 23, versions 2-4."""

    topics: Sequence[OffsetForLeaderTopic]
    replica_id: int = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEndOffset:
    error_code: int
    partition: int
    leader_epoch: int = -1
    end_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderTopicResult:
    topic: str
    partitions: Sequence[EpochEndOffset]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetForLeaderEpochResponse:
    """API key 23, versions 2-4."""

    throttle_time_ms: int = 0
    topics: Sequence[OffsetForLeaderTopicResult]
