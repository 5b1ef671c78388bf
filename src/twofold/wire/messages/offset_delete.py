"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 47."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequestPartition:
    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequestTopic:
    name: str
    partitions: Sequence[OffsetDeleteRequestPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest:
    """API key 47, versions 0-0."""

    group_id: str
    topics: Sequence[OffsetDeleteRequestTopic]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponsePartition:
    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponseTopic:
    name: str
    partitions: Sequence[OffsetDeleteResponsePartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    """API key 47, versions 0-0."""

    error_code: int
    throttle_time_ms: int = 0
    topics: Sequence[OffsetDeleteResponseTopic]
