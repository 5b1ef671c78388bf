"""The topics that the broker creates for itself, and how they are created.

1. Replication factor and min ISR that are not set are capped by the number of brokers, so that one broker is enough to
   start with; a value that is set is obeyed, also where it cannot be met yet.
2. The number of partitions decides which partition owns a group or a transactional id: it is read from the topic once
   the topic exists, and from the settings only to create it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from twofold.config.settings import Settings

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
CLUSTER_METADATA = "__cluster_metadata"

INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class InternalTopic:
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def internal_topic(name: str, settings: Settings, brokers: int) -> InternalTopic:
    """How `name` is to be created in a cluster of so many brokers."""
    if name == CONSUMER_OFFSETS:
        return InternalTopic(
            name,
            settings.int("offsets.topic.num.partitions"),
            _capped("offsets.topic.replication.factor", settings, brokers),
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(settings.int("offsets.topic.segment.bytes")),
            },
        )
    if name == TRANSACTION_STATE:
        return InternalTopic(
            name,
            settings.int("transaction.state.log.num.partitions"),
            _capped("transaction.state.log.replication.factor", settings, brokers),
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(_capped("transaction.state.log.min.isr", settings, brokers)),
                "segment.bytes": str(settings.int("transaction.state.log.segment.bytes")),
                "unclean.leader.election.enable": "false",
            },
        )
    raise KeyError(name)


def _capped(key: str, settings: Settings, brokers: int) -> int:
    value = settings.int(key)
    return value if settings.is_set(key) else max(1, min(value, brokers))


@lru_cache(maxsize=16_384)
def coordinator_partition(key: str, partitions: int) -> int:
    """The partition of an internal topic that owns a group or a transactional id, as every Kafka computes it: Java's
    hash of the string, which runs over UTF-16 units and wraps at 32 bits, without its sign."""
    value = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    if value >= 2**31:
        # Java's abs() of the smallest integer is negative, which Kafka turns into 0.
        value = (2**32 - value) % 2**31
    return value % partitions
