"""The few names that every layer shares."""

import uuid
from enum import IntEnum
from typing import NamedTuple, NewType, TypeAlias

# Numbers that must not be mixed up. To wrap one costs a function call, so code that runs per batch only annotates.
# Offsets are plain ints: nearly every use is a sum, whose type is int again, so that each append and each read would
# pay for wrapping it anew.
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
TopicId: TypeAlias = uuid.UUID

ProducerPair: TypeAlias = tuple[ProducerId, ProducerEpoch]

NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
FIRST_PRODUCER_EPOCH = ProducerEpoch(0)
NO_SEQUENCE = -1
NO_TIMESTAMP = -1


class Ending(IntEnum):
    """How a two-phase transaction was decided, and by what. The numbers are in the log and in answers."""

    COMMITTED = 1
    ABORTED = 2
    TERMINATED = 3

    @property
    def cause(self) -> str:
        return _CAUSES[self]


_CAUSES = {
    Ending.COMMITTED: "its producer, or an administrator who completed it, committed it",
    Ending.ABORTED: "its producer, or an administrator who completed it, aborted it",
    Ending.TERMINATED: "an administrator ended it by force, or a producer with the same transactional id started "
    "without keep_prepared_txn",
}


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
