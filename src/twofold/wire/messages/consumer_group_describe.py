"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 69."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class ConsumerGroupDescribeRequest(Message):
    """API key 69, versions 0-1."""

    __slots__ = ("group_ids", "include_authorized_operations")
    group_ids: Sequence[str]
    include_authorized_operations: bool

    def __init__(self, *, group_ids: Sequence[str] = (), include_authorized_operations: bool) -> None:
        self.group_ids = group_ids
        self.include_authorized_operations = include_authorized_operations


class TopicPartitions(Message):
    __slots__ = ("topic_id", "topic_name", "partitions")
    topic_id: UUID | None
    topic_name: str
    partitions: Sequence[int]

    def __init__(self, *, topic_id: UUID | None, topic_name: str, partitions: Sequence[int] = ()) -> None:
        self.topic_id = topic_id
        self.topic_name = topic_name
        self.partitions = partitions


class Assignment(Message):
    __slots__ = ("topic_partitions",)
    topic_partitions: Sequence[TopicPartitions]

    def __init__(self, *, topic_partitions: Sequence[TopicPartitions]) -> None:
        self.topic_partitions = topic_partitions


class Member(Message):
    __slots__ = (
        "member_id",
        "instance_id",
        "rack_id",
        "member_epoch",
        "client_id",
        "client_host",
        "subscribed_topic_names",
        "subscribed_topic_regex",
        "assignment",
        "target_assignment",
        "member_type",
    )
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: Sequence[str]
    subscribed_topic_regex: str | None
    assignment: Assignment
    target_assignment: Assignment
    member_type: int

    def __init__(
        self,
        *,
        member_id: str,
        instance_id: str | None = None,
        rack_id: str | None = None,
        member_epoch: int,
        client_id: str,
        client_host: str,
        subscribed_topic_names: Sequence[str] = (),
        subscribed_topic_regex: str | None = None,
        assignment: Assignment,
        target_assignment: Assignment,
        member_type: int = -1,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.rack_id = rack_id
        self.member_epoch = member_epoch
        self.client_id = client_id
        self.client_host = client_host
        self.subscribed_topic_names = subscribed_topic_names
        self.subscribed_topic_regex = subscribed_topic_regex
        self.assignment = assignment
        self.target_assignment = target_assignment
        self.member_type = member_type


class DescribedGroup(Message):
    __slots__ = (
        "error_code",
        "error_message",
        "group_id",
        "group_state",
        "group_epoch",
        "assignment_epoch",
        "assignor_name",
        "members",
        "authorized_operations",
    )
    error_code: int
    error_message: str | None
    group_id: str
    group_state: str
    group_epoch: int
    assignment_epoch: int
    assignor_name: str
    members: Sequence[Member]
    authorized_operations: int

    def __init__(
        self,
        *,
        error_code: int,
        error_message: str | None = None,
        group_id: str,
        group_state: str,
        group_epoch: int,
        assignment_epoch: int,
        assignor_name: str,
        members: Sequence[Member],
        authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.group_id = group_id
        self.group_state = group_state
        self.group_epoch = group_epoch
        self.assignment_epoch = assignment_epoch
        self.assignor_name = assignor_name
        self.members = members
        self.authorized_operations = authorized_operations


class ConsumerGroupDescribeResponse(Message):
    """API key 69, versions 0-1."""

    __slots__ = ("throttle_time_ms", "groups")
    throttle_time_ms: int
    groups: Sequence[DescribedGroup]

    def __init__(self, *, throttle_time_ms: int = 0, groups: Sequence[DescribedGroup]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.groups = groups
