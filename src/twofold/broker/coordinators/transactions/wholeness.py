"""Whether all that a transaction has written is still there, read from the logs of its partitions before it commits.

1. The decision gets what is found as a value (`coordinator.transaction.damage`).
2. Records of a two-phase transaction may be gone: the topic was deleted, or created anew, or its log begins behind
   them. DeleteTopics, DeleteRecords and retention leave them alone. What is lost all the same, by a tool or by another
   version, must not be reported as committed. Other transactions commit what is left, as in Kafka.
3. A partition that was added and never written to is no loss. A topic of the same name is known to be another by the id
   that the transaction's record has of it. Records of older versions have no ids: there the name counts.
"""

import logging
from collections.abc import Container

from twofold.broker.core import BrokerCore
from twofold.coordinator.transaction.damage import UNDAMAGED, Damage, records_are_gone
from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.coordinator.transaction.transitions import CLIENT_TV2, is_two_phase
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

log = logging.getLogger(__name__)


def damage_of(
    core: BrokerCore, being_deleted: Container[str], transactional_id: str, entry: TransactionMetadata
) -> Damage:
    """What keeps an open transaction from being committed. Topics `being_deleted` count as gone."""
    ended_by_hand = None
    if entry.client_version >= CLIENT_TV2:  # a transaction of the first protocol ends under its own epoch
        ended_by_hand = _ended_by_hand(core, entry)
    if is_two_phase(entry):
        return loss_of(core, being_deleted, transactional_id, entry)._replace(ended_by_hand=ended_by_hand)
    return UNDAMAGED if ended_by_hand is None else Damage(ended_by_hand)


def loss_of(
    core: BrokerCore, being_deleted: Container[str], transactional_id: str, entry: TransactionMetadata
) -> Damage:
    """The partitions in which records of the transaction are gone."""
    lost = tuple(
        partition
        for partition in sorted(entry.partitions)
        if partition.topic in being_deleted or _is_lost(core, entry, partition)
    )
    if lost:
        log.error("%s", records_are_gone(entry, transactional_id, lost).message)
    return Damage(lost=lost)


def _ended_by_hand(core: BrokerCore, entry: TransactionMetadata) -> TopicPartition | None:
    for topic_partition in entry.partitions:
        try:
            partition = core.replicas.leader(*topic_partition)
        except KafkaError:
            continue  # deleted, or led by another broker
        if partition.log.was_ended_by_hand(entry.producer_id, entry.producer_epoch):
            return topic_partition
    return None


def _is_lost(core: BrokerCore, entry: TransactionMetadata, topic_partition: TopicPartition) -> bool:
    name, index = topic_partition
    topic = core.image.topic(name)
    if topic is None or index not in topic.partitions:
        return True
    if dict(entry.topic_ids).get(name, topic.topic_id) != topic.topic_id:
        return True
    try:
        partition_log = core.replicas.leader(name, index).log
    except KafkaError:
        return False  # led by another broker, or not readable now: no loss is known
    return partition_log.has_lost_transaction(entry.producer_id, entry.producer_epoch)
