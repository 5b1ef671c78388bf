"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 68."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class TopicPartitions(Message):
    __slots__ = ("topic_id", "partitions")
    topic_id: UUID | None
    partitions: Sequence[int]

    def __init__(self, *, topic_id: UUID | None, partitions: Sequence[int] = ()) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class ConsumerGroupHeartbeatRequest(Message):
    """API key 68, versions 0-1."""

    __slots__ = (
        "group_id",
        "member_id",
        "member_epoch",
        "instance_id",
        "rack_id",
        "rebalance_timeout_ms",
        "subscribed_topic_names",
        "server_assignor",
        "topic_partitions",
        "subscribed_topic_regex",
    )
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    subscribed_topic_names: Sequence[str] | None
    server_assignor: str | None
    topic_partitions: Sequence[TopicPartitions] | None
    subscribed_topic_regex: str | None

    def __init__(
        self,
        *,
        group_id: str,
        member_id: str,
        member_epoch: int,
        instance_id: str | None = None,
        rack_id: str | None = None,
        rebalance_timeout_ms: int = -1,
        subscribed_topic_names: Sequence[str] | None = None,
        server_assignor: str | None = None,
        topic_partitions: Sequence[TopicPartitions] | None,
        subscribed_topic_regex: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.member_epoch = member_epoch
        self.instance_id = instance_id
        self.rack_id = rack_id
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.subscribed_topic_names = subscribed_topic_names
        self.server_assignor = server_assignor
        self.topic_partitions = topic_partitions
        self.subscribed_topic_regex = subscribed_topic_regex


class TopicPartitionsResult(Message):
    __slots__ = ("topic_id", "partitions")
    topic_id: UUID | None
    partitions: Sequence[int]

    def __init__(self, *, topic_id: UUID | None, partitions: Sequence[int] = ()) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class Assignment(Message):
    __slots__ = ("topic_partitions",)
    topic_partitions: Sequence[TopicPartitionsResult]

    def __init__(self, *, topic_partitions: Sequence[TopicPartitionsResult]) -> None:
        self.topic_partitions = topic_partitions


class ConsumerGroupHeartbeatResponse(Message):
    """API key 68, versions 0-1."""

    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "error_message",
        "member_id",
        "member_epoch",
        "heartbeat_interval_ms",
        "assignment",
    )
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str | None
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Assignment | None

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        error_message: str | None = None,
        member_id: str | None = None,
        member_epoch: int,
        heartbeat_interval_ms: int,
        assignment: Assignment | None = None,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.member_id = member_id
        self.member_epoch = member_epoch
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self.assignment = assignment
