"""KIP-890: nothing enters a partition in the name of a transaction that does not know of it.

1. A batch that continues a transaction which is open in the partition, with the same epoch, needs nobody's word.
2. The first one does: the transaction's coordinator is asked whether the partition is part of it (older clients added
   it themselves), or adds it (newer clients leave that to us). All partitions of a request go in one question.
3. The log hands out a guard before the question and wants to see it at the append: what happened in between (an abort,
   the next transaction) makes the guard worthless.
4. Clients are told what they understand: an old one hears INVALID_TXN_STATE where a newer one hears
   TRANSACTION_ABORTABLE, and everybody INVALID_PRODUCER_EPOCH where the coordinator says PRODUCER_FENCED.
"""

from collections.abc import Awaitable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from twofold.broker.partition import Partition
from twofold.types import TopicPartition
from twofold.wire.errors import (
    NONE,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    error_for,
)

if TYPE_CHECKING:
    from twofold.broker.broker import Broker

Verdict: TypeAlias = "int | KafkaError | None"
"""What the log is to be shown with a batch: a guard, nothing, or no batch at all and this error instead."""
Verdicts: TypeAlias = dict[TopicPartition, Verdict]


class Operation(Enum):
    """What a client expects of us, by the version of its request."""

    VERIFY_OLD = 0  # does not know TRANSACTION_ABORTABLE
    VERIFY = 1
    ADD = 2

    @classmethod
    def of(cls, version: int, *, abortable_since: int, adds_since: int) -> "Operation":
        if version >= adds_since:
            return cls.ADD
        return cls.VERIFY if version >= abortable_since else cls.VERIFY_OLD


class Batch(NamedTuple):
    """What a batch says of itself."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    base_sequence: int


def verify(
    broker: "Broker", transactional_id: str, batches: Iterable[Batch], operation: Operation
) -> Verdicts | Awaitable[Verdicts]:
    """The verdict on each partition, of batches of one producer: at once where that is possible."""
    verdicts: Verdicts = {}
    asked: list[TopicPartition] = []
    producer_id = producer_epoch = -1
    for partition, producer_id, producer_epoch, sequence in batches:
        name = partition.topic_partition
        try:
            guard = partition.log.start_verification(producer_id, producer_epoch, sequence, operation is Operation.ADD)
        except KafkaError as error:
            verdicts[name] = error
            continue
        verdicts[name] = guard
        if guard is not None:
            asked.append(name)
    if not asked:
        return verdicts
    codes = broker.transactions.admit(
        transactional_id, producer_id, producer_epoch, frozenset(asked), adds=operation is Operation.ADD
    )
    if isinstance(codes, Mapping):
        return _judged(verdicts, asked, codes, operation)
    return _judged_later(verdicts, asked, codes, operation)


async def _judged_later(
    verdicts: Verdicts,
    asked: list[TopicPartition],
    codes: Awaitable[Mapping[TopicPartition, int]],
    operation: Operation,
) -> Verdicts:
    return _judged(verdicts, asked, await codes, operation)


def _judged(
    verdicts: Verdicts, asked: list[TopicPartition], codes: Mapping[TopicPartition, int], operation: Operation
) -> Verdicts:
    for name in asked:
        code = codes.get(name, NONE)
        if code != NONE:
            verdicts[name] = _told(name, code, operation)
    return verdicts


def _told(name: TopicPartition, code: int, operation: Operation) -> KafkaError:
    text = f"{name}: the transaction coordinator answered {error_for(code).name}"
    if code == ProducerFenced.code:
        return InvalidProducerEpoch(text)
    if code == TransactionAbortable.code:
        text = f"{name} is not part of the producer's transaction"
        return InvalidTxnState(text) if operation is Operation.VERIFY_OLD else TransactionAbortable(text)
    return error_for(code)(text)
