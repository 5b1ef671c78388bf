"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 35."""

from collections.abc import Sequence

from twofold.wire.message import Message


class DescribableLogDirTopic(Message):
    __slots__ = ("topic", "partitions")
    topic: str
    partitions: Sequence[int]

    def __init__(self, *, topic: str, partitions: Sequence[int] = ()) -> None:
        self.topic = topic
        self.partitions = partitions


class DescribeLogDirsRequest(Message):
    """API key 35, versions 1-5."""

    __slots__ = ("topics",)
    topics: Sequence[DescribableLogDirTopic] | None

    def __init__(self, *, topics: Sequence[DescribableLogDirTopic] | None) -> None:
        self.topics = topics


class DescribeLogDirsPartition(Message):
    __slots__ = ("partition_index", "partition_size", "offset_lag", "is_future_key")
    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool

    def __init__(self, *, partition_index: int, partition_size: int, offset_lag: int, is_future_key: bool) -> None:
        self.partition_index = partition_index
        self.partition_size = partition_size
        self.offset_lag = offset_lag
        self.is_future_key = is_future_key


class DescribeLogDirsTopic(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[DescribeLogDirsPartition]

    def __init__(self, *, name: str, partitions: Sequence[DescribeLogDirsPartition]) -> None:
        self.name = name
        self.partitions = partitions


class DescribeLogDirsResult(Message):
    __slots__ = ("error_code", "log_dir", "topics", "total_bytes", "usable_bytes", "is_cordoned")
    error_code: int
    log_dir: str
    topics: Sequence[DescribeLogDirsTopic]
    total_bytes: int
    usable_bytes: int
    is_cordoned: bool

    def __init__(
        self,
        *,
        error_code: int,
        log_dir: str,
        topics: Sequence[DescribeLogDirsTopic],
        total_bytes: int = -1,
        usable_bytes: int = -1,
        is_cordoned: bool = False,
    ) -> None:
        self.error_code = error_code
        self.log_dir = log_dir
        self.topics = topics
        self.total_bytes = total_bytes
        self.usable_bytes = usable_bytes
        self.is_cordoned = is_cordoned


class DescribeLogDirsResponse(Message):
    """API key 35, versions 1-5."""

    __slots__ = ("throttle_time_ms", "results", "error_code")
    throttle_time_ms: int
    results: Sequence[DescribeLogDirsResult]
    error_code: int

    def __init__(
        self, *, throttle_time_ms: int = 0, results: Sequence[DescribeLogDirsResult], error_code: int = 0
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.results = results
        self.error_code = error_code
