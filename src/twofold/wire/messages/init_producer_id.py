"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 22."""

from twofold.wire.message import Message


class InitProducerIdRequest(Message):
    """API key 22, versions 0-7."""

    __slots__ = (
        "transactional_id",
        "transaction_timeout_ms",
        "producer_id",
        "producer_epoch",
        "enable2_pc",
        "keep_prepared_txn",
        "expected_producer_id",
        "expected_producer_epoch",
        "expected_start_ms",
        "transaction_heartbeat_interval_ms",
    )
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int
    producer_epoch: int
    enable2_pc: bool
    keep_prepared_txn: bool
    expected_producer_id: int
    expected_producer_epoch: int
    expected_start_ms: int
    transaction_heartbeat_interval_ms: int

    def __init__(
        self,
        *,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
        enable2_pc: bool = False,
        keep_prepared_txn: bool = False,
        expected_producer_id: int = -1,
        expected_producer_epoch: int = -1,
        expected_start_ms: int = -1,
        transaction_heartbeat_interval_ms: int = 0,
    ) -> None:
        self.transactional_id = transactional_id
        self.transaction_timeout_ms = transaction_timeout_ms
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.enable2_pc = enable2_pc
        self.keep_prepared_txn = keep_prepared_txn
        self.expected_producer_id = expected_producer_id
        self.expected_producer_epoch = expected_producer_epoch
        self.expected_start_ms = expected_start_ms
        self.transaction_heartbeat_interval_ms = transaction_heartbeat_interval_ms


class InitProducerIdResponse(Message):
    """API key 22, versions 0-7."""

    __slots__ = (
        "throttle_time_ms",
        "error_code",
        "producer_id",
        "producer_epoch",
        "ongoing_txn_producer_id",
        "ongoing_txn_producer_epoch",
        "expected_checked",
    )
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int
    ongoing_txn_producer_id: int
    ongoing_txn_producer_epoch: int
    expected_checked: bool

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        producer_id: int = -1,
        producer_epoch: int,
        ongoing_txn_producer_id: int = -1,
        ongoing_txn_producer_epoch: int = -1,
        expected_checked: bool = False,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.ongoing_txn_producer_id = ongoing_txn_producer_id
        self.ongoing_txn_producer_epoch = ongoing_txn_producer_epoch
        self.expected_checked = expected_checked
