"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 69."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescribeRequest:
    """API key 69, versions 0-1."""

    group_ids: Sequence[str] = ()
    include_authorized_operations: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPartitions:
    topic_id: UUID | None
    topic_name: str
    partitions: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    topic_partitions: Sequence[TopicPartitions]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: Sequence[str] = ()
    subscribed_topic_regex: str | None = None
    assignment: Assignment
    target_assignment: Assignment
    member_type: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    error_code: int
    error_message: str | None = None
    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: Sequence[Member]
    authorized_operations: int = -2147483648


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescribeResponse:
    """API key 69, versions 0-1."""

    throttle_time_ms: int = 0
    groups: Sequence[DescribedGroup]
