"""The metadata image: what the metadata log says at one offset, as an immutable value.

1. An image is a function of the records up to its offset; the same records in other batches give the same image.
2. Nothing is ever changed in place, so a reader may keep an image for as long as it likes.
3. Looking something up costs the same with 10 and with 100,000 partitions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from twofold.controller.kept_records import KeptKey
from twofold.controller.levels import METADATA_VERSION as METADATA_VERSION
from twofold.controller.quota_records import QuotaOwner
from twofold.controller.records import NO_LEADER, RECOVERED, EndPoint, FeatureRange, MetadataRecord
from twofold.controller.security.acls import AclSet
from twofold.controller.security.records import UserScramCredential
from twofold.machine.maps import Map
from twofold.security.scram import ScramCredential, ScramMechanism

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32
CLUSTER_DEFAULT = ""  # the name of the broker resource that holds for every broker


class ScramKey(NamedTuple):
    """Which credential of which user."""

    name: str
    mechanism: int


class ConfigOwner(NamedTuple):
    """What a configuration belongs to."""

    type: int
    name: str


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker as it registered; fenced ones may not lead."""

    broker_id: int
    epoch: int
    incarnation_id: UUID
    end_points: tuple[EndPoint, ...]
    features: tuple[FeatureRange, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[UUID, ...]
    cordoned_log_dirs: tuple[UUID, ...] = ()
    registered_at: int = -1  # offset of the record

    @property
    def is_active(self) -> bool:
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def is_cordoned(self) -> bool:
        """Whether no directory takes new replicas by itself."""
        return bool(self.log_dirs) and set(self.log_dirs) <= set(self.cordoned_log_dirs)

    def end_point(self, listener: str) -> EndPoint | None:
        return next((end_point for end_point in self.end_points if end_point.name == listener), None)


class PartitionState(NamedTuple):
    """The replicas of a partition and its leader. A tuple, because there may be very many."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[UUID, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic and its partitions, numbered from 0 without gaps."""

    name: str
    topic_id: UUID
    partitions: Map[int, PartitionState] = field(default_factory=Map)

    def in_order(self) -> Iterator[tuple[int, PartitionState]]:
        partitions = self.partitions
        return ((index, partitions[index]) for index in sorted(partitions))


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """All metadata at one offset."""

    topics: Map[str, TopicImage] = field(default_factory=Map)
    topic_names: Map[UUID, str] = field(default_factory=Map)
    # Names that differ from each other only by '.' and '_' cannot be told apart in metrics: normal form -> name.
    collidable: Map[str, frozenset[str]] = field(default_factory=Map)
    brokers: Map[int, BrokerRegistration] = field(default_factory=Map)
    configs: Map[ConfigOwner, Map[str, str]] = field(default_factory=Map)
    features: Map[str, int] = field(default_factory=Map)
    acls: AclSet = field(default_factory=AclSet)
    scram: Map[ScramKey, UserScramCredential] = field(default_factory=Map)
    quotas: Map[QuotaOwner, Map[str, float]] = field(default_factory=Map)
    kept: Map[KeptKey, MetadataRecord] = field(default_factory=Map)  # what has no meaning here (kept_records.py)
    next_producer_id: int = 0
    offset: int = -1  # of the last record in this image

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic: str, index: int) -> PartitionState | None:
        found = self.topics.get(topic)
        return None if found is None else found.partitions.get(index)

    def broker(self, broker_id: int) -> BrokerRegistration | None:
        return self.brokers.get(broker_id)

    def topic_configs(self, name: str) -> Map[str, str]:
        """What was set for the topic itself."""
        return self.configs.get(ConfigOwner(TOPIC_RESOURCE, name), _NO_CONFIGS)

    def broker_configs(self, broker_id: int | None = None) -> Map[str, str]:
        """What was set for one broker, or without an id for all of them."""
        name = CLUSTER_DEFAULT if broker_id is None else str(broker_id)
        return self.configs.get(ConfigOwner(BROKER_RESOURCE, name), _NO_CONFIGS)

    def scram_credential(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """What a user's password is checked against, with one of the mechanisms."""
        found = self.scram.get(ScramKey(name, mechanism))
        if found is None:
            return None
        return ScramCredential(found.salt, found.stored_key, found.server_key, found.iterations)

    def topics_in_order(self) -> Iterator[TopicImage]:
        """By name: the order of a map depends on the process."""
        topics = self.topics
        return (topics[name] for name in sorted(topics))

    def active_brokers(self) -> list[BrokerRegistration]:
        return [broker for _, broker in sorted(self.brokers.items()) if broker.is_active]

    @property
    def is_empty(self) -> bool:
        """Whether the log still has to be bootstrapped."""
        return METADATA_VERSION not in self.features


_NO_CONFIGS: Map[str, Any] = Map()
