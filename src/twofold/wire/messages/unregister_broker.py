"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 64."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRequest:
    """API key 64, versions 0-0."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerResponse:
    """API key 64, versions 0-0."""

    throttle_time_ms: int = 0
    error_code: int
    error_message: str | None
