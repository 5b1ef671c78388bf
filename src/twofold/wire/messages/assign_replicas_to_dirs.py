"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 73."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    topic_id: UUID | None
    partitions: Sequence[PartitionData]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryData:
    id_: UUID | None
    topics: Sequence[TopicData]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignReplicasToDirsRequest:
    """API key 73, versions 0-0."""

    broker_id: int
    broker_epoch: int = -1
    directories: Sequence[DirectoryData]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDataResult:
    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDataResult:
    topic_id: UUID | None
    partitions: Sequence[PartitionDataResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryDataResult:
    id_: UUID | None
    topics: Sequence[TopicDataResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignReplicasToDirsResponse:
    """API key 73, versions 0-0."""

    throttle_time_ms: int = 0
    error_code: int
    directories: Sequence[DirectoryDataResult]
