"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 53."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class PartitionData(Message):
    __slots__ = ("partition_index", "leader_id", "leader_epoch", "voter_directory_id")
    partition_index: int
    leader_id: int
    leader_epoch: int
    voter_directory_id: UUID | None

    def __init__(
        self, *, partition_index: int, leader_id: int, leader_epoch: int, voter_directory_id: UUID | None = None
    ) -> None:
        self.partition_index = partition_index
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.voter_directory_id = voter_directory_id


class TopicData(Message):
    __slots__ = ("topic_name", "partitions")
    topic_name: str
    partitions: Sequence[PartitionData]

    def __init__(self, *, topic_name: str, partitions: Sequence[PartitionData]) -> None:
        self.topic_name = topic_name
        self.partitions = partitions


class LeaderEndpoint(Message):
    __slots__ = ("name", "host", "port")
    name: str
    host: str
    port: int

    def __init__(self, *, name: str, host: str, port: int) -> None:
        self.name = name
        self.host = host
        self.port = port


class BeginQuorumEpochRequest(Message):
    """API key 53, versions 0-1."""

    __slots__ = ("cluster_id", "topics", "voter_id", "leader_endpoints")
    cluster_id: str | None
    topics: Sequence[TopicData]
    voter_id: int
    leader_endpoints: Sequence[LeaderEndpoint]

    def __init__(
        self,
        *,
        cluster_id: str | None = None,
        topics: Sequence[TopicData],
        voter_id: int = -1,
        leader_endpoints: Sequence[LeaderEndpoint] = (),
    ) -> None:
        self.cluster_id = cluster_id
        self.topics = topics
        self.voter_id = voter_id
        self.leader_endpoints = leader_endpoints


class PartitionDataResult(Message):
    __slots__ = ("partition_index", "error_code", "leader_id", "leader_epoch")
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int

    def __init__(self, *, partition_index: int, error_code: int, leader_id: int, leader_epoch: int) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


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


class BeginQuorumEpochResponse(Message):
    """API key 53, versions 0-1."""

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
