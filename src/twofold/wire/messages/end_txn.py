"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 26."""

from twofold.wire.message import Message


class EndTxnRequest(Message):
    """API key 26, versions 0-5."""

    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "committed")
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool

    def __init__(self, *, transactional_id: str, producer_id: int, producer_epoch: int, committed: bool) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.committed = committed


class EndTxnResponse(Message):
    """API key 26, versions 0-5."""

    __slots__ = ("throttle_time_ms", "error_code", "producer_id", "producer_epoch")
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int

    def __init__(
        self, *, throttle_time_ms: int = 0, error_code: int, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
