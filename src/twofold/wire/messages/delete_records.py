"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 21."""

from collections.abc import Sequence

from twofold.wire.message import Message


class DeleteRecordsPartition(Message):
    __slots__ = ("partition_index", "offset")
    partition_index: int
    offset: int

    def __init__(self, *, partition_index: int, offset: int) -> None:
        self.partition_index = partition_index
        self.offset = offset


class DeleteRecordsTopic(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[DeleteRecordsPartition]

    def __init__(self, *, name: str, partitions: Sequence[DeleteRecordsPartition]) -> None:
        self.name = name
        self.partitions = partitions


class DeleteRecordsRequest(Message):
    """API key 21, versions 0-2."""

    __slots__ = ("topics", "timeout_ms")
    topics: Sequence[DeleteRecordsTopic]
    timeout_ms: int

    def __init__(self, *, topics: Sequence[DeleteRecordsTopic], timeout_ms: int) -> None:
        self.topics = topics
        self.timeout_ms = timeout_ms


class DeleteRecordsPartitionResult(Message):
    __slots__ = ("partition_index", "low_watermark", "error_code")
    partition_index: int
    low_watermark: int
    error_code: int

    def __init__(self, *, partition_index: int, low_watermark: int, error_code: int) -> None:
        self.partition_index = partition_index
        self.low_watermark = low_watermark
        self.error_code = error_code


class DeleteRecordsTopicResult(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[DeleteRecordsPartitionResult]

    def __init__(self, *, name: str, partitions: Sequence[DeleteRecordsPartitionResult]) -> None:
        self.name = name
        self.partitions = partitions


class DeleteRecordsResponse(Message):
    """API key 21, versions 0-2."""

    __slots__ = ("throttle_time_ms", "topics")
    throttle_time_ms: int
    topics: Sequence[DeleteRecordsTopicResult]

    def __init__(self, *, throttle_time_ms: int = 0, topics: Sequence[DeleteRecordsTopicResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics
