"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 55."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class PartitionData(Message):
    __slots__ = ("partition_index",)
    partition_index: int

    def __init__(self, *, partition_index: int) -> None:
        self.partition_index = partition_index


class TopicData(Message):
    __slots__ = ("topic_name", "partitions")
    topic_name: str
    partitions: Sequence[PartitionData]

    def __init__(self, *, topic_name: str, partitions: Sequence[PartitionData]) -> None:
        self.topic_name = topic_name
        self.partitions = partitions


class DescribeQuorumRequest(Message):
    """API key 55, versions 0-2."""

    __slots__ = ("topics",)
    topics: Sequence[TopicData]

    def __init__(self, *, topics: Sequence[TopicData]) -> None:
        self.topics = topics


class ReplicaState(Message):
    __slots__ = (
        "replica_id",
        "log_end_offset",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
        "replica_directory_id",
    )
    replica_id: int
    log_end_offset: int
    last_fetch_timestamp: int
    last_caught_up_timestamp: int
    replica_directory_id: UUID | None

    def __init__(
        self,
        *,
        replica_id: int,
        log_end_offset: int,
        last_fetch_timestamp: int = -1,
        last_caught_up_timestamp: int = -1,
        replica_directory_id: UUID | None = None,
    ) -> None:
        self.replica_id = replica_id
        self.log_end_offset = log_end_offset
        self.last_fetch_timestamp = last_fetch_timestamp
        self.last_caught_up_timestamp = last_caught_up_timestamp
        self.replica_directory_id = replica_directory_id


class PartitionDataResult(Message):
    __slots__ = (
        "partition_index",
        "error_code",
        "leader_id",
        "leader_epoch",
        "high_watermark",
        "current_voters",
        "observers",
        "error_message",
    )
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int
    high_watermark: int
    current_voters: Sequence[ReplicaState]
    observers: Sequence[ReplicaState]
    error_message: str | None

    def __init__(
        self,
        *,
        partition_index: int,
        error_code: int,
        leader_id: int,
        leader_epoch: int,
        high_watermark: int,
        current_voters: Sequence[ReplicaState],
        observers: Sequence[ReplicaState],
        error_message: str | None = None,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.high_watermark = high_watermark
        self.current_voters = current_voters
        self.observers = observers
        self.error_message = error_message


class TopicDataResult(Message):
    __slots__ = ("topic_name", "partitions")
    topic_name: str
    partitions: Sequence[PartitionDataResult]

    def __init__(self, *, topic_name: str, partitions: Sequence[PartitionDataResult]) -> None:
        self.topic_name = topic_name
        self.partitions = partitions


class Listener(Message):
    __slots__ = ("name", "host", "port")
    name: str
    host: str
    port: int

    def __init__(self, *, name: str, host: str, port: int) -> None:
        self.name = name
        self.host = host
        self.port = port


class Node(Message):
    __slots__ = ("node_id", "listeners")
    node_id: int
    listeners: Sequence[Listener]

    def __init__(self, *, node_id: int, listeners: Sequence[Listener]) -> None:
        self.node_id = node_id
        self.listeners = listeners


class DescribeQuorumResponse(Message):
    """API key 55, versions 0-2."""

    __slots__ = ("error_code", "topics", "error_message", "nodes")
    error_code: int
    topics: Sequence[TopicDataResult]
    error_message: str | None
    nodes: Sequence[Node]

    def __init__(
        self,
        *,
        error_code: int,
        topics: Sequence[TopicDataResult],
        error_message: str | None = None,
        nodes: Sequence[Node] = (),
    ) -> None:
        self.error_code = error_code
        self.topics = topics
        self.error_message = error_message
        self.nodes = nodes
