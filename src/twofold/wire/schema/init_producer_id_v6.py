"""InitProducerId 6, as kio has it, with tagged fields that only Twofold knows: which transaction (or none) the caller
has seen under the id. Without them the bytes are Apache Kafka's. A broker that does not know them skips them, and its
answer lacks the tag that says that they were compared."""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import ProducerId, TransactionalId
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32Timedelta, i64

# Far from those that Apache Kafka would give next.
EXPECTED_PRODUCER_ID, EXPECTED_PRODUCER_EPOCH, EXPECTED_START_MS = 100, 101, 102
EXPECTED_CHECKED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(22)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    transactional_id: TransactionalId | None = field(metadata={"kafka_type": "string"})
    transaction_timeout: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"}, default=ProducerId(-1))
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"}, default=i16(-1))
    enable2_pc: bool = field(metadata={"kafka_type": "bool"}, default=False)
    keep_prepared_txn: bool = field(metadata={"kafka_type": "bool"}, default=False)
    # As DescribeTransactions shows them; a start of -1 expects that no transaction is open.
    expected_producer_id: ProducerId = field(
        metadata={"kafka_type": "int64", "tag": EXPECTED_PRODUCER_ID}, default=ProducerId(-1)
    )
    expected_producer_epoch: i16 = field(
        metadata={"kafka_type": "int16", "tag": EXPECTED_PRODUCER_EPOCH}, default=i16(-1)
    )
    expected_start_ms: i64 = field(metadata={"kafka_type": "int64", "tag": EXPECTED_START_MS}, default=i64(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(6)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(22)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"}, default=ProducerId(-1))
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"})
    ongoing_txn_producer_id: ProducerId = field(metadata={"kafka_type": "int64"}, default=ProducerId(-1))
    ongoing_txn_producer_epoch: i16 = field(metadata={"kafka_type": "int16"}, default=i16(-1))
    expected_checked: bool = field(metadata={"kafka_type": "bool", "tag": EXPECTED_CHECKED}, default=False)
