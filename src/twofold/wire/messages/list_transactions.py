"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 66."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsRequest:
    """API key 66, versions 0-2."""

    state_filters: Sequence[str] = ()
    producer_id_filters: Sequence[int] = ()
    duration_filter: int = -1
    transactional_id_pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    transactional_id: str
    producer_id: int
    transaction_state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTransactionsResponse:
    """API key 66, versions 0-2."""

    throttle_time_ms: int = 0
    error_code: int
    unknown_state_filters: Sequence[str] = ()
    transaction_states: Sequence[TransactionState]
