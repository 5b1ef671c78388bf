"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 45."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignablePartition:
    partition_index: int
    replicas: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignableTopic:
    name: str
    partitions: Sequence[ReassignablePartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsRequest:
    """API key 45, versions 0-1."""

    timeout_ms: int = 60000
    topics: Sequence[ReassignableTopic]
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignablePartitionResponse:
    partition_index: int
    error_code: int
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignableTopicResponse:
    name: str
    partitions: Sequence[ReassignablePartitionResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionReassignmentsResponse:
    """API key 45, versions 0-1."""

    throttle_time_ms: int = 0
    error_code: int
    error_message: str | None
    responses: Sequence[ReassignableTopicResponse]
    allow_replication_factor_change: bool = True
