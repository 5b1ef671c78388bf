"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 10."""

from collections.abc import Sequence

from twofold.wire.message import Message


class FindCoordinatorRequest(Message):
    """API key 10, versions 0-6."""

    __slots__ = ("key", "key_type", "coordinator_keys")
    key: str
    key_type: int
    coordinator_keys: Sequence[str]

    def __init__(self, *, key: str = "", key_type: int = 0, coordinator_keys: Sequence[str] = ()) -> None:
        self.key = key
        self.key_type = key_type
        self.coordinator_keys = coordinator_keys


class Coordinator(Message):
    __slots__ = ("key", "node_id", "host", "port", "error_code", "error_message")
    key: str
    node_id: int
    host: str
    port: int
    error_code: int
    error_message: str | None

    def __init__(
        self, *, key: str, node_id: int, host: str, port: int, error_code: int, error_message: str | None
    ) -> None:
        self.key = key
        self.node_id = node_id
        self.host = host
        self.port = port
        self.error_code = error_code
        self.error_message = error_message


class FindCoordinatorResponse(Message):
    """API key 10, versions 0-6."""

    __slots__ = ("error_code", "node_id", "host", "port", "throttle_time_ms", "error_message", "coordinators")
    error_code: int
    node_id: int
    host: str
    port: int
    throttle_time_ms: int
    error_message: str | None
    coordinators: Sequence[Coordinator]

    def __init__(
        self,
        *,
        error_code: int = 0,
        node_id: int = 0,
        host: str = "",
        port: int = 0,
        throttle_time_ms: int = 0,
        error_message: str | None = None,
        coordinators: Sequence[Coordinator] = (),
    ) -> None:
        self.error_code = error_code
        self.node_id = node_id
        self.host = host
        self.port = port
        self.throttle_time_ms = throttle_time_ms
        self.error_message = error_message
        self.coordinators = coordinators
