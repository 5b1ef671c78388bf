"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 95."""

from twofold.wire.message import Message


class TxnHeartbeatRequest(Message):
    """API key 95, versions 0-0."""

    __slots__ = ("transactional_id", "producer_id", "producer_epoch")
    transactional_id: str
    producer_id: int
    producer_epoch: int

    def __init__(self, *, transactional_id: str, producer_id: int = -1, producer_epoch: int = -1) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class TxnHeartbeatResponse(Message):
    """API key 95, versions 0-0."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message")
    throttle_time_ms: int
    error_code: int
    error_message: str | None

    def __init__(self, *, throttle_time_ms: int = 0, error_code: int, error_message: str | None = None) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
