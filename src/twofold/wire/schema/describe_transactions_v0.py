"""DescribeTransactions 0, as kio has it but for the start time: a transaction that has not begun has -1, which kio
does not read as a moment. Here it is a number. The tagged fields are ours: how the last two-phase transaction of the id
ended, and which one it was. A client that asks for outcomes is also told the transaction that the record of each id
shows as decided. A client or a broker that does not know the fields ignores them."""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.describe_transactions.v0.response import TopicData
from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import ProducerId, TransactionalId
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32Timedelta, i64

__all__ = ["DescribeTransactionsRequest", "DescribeTransactionsResponse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsRequest:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(65)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    transactional_ids: tuple[TransactionalId, ...] = field(metadata={"kafka_type": "string"}, default=())
    outcomes: bool = field(metadata={"kafka_type": "bool", "tag": 100}, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(65)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    transactional_id: TransactionalId = field(metadata={"kafka_type": "string"})
    transaction_state: str = field(metadata={"kafka_type": "string"})
    transaction_timeout: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    transaction_start_time_ms: i64 = field(metadata={"kafka_type": "int64"})
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"})
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"})
    topics: tuple[TopicData, ...]
    last_two_phase_producer_id: ProducerId = field(
        metadata={"kafka_type": "int64", "tag": 101}, default=ProducerId(i64(-1))
    )
    last_two_phase_epoch: i16 = field(metadata={"kafka_type": "int16", "tag": 102}, default=i16(-1))
    # The number of a `twofold.types.Ending`; 0 where there was no such transaction.
    last_two_phase_ending: i8 = field(metadata={"kafka_type": "int8", "tag": 103}, default=i8(0))
    # What the record of the id shows as decided: 1 committed, 2 aborted; 0 where it shows none, or was not asked for.
    decided_producer_id: ProducerId = field(metadata={"kafka_type": "int64", "tag": 104}, default=ProducerId(i64(-1)))
    decided_epoch: i16 = field(metadata={"kafka_type": "int16", "tag": 105}, default=i16(-1))
    decided_outcome: i8 = field(metadata={"kafka_type": "int8", "tag": 106}, default=i8(0))
    # The principal that opened the transaction; empty where none is open, or no client that logged in opened it.
    opened_by: str = field(metadata={"kafka_type": "string", "tag": 107}, default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(65)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    transaction_states: tuple[TransactionState, ...]
