"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 19."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableReplicaAssignment:
    partition_index: int
    broker_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicConfig:
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopic:
    name: str
    num_partitions: int
    replication_factor: int
    assignments: Sequence[CreatableReplicaAssignment]
    configs: Sequence[CreatableTopicConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsRequest:
    """API key 19, versions 2-7."""

    topics: Sequence[CreatableTopic]
    timeout_ms: int = 60000
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicConfigs:
    name: str
    value: str | None
    read_only: bool
    config_source: int = -1
    is_sensitive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatableTopicResult:
    name: str
    error_code: int
    error_message: str | None
    topic_config_error_code: int = 0
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Sequence[CreatableTopicConfigs] | None = None
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicsResponse:
    """API key 19, versions 2-7."""

    throttle_time_ms: int = 0
    topics: Sequence[CreatableTopicResult]
