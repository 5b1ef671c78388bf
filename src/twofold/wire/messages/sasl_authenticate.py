"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 36."""

from twofold.wire.message import Message


class SaslAuthenticateRequest(Message):
    """API key 36, versions 0-2."""

    __slots__ = ("auth_bytes",)
    auth_bytes: bytes

    def __init__(self, *, auth_bytes: bytes) -> None:
        self.auth_bytes = auth_bytes


class SaslAuthenticateResponse(Message):
    """API key 36, versions 0-2."""

    __slots__ = ("error_code", "error_message", "auth_bytes", "session_lifetime_ms")
    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int

    def __init__(
        self, *, error_code: int, error_message: str | None, auth_bytes: bytes, session_lifetime_ms: int = 0
    ) -> None:
        self.error_code = error_code
        self.error_message = error_message
        self.auth_bytes = auth_bytes
        self.session_lifetime_ms = session_lifetime_ms
