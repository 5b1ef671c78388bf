"""AddPartitionsToTxn 5 with a tagged field of ours: whether the transaction is a two-phase one, so that the leader that
asks knows what it has to sync (KIP-939). The tag is far from those that Kafka gives out."""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnRequest
from kio.schema.add_partitions_to_txn.v5.response import AddPartitionsToTxnTopicResult
from kio.schema.errors import ErrorCode
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import TransactionalId
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32Timedelta

__all__ = ["AddPartitionsToTxnRequest", "AddPartitionsToTxnResponse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnResult:
    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(5)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(24)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    transactional_id: TransactionalId = field(metadata={"kafka_type": "string"})
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...]
    two_phase: bool = field(metadata={"kafka_type": "bool", "tag": 100}, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(5)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(24)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    results_by_transaction: tuple[AddPartitionsToTxnResult, ...]
