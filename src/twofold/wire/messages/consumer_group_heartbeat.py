"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 68."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    topic_id: UUID | None
    partitions: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatRequest:
    """API key 68, versions 0-1."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: Sequence[str] | None = None
    server_assignor: str | None = None
    topic_partitions: Sequence[TopicPartitions] | None
    subscribed_topic_regex: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitionsResult:
    topic_id: UUID | None
    partitions: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    topic_partitions: Sequence[TopicPartitionsResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupHeartbeatResponse:
    """API key 68, versions 0-1."""

    throttle_time_ms: int = 0
    error_code: int
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Assignment | None = None
