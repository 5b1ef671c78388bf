"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 8."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class OffsetCommitRequestPartition(Message):
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


class OffsetCommitRequestTopic(Message):
    __slots__ = ("name", "partitions", "topic_id")
    name: str
    partitions: Sequence[OffsetCommitRequestPartition]
    topic_id: UUID | None

    def __init__(
        self, *, name: str = "", partitions: Sequence[OffsetCommitRequestPartition], topic_id: UUID | None = None
    ) -> None:
        self.name = name
        self.partitions = partitions
        self.topic_id = topic_id


class OffsetCommitRequest(Message):
    """API key 8, versions 2-10."""

    __slots__ = (
        "group_id",
        "generation_id_or_member_epoch",
        "member_id",
        "retention_time_ms",
        "topics",
        "group_instance_id",
    )
    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    retention_time_ms: int
    topics: Sequence[OffsetCommitRequestTopic]
    group_instance_id: str | None

    def __init__(
        self,
        *,
        group_id: str,
        generation_id_or_member_epoch: int = -1,
        member_id: str,
        retention_time_ms: int = -1,
        topics: Sequence[OffsetCommitRequestTopic],
        group_instance_id: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.generation_id_or_member_epoch = generation_id_or_member_epoch
        self.member_id = member_id
        self.retention_time_ms = retention_time_ms
        self.topics = topics
        self.group_instance_id = group_instance_id


class OffsetCommitResponsePartition(Message):
    __slots__ = ("partition_index", "error_code")
    partition_index: int
    error_code: int

    def __init__(self, *, partition_index: int, error_code: int) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class OffsetCommitResponseTopic(Message):
    __slots__ = ("name", "partitions", "topic_id")
    name: str
    partitions: Sequence[OffsetCommitResponsePartition]
    topic_id: UUID | None

    def __init__(
        self, *, name: str = "", partitions: Sequence[OffsetCommitResponsePartition], topic_id: UUID | None = None
    ) -> None:
        self.name = name
        self.partitions = partitions
        self.topic_id = topic_id


class OffsetCommitResponse(Message):
    """API key 8, versions 2-10."""

    __slots__ = ("topics", "throttle_time_ms")
    topics: Sequence[OffsetCommitResponseTopic]
    throttle_time_ms: int

    def __init__(self, *, topics: Sequence[OffsetCommitResponseTopic], throttle_time_ms: int = 0) -> None:
        self.topics = topics
        self.throttle_time_ms = throttle_time_ms
