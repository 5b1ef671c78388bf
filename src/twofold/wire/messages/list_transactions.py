"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 66."""

from collections.abc import Sequence

from twofold.wire.message import Message


class ListTransactionsRequest(Message):
    """API key 66, versions 0-2."""

    __slots__ = ("state_filters", "producer_id_filters", "duration_filter", "transactional_id_pattern")
    state_filters: Sequence[str]
    producer_id_filters: Sequence[int]
    duration_filter: int
    transactional_id_pattern: str | None

    def __init__(
        self,
        *,
        state_filters: Sequence[str] = (),
        producer_id_filters: Sequence[int] = (),
        duration_filter: int = -1,
        transactional_id_pattern: str | None = None,
    ) -> None:
        self.state_filters = state_filters
        self.producer_id_filters = producer_id_filters
        self.duration_filter = duration_filter
        self.transactional_id_pattern = transactional_id_pattern


class TransactionState(Message):
    __slots__ = ("transactional_id", "producer_id", "transaction_state")
    transactional_id: str
    producer_id: int
    transaction_state: str

    def __init__(self, *, transactional_id: str, producer_id: int, transaction_state: str) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.transaction_state = transaction_state


class ListTransactionsResponse(Message):
    """API key 66, versions 0-2."""

    __slots__ = ("throttle_time_ms", "error_code", "unknown_state_filters", "transaction_states")
    throttle_time_ms: int
    error_code: int
    unknown_state_filters: Sequence[str]
    transaction_states: Sequence[TransactionState]

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        unknown_state_filters: Sequence[str] = (),
        transaction_states: Sequence[TransactionState],
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.unknown_state_filters = unknown_state_filters
        self.transaction_states = transaction_states
