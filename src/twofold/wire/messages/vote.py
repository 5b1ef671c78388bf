"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 52."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class PartitionData(Message):
    __slots__ = (
        "partition_index",
        "replica_epoch",
        "replica_id",
        "last_offset_epoch",
        "last_offset",
        "replica_directory_id",
        "voter_directory_id",
        "pre_vote",
    )
    partition_index: int
    replica_epoch: int
    replica_id: int
    last_offset_epoch: int
    last_offset: int
    replica_directory_id: UUID | None
    voter_directory_id: UUID | None
    pre_vote: bool

    def __init__(
        self,
        *,
        partition_index: int,
        replica_epoch: int,
        replica_id: int,
        last_offset_epoch: int,
        last_offset: int,
        replica_directory_id: UUID | None = None,
        voter_directory_id: UUID | None = None,
        pre_vote: bool = False,
    ) -> None:
        self.partition_index = partition_index
        self.replica_epoch = replica_epoch
        self.replica_id = replica_id
        self.last_offset_epoch = last_offset_epoch
        self.last_offset = last_offset
        self.replica_directory_id = replica_directory_id
        self.voter_directory_id = voter_directory_id
        self.pre_vote = pre_vote


class TopicData(Message):
    __slots__ = ("topic_name", "partitions")
    topic_name: str
    partitions: Sequence[PartitionData]

    def __init__(self, *, topic_name: str, partitions: Sequence[PartitionData]) -> None:
        self.topic_name = topic_name
        self.partitions = partitions


class VoteRequest(Message):
    """API key 52, versions 0-2."""

    __slots__ = ("cluster_id", "topics", "voter_id")
    cluster_id: str | None
    topics: Sequence[TopicData]
    voter_id: int

    def __init__(self, *, cluster_id: str | None = None, topics: Sequence[TopicData], voter_id: int = -1) -> None:
        self.cluster_id = cluster_id
        self.topics = topics
        self.voter_id = voter_id


class PartitionDataResult(Message):
    __slots__ = ("partition_index", "error_code", "leader_id", "leader_epoch", "vote_granted")
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int
    vote_granted: bool

    def __init__(
        self, *, partition_index: int, error_code: int, leader_id: int, leader_epoch: int, vote_granted: bool
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.vote_granted = vote_granted


class TopicDataResult(Message):
    __slots__ = ("topic_name", "partitions")
    topic_name: str
    partitions: Sequence[PartitionDataResult]

    def __init__(self, *, topic_name: str, partitions: Sequence[PartitionDataResult]) -> None:
        self.topic_name = topic_name
        self.partitions = partitions


class NodeEndpoint(Message):
    __slots__ = ("node_id", "host", "port")
    node_id: int
    host: str
    port: int

    def __init__(self, *, node_id: int, host: str, port: int) -> None:
        self.node_id = node_id
        self.host = host
        self.port = port


class VoteResponse(Message):
    """API key 52, versions 0-2."""

    __slots__ = ("error_code", "topics", "node_endpoints")
    error_code: int
    topics: Sequence[TopicDataResult]
    node_endpoints: Sequence[NodeEndpoint]

    def __init__(
        self, *, error_code: int, topics: Sequence[TopicDataResult], node_endpoints: Sequence[NodeEndpoint] = ()
    ) -> None:
        self.error_code = error_code
        self.topics = topics
        self.node_endpoints = node_endpoints
