"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 61."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    name: str
    partition_indexes: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersRequest:
    """API key 61, versions 0-0."""

    topics: Sequence[TopicRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    producer_id: int
    producer_epoch: int
    last_sequence: int = -1
    last_timestamp: int = -1
    coordinator_epoch: int
    current_txn_start_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    partition_index: int
    error_code: int
    error_message: str | None = None
    active_producers: Sequence[ProducerState]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    name: str
    partitions: Sequence[PartitionResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse:
    """API key 61, versions 0-0."""

    throttle_time_ms: int = 0
    topics: Sequence[TopicResponse]
