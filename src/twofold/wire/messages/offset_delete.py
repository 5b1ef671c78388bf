"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 47."""

from collections.abc import Sequence

from twofold.wire.message import Message


class OffsetDeleteRequestPartition(Message):
    __slots__ = ("partition_index",)
    partition_index: int

    def __init__(self, *, partition_index: int) -> None:
        self.partition_index = partition_index


class OffsetDeleteRequestTopic(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[OffsetDeleteRequestPartition]

    def __init__(self, *, name: str, partitions: Sequence[OffsetDeleteRequestPartition]) -> None:
        self.name = name
        self.partitions = partitions


class OffsetDeleteRequest(Message):
    """API key 47, versions 0-0."""

    __slots__ = ("group_id", "topics")
    group_id: str
    topics: Sequence[OffsetDeleteRequestTopic]

    def __init__(self, *, group_id: str, topics: Sequence[OffsetDeleteRequestTopic]) -> None:
        self.group_id = group_id
        self.topics = topics


class OffsetDeleteResponsePartition(Message):
    __slots__ = ("partition_index", "error_code")
    partition_index: int
    error_code: int

    def __init__(self, *, partition_index: int, error_code: int) -> None:
        self.partition_index = partition_index
        self.error_code = error_code


class OffsetDeleteResponseTopic(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[OffsetDeleteResponsePartition]

    def __init__(self, *, name: str, partitions: Sequence[OffsetDeleteResponsePartition]) -> None:
        self.name = name
        self.partitions = partitions


class OffsetDeleteResponse(Message):
    """API key 47, versions 0-0."""

    __slots__ = ("error_code", "throttle_time_ms", "topics")
    error_code: int
    throttle_time_ms: int
    topics: Sequence[OffsetDeleteResponseTopic]

    def __init__(
        self, *, error_code: int, throttle_time_ms: int = 0, topics: Sequence[OffsetDeleteResponseTopic]
    ) -> None:
        self.error_code = error_code
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics
