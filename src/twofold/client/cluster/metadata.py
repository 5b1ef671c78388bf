"""What a client knows of a cluster: brokers, and the topics that it works with, by name and by id."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from twofold.connections.connection import Address
from twofold.types import TopicId, TopicPartition
from twofold.wire.errors import InvalidTopicException, KafkaError, UnknownTopicOrPartition, error_for
from twofold.wire.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Node:
    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    def __str__(self) -> str:
        return f"broker {self.node_id} ({self.address})"


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()

    @property
    def is_in_sync(self) -> bool:
        return len(self.isr) >= len(self.replicas)


@dataclass(frozen=True)  # without slots, for the cached property
class TopicMetadata:
    name: str
    topic_id: TopicId | None
    internal: bool
    partitions: Mapping[int, PartitionMetadata]

    @cached_property
    def with_leader(self) -> tuple[int, ...]:
        return tuple(index for index, row in self.partitions.items() if row.leader != NO_LEADER)


class MetadataCache:
    """The latest answer for each topic. An answer of an older leader epoch than known never replaces the newer."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self._topics: dict[str, TopicMetadata] = {}
        self._names: dict[TopicId, str] = {}
        self._errors: dict[str, KafkaError] = {}

    def update(self, response: MetadataResponse) -> None:
        self.nodes = {row.node_id: Node(row.node_id, row.host, row.port, row.rack) for row in response.brokers}
        self.controller_id = response.controller_id
        self.cluster_id = response.cluster_id
        for row in response.topics:
            if row.name is not None:
                self._update_topic(row.name, row)

    def _update_topic(self, name: str, row: MetadataResponseTopic) -> None:
        if row.error_code:
            self._errors[name] = topic_error(name, row.error_code)
            self.forget(name)
            return
        self._errors.pop(name, None)
        old = self._topics.get(name)
        topic = topic_metadata(row)
        if old is not None and old.topic_id == topic.topic_id:
            topic = replace(topic, partitions=_newest(old.partitions, topic.partitions))
        elif old is not None:
            self.forget(name)
        self._topics[name] = topic
        if topic.topic_id is not None:
            self._names[topic.topic_id] = name

    def forget(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None and topic.topic_id is not None:
            self._names.pop(topic.topic_id, None)

    def topic(self, name: str) -> TopicMetadata | None:
        return self._topics.get(name)

    def name_of(self, topic_id: TopicId | None) -> str | None:
        return None if topic_id is None else self._names.get(topic_id)

    def error_of(self, name: str) -> KafkaError | None:
        return self._errors.get(name)

    def leader(self, tp: TopicPartition) -> PartitionMetadata | None:
        """The partition's row, when it has a leader that is known by address."""
        topic = self._topics.get(tp.topic)
        row = None if topic is None else topic.partitions.get(tp.partition)
        return row if row is not None and row.leader in self.nodes else None


def topic_error(name: str, code: int) -> KafkaError:
    """What a broker says of a topic in one number, in words."""
    error = error_for(code)
    if error is UnknownTopicOrPartition:
        return error(f"topic {name!r} does not exist")
    if error is InvalidTopicException:
        return error(f"topic name {name!r}: use up to 249 letters, digits, '.', '_' and '-'")
    return error(f"topic {name!r}")


def topic_metadata(row: MetadataResponseTopic) -> TopicMetadata:
    partitions = sorted((_partition(entry) for entry in row.partitions), key=lambda entry: entry.partition)
    return TopicMetadata(
        row.name or "", row.topic_id, row.is_internal, {entry.partition: entry for entry in partitions}
    )


def _partition(row: MetadataResponsePartition) -> PartitionMetadata:
    return PartitionMetadata(
        row.partition_index,
        row.leader_id,
        row.leader_epoch,
        tuple(row.replica_nodes),
        tuple(row.isr_nodes),
        tuple(row.offline_replicas),
    )


def _newest(
    old: Mapping[int, PartitionMetadata], new: Mapping[int, PartitionMetadata]
) -> Mapping[int, PartitionMetadata]:
    def choose(row: PartitionMetadata) -> PartitionMetadata:
        known = old.get(row.partition)
        return known if known is not None and row.leader_epoch < known.leader_epoch else row

    return {index: choose(row) for index, row in new.items()}


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for tp in partitions:
        grouped.setdefault(tp.topic, []).append(tp.partition)
    return grouped
