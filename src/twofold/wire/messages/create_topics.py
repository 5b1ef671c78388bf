"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 19."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class CreatableReplicaAssignment(Message):
    __slots__ = ("partition_index", "broker_ids")
    partition_index: int
    broker_ids: Sequence[int]

    def __init__(self, *, partition_index: int, broker_ids: Sequence[int] = ()) -> None:
        self.partition_index = partition_index
        self.broker_ids = broker_ids


class CreatableTopicConfig(Message):
    __slots__ = ("name", "value")
    name: str
    value: str | None

    def __init__(self, *, name: str, value: str | None) -> None:
        self.name = name
        self.value = value


class CreatableTopic(Message):
    __slots__ = ("name", "num_partitions", "replication_factor", "assignments", "configs")
    name: str
    num_partitions: int
    replication_factor: int
    assignments: Sequence[CreatableReplicaAssignment]
    configs: Sequence[CreatableTopicConfig]

    def __init__(
        self,
        *,
        name: str,
        num_partitions: int,
        replication_factor: int,
        assignments: Sequence[CreatableReplicaAssignment],
        configs: Sequence[CreatableTopicConfig],
    ) -> None:
        self.name = name
        self.num_partitions = num_partitions
        self.replication_factor = replication_factor
        self.assignments = assignments
        self.configs = configs


class CreateTopicsRequest(Message):
    """API key 19, versions 2-7."""

    __slots__ = ("topics", "timeout_ms", "validate_only")
    topics: Sequence[CreatableTopic]
    timeout_ms: int
    validate_only: bool

    def __init__(
        self, *, topics: Sequence[CreatableTopic], timeout_ms: int = 60000, validate_only: bool = False
    ) -> None:
        self.topics = topics
        self.timeout_ms = timeout_ms
        self.validate_only = validate_only


class CreatableTopicConfigs(Message):
    __slots__ = ("name", "value", "read_only", "config_source", "is_sensitive")
    name: str
    value: str | None
    read_only: bool
    config_source: int
    is_sensitive: bool

    def __init__(
        self, *, name: str, value: str | None, read_only: bool, config_source: int = -1, is_sensitive: bool
    ) -> None:
        self.name = name
        self.value = value
        self.read_only = read_only
        self.config_source = config_source
        self.is_sensitive = is_sensitive


class CreatableTopicResult(Message):
    __slots__ = (
        "name",
        "error_code",
        "error_message",
        "topic_config_error_code",
        "num_partitions",
        "replication_factor",
        "configs",
        "topic_id",
    )
    name: str
    error_code: int
    error_message: str | None
    topic_config_error_code: int
    num_partitions: int
    replication_factor: int
    configs: Sequence[CreatableTopicConfigs] | None
    topic_id: UUID | None

    def __init__(
        self,
        *,
        name: str,
        error_code: int,
        error_message: str | None,
        topic_config_error_code: int = 0,
        num_partitions: int = -1,
        replication_factor: int = -1,
        configs: Sequence[CreatableTopicConfigs] | None = None,
        topic_id: UUID | None = None,
    ) -> None:
        self.name = name
        self.error_code = error_code
        self.error_message = error_message
        self.topic_config_error_code = topic_config_error_code
        self.num_partitions = num_partitions
        self.replication_factor = replication_factor
        self.configs = configs
        self.topic_id = topic_id


class CreateTopicsResponse(Message):
    """API key 19, versions 2-7."""

    __slots__ = ("throttle_time_ms", "topics")
    throttle_time_ms: int
    topics: Sequence[CreatableTopicResult]

    def __init__(self, *, throttle_time_ms: int = 0, topics: Sequence[CreatableTopicResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.topics = topics
