"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 75."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    topic_name: str
    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsRequest:
    """API key 75, versions 0-0."""

    topics: Sequence[TopicRequest]
    response_partition_limit: int = 2000
    cursor: Cursor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponsePartition:
    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int = -1
    replica_nodes: Sequence[int] = ()
    isr_nodes: Sequence[int] = ()
    eligible_leader_replicas: Sequence[int] | None = None
    last_known_elr: Sequence[int] | None = None
    offline_replicas: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponseTopic:
    error_code: int
    name: str | None
    topic_id: UUID | None
    is_internal: bool = False
    partitions: Sequence[DescribeTopicPartitionsResponsePartition]
    topic_authorized_operations: int = -2147483648


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorResult:
    topic_name: str
    partition_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTopicPartitionsResponse:
    """API key 75, versions 0-0."""

    throttle_time_ms: int = 0
    topics: Sequence[DescribeTopicPartitionsResponseTopic]
    next_cursor: CursorResult | None = None
