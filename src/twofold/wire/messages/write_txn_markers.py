"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 27."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarkerTopic:
    name: str
    partition_indexes: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarker:
    producer_id: int
    producer_epoch: int
    transaction_result: bool
    topics: Sequence[WritableTxnMarkerTopic]
    coordinator_epoch: int
    transaction_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTxnMarkersRequest:
    """API key 27, versions 1-2."""

    markers: Sequence[WritableTxnMarker]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarkerPartitionResult:
    partition_index: int
    error_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarkerTopicResult:
    name: str
    partitions: Sequence[WritableTxnMarkerPartitionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTxnMarkerResult:
    producer_id: int
    topics: Sequence[WritableTxnMarkerTopicResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTxnMarkersResponse:
    """API key 27, versions 1-2."""

    markers: Sequence[WritableTxnMarkerResult]
