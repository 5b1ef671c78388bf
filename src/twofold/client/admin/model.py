"""What the administrator's client takes and returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from twofold.client.cluster.metadata import Node
from twofold.types import TopicId
from twofold.wire.errors import KafkaError
from twofold.wire.values import AlterOperation as AlterOperation
from twofold.wire.values import UpgradeType as UpgradeType

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Results(Generic[K, V]):
    """The outcome of a call about several things."""

    values: Mapping[K, V]
    errors: Mapping[K, KafkaError]

    def get(self) -> Mapping[K, V]:
        for error in self.errors.values():
            raise error
        return self.values


@dataclass(frozen=True, slots=True)
class NewTopic:
    """`NewTopic("orders", 3)`. Counts of -1 leave the choice to the broker; `assignments` are the replicas of each
    partition instead."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict, kw_only=True)
    configs: Mapping[str, str] = field(default_factory=dict, kw_only=True)


class CreatedTopic(NamedTuple):
    """Counts are -1 when the broker did not tell."""

    name: str
    topic_id: TopicId | None
    num_partitions: int
    replication_factor: int


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name!r}"


class ConfigChange(NamedTuple):
    name: str
    value: str | None = None
    operation: AlterOperation = AlterOperation.SET


CONFIG_SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "DYNAMIC_CLIENT_METRICS_CONFIG",
    8: "DYNAMIC_GROUP_CONFIG",
}


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source == "DEFAULT_CONFIG"


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller_id: int
    brokers: tuple[Node, ...]
    fenced: frozenset[int] = frozenset()
    """Which of them are fenced, where they were asked for."""


class FeatureUpdate(NamedTuple):
    """The level that a feature is to have; 0 switches it off."""

    level: int
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


class Feature(NamedTuple):
    """The levels that the asked broker can work with, and the one that holds in the cluster (0: off)."""

    name: str
    min_version: int
    max_version: int
    finalized: int


class FeaturesDescription(NamedTuple):
    """`epoch` grows with every change; -1 where the broker does not tell."""

    epoch: int
    features: Mapping[str, Feature]


class ProducerDescription(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int
    current_txn_start_ms: int = -1
    """When that was appended, by the broker's clock; -1 where it does not tell, as Apache Kafka."""
    current_txn_start_is_bound: bool = False
    """It was appended then or earlier: the broker does not know it any better."""
