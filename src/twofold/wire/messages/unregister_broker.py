"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 64."""

from twofold.wire.message import Message


class UnregisterBrokerRequest(Message):
    """API key 64, versions 0-0."""

    __slots__ = ("broker_id",)
    broker_id: int

    def __init__(self, *, broker_id: int) -> None:
        self.broker_id = broker_id


class UnregisterBrokerResponse(Message):
    """API key 64, versions 0-0."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message")
    throttle_time_ms: int
    error_code: int
    error_message: str | None

    def __init__(self, *, throttle_time_ms: int = 0, error_code: int, error_message: str | None) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
