"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 75."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class TopicRequest(Message):
    __slots__ = ("name",)
    name: str

    def __init__(self, *, name: str) -> None:
        self.name = name


class Cursor(Message):
    __slots__ = ("topic_name", "partition_index")
    topic_name: str
    partition_index: int

    def __init__(self, *, topic_name: str, partition_index: int) -> None:
        self.topic_name = topic_name
        self.partition_index = partition_index


class DescribeTopicPartitionsRequest(Message):
    """API key 75, versions 0-0."""

    __slots__ = ("topics", "response_partition_limit", "cursor")
    topics: Sequence[TopicRequest]
    response_partition_limit: int
    cursor: Cursor | None

    def __init__(
        self, *, topics: Sequence[TopicRequest], response_partition_limit: int = 2000, cursor: Cursor | None = None
    ) -> None:
        self.topics = topics
        self.response_partition_limit = response_partition_limit
        self.cursor = cursor


class DescribeTopicPartitionsResponsePartition(Message):
    __slots__ = (
        "error_code",
        "partition_index",
        "leader_id",
        "leader_epoch",
        "replica_nodes",
        "isr_nodes",
        "eligible_leader_replicas",
        "last_known_elr",
        "offline_replicas",
    )
    error_code: int
    partition_index: int
    leader_id: int
    leader_epoch: int
    replica_nodes: Sequence[int]
    isr_nodes: Sequence[int]
    eligible_leader_replicas: Sequence[int] | None
    last_known_elr: Sequence[int] | None
    offline_replicas: Sequence[int]

    def __init__(
        self,
        *,
        error_code: int,
        partition_index: int,
        leader_id: int,
        leader_epoch: int = -1,
        replica_nodes: Sequence[int] = (),
        isr_nodes: Sequence[int] = (),
        eligible_leader_replicas: Sequence[int] | None = None,
        last_known_elr: Sequence[int] | None = None,
        offline_replicas: Sequence[int] = (),
    ) -> None:
        self.error_code = error_code
        self.partition_index = partition_index
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.replica_nodes = replica_nodes
        self.isr_nodes = isr_nodes
        self.eligible_leader_replicas = eligible_leader_replicas
        self.last_known_elr = last_known_elr
        self.offline_replicas = offline_replicas


class DescribeTopicPartitionsResponseTopic(Message):
    __slots__ = ("error_code", "name", "topic_id", "is_internal", "partitions", "topic_authorized_operations")
    error_code: int
    name: str | None
    topic_id: UUID | None
    is_internal: bool
    partitions: Sequence[DescribeTopicPartitionsResponsePartition]
    topic_authorized_operations: int

    def __init__(
        self,
        *,
        error_code: int,
        name: str | None,
        topic_id: UUID | None,
        is_internal: bool = False,
        partitions: Sequence[DescribeTopicPartitionsResponsePartition],
        topic_authorized_operations: int = -2147483648,
    ) -> None:
        self.error_code = error_code
        self.name = name
        self.topic_id = topic_id
        self.is_internal = is_internal
        self.partitions = partitions
        self.topic_authorized_operations = topic_authorized_operations


class CursorResult(Message):
    __slots__ = ("topic_name", "partition_index")
    topic_name: str
    partition_index: int

    def __init__(self, *, topic_name: str, partition_index: int) -> None:
        self.topic_name = topic_name
        self.partition_index = partition_index


class DescribeTopicPartitionsResponse(Message):
    """API key 75, versions 0-0."""

    __slots__ = ("throttle_time_ms", "topics", "next_cursor")
    throttle_time_ms: int
    topics: Sequence[DescribeTopicPartitionsResponseTopic]
    next_cursor: CursorResult | None

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        topics: Sequence[DescribeTopicPartitionsResponseTopic],
        next_cursor: CursorResult | None = None,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics
        self.next_cursor = next_cursor
