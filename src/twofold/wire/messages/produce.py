"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 0."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceData:
    index: int
    records: bytes | bytearray | memoryview | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceData:
    name: str = ""
    partition_data: Sequence[PartitionProduceData]
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """API key 0, versions 3-13."""

    transactional_id: str | None = None
    acks: int
    timeout_ms: int
    topic_data: Sequence[TopicProduceData]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchIndexAndErrorMessage:
    batch_index: int
    batch_index_error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderIdAndEpoch:
    leader_id: int = -1
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProduceResponse:
    index: int
    error_code: int
    base_offset: int
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[BatchIndexAndErrorMessage] = ()
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProduceResponse:
    name: str = ""
    partition_responses: Sequence[PartitionProduceResponse]
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    """API key 0, versions 3-13."""

    responses: Sequence[TopicProduceResponse]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()
