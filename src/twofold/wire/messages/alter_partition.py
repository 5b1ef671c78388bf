"""Written by tools/generate_messages.py from kio's schemas; do not edit. API key 56."""

from collections.abc import Sequence
from uuid import UUID

from twofold.wire.message import Message


class BrokerState(Message):
    __slots__ = ("broker_id", "broker_epoch")
    broker_id: int
    broker_epoch: int

    def __init__(self, *, broker_id: int, broker_epoch: int = -1) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch


class PartitionData(Message):
    __slots__ = (
        "partition_index",
        "leader_epoch",
        "new_isr",
        "leader_recovery_state",
        "partition_epoch",
        "new_isr_with_epochs",
    )
    partition_index: int
    leader_epoch: int
    new_isr: Sequence[int]
    leader_recovery_state: int
    partition_epoch: int
    new_isr_with_epochs: Sequence[BrokerState]

    def __init__(
        self,
        *,
        partition_index: int,
        leader_epoch: int,
        new_isr: Sequence[int] = (),
        leader_recovery_state: int = 0,
        partition_epoch: int,
        new_isr_with_epochs: Sequence[BrokerState] = (),
    ) -> None:
        self.partition_index = partition_index
        self.leader_epoch = leader_epoch
        self.new_isr = new_isr
        self.leader_recovery_state = leader_recovery_state
        self.partition_epoch = partition_epoch
        self.new_isr_with_epochs = new_isr_with_epochs


class TopicData(Message):
    __slots__ = ("topic_id", "partitions")
    topic_id: UUID | None
    partitions: Sequence[PartitionData]

    def __init__(self, *, topic_id: UUID | None, partitions: Sequence[PartitionData]) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class AlterPartitionRequest(Message):
    """API key 56, versions 2-3."""

    __slots__ = ("broker_id", "broker_epoch", "topics")
    broker_id: int
    broker_epoch: int
    topics: Sequence[TopicData]

    def __init__(self, *, broker_id: int, broker_epoch: int = -1, topics: Sequence[TopicData]) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.topics = topics


class PartitionDataResult(Message):
    __slots__ = (
        "partition_index",
        "error_code",
        "leader_id",
        "leader_epoch",
        "isr",
        "leader_recovery_state",
        "partition_epoch",
    )
    partition_index: int
    error_code: int
    leader_id: int
    leader_epoch: int
    isr: Sequence[int]
    leader_recovery_state: int
    partition_epoch: int

    def __init__(
        self,
        *,
        partition_index: int,
        error_code: int,
        leader_id: int,
        leader_epoch: int,
        isr: Sequence[int] = (),
        leader_recovery_state: int = 0,
        partition_epoch: int,
    ) -> None:
        self.partition_index = partition_index
        self.error_code = error_code
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.isr = isr
        self.leader_recovery_state = leader_recovery_state
        self.partition_epoch = partition_epoch


class TopicDataResult(Message):
    __slots__ = ("topic_id", "partitions")
    topic_id: UUID | None
    partitions: Sequence[PartitionDataResult]

    def __init__(self, *, topic_id: UUID | None, partitions: Sequence[PartitionDataResult]) -> None:
        self.topic_id = topic_id
        self.partitions = partitions


class AlterPartitionResponse(Message):
    """API key 56, versions 2-3."""

    __slots__ = ("throttle_time_ms", "error_code", "topics")
    throttle_time_ms: int
    error_code: int
    topics: Sequence[TopicDataResult]

    def __init__(self, *, throttle_time_ms: int = 0, error_code: int, topics: Sequence[TopicDataResult]) -> None:
        self.throttle_time_ms = throttle_time_ms
        self.error_code = error_code
        self.topics = topics
