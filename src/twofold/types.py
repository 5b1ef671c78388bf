"""The few names that every layer shares."""

import uuid
from typing import NamedTuple, TypeAlias

Offset: TypeAlias = int
ProducerId: TypeAlias = int
ProducerEpoch: TypeAlias = int
LeaderEpoch: TypeAlias = int
TopicId: TypeAlias = uuid.UUID

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
