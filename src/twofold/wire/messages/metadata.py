"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 3."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class MetadataRequestTopic(Message):
    __slots__ = ("name", "topic_id")
    name: str | None
    topic_id: UUID | None

    def __init__(self, *, name: str | None, topic_id: UUID | None = None) -> None:
        self.name = name
        self.topic_id = topic_id


class MetadataRequest(Message):
    """API key 3, versions 0-13."""

    __slots__ = (
        "topics",
        "allow_auto_topic_creation",
        "include_cluster_authorized_operations",
        "include_topic_authorized_operations",
    )
    topics: Sequence[MetadataRequestTopic] | None
    allow_auto_topic_creation: bool
    include_cluster_authorized_operations: bool
    include_topic_authorized_operations: bool

    def __init__(
        self,
        *,
        topics: Sequence[MetadataRequestTopic] | None,
        allow_auto_topic_creation: bool = True,
        include_cluster_authorized_operations: bool = False,
        include_topic_authorized_operations: bool = False,
    ) -> None:
        self.topics = topics
        self.allow_auto_topic_creation = allow_auto_topic_creation
        self.include_cluster_authorized_operations = include_cluster_authorized_operations
        self.include_topic_authorized_operations = include_topic_authorized_operations


class MetadataResponseBroker(Message):
    __slots__ = ("node_id", "host", "port", "rack")
    node_id: int
    host: str
    port: int
    rack: str | None

    def __init__(self, *, node_id: int, host: str, port: int, rack: str | None = None) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port
        self.rack = rack


class MetadataResponsePartition(Message):
    __slots__ = (
        "error_code",
        "partition_index",
        "leader_id",
        "replica_nodes",
        "isr_nodes",
        "offline_replicas",
        "leader_epoch",
    )
    error_code: int
    partition_index: int
    leader_id: int
    replica_nodes: Sequence[int]
    isr_nodes: Sequence[int]
    offline_replicas: Sequence[int]
    leader_epoch: int

    def __init__(
        self,
        *,
        error_code: int,
        partition_index: int,
        leader_id: int,
        replica_nodes: Sequence[int] = (),
        isr_nodes: Sequence[int] = (),
        offline_replicas: Sequence[int] = (),
        leader_epoch: int = -1,
    ) -> None:
        self.error_code = error_code
        self.partition_index = partition_index
        self.leader_id = leader_id
        self.replica_nodes = replica_nodes
        self.isr_nodes = isr_nodes
        self.offline_replicas = offline_replicas
        self.leader_epoch = leader_epoch


class MetadataResponseTopic(Message):
    __slots__ = ("error_code", "name", "partitions", "is_internal", "topic_authorized_operations", "topic_id")
    error_code: int
    name: str | None
    partitions: Sequence[MetadataResponsePartition]
    is_internal: bool
    topic_authorized_operations: int
    topic_id: UUID | None

    def __init__(
        self,
        *,
        error_code: int,
        name: str | None,
        partitions: Sequence[MetadataResponsePartition],
        is_internal: bool = False,
        topic_authorized_operations: int = -2147483648,
        topic_id: UUID | None = None,
    ) -> None:
        self.error_code = error_code
        self.name = name
        self.partitions = partitions
        self.is_internal = is_internal
        self.topic_authorized_operations = topic_authorized_operations
        self.topic_id = topic_id


class MetadataResponse(Message):
    """API key 3, versions 0-13."""

    __slots__ = (
        "brokers",
        "topics",
        "controller_id",
        "cluster_id",
        "throttle_time_ms",
        "cluster_authorized_operations",
        "error_code",
    )
    brokers: Sequence[MetadataResponseBroker]
    topics: Sequence[MetadataResponseTopic]
    controller_id: int
    cluster_id: str | None
    throttle_time_ms: int
    cluster_authorized_operations: int
    error_code: int

    def __init__(
        self,
        *,
        brokers: Sequence[MetadataResponseBroker],
        topics: Sequence[MetadataResponseTopic],
        controller_id: int = -1,
        cluster_id: str | None = None,
        throttle_time_ms: int = 0,
        cluster_authorized_operations: int = -2147483648,
        error_code: int = 0,
    ) -> None:
        self.brokers = brokers
        self.topics = topics
        self.controller_id = controller_id
        self.cluster_id = cluster_id
        self.throttle_time_ms = throttle_time_ms
        self.cluster_authorized_operations = cluster_authorized_operations
        self.error_code = error_code
