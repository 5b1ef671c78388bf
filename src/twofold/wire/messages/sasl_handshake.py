"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 17."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeRequest:
    """API key 17, versions 0-1."""

    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslHandshakeResponse:
    """API key 17, versions 0-1."""

    error_code: int
    mechanisms: Sequence[str] = ()
