"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 28."""

from collections.abc import Sequence

from twofold.wire.message import Message


class TxnOffsetCommitRequestPartition(Message):
    __slots__ = ("partition_index", "committed_offset", "committed_metadata", "committed_leader_epoch")
    partition_index: int
    committed_offset: int
    committed_metadata: str | None
    committed_leader_epoch: int

    def __init__(
        self,
        *,
        partition_index: int,
        committed_offset: int,
        committed_metadata: str | None,
        committed_leader_epoch: int = -1,
    ) -> None:
        self.partition_index = partition_index
        self.committed_offset = committed_offset
        self.committed_metadata = committed_metadata
        self.committed_leader_epoch = committed_leader_epoch


class TxnOffsetCommitRequestTopic(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[TxnOffsetCommitRequestPartition]

    def __init__(self, *, name: str, partitions: Sequence[TxnOffsetCommitRequestPartition]) -> None:
        self.name = name
        self.partitions = partitions


class TxnOffsetCommitRequest(Message):
    """API key 28, versions 0-5."""

    __slots__ = (
        "transactional_id",
        "group_id",
        "producer_id",
        "producer_epoch",
        "topics",
        "generation_id",
        "member_id",
        "group_instance_id",
    )
    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    topics: Sequence[TxnOffsetCommitRequestTopic]
    generation_id: int
    member_id: str
    group_instance_id: str | None

    def __init__(
        self,
        *,
        transactional_id: str,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        topics: Sequence[TxnOffsetCommitRequestTopic],
        generation_id: int = -1,
        member_id: str = "",
        group_instance_id: str | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.group_id = group_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.topics = topics
        self.generation_id = generation_id
        self.member_id = member_id
        self.group_instance_id = group_instance_id


class TxnOffsetCommitResponsePartition(Message):
    __slots__ = ("partition_index", "error_code")
    partition_index: int
    error_code: int

    def __init__(self, *, partition_index: int, error_code: int) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class TxnOffsetCommitResponseTopic(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[TxnOffsetCommitResponsePartition]

    def __init__(self, *, name: str, partitions: Sequence[TxnOffsetCommitResponsePartition]) -> None:
        self.name = name
        self.partitions = partitions


class TxnOffsetCommitResponse(Message):
    """API key 28, versions 0-5."""

    __slots__ = ("throttle_time_ms", "topics")
    throttle_time_ms: int
    topics: Sequence[TxnOffsetCommitResponseTopic]

    def __init__(self, *, throttle_time_ms: int = 0, topics: Sequence[TxnOffsetCommitResponseTopic]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics
