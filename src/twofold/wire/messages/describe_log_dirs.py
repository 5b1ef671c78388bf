"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 35."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribableLogDirTopic:
    topic: str
    partitions: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsRequest:
    """API key 35, versions 1-5."""

    topics: Sequence[DescribableLogDirTopic] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsPartition:
    partition_index: int
    partition_size: int
    offset_lag: int
    is_future_key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsTopic:
    name: str
    partitions: Sequence[DescribeLogDirsPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResult:
    error_code: int
    log_dir: str
    topics: Sequence[DescribeLogDirsTopic]
    total_bytes: int = -1
    usable_bytes: int = -1
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeLogDirsResponse:
    """API key 35, versions 1-5."""

    throttle_time_ms: int = 0
    results: Sequence[DescribeLogDirsResult]
    error_code: int = 0
