"""Whether all that a transaction has written is still there, before somebody is promised that it will be committed.

1. What an administrator has aborted by offset in one partition (KIP-664) cannot be committed any more, and so the whole
   transaction cannot: its client hears TRANSACTION_ABORTABLE.
2. So does the client of a two-phase transaction whose records are gone, when it commits or when it takes the vow: the
   topic was deleted, or created anew, or its log begins behind them. DeleteTopics, DeleteRecords and retention leave
   them alone; what is lost all the same (by a tool, or by another version) must not be told to be committed. Other
   transactions commit what is left, as in Kafka.
3. A partition that was added and never written to is no loss. A topic of the same name is known to be another by the id
   that the transaction's record has of it; records of older versions have none, and believe in the name.
"""

import logging
from collections.abc import Container

from twofold.broker.core import BrokerCore
from twofold.coordinator.transaction.records import Transaction
from twofold.coordinator.transaction.transitions import CLIENT_TV2, is_two_phase
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, TransactionAbortable

log = logging.getLogger(__name__)


def check_committable(
    core: BrokerCore, being_deleted: Container[str], transactional_id: str, entry: Transaction
) -> None:
    """Raise why an open transaction can only be aborted. `being_deleted` are topics that a request is deleting now."""
    if entry.client_version >= CLIENT_TV2:  # one of the first protocol ends under its own epoch
        _check_not_ended_by_hand(core, transactional_id, entry)
    if is_two_phase(entry):
        check_nothing_is_lost(core, being_deleted, transactional_id, entry)


def check_nothing_is_lost(
    core: BrokerCore, being_deleted: Container[str], transactional_id: str, entry: Transaction
) -> None:
    lost = [
        str(partition)
        for partition in sorted(entry.partitions)
        if partition.topic in being_deleted or _is_lost(core, entry, partition)
    ]
    if lost:
        error = TransactionAbortable(
            f"the transaction of {transactional_id!r} (producer id {entry.producer_id}, epoch {entry.producer_epoch}) "
            f"cannot be committed as a whole: what it wrote to {', '.join(lost)} is gone. Abort what is left of it; "
            f"`twofold txn describe {transactional_id}` shows it"
        )
        log.error("%s", error.message)
        raise error


def _check_not_ended_by_hand(core: BrokerCore, transactional_id: str, entry: Transaction) -> None:
    for topic, index in entry.partitions:
        try:
            partition = core.replicas.leader(topic, index)
        except KafkaError:
            continue  # deleted, or led by another broker
        if partition.log.was_ended_by_hand(entry.producer_id, entry.producer_epoch):
            raise TransactionAbortable(
                f"what {transactional_id!r} wrote to {topic}-{index} was aborted by hand: abort the rest"
            )


def _is_lost(core: BrokerCore, entry: Transaction, topic_partition: TopicPartition) -> bool:
    name, index = topic_partition
    topic = core.image.topic(name)
    if topic is None or index not in topic.partitions:
        return True
    if dict(entry.topic_ids).get(name, topic.topic_id) != topic.topic_id:
        return True
    try:
        partition_log = core.replicas.leader(name, index).log
    except KafkaError:
        return False  # led by another broker, or not to be read now: nobody knows of a loss
    return partition_log.has_lost_transaction(entry.producer_id, entry.producer_epoch)
