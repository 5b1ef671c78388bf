"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 26."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnRequest:
    """API key 26, versions 0-5."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnResponse:
    """API key 26, versions 0-5."""

    throttle_time_ms: int = 0
    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1
