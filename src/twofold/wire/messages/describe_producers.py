"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 61."""

from collections.abc import Sequence

from twofold.wire.message import Message


class TopicRequest(Message):
    __slots__ = ("name", "partition_indexes")
    name: str
    partition_indexes: Sequence[int]

    def __init__(self, *, name: str, partition_indexes: Sequence[int] = ()) -> None:
        self.name = name
        self.partition_indexes = partition_indexes


class DescribeProducersRequest(Message):
    """API key 61, versions 0-0."""

    __slots__ = ("topics",)
    topics: Sequence[TopicRequest]

    def __init__(self, *, topics: Sequence[TopicRequest]) -> None:
        self.topics = topics


class ProducerState(Message):
    __slots__ = (
        "producer_id",
        "producer_epoch",
        "last_sequence",
        "last_timestamp",
        "coordinator_epoch",
        "current_txn_start_offset",
        "current_txn_start_time_ms",
        "current_txn_start_time_is_bound",
    )
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int
    current_txn_start_time_ms: int
    current_txn_start_time_is_bound: bool

    def __init__(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        last_sequence: int = -1,
        last_timestamp: int = -1,
        coordinator_epoch: int,
        current_txn_start_offset: int = -1,
        current_txn_start_time_ms: int = -1,
        current_txn_start_time_is_bound: bool = False,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.last_sequence = last_sequence
        self.last_timestamp = last_timestamp
        self.coordinator_epoch = coordinator_epoch
        self.current_txn_start_offset = current_txn_start_offset
        self.current_txn_start_time_ms = current_txn_start_time_ms
        self.current_txn_start_time_is_bound = current_txn_start_time_is_bound


class PartitionResponse(Message):
    __slots__ = ("partition_index", "error_code", "error_message", "active_producers")
    partition_index: int
    error_code: int
    error_message: str | None
    active_producers: Sequence[ProducerState]

    def __init__(
        self,
        *,
        partition_index: int,
        error_code: int,
        error_message: str | None = None,
        active_producers: Sequence[ProducerState],
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message
        self.active_producers = active_producers


class TopicResponse(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[PartitionResponse]

    def __init__(self, *, name: str, partitions: Sequence[PartitionResponse]) -> None:
        self.name = name
        self.partitions = partitions


class DescribeProducersResponse(Message):
    """API key 61, versions 0-0."""

    __slots__ = ("throttle_time_ms", "topics")
    throttle_time_ms: int
    topics: Sequence[TopicResponse]

    def __init__(self, *, throttle_time_ms: int = 0, topics: Sequence[TopicResponse]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics
