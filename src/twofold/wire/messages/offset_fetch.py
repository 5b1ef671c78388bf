"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 9."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopic:
    name: str
    partition_indexes: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestTopics:
    name: str = ""
    partition_indexes: Sequence[int] = ()
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequestGroup:
    group_id: str
    topics: Sequence[OffsetFetchRequestTopics] | None
    member_id: str | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """API key 9, versions 1-10."""

    group_id: str = ""
    topics: Sequence[OffsetFetchRequestTopic] | None = None
    require_stable: bool = False
    groups: Sequence[OffsetFetchRequestGroup] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponsePartition:
    partition_index: int
    committed_offset: int
    metadata: str | None
    error_code: int
    committed_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopic:
    name: str
    partitions: Sequence[OffsetFetchResponsePartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponsePartitions:
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    metadata: str | None
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseTopics:
    name: str = ""
    partitions: Sequence[OffsetFetchResponsePartitions]
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponseGroup:
    group_id: str
    topics: Sequence[OffsetFetchResponseTopics]
    error_code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    """API key 9, versions 1-10."""

    topics: Sequence[OffsetFetchResponseTopic] = ()
    error_code: int = 0
    throttle_time_ms: int = 0
    groups: Sequence[OffsetFetchResponseGroup] = ()
