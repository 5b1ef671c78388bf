"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 8."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestPartition:
    partition_index: int
    committed_offset: int
    committed_metadata: str | None
    committed_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequestTopic:
    name: str = ""
    partitions: Sequence[OffsetCommitRequestPartition]
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """API key 8, versions 2-10."""

    group_id: str
    generation_id_or_member_epoch: int = -1
    member_id: str
    retention_time_ms: int = -1
    topics: Sequence[OffsetCommitRequestTopic]
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponsePartition:
    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponseTopic:
    name: str = ""
    partitions: Sequence[OffsetCommitResponsePartition]
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """API key 8, versions 2-10."""

    topics: Sequence[OffsetCommitResponseTopic]
    throttle_time_ms: int = 0
