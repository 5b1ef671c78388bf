"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 22."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    """API key 22, versions 0-6."""

    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    enable2_pc: bool = False
    keep_prepared_txn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse:
    """API key 22, versions 0-6."""

    throttle_time_ms: int = 0
    error_code: int
    producer_id: int = -1
    producer_epoch: int
    ongoing_txn_producer_id: int = -1
    ongoing_txn_producer_epoch: int = -1
