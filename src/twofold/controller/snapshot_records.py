"""An image as the records that make it: what a snapshot of the metadata log holds.

1. Replaying the records gives the image again, but for where each broker registered: a snapshot has one offset.
2. The records have what the image's metadata.version can carry, as the image does, and their bytes are those of that
   level: features stand first, and hold for what follows.
3. The order is Kafka's, and the same image gives the same records in every process: features, brokers, topics with
   their partitions, configurations, quotas, producer ids, access control
   entries, SCRAM credentials, and what is kept.
"""

from collections.abc import Iterator
from typing import Any

from twofold.controller.features import metadata_version
from twofold.controller.image import METADATA_VERSION, BrokerRegistration, MetadataImage, PartitionState, TopicImage
from twofold.controller.kept_records import TOKEN
from twofold.controller.quota_records import ClientQuota, in_order, owner_key
from twofold.controller.records import (
    Config,
    FeatureLevel,
    MetadataRecord,
    Partition,
    ProducerIds,
    RegisterBroker,
    Topic,
    encode,
)

NO_BROKER = -1


def snapshot_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    for name, level in sorted(image.features.items(), key=lambda item: (item[0] != METADATA_VERSION, item)):
        yield FeatureLevel(name, level)
    for _, broker in sorted(image.brokers.items()):
        yield _registration(broker)
    for topic in image.topics_in_order():
        yield from _topic(topic)
    for resource, values in sorted(image.configs.items()):
        for name, value in sorted(values.items()):
            yield Config(resource.type, resource.name, name, value)
    for owner, limits in sorted(image.quotas.items(), key=lambda item: owner_key(item[0])):
        for key, limit in sorted(limits.items()):
            yield ClientQuota(in_order(owner), key, limit, remove=False)
    if image.next_producer_id:
        yield ProducerIds(NO_BROKER, NO_BROKER, image.next_producer_id)
    yield from sorted(image.acls)
    yield from (credential for _, credential in sorted(image.scram.items()))
    yield from _kept(image, TOKEN)


def snapshot_values(image: MetadataImage) -> Iterator[bytes]:
    """The records as they are written."""
    level = metadata_version(image)
    return (encode(record, level) for record in snapshot_records(image))


def _kept(image: MetadataImage, kind: str) -> list[Any]:
    return sorted((record for key, record in image.kept.items() if key[0] == kind), key=repr)


def _registration(broker: BrokerRegistration) -> RegisterBroker:
    return RegisterBroker(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=broker.end_points,
        features=broker.features,
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_dirs,
        cordoned_log_dirs=broker.cordoned_log_dirs,
    )


def _topic(topic: TopicImage) -> Iterator[MetadataRecord]:
    yield Topic(topic.name, topic.topic_id)
    for index, partition in topic.in_order():
        yield _partition(topic, index, partition)


def _partition(topic: TopicImage, index: int, partition: PartitionState) -> Partition:
    return Partition(
        partition_id=index,
        topic_id=topic.topic_id,
        replicas=partition.replicas,
        isr=partition.isr,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=partition.directories,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader_recovery_state=partition.leader_recovery_state,
        eligible_leader_replicas=partition.eligible_leader_replicas or None,
        last_known_elr=partition.last_known_elr or None,
    )
