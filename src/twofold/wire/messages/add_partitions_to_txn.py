"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 24."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnTopic:
    name: str
    partitions: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnTransaction:
    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool = False
    topics: Sequence[AddPartitionsToTxnTopic]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnRequest:
    """API key 24, versions 0-5."""

    v3_and_below_transactional_id: str = ""
    v3_and_below_producer_id: int = 0
    v3_and_below_producer_epoch: int = 0
    v3_and_below_topics: Sequence[AddPartitionsToTxnTopic] = ()
    transactions: Sequence[AddPartitionsToTxnTransaction] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnPartitionResult:
    partition_index: int
    partition_error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnTopicResult:
    name: str
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnResult:
    transactional_id: str
    topic_results: Sequence[AddPartitionsToTxnTopicResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsToTxnResponse:
    """API key 24, versions 0-5."""

    throttle_time_ms: int = 0
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult] = ()
    error_code: int = 0
    results_by_transaction: Sequence[AddPartitionsToTxnResult] = ()
