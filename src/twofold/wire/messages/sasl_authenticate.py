"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 36."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateRequest:
    """API key 36, versions 0-2."""

    auth_bytes: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslAuthenticateResponse:
    """API key 36, versions 0-2."""

    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int = 0
