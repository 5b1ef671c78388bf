"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 9."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class OffsetFetchRequestTopic(Message):
    __slots__ = ("name", "partition_indexes")
    name: str
    partition_indexes: Sequence[int]

    def __init__(self, *, name: str, partition_indexes: Sequence[int] = ()) -> None:
        self.name = name
        self.partition_indexes = partition_indexes


class OffsetFetchRequestTopics(Message):
    __slots__ = ("name", "partition_indexes", "topic_id")
    name: str
    partition_indexes: Sequence[int]
    topic_id: UUID | None

    def __init__(self, *, name: str = "", partition_indexes: Sequence[int] = (), topic_id: UUID | None = None) -> None:
        self.name = name
        self.partition_indexes = partition_indexes
        self.topic_id = topic_id


class OffsetFetchRequestGroup(Message):
    __slots__ = ("group_id", "topics", "member_id", "member_epoch")
    group_id: str
    topics: Sequence[OffsetFetchRequestTopics] | None
    member_id: str | None
    member_epoch: int

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[OffsetFetchRequestTopics] | None,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> None:
        self.group_id = group_id
        self.topics = topics
        self.member_id = member_id
        self.member_epoch = member_epoch


class OffsetFetchRequest(Message):
    """API key 9, versions 1-10."""

    __slots__ = ("group_id", "topics", "require_stable", "groups")
    group_id: str
    topics: Sequence[OffsetFetchRequestTopic] | None
    require_stable: bool
    groups: Sequence[OffsetFetchRequestGroup]

    def __init__(
        self,
        *,
        group_id: str = "",
        topics: Sequence[OffsetFetchRequestTopic] | None = None,
        require_stable: bool = False,
        groups: Sequence[OffsetFetchRequestGroup] = (),
    ) -> None:
        self.group_id = group_id
        self.topics = topics
        self.require_stable = require_stable
        self.groups = groups


class OffsetFetchResponsePartition(Message):
    __slots__ = ("partition_index", "committed_offset", "metadata", "error_code", "committed_leader_epoch")
    partition_index: int
    committed_offset: int
    metadata: str | None
    error_code: int
    committed_leader_epoch: int

    def __init__(
        self,
        *,
        partition_index: int,
        committed_offset: int,
        metadata: str | None,
        error_code: int,
        committed_leader_epoch: int = -1,
    ) -> None:
        self.partition_index = partition_index
        self.committed_offset = committed_offset
        self.metadata = metadata
        self.error_code = error_code
        self.committed_leader_epoch = committed_leader_epoch


class OffsetFetchResponseTopic(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[OffsetFetchResponsePartition]

    def __init__(self, *, name: str, partitions: Sequence[OffsetFetchResponsePartition]) -> None:
        self.name = name
        self.partitions = partitions


class OffsetFetchResponsePartitions(Message):
    __slots__ = ("partition_index", "committed_offset", "committed_leader_epoch", "metadata", "error_code")
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    metadata: str | None
    error_code: int

    def __init__(
        self,
        *,
        partition_index: int,
        committed_offset: int,
        committed_leader_epoch: int = -1,
        metadata: str | None,
        error_code: int,
    ) -> None:
        self.partition_index = partition_index
        self.committed_offset = committed_offset
        self.committed_leader_epoch = committed_leader_epoch
        self.metadata = metadata
        self.error_code = error_code


class OffsetFetchResponseTopics(Message):
    __slots__ = ("name", "partitions", "topic_id")
    name: str
    partitions: Sequence[OffsetFetchResponsePartitions]
    topic_id: UUID | None

    def __init__(
        self, *, name: str = "", partitions: Sequence[OffsetFetchResponsePartitions], topic_id: UUID | None = None
    ) -> None:
        self.name = name
        self.partitions = partitions
        self.topic_id = topic_id


class OffsetFetchResponseGroup(Message):
    __slots__ = ("group_id", "topics", "error_code")
    group_id: str
    topics: Sequence[OffsetFetchResponseTopics]
    error_code: int

    def __init__(self, *, group_id: str, topics: Sequence[OffsetFetchResponseTopics], error_code: int = 0) -> None:
        self.group_id = group_id
        self.topics = topics
        self.error_code = error_code


class OffsetFetchResponse(Message):
    """API key 9, versions 1-10."""

    __slots__ = ("topics", "error_code", "throttle_time_ms", "groups")
    topics: Sequence[OffsetFetchResponseTopic]
    error_code: int
    throttle_time_ms: int
    groups: Sequence[OffsetFetchResponseGroup]

    def __init__(
        self,
        *,
        topics: Sequence[OffsetFetchResponseTopic] = (),
        error_code: int = 0,
        throttle_time_ms: int = 0,
        groups: Sequence[OffsetFetchResponseGroup] = (),
    ) -> None:
        self.topics = topics
        self.error_code = error_code
        self.throttle_time_ms = throttle_time_ms
        self.groups = groups
