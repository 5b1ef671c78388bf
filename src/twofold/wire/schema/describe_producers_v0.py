"""DescribeProducers 0, as kio has it, with two tagged fields of ours: when the open transaction of a producer began in
the partition, by the clock of the broker that appended it. The timestamps of records are their client's. A client that
does not know the fields passes over them; Apache Kafka does not send them."""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.errors import ErrorCode
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import ProducerId, TopicName
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i32Timedelta, i64

__all__ = ["DescribeProducersRequest", "DescribeProducersResponse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(61)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"})
    producer_epoch: i32 = field(metadata={"kafka_type": "int32"})
    last_sequence: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))
    last_timestamp: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    coordinator_epoch: i32 = field(metadata={"kafka_type": "int32"})
    current_txn_start_offset: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    # When its first batch was appended; -1 where no transaction is open.
    current_txn_start_time_ms: i64 = field(metadata={"kafka_type": "int64", "tag": 101}, default=i64(-1))
    # That is not known: it was appended then or earlier.
    current_txn_start_time_is_bound: bool = field(metadata={"kafka_type": "bool", "tag": 102}, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResponse:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(61)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    partition_index: i32 = field(metadata={"kafka_type": "int32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    active_producers: tuple[ProducerState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResponse:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(61)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    name: TopicName = field(metadata={"kafka_type": "string"})
    partitions: tuple[PartitionResponse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeProducersResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(61)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    topics: tuple[TopicResponse, ...]
