"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 43."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    topic: str
    partitions: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersRequest:
    """API key 43, versions 0-2."""

    topic_partitions: Sequence[TopicPartitions] | None
    timeout_ms: int = 60000
    election_type: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    partition_id: int
    error_code: int
    error_message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaElectionResult:
    topic: str
    partition_result: Sequence[PartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeadersResponse:
    """API key 43, versions 0-2."""

    throttle_time_ms: int = 0
    replica_election_results: Sequence[ReplicaElectionResult]
    error_code: int = 0
