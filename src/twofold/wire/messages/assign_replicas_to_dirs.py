"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 73."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class PartitionData(Message):
    __slots__ = ("partition_index",)
    partition_index: int

    def __init__(self, *, partition_index: int) -> None:
        self.partition_index = partition_index


class TopicData(Message):
    __slots__ = ("topic_id", "partitions")
    topic_id: UUID | None
    partitions: Sequence[PartitionData]

    def __init__(self, *, topic_id: UUID | None, partitions: Sequence[PartitionData]) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class DirectoryData(Message):
    __slots__ = ("id_", "topics")
    id_: UUID | None
    topics: Sequence[TopicData]

    def __init__(self, *, id_: UUID | None, topics: Sequence[TopicData]) -> None:
        self.id_ = id_
        self.topics = topics


class AssignReplicasToDirsRequest(Message):
    """API key 73, versions 0-0."""

    __slots__ = ("broker_id", "broker_epoch", "directories")
    broker_id: int
    broker_epoch: int
    directories: Sequence[DirectoryData]

    def __init__(self, *, broker_id: int, broker_epoch: int = -1, directories: Sequence[DirectoryData]) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.directories = directories


class PartitionDataResult(Message):
    __slots__ = ("partition_index", "error_code")
    partition_index: int
    error_code: int

    def __init__(self, *, partition_index: int, error_code: int) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class TopicDataResult(Message):
    __slots__ = ("topic_id", "partitions")
    topic_id: UUID | None
    partitions: Sequence[PartitionDataResult]

    def __init__(self, *, topic_id: UUID | None, partitions: Sequence[PartitionDataResult]) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class DirectoryDataResult(Message):
    __slots__ = ("id_", "topics")
    id_: UUID | None
    topics: Sequence[TopicDataResult]

    def __init__(self, *, id_: UUID | None, topics: Sequence[TopicDataResult]) -> None:
        self.id_ = id_
        self.topics = topics


class AssignReplicasToDirsResponse(Message):
    """API key 73, versions 0-0."""

    __slots__ = ("throttle_time_ms", "error_code", "directories")
    throttle_time_ms: int
    error_code: int
    directories: Sequence[DirectoryDataResult]

    def __init__(
        self, *, throttle_time_ms: int = 0, error_code: int, directories: Sequence[DirectoryDataResult]
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.directories = directories
