"""What is left of the metadata when metadata.version goes down.

1. An image never holds what its level cannot carry: that is gone with the record that lowers the level, at each
   machine that applies it, and not only once the log is read back.
2. A partition that waits for an eligible leader replica keeps waiting for it: the replica holds everything that was
   committed, so where no replica is in sync it counts as in sync, as it would have before there were such replicas.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from twofold.controller.image import BrokerRegistration, MetadataImage, PartitionState
from twofold.controller.kept_records import TOKEN
from twofold.controller.levels import (
    CORDONED_LOG_DIRECTORIES,
    DELEGATION_TOKENS,
    ELIGIBLE_LEADER_REPLICAS,
    LOG_DIRECTORIES,
    SCRAM_CREDENTIALS,
)
from twofold.machine.maps import Map

_KEPT_SINCE = {TOKEN: DELEGATION_TOKENS}


def lowered(image: MetadataImage, level: int) -> MetadataImage:
    """The image without what the level cannot carry."""
    topics = image.topics.mutate()
    known: dict[PartitionState, PartitionState] = {}  # partitions that were alike still are, and share their state
    for name, topic in image.topics.items():
        changes = {}
        for index, partition in topic.partitions.items():
            fewer = known.get(partition)
            if fewer is None:
                fewer = known[partition] = _lower_partition(partition, level)
            if fewer != partition:
                changes[index] = fewer
        if changes:
            topics[name] = replace(topic, partitions=topic.partitions.update(changes))
    return replace(
        image,
        topics=topics.finish(),
        brokers=Map({broker_id: _lower_broker(broker, level) for broker_id, broker in image.brokers.items()}),
        scram=image.scram if level >= SCRAM_CREDENTIALS else Map(),
        kept=Map({key: record for key, record in image.kept.items() if level >= _KEPT_SINCE.get(key[0], 0)}),
    )


def _lower_broker(broker: BrokerRegistration, level: int) -> BrokerRegistration:
    return replace(
        broker,
        log_dirs=broker.log_dirs if level >= LOG_DIRECTORIES else (),
        cordoned_log_dirs=broker.cordoned_log_dirs if level >= CORDONED_LOG_DIRECTORIES else (),
    )


def _lower_partition(partition: PartitionState, level: int) -> PartitionState:
    if level < LOG_DIRECTORIES:
        partition = partition._replace(directories=())
    if level < ELIGIBLE_LEADER_REPLICAS:
        isr = partition.isr or partition.eligible_leader_replicas
        partition = partition._replace(isr=isr, eligible_leader_replicas=(), last_known_elr=())
    return partition


def losses(image: MetadataImage, level: int) -> list[str]:
    """What this image holds and the level cannot carry, for people."""
    return [
        f"{count} {what}" for what, since, found in _LOSSES if level < since and (count := sum(1 for _ in found(image)))
    ]


def _partitions(image: MetadataImage) -> Iterator[PartitionState]:
    return (partition for topic in image.topics.values() for partition in topic.partitions.values())


Found = Callable[[MetadataImage], Iterator[object]]

_LOSSES: tuple[tuple[str, int, Found], ...] = (
    (
        "brokers with cordoned log directories",
        CORDONED_LOG_DIRECTORIES,
        lambda image: (broker for broker in image.brokers.values() if broker.cordoned_log_dirs),
    ),
    (
        "partitions with eligible leader replicas",
        ELIGIBLE_LEADER_REPLICAS,
        lambda image: (p for p in _partitions(image) if p.eligible_leader_replicas or p.last_known_elr),
    ),
    (
        "brokers with the ids of their log directories",
        LOG_DIRECTORIES,
        lambda image: (broker for broker in image.brokers.values() if broker.log_dirs),
    ),
    (
        "partitions with the log directories of their replicas",
        LOG_DIRECTORIES,
        lambda image: (p for p in _partitions(image) if any(one.int for one in p.directories)),
    ),
    ("delegation tokens", DELEGATION_TOKENS, lambda image: (key for key in image.kept if key[0] == TOKEN)),
    ("SCRAM credentials", SCRAM_CREDENTIALS, lambda image: iter(image.scram)),
)
