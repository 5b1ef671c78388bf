"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 25."""

from twofold.wire.message import Message


class AddOffsetsToTxnRequest(Message):
    """API key 25, versions 0-4."""

    __slots__ = ("transactional_id", "producer_id", "producer_epoch", "group_id")
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str

    def __init__(self, *, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.group_id = group_id


class AddOffsetsToTxnResponse(Message):
    """API key 25, versions 0-4."""

    __slots__ = ("throttle_time_ms", "error_code")
    throttle_time_ms: int
    error_code: int

    def __init__(self, *, throttle_time_ms: int = 0, error_code: int) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
