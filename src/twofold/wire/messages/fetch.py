"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 1."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class FetchPartition(Message):
    __slots__ = (
        "partition",
        "fetch_offset",
        "partition_max_bytes",
        "log_start_offset",
        "current_leader_epoch",
        "last_fetched_epoch",
        "replica_directory_id",
        "high_watermark",
    )
    partition: int
    fetch_offset: int
    partition_max_bytes: int
    log_start_offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    replica_directory_id: UUID | None
    high_watermark: int

    def __init__(
        self,
        *,
        partition: int,
        fetch_offset: int,
        partition_max_bytes: int,
        log_start_offset: int = -1,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        replica_directory_id: UUID | None = None,
        high_watermark: int = 9223372036854775807,
    ) -> None:
        self.partition = partition
        self.fetch_offset = fetch_offset
        self.partition_max_bytes = partition_max_bytes
        self.log_start_offset = log_start_offset
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.replica_directory_id = replica_directory_id
        self.high_watermark = high_watermark


class FetchTopic(Message):
    __slots__ = ("topic", "partitions", "topic_id")
    topic: str
    partitions: Sequence[FetchPartition]
    topic_id: UUID | None

    def __init__(self, *, topic: str = "", partitions: Sequence[FetchPartition], topic_id: UUID | None = None) -> None:
        self.topic = topic
        self.partitions = partitions
        self.topic_id = topic_id


class ForgottenTopic(Message):
    __slots__ = ("topic", "partitions", "topic_id")
    topic: str
    partitions: Sequence[int]
    topic_id: UUID | None

    def __init__(self, *, topic: str = "", partitions: Sequence[int] = (), topic_id: UUID | None = None) -> None:
        self.topic = topic
        self.partitions = partitions
        self.topic_id = topic_id


class ReplicaState(Message):
    __slots__ = ("replica_id", "replica_epoch")
    replica_id: int
    replica_epoch: int

    def __init__(self, *, replica_id: int = -1, replica_epoch: int = -1) -> None:
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch


class FetchRequest(Message):
    """API key 1, versions 4-18."""

    __slots__ = (
        "replica_id",
        "max_wait_ms",
        "min_bytes",
        "max_bytes",
        "isolation_level",
        "topics",
        "session_id",
        "session_epoch",
        "forgotten_topics_data",
        "rack_id",
        "cluster_id",
        "replica_state",
    )
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    topics: Sequence[FetchTopic]
    session_id: int
    session_epoch: int
    forgotten_topics_data: Sequence[ForgottenTopic]
    rack_id: str
    cluster_id: str | None
    replica_state: ReplicaState

    def __init__(
        self,
        *,
        replica_id: int = -1,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int = 2147483647,
        isolation_level: int = 0,
        topics: Sequence[FetchTopic],
        session_id: int = 0,
        session_epoch: int = -1,
        forgotten_topics_data: Sequence[ForgottenTopic] = (),
        rack_id: str = "",
        cluster_id: str | None = None,
        replica_state: ReplicaState = ReplicaState(),
    ) -> None:
        self.replica_id = replica_id
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation_level = isolation_level
        self.topics = topics
        self.session_id = session_id
        self.session_epoch = session_epoch
        self.forgotten_topics_data = forgotten_topics_data
        self.rack_id = rack_id
        self.cluster_id = cluster_id
        self.replica_state = replica_state


class AbortedTransaction(Message):
    __slots__ = ("producer_id", "first_offset")
    producer_id: int
    first_offset: int

    def __init__(self, *, producer_id: int, first_offset: int) -> None:
        self.producer_id = producer_id
        self.first_offset = first_offset


class EpochEndOffset(Message):
    __slots__ = ("epoch", "end_offset")
    epoch: int
    end_offset: int

    def __init__(self, *, epoch: int = -1, end_offset: int = -1) -> None:
        self.epoch = epoch
        self.end_offset = end_offset


class LeaderIdAndEpoch(Message):
    __slots__ = ("leader_id", "leader_epoch")
    leader_id: int
    leader_epoch: int

    def __init__(self, *, leader_id: int = -1, leader_epoch: int = -1) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class SnapshotId(Message):
    __slots__ = ("end_offset", "epoch")
    end_offset: int
    epoch: int

    def __init__(self, *, end_offset: int = -1, epoch: int = -1) -> None:
        self.end_offset = end_offset
        self.epoch = epoch


class PartitionData(Message):
    __slots__ = (
        "partition_index",
        "error_code",
        "high_watermark",
        "last_stable_offset",
        "aborted_transactions",
        "records",
        "log_start_offset",
        "preferred_read_replica",
        "diverging_epoch",
        "current_leader",
        "snapshot_id",
    )
    partition_index: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    aborted_transactions: Sequence[AbortedTransaction] | None
    records: bytes | bytearray | memoryview | None
    log_start_offset: int
    preferred_read_replica: int
    diverging_epoch: EpochEndOffset
    current_leader: LeaderIdAndEpoch
    snapshot_id: SnapshotId

    def __init__(
        self,
        *,
        partition_index: int,
        error_code: int,
        high_watermark: int,
        last_stable_offset: int = -1,
        aborted_transactions: Sequence[AbortedTransaction] | None,
        records: bytes | bytearray | memoryview | None,
        log_start_offset: int = -1,
        preferred_read_replica: int = -1,
        diverging_epoch: EpochEndOffset = EpochEndOffset(),
        current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch(),
        snapshot_id: SnapshotId = SnapshotId(),
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.aborted_transactions = aborted_transactions
        self.records = records
        self.log_start_offset = log_start_offset
        self.preferred_read_replica = preferred_read_replica
        self.diverging_epoch = diverging_epoch
        self.current_leader = current_leader
        self.snapshot_id = snapshot_id


class FetchableTopicResponse(Message):
    __slots__ = ("topic", "partitions", "topic_id")
    topic: str
    partitions: Sequence[PartitionData]
    topic_id: UUID | None

    def __init__(self, *, topic: str = "", partitions: Sequence[PartitionData], topic_id: UUID | None = None) -> None:
        self.topic = topic
        self.partitions = partitions
        self.topic_id = topic_id


class NodeEndpoint(Message):
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


class FetchResponse(Message):
    """API key 1, versions 4-18."""

    __slots__ = ("throttle_time_ms", "responses", "error_code", "session_id", "node_endpoints")
    throttle_time_ms: int
    responses: Sequence[FetchableTopicResponse]
    error_code: int
    session_id: int
    node_endpoints: Sequence[NodeEndpoint]

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        responses: Sequence[FetchableTopicResponse],
        error_code: int = 0,
        session_id: int = 0,
        node_endpoints: Sequence[NodeEndpoint] = (),
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.responses = responses
        self.error_code = error_code
        self.session_id = session_id
        self.node_endpoints = node_endpoints
