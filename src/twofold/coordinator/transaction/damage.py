"""What a decision must know of the partitions of a transaction, as a value: the broker reads their logs before it.

1. What an administrator has aborted by offset in one partition (KIP-664) cannot be committed any more, and so the whole
   transaction cannot: its client gets TRANSACTION_ABORTABLE.
2. So does the client of a two-phase transaction whose records are gone: when it commits, and when it makes an open
   transaction a two-phase one.
"""

from typing import NamedTuple

from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, TransactionAbortable


class Damage(NamedTuple):
    ended_by_hand: TopicPartition | None = None
    lost: tuple[TopicPartition, ...] = ()


UNDAMAGED = Damage()


def check_whole(entry: TransactionMetadata, transactional_id: str, damage: Damage) -> None:
    """Raise why an open transaction can only be aborted."""
    if damage.ended_by_hand is not None:
        raise TransactionAbortable(
            f"what {transactional_id!r} wrote to {damage.ended_by_hand} was aborted by hand: abort the rest"
        )
    if damage.lost:
        raise records_are_gone(entry, transactional_id, damage.lost)


def records_are_gone(entry: TransactionMetadata, transactional_id: str, lost: tuple[TopicPartition, ...]) -> KafkaError:
    return TransactionAbortable(
        f"the transaction of {transactional_id!r} (producer id {entry.producer_id}, epoch {entry.producer_epoch}) "
        f"cannot be committed as a whole: what it wrote to {', '.join(map(str, lost))} is gone. Abort what is left of "
        f"it; `twofold txn describe {transactional_id}` shows it"
    )
