"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 23."""

from collections.abc import Sequence

from twofold.wire.message import Message


class OffsetForLeaderPartition(Message):
    __slots__ = ("partition", "current_leader_epoch", "leader_epoch")
    partition: int
    current_leader_epoch: int
    leader_epoch: int

    def __init__(self, *, partition: int, current_leader_epoch: int = -1, leader_epoch: int) -> None:
        self.partition = partition
        self.current_leader_epoch = current_leader_epoch
        self.leader_epoch = leader_epoch


class OffsetForLeaderTopic(Message):
    __slots__ = ("topic", "partitions")
    topic: str
    partitions: Sequence[OffsetForLeaderPartition]

    def __init__(self, *, topic: str, partitions: Sequence[OffsetForLeaderPartition]) -> None:
        self.topic = topic
        self.partitions = partitions


class OffsetForLeaderEpochRequest(Message):
    """API key 23, versions 2-4."""

    __slots__ = ("topics", "replica_id")
    topics: Sequence[OffsetForLeaderTopic]
    replica_id: int

    def __init__(self, *, topics: Sequence[OffsetForLeaderTopic], replica_id: int = -2) -> None:
        self.topics = topics
        self.replica_id = replica_id


class EpochEndOffset(Message):
    __slots__ = ("error_code", "partition", "leader_epoch", "end_offset")
    error_code: int
    partition: int
    leader_epoch: int
    end_offset: int

    def __init__(self, *, error_code: int, partition: int, leader_epoch: int = -1, end_offset: int = -1) -> None:
        self.error_code = error_code
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.end_offset = end_offset


class OffsetForLeaderTopicResult(Message):
    __slots__ = ("topic", "partitions")
    topic: str
    partitions: Sequence[EpochEndOffset]

    def __init__(self, *, topic: str, partitions: Sequence[EpochEndOffset]) -> None:
        self.topic = topic
        self.partitions = partitions


class OffsetForLeaderEpochResponse(Message):
    """API key 23, versions 2-4."""

    __slots__ = ("throttle_time_ms", "topics")
    throttle_time_ms: int
    topics: Sequence[OffsetForLeaderTopicResult]

    def __init__(self, *, throttle_time_ms: int = 0, topics: Sequence[OffsetForLeaderTopicResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics
