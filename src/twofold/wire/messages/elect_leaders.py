"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 43."""

from collections.abc import Sequence

from twofold.wire.message import Message


class TopicPartitions(Message):
    __slots__ = ("topic", "partitions")
    topic: str
    partitions: Sequence[int]

    def __init__(self, *, topic: str, partitions: Sequence[int] = ()) -> None:
        self.topic = topic
        self.partitions = partitions


class ElectLeadersRequest(Message):
    """API key 43, versions 0-2."""

    __slots__ = ("topic_partitions", "timeout_ms", "election_type")
    topic_partitions: Sequence[TopicPartitions] | None
    timeout_ms: int
    election_type: int

    def __init__(
        self, *, topic_partitions: Sequence[TopicPartitions] | None, timeout_ms: int = 60000, election_type: int = 0
    ) -> None:
        self.topic_partitions = topic_partitions
        self.timeout_ms = timeout_ms
        self.election_type = election_type


class PartitionResult(Message):
    __slots__ = ("partition_id", "error_code", "error_message")
    partition_id: int
    error_code: int
    error_message: str | None

    def __init__(self, *, partition_id: int, error_code: int, error_message: str | None) -> None:
        self.partition_id = partition_id
        self.error_code = error_code
        self.error_message = error_message


class ReplicaElectionResult(Message):
    __slots__ = ("topic", "partition_result")
    topic: str
    partition_result: Sequence[PartitionResult]

    def __init__(self, *, topic: str, partition_result: Sequence[PartitionResult]) -> None:
        self.topic = topic
        self.partition_result = partition_result


class ElectLeadersResponse(Message):
    """API key 43, versions 0-2."""

    __slots__ = ("throttle_time_ms", "replica_election_results", "error_code")
    throttle_time_ms: int
    replica_election_results: Sequence[ReplicaElectionResult]
    error_code: int

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        replica_election_results: Sequence[ReplicaElectionResult],
        error_code: int = 0,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.replica_election_results = replica_election_results
        self.error_code = error_code
