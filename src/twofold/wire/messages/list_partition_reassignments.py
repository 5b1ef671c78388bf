"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 46."""

from collections.abc import Sequence

from twofold.wire.message import Message


class ListPartitionReassignmentsTopics(Message):
    __slots__ = ("name", "partition_indexes")
    name: str
    partition_indexes: Sequence[int]

    def __init__(self, *, name: str, partition_indexes: Sequence[int] = ()) -> None:
        self.name = name
        self.partition_indexes = partition_indexes


class ListPartitionReassignmentsRequest(Message):
    """API key 46, versions 0-0."""

    __slots__ = ("timeout_ms", "topics")
    timeout_ms: int
    topics: Sequence[ListPartitionReassignmentsTopics] | None

    def __init__(self, *, timeout_ms: int = 60000, topics: Sequence[ListPartitionReassignmentsTopics] | None) -> None:
        self.timeout_ms = timeout_ms
        self.topics = topics


class OngoingPartitionReassignment(Message):
    __slots__ = ("partition_index", "replicas", "adding_replicas", "removing_replicas")
    partition_index: int
    replicas: Sequence[int]
    adding_replicas: Sequence[int]
    removing_replicas: Sequence[int]

    def __init__(
        self,
        *,
        partition_index: int,
        replicas: Sequence[int] = (),
        adding_replicas: Sequence[int] = (),
        removing_replicas: Sequence[int] = (),
    ) -> None:
        self.partition_index = partition_index
        self.replicas = replicas
        self.adding_replicas = adding_replicas
        self.removing_replicas = removing_replicas


class OngoingTopicReassignment(Message):
    __slots__ = ("name", "partitions")
    name: str
    partitions: Sequence[OngoingPartitionReassignment]

    def __init__(self, *, name: str, partitions: Sequence[OngoingPartitionReassignment]) -> None:
        self.name = name
        self.partitions = partitions


class ListPartitionReassignmentsResponse(Message):
    """API key 46, versions 0-0."""

    __slots__ = ("throttle_time_ms", "error_code", "error_message", "topics")
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    topics: Sequence[OngoingTopicReassignment]

    def __init__(
        self,
        *,
        throttle_time_ms: int = 0,
        error_code: int,
        error_message: str | None,
        topics: Sequence[OngoingTopicReassignment],
    ) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.error_message = error_message
        self.topics = topics
