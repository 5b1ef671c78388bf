"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 67."""

from twofold.wire.message import Message


class AllocateProducerIdsRequest(Message):
    """API key 67, versions 0-0."""

    __slots__ = ("broker_id", "broker_epoch")
    broker_id: int
    broker_epoch: int

    def __init__(self, *, broker_id: int, broker_epoch: int = -1) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch


class AllocateProducerIdsResponse(Message):
    """API key 67, versions 0-0."""

    __slots__ = ("throttle_time_ms", "error_code", "producer_id_start", "producer_id_len")
    throttle_time_ms: int
    error_code: int
    producer_id_start: int
    producer_id_len: int

    def __init__(
        self, *, throttle_time_ms: int = 0, error_code: int, producer_id_start: int, producer_id_len: int
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.producer_id_start = producer_id_start
        self.producer_id_len = producer_id_len
