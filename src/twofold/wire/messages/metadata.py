"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 3."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequestTopic:
    name: str | None
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest:
    """API key 3, versions 0-13."""

    topics: Sequence[MetadataRequestTopic] | None
    allow_auto_topic_creation: bool = True
    include_cluster_authorized_operations: bool = False
    include_topic_authorized_operations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseBroker:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponsePartition:
    error_code: int
    partition_index: int
    leader_id: int
    replica_nodes: Sequence[int] = ()
    isr_nodes: Sequence[int] = ()
    offline_replicas: Sequence[int] = ()
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponseTopic:
    error_code: int
    name: str | None
    partitions: Sequence[MetadataResponsePartition]
    is_internal: bool = False
    topic_authorized_operations: int = -2147483648
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse:
    """API key 3, versions 0-13."""

    brokers: Sequence[MetadataResponseBroker]
    topics: Sequence[MetadataResponseTopic]
    controller_id: int = -1
    cluster_id: str | None = None
    throttle_time_ms: int = 0
    cluster_authorized_operations: int = -2147483648
    error_code: int = 0
