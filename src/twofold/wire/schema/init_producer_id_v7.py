"""InitProducerId 7 (KIP-1309): our version 6 with the heartbeat interval between the timeout and the producer id."""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import ProducerId, TransactionalId
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i32Timedelta, i64

from twofold.wire.schema.init_producer_id_v6 import (
    EXPECTED_CHECKED,
    EXPECTED_PRODUCER_EPOCH,
    EXPECTED_PRODUCER_ID,
    EXPECTED_START_MS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(7)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(22)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    transactional_id: TransactionalId | None = field(metadata={"kafka_type": "string"})
    transaction_timeout: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    # A plain number, not a timedelta: what is not a length of time (a negative one) is the coordinator's to refuse.
    transaction_heartbeat_interval_ms: i32 = field(metadata={"kafka_type": "int32"}, default=i32(0))
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"}, default=ProducerId(-1))
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"}, default=i16(-1))
    enable2_pc: bool = field(metadata={"kafka_type": "bool"}, default=False)
    keep_prepared_txn: bool = field(metadata={"kafka_type": "bool"}, default=False)
    expected_producer_id: ProducerId = field(
        metadata={"kafka_type": "int64", "tag": EXPECTED_PRODUCER_ID}, default=ProducerId(-1)
    )
    expected_producer_epoch: i16 = field(
        metadata={"kafka_type": "int16", "tag": EXPECTED_PRODUCER_EPOCH}, default=i16(-1)
    )
    expected_start_ms: i64 = field(metadata={"kafka_type": "int64", "tag": EXPECTED_START_MS}, default=i64(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    """As in version 6."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(7)
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
