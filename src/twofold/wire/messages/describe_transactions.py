"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 65."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsRequest:
    """API key 65, versions 0-0."""

    transactional_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    topic: str
    partitions: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    error_code: int
    transactional_id: str
    transaction_state: str
    transaction_timeout_ms: int
    transaction_start_time_ms: int
    producer_id: int
    producer_epoch: int
    topics: Sequence[TopicData]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse:
    """API key 65, versions 0-0."""

    throttle_time_ms: int = 0
    transaction_states: Sequence[TransactionState]
