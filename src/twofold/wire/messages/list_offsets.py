"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 2."""

from collections.abc import Sequence

from twofold.wire.message import Message


class ListOffsetsPartition(Message):
    __slots__ = ("partition_index", "timestamp", "current_leader_epoch")
    partition_index: int
    timestamp: int
    current_leader_epoch: int

    def __init__(self, *, partition_index: int, timestamp: int, current_leader_epoch: int = -1) -> None:
        self.partition_index = partition_index
        self.timestamp = timestamp
        self.current_leader_epoch = current_leader_epoch


class ListOffsetsTopic(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[ListOffsetsPartition]

    def __init__(self, *, name: str, partitions: Sequence[ListOffsetsPartition]) -> None:
        self.name = name
        self.partitions = partitions


class ListOffsetsRequest(Message):
    """API key 2, versions 1-11."""

    __slots__ = ("replica_id", "topics", "isolation_level", "timeout_ms")
    replica_id: int
    topics: Sequence[ListOffsetsTopic]
    isolation_level: int
    timeout_ms: int

    def __init__(
        self, *, replica_id: int, topics: Sequence[ListOffsetsTopic], isolation_level: int = 0, timeout_ms: int = 0
    ) -> None:
        self.replica_id = replica_id
        self.topics = topics
        self.isolation_level = isolation_level
        self.timeout_ms = timeout_ms


class ListOffsetsPartitionResponse(Message):
    __slots__ = ("partition_index", "error_code", "timestamp", "offset", "leader_epoch")
    partition_index: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int

    def __init__(
        self, *, partition_index: int, error_code: int, timestamp: int = -1, offset: int = -1, leader_epoch: int = -1
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.timestamp = timestamp
        self.offset = offset
        self.leader_epoch = leader_epoch


class ListOffsetsTopicResponse(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[ListOffsetsPartitionResponse]

    def __init__(self, *, name: str, partitions: Sequence[ListOffsetsPartitionResponse]) -> None:
        self.name = name
        self.partitions = partitions


class ListOffsetsResponse(Message):
    """API key 2, versions 1-11."""

    __slots__ = ("topics", "throttle_time_ms")
    topics: Sequence[ListOffsetsTopicResponse]
    throttle_time_ms: int

    def __init__(self, *, topics: Sequence[ListOffsetsTopicResponse], throttle_time_ms: int = 0) -> None:
        self.topics = topics
        self.throttle_time_ms = throttle_time_ms
