"""Answers that kio cannot read as they are.

A transaction that has not begun has the start time -1, which kio's schema refuses: here it is a plain number. The last
four fields are tags that only Twofold writes: how the last two-phase transaction ended, and which principal opened this
one. So are the last two of a producer: since when its transaction is open.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.describe_transactions.v0 import response as described
from kio.schema.errors import ErrorCode
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(65)
    __header_schema__: ClassVar = ResponseHeader
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    transactional_id: TransactionalId = field(metadata={"kafka_type": "string"})
    transaction_state: str = field(metadata={"kafka_type": "string"})
    transaction_timeout: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    transaction_start_time: i64 = field(metadata={"kafka_type": "int64"})
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"})
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"})
    topics: tuple[described.TopicData, ...]
    last_two_phase_producer_id: i64 = field(metadata={"kafka_type": "int64", "tag": 101}, default=i64(-1))
    last_two_phase_epoch: i16 = field(metadata={"kafka_type": "int16", "tag": 102}, default=i16(-1))
    last_two_phase_ending: i8 = field(metadata={"kafka_type": "int8", "tag": 103}, default=i8(0))
    opened_by: str = field(metadata={"kafka_type": "string", "tag": 107}, default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(65)
    __header_schema__: ClassVar = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    transaction_states: tuple[TransactionState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(61)
    __header_schema__: ClassVar = ResponseHeader
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"})
    producer_epoch: i32 = field(metadata={"kafka_type": "int32"})
    last_sequence: i32 = field(metadata={"kafka_type": "int32"})
    last_timestamp: i64 = field(metadata={"kafka_type": "int64"})
    coordinator_epoch: i32 = field(metadata={"kafka_type": "int32"})
    current_txn_start_offset: i64 = field(metadata={"kafka_type": "int64"})
    current_txn_start_time_ms: i64 = field(metadata={"kafka_type": "int64", "tag": 101}, default=i64(-1))
    current_txn_start_time_is_bound: bool = field(metadata={"kafka_type": "bool", "tag": 102}, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducersOfPartition:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(61)
    __header_schema__: ClassVar = ResponseHeader
    partition_index: i32 = field(metadata={"kafka_type": "int32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    active_producers: tuple[ProducerState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducersOfTopic:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(61)
    __header_schema__: ClassVar = ResponseHeader
    name: TopicName = field(metadata={"kafka_type": "string"})
    partitions: tuple[ProducersOfPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(61)
    __header_schema__: ClassVar = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    topics: tuple[ProducersOfTopic, ...]


RESPONSES: dict[tuple[str, int], type] = {
    ("DescribeProducers", 0): DescribeProducersResponse,
    ("DescribeTransactions", 0): DescribeTransactionsResponse,
}
"""API and version -> what reads its answer instead of kio's own schema."""
