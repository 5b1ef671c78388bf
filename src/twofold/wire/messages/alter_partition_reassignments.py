"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 45."""

from collections.abc import Sequence

from twofold.wire.message import Message


class ReassignablePartition(Message):
    __slots__ = ("partition_index", "replicas")
    partition_index: int
    replicas: Sequence[int] | None

    def __init__(self, *, partition_index: int, replicas: Sequence[int] | None = None) -> None:
        self.partition_index = partition_index
        self.replicas = replicas


class ReassignableTopic(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[ReassignablePartition]

    def __init__(self, *, name: str, partitions: Sequence[ReassignablePartition]) -> None:
        self.name = name
        self.partitions = partitions


class AlterPartitionReassignmentsRequest(Message):
    """API key 45, versions 0-1."""

    __slots__ = ("timeout_ms", "topics", "allow_replication_factor_change")
    timeout_ms: int
    topics: Sequence[ReassignableTopic]
    allow_replication_factor_change: bool

    def __init__(
        self,
        *,
        timeout_ms: int = 60000,
        topics: Sequence[ReassignableTopic],
        allow_replication_factor_change: bool = True,
    ) -> None:
        self.timeout_ms = timeout_ms
        self.topics = topics
        self.allow_replication_factor_change = allow_replication_factor_change


class ReassignablePartitionResponse(Message):
    __slots__ = ("partition_index", "error_code", "error_message")
    partition_index: int
    error_code: int
    error_message: str | None

    def __init__(self, *, partition_index: int, error_code: int, error_message: str | None) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.error_message = error_message


class ReassignableTopicResponse(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[ReassignablePartitionResponse]

    def __init__(self, *, name: str, partitions: Sequence[ReassignablePartitionResponse]) -> None:
        self.name = name
        self.partitions = partitions


class AlterPartitionReassignmentsResponse(Message):
    """API key 45, versions 0-1."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "responses", "allow_replication_factor_change")
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    responses: Sequence[ReassignableTopicResponse]
    allow_replication_factor_change: bool

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        error_message: str | None,
        responses: Sequence[ReassignableTopicResponse],
        allow_replication_factor_change: bool = True,
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.responses = responses
        self.allow_replication_factor_change = allow_replication_factor_change
