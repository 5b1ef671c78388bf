"""KIP-890: nothing enters a partition in the name of a transaction that does not know of it.

1. A batch that continues a transaction which is open in the partition, with the same epoch, is not verified.
2. The first one does: the transaction's coordinator is asked whether the partition is part of it (older clients added
   it themselves), or adds it (newer clients leave that to us). All partitions of a request go in one question.
3. The log hands out a guard before the question and wants to see it at the append: what happened in between (an abort,
   the next transaction) makes the guard worthless.
4. The coordinator also says whether the transaction is a two-phase one: an acknowledged batch of such a producer is on
   disk. A leader that has forgotten (a restart) asks again, and so does one that verifies nothing.
5. Clients get errors that they understand: an old one gets INVALID_TXN_STATE where a newer one gets
   TRANSACTION_ABORTABLE. Every client gets INVALID_PRODUCER_EPOCH where the coordinator says PRODUCER_FENCED.
6. What an administrator has ended in a partition (KIP-664) is not begun there again under the same epoch: its producer
   hears TRANSACTION_ABORTABLE, so that all of the transaction is aborted. (Before transaction.version 2 the epoch of a
   producer is that of many transactions, so the leader cannot tell.)
"""

from collections.abc import Awaitable, Iterable
from enum import Enum
from typing import NamedTuple, TypeAlias

from twofold.broker.coordinators.transactions.service import Admission, TransactionService
from twofold.broker.partitions.partition import Partition
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition
from twofold.wire.errors import (
    NONE,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    error_for,
)

Verdict: TypeAlias = "int | KafkaError | None"
"""What the log is to be shown with a batch: a guard, nothing, or no batch at all and this error instead."""
Verdicts: TypeAlias = dict[TopicPartition, Verdict]


class SupportedOperation(Enum):
    """What a client expects of us, by the version of its request."""

    VERIFY_OLD = 0  # does not know TRANSACTION_ABORTABLE
    VERIFY = 1
    ADD = 2

    @classmethod
    def of(cls, version: int, *, abortable_since: int, adds_since: int) -> "SupportedOperation":
        if version >= adds_since:
            return cls.ADD
        return cls.VERIFY if version >= abortable_since else cls.VERIFY_OLD


class Batch(NamedTuple):
    """What a batch says of itself."""

    partition: Partition
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int


def verify(
    transactions: TransactionService,
    transactional_id: str,
    principal: str,
    batches: Iterable[Batch],
    operation: SupportedOperation,
) -> Verdicts | Awaitable[Verdicts]:
    """The verdict on each partition, of batches of one producer: at once where that is possible."""
    verdicts: Verdicts = {}
    asked: list[Partition] = []
    producer_id, producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    for partition, producer_id, producer_epoch, sequence in batches:
        name = partition.topic_partition
        try:
            guard = partition.log.start_verification(
                producer_id, producer_epoch, sequence, operation is SupportedOperation.ADD
            )
        except KafkaError as error:
            verdicts[name] = error
            continue
        verdicts[name] = guard
        if guard is not None:
            # Cheap local check first: with TV2 each transaction has its own epoch, so this is False.
            if (
                operation is SupportedOperation.ADD
                and partition.log.was_ended_by_hand(producer_id, producer_epoch)
                and _was_ended_by_hand(transactions, transactional_id, partition, producer_id)
            ):
                verdicts[name] = TransactionAbortable(f"{name}: the producer's transaction was aborted there by hand")
                continue
            two_phase = None
            if operation is not SupportedOperation.ADD:
                two_phase = transactions.admits(transactional_id, producer_id, producer_epoch, name)
            if two_phase is None:
                asked.append(partition)
            else:
                partition.two_phase[producer_id] = two_phase
        elif producer_id not in partition.two_phase:
            partition.two_phase[producer_id] = transactions.is_two_phase(transactional_id)
    if not asked:
        return verdicts
    names = frozenset(partition.topic_partition for partition in asked)
    admission = transactions.admit(
        transactional_id, producer_id, producer_epoch, names, principal, adds=operation is SupportedOperation.ADD
    )
    if isinstance(admission, Admission):
        return _judged(verdicts, asked, producer_id, admission, operation)
    return _judged_later(verdicts, asked, producer_id, admission, operation)


def _was_ended_by_hand(
    transactions: TransactionService, transactional_id: str, partition: Partition, producer_id: ProducerId
) -> bool:
    """Whether the open transaction of the producer has a marker in the partition: an administrator wrote it."""
    begun = transactions.begun(transactional_id, producer_id, partition.topic_partition)
    if begun is None:
        return False
    epoch, start_ms = begun
    return partition.log.was_ended_by_hand(producer_id, epoch, since_ms=start_ms)


def remember(transactions: TransactionService, transactional_id: str, batches: Iterable[Batch]) -> None:
    """Where nothing is verified it must be known all the same whether what is written has to be on disk."""
    two_phase = transactions.is_two_phase(transactional_id)
    for partition, producer_id, _, _ in batches:
        if two_phase:
            partition.two_phase[producer_id] = True
        else:
            partition.two_phase.pop(producer_id, None)


async def _judged_later(
    verdicts: Verdicts,
    asked: list[Partition],
    producer_id: ProducerId,
    admission: Awaitable[Admission],
    operation: SupportedOperation,
) -> Verdicts:
    return _judged(verdicts, asked, producer_id, await admission, operation)


def _judged(
    verdicts: Verdicts,
    asked: list[Partition],
    producer_id: ProducerId,
    admission: Admission,
    operation: SupportedOperation,
) -> Verdicts:
    codes, two_phase = admission
    for partition in asked:
        name = partition.topic_partition
        code = codes.get(name, NONE)
        if code == NONE:
            partition.two_phase[producer_id] = two_phase
        else:
            verdicts[name] = _as_client_error(name, code, operation)
    return verdicts


def _as_client_error(name: TopicPartition, code: int, operation: SupportedOperation) -> KafkaError:
    text = f"{name}: the transaction coordinator answered {error_for(code).name}"
    if code == ProducerFenced.code:
        return InvalidProducerEpoch(text)
    if code == TransactionAbortable.code:
        text = f"{name} is not part of the producer's transaction"
        return InvalidTxnState(text) if operation is SupportedOperation.VERIFY_OLD else TransactionAbortable(text)
    return error_for(code)(text)
