"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 0."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class PartitionProduceData(Message):
    __slots__ = ("index", "records")
    index: int
    records: bytes | bytearray | memoryview | None

    def __init__(self, *, index: int, records: bytes | bytearray | memoryview | None) -> None:
        self.index = index
        self.records = records


class TopicProduceData(Message):
    __slots__ = ("name", "partition_data", "topic_id")
    name: str
    partition_data: Sequence[PartitionProduceData]
    topic_id: UUID | None

    def __init__(
        self, *, name: str = "", partition_data: Sequence[PartitionProduceData], topic_id: UUID | None = None
    ) -> None:
        self.name = name
        self.partition_data = partition_data
        self.topic_id = topic_id


class ProduceRequest(Message):
    """API key 0, versions 3-13."""

    __slots__ = ("transactional_id", "acks", "timeout_ms", "topic_data")
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: Sequence[TopicProduceData]

    def __init__(
        self, *, transactional_id: str | None = None, acks: int, timeout_ms: int, topic_data: Sequence[TopicProduceData]
    ) -> None:
        self.transactional_id = transactional_id
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.topic_data = topic_data


class BatchIndexAndErrorMessage(Message):
    __slots__ = ("batch_index", "batch_index_error_message")
    batch_index: int
    batch_index_error_message: str | None

    def __init__(self, *, batch_index: int, batch_index_error_message: str | None = None) -> None:
        self.batch_index = batch_index
        self.batch_index_error_message = batch_index_error_message


class LeaderIdAndEpoch(Message):
    __slots__ = ("leader_id", "leader_epoch")
    leader_id: int
    leader_epoch: int

    def __init__(self, *, leader_id: int = -1, leader_epoch: int = -1) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class PartitionProduceResponse(Message):
    __slots__ = (
        "index",
        "error_code",
        "base_offset",
        "log_append_time_ms",
        "log_start_offset",
        "record_errors",
        "error_message",
        "current_leader",
    )
    index: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_errors: Sequence[BatchIndexAndErrorMessage]
    error_message: str | None
    current_leader: LeaderIdAndEpoch

    def __init__(
        self,
        *,
        index: int,
        error_code: int,
        base_offset: int,
        log_append_time_ms: int = -1,
        log_start_offset: int = -1,
        record_errors: Sequence[BatchIndexAndErrorMessage] = (),
        error_message: str | None = None,
        current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch(),
    ) -> None:
        self.index = index
        self.error_code = error_code
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.log_start_offset = log_start_offset
        self.record_errors = record_errors
        self.error_message = error_message
        self.current_leader = current_leader


class TopicProduceResponse(Message):
    __slots__ = ("name", "partition_responses", "topic_id")
    name: str
    partition_responses: Sequence[PartitionProduceResponse]
    topic_id: UUID | None

    def __init__(
        self, *, name: str = "", partition_responses: Sequence[PartitionProduceResponse], topic_id: UUID | None = None
    ) -> None:
        self.name = name
        self.partition_responses = partition_responses
        self.topic_id = topic_id


class NodeEndpoint(Message):
    __slots__ = ("node_id", "host", "port", "rack")
    node_id: int
    host: str
    port: int
    rack: str | None

    def __init__(self, *, node_id: int, host: str, port: int, rack: str | None = None) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.rack = rack


class ProduceResponse(Message):
    """API key 0, versions 3-13."""

    __slots__ = ("responses", "throttle_time_ms", "node_endpoints")
    responses: Sequence[TopicProduceResponse]
    throttle_time_ms: int
    node_endpoints: Sequence[NodeEndpoint]

    def __init__(
        self,
        *,
        responses: Sequence[TopicProduceResponse],
        throttle_time_ms: int = 0,
        node_endpoints: Sequence[NodeEndpoint] = (),
    ) -> None:
        self.responses = responses
        self.throttle_time_ms = throttle_time_ms
        self.node_endpoints = node_endpoints
