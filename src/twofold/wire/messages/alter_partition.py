"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 56."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    broker_id: int
    broker_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    partition_index: int
    leader_epoch: int
    new_isr: Sequence[int] = ()
    leader_recovery_state: int = 0
    partition_epoch: int
    new_isr_with_epochs: Sequence[BrokerState] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicData:
    topic_id: UUID | None
    partitions: Sequence[PartitionData]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionRequest:
    """API key 56, versions 2-3."""

    broker_id: int
    broker_epoch: int = -1
    topics: Sequence[TopicData]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDataResult:
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int
    isr: Sequence[int] = ()
    leader_recovery_state: int = 0
    partition_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDataResult:
    topic_id: UUID | None
    partitions: Sequence[PartitionDataResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionResponse:
    """API key 56, versions 2-3."""

    throttle_time_ms: int = 0
    error_code: int
    topics: Sequence[TopicDataResult]
