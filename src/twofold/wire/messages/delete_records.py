"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 21."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsPartition:
    partition_index: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsTopic:
    name: str
    partitions: Sequence[DeleteRecordsPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsRequest:
    """API key 21, versions 0-2."""

    topics: Sequence[DeleteRecordsTopic]
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsPartitionResult:
    partition_index: int
    low_watermark: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsTopicResult:
    name: str
    partitions: Sequence[DeleteRecordsPartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsResponse:
    """API key 21, versions 0-2."""

    throttle_time_ms: int = 0
    topics: Sequence[DeleteRecordsTopicResult]
