"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 17."""

from collections.abc import Sequence

from twofold.wire.message import Message


class SaslHandshakeRequest(Message):
    """API key 17, versions 0-1."""

    __slots__ = ("mechanism",)
    mechanism: str

    def __init__(self, *, mechanism: str) -> None:
        self.mechanism = mechanism


class SaslHandshakeResponse(Message):
    """API key 17, versions 0-1."""

    __slots__ = ("error_code", "mechanisms")
    error_code: int
    mechanisms: Sequence[str]

    def __init__(self, *, error_code: int, mechanisms: Sequence[str] = ()) -> None:
        self.error_code = error_code
        self.mechanisms = mechanisms
