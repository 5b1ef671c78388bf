"""What changed between two images, so that a broker need not look at 100,000 partitions to find one.

1. Applying a delta to the image before it gives the image after it.
2. It is derived from the records in between, but holds only what is different: an aborted transaction leaves nothing.
3. A topic that was deleted and created again under its name is both in it: ids tell topics apart, names do not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar
from uuid import UUID

from twofold.config.names import collision_key
from twofold.controller.image import (
    METADATA_VERSION,
    TOPIC_RESOURCE,
    BrokerRegistration,
    ConfigOwner,
    MetadataImage,
    PartitionState,
    ScramKey,
    TopicImage,
)
from twofold.controller.kept_records import KeptKey
from twofold.controller.quota_records import ClientQuota, QuotaOwner, owner_key
from twofold.controller.records import (
    BrokerRegistrationChange,
    ClearElr,
    Config,
    FeatureLevel,
    MetadataRecord,
    Partition,
    PartitionChange,
    RegisterBroker,
    RemoveTopic,
    Topic,
    UnregisterBroker,
)
from twofold.controller.security.acls import AclSet
from twofold.controller.security.records import UserScramCredential
from twofold.machine.maps import Map

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic that is new or has partitions that are."""

    topic: TopicImage
    partitions: tuple[int, ...]  # the changed ones and the new ones, in order
    is_new: bool

    def changed(self) -> Iterable[tuple[int, PartitionState]]:
        return ((index, self.topic.partitions[index]) for index in self.partitions)


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """A step from one image to the next."""

    offset: int
    changed_topics: tuple[TopicChange, ...] = ()
    deleted_topics: tuple[TopicImage, ...] = ()
    changed_configs: Mapping[ConfigOwner, Map[str, str]] = Map()
    changed_brokers: Mapping[int, BrokerRegistration | None] = Map()
    changed_quotas: Mapping[QuotaOwner, Map[str, float]] = Map()  # empty where none is left
    features: Map[str, int] | None = None  # None where they did not change
    next_producer_id: int | None = None
    acls: AclSet | None = None  # None where no entry changed
    scram: Map[ScramKey, UserScramCredential] | None = None  # None where no credential changed
    kept: Map[KeptKey, MetadataRecord] | None = None  # None where nothing of it changed

    def apply(self, image: MetadataImage) -> MetadataImage:
        topics, names, collidable = image.topics.mutate(), image.topic_names.mutate(), image.collidable.mutate()
        for topic in self.deleted_topics:
            del topics[topic.name]
            del names[topic.topic_id]
            key = collision_key(topic.name)
            if others := collidable.get(key, frozenset()) - {topic.name}:
                collidable[key] = others
            else:
                collidable.pop(key, None)
        for change in self.changed_topics:
            topic = change.topic
            old = topics.get(topic.name)
            partitions = (Map() if old is None else old.partitions).update(dict(change.changed()))
            topics[topic.name] = TopicImage(topic.name, topic.topic_id, partitions)
            names[topic.topic_id] = topic.name
            if change.is_new and ("." in topic.name or "_" in topic.name):
                key = collision_key(topic.name)
                collidable[key] = collidable.get(key, frozenset()) | {topic.name}
        return replace(
            image,
            topics=topics.finish(),
            topic_names=names.finish(),
            collidable=collidable.finish(),
            configs=_updated(image.configs, {k: v or None for k, v in self.changed_configs.items()}),
            brokers=_updated(image.brokers, self.changed_brokers),
            quotas=_updated(image.quotas, {owner: values or None for owner, values in self.changed_quotas.items()}),
            features=image.features if self.features is None else self.features,
            next_producer_id=image.next_producer_id if self.next_producer_id is None else self.next_producer_id,
            acls=image.acls if self.acls is None else self.acls,
            scram=image.scram if self.scram is None else self.scram,
            kept=image.kept if self.kept is None else self.kept,
            offset=self.offset,
        )


def _updated(table: Map[K, V], changes: Mapping[K, V | None]) -> Map[K, V]:
    """The table with these values; None takes one away."""
    draft = table.mutate()
    for key, value in changes.items():
        if value is not None:
            draft[key] = value
        else:
            draft.pop(key, None)
    return draft.finish()


def full_delta(image: MetadataImage) -> ImageDelta:
    """From nothing to this image, for a subscriber that sees its first."""
    return ImageDelta(
        offset=image.offset,
        changed_topics=tuple(
            TopicChange(topic, tuple(sorted(topic.partitions)), is_new=True) for topic in image.topics_in_order()
        ),
        changed_configs=image.configs,
        changed_brokers=image.brokers,
        changed_quotas=image.quotas,
        features=image.features,
        next_producer_id=image.next_producer_id,
        acls=image.acls,
        scram=image.scram,
        kept=image.kept,
    )


class PartitionRun(NamedTuple):
    """What is left of the records of consecutive partitions once they are applied."""

    topic_id: UUID
    partitions: range


def condensed(records: Sequence[MetadataRecord]) -> Sequence[MetadataRecord | PartitionRun]:
    """What a delta needs of the records: of partitions only which they are. There may be very many, kept for long."""
    kept: list[MetadataRecord | PartitionRun] = []
    topic_id: UUID | None = None
    first = end = 0
    for record in records:
        if isinstance(record, (Partition, PartitionChange)):  # faster than a union, and most are
            if record.partition_id == end and (record.topic_id is topic_id or record.topic_id == topic_id):
                end += 1
                continue
            if topic_id is not None:
                kept.append(PartitionRun(topic_id, range(first, end)))
            topic_id, first, end = record.topic_id, record.partition_id, record.partition_id + 1
            continue
        if topic_id is not None:
            kept.append(PartitionRun(topic_id, range(first, end)))
            topic_id = None
        kept.append(record)
    if topic_id is not None:
        kept.append(PartitionRun(topic_id, range(first, end)))
    return kept


def delta_between(
    old: MetadataImage, new: MetadataImage, records: Sequence[MetadataRecord | PartitionRun]
) -> ImageDelta:
    """What is different in `new`, given the records that led to it from `old`, whole or condensed."""
    return _difference(old, new, _Touched(records, new))


def whole_difference(old: MetadataImage, new: MetadataImage) -> ImageDelta:
    """What is different in `new`, which came as a snapshot: no records tell where to look."""
    touched = _Touched((), new)
    for image in (old, new):
        touched.configs.update(image.configs)
        touched.brokers.update(image.brokers)
        touched.quotas.update(image.quotas)
        for topic in image.topics.values():
            touched.partitions.setdefault(topic.topic_id, set()).update(topic.partitions)
    return _difference(old, new, touched)


def _difference(old: MetadataImage, new: MetadataImage, touched: "_Touched") -> ImageDelta:
    changed, deleted = _changed_topics(old, new, touched.partitions)
    names = {topic.name for topic in deleted}
    resources = touched.configs | {ConfigOwner(TOPIC_RESOURCE, name) for name in names}
    return ImageDelta(
        offset=new.offset,
        changed_topics=changed,
        deleted_topics=deleted,
        changed_configs={
            resource: new.configs.get(resource, Map())
            for resource in sorted(resources)
            if new.configs.get(resource) != old.configs.get(resource)
        },
        changed_brokers={
            broker_id: new.broker(broker_id)
            for broker_id in sorted(touched.brokers)
            if new.broker(broker_id) != old.broker(broker_id)
        },
        changed_quotas={
            owner: new.quotas.get(owner, Map())
            for owner in sorted(touched.quotas, key=owner_key)
            if new.quotas.get(owner) != old.quotas.get(owner)
        },
        features=None if new.features == old.features else new.features,
        next_producer_id=None if new.next_producer_id == old.next_producer_id else new.next_producer_id,
        acls=None if new.acls is old.acls or new.acls == old.acls else new.acls,
        scram=None if new.scram is old.scram or new.scram == old.scram else new.scram,
        kept=None if new.kept is old.kept or new.kept == old.kept else new.kept,
    )


class _Touched:
    """What the records name."""

    def __init__(self, records: Sequence[MetadataRecord | PartitionRun], image: MetadataImage) -> None:
        self.partitions: dict[UUID, set[int]] = {}
        self.configs: set[ConfigOwner] = set()
        self.brokers: set[int] = set()
        self.quotas: set[QuotaOwner] = set()
        for record in records:
            if isinstance(record, PartitionRun):
                self.partitions.setdefault(record.topic_id, set()).update(record.partitions)
            elif isinstance(record, Partition | PartitionChange):
                self.partitions.setdefault(record.topic_id, set()).add(record.partition_id)
            elif isinstance(record, Topic | RemoveTopic):
                self.partitions.setdefault(record.topic_id, set())
            elif isinstance(record, Config):
                self.configs.add(ConfigOwner(record.resource_type, record.resource_name))
            elif isinstance(record, RegisterBroker | UnregisterBroker | BrokerRegistrationChange):
                self.brokers.add(record.broker_id)
            elif isinstance(record, ClientQuota):
                self.quotas.add(frozenset(record.entity))
            elif isinstance(record, FeatureLevel):
                if record.name == METADATA_VERSION:  # a lower one cannot carry everything
                    self.brokers.update(image.brokers)
                    for topic in image.topics.values():
                        self.partitions.setdefault(topic.topic_id, set()).update(topic.partitions)
            elif isinstance(record, ClearElr):
                for topic in image.topics.values():
                    if record.topic_name in ("", topic.name):
                        self.partitions.setdefault(topic.topic_id, set()).update(topic.partitions)


def _changed_topics(
    old: MetadataImage, new: MetadataImage, touched: Mapping[UUID, set[int]]
) -> tuple[tuple[TopicChange, ...], tuple[TopicImage, ...]]:
    changed: list[TopicChange] = []
    deleted: list[TopicImage] = []
    for topic_id, indexes in touched.items():
        before, after = old.topic_by_id(topic_id), new.topic_by_id(topic_id)
        if after is None:
            if before is not None:
                deleted.append(before)
            continue
        if before is not None and len(after.partitions) < len(before.partitions):
            deleted.append(before)  # only between snapshots that have nothing to do with each other
            before = None
        different = _different(indexes, None if before is None else before.partitions, after.partitions)
        if before is None or different:
            changed.append(TopicChange(after, different, is_new=before is None))
    return tuple(changed), tuple(deleted)


def _different(
    indexes: set[int], before: Map[int, PartitionState] | None, after: Map[int, PartitionState]
) -> tuple[int, ...]:
    if before is None and len(indexes) == len(after):
        return tuple(range(len(after)))  # all of a new topic
    was: Mapping[int, PartitionState] = {} if before is None else before
    return tuple(index for index in sorted(indexes) if after.get(index) not in (None, was.get(index)))
