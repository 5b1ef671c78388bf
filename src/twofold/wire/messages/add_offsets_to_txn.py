"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 25."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnRequest:
    """API key 25, versions 0-4."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsToTxnResponse:
    """API key 25, versions 0-4."""

    throttle_time_ms: int = 0
    error_code: int
