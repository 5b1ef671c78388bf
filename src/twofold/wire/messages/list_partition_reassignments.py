"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 46."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsTopics:
    name: str
    partition_indexes: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsRequest:
    """API key 46, versions 0-0."""

    timeout_ms: int = 60000
    topics: Sequence[ListPartitionReassignmentsTopics] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingPartitionReassignment:
    partition_index: int
    replicas: Sequence[int] = ()
    adding_replicas: Sequence[int] = ()
    removing_replicas: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OngoingTopicReassignment:
    name: str
    partitions: Sequence[OngoingPartitionReassignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPartitionReassignmentsResponse:
    """API key 46, versions 0-0."""

    throttle_time_ms: int = 0
    error_code: int
    error_message: str | None
    topics: Sequence[OngoingTopicReassignment]
