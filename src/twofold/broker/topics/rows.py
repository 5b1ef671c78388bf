"""Topics as Metadata shows them, built once and shared by all answers.

1. A row is valid for as long as its topic's image and the brokers' are the very same objects; images are immutable, so
   identity is enough to know.
2. What a row says depends on the client's listener, and in old versions on how errors were told then (`Form`).
3. There is at most one row per topic, listener and form; rows of deleted topics go when they outnumber the living.
"""

from enum import Enum
from typing import TypeAlias

from twofold.config.internal_topics import is_internal
from twofold.controller.image import BrokerRegistration, MetadataImage, PartitionState, TopicImage
from twofold.controller.records import NO_LEADER, EndPoint
from twofold.wire.errors import NONE, LeaderNotAvailable, ListenerNotFound, ReplicaNotAvailable
from twofold.wire.messages.metadata import MetadataResponsePartition, MetadataResponseTopic

SLACK = 100

ReachableBroker: TypeAlias = tuple[BrokerRegistration, EndPoint]


class Form(Enum):
    """How a partition's troubles are told."""

    VERSION_0 = 0  # replicas that cannot be reached are left out, and that is an error
    VERSION_1 = 1
    VERSION_6 = 6  # a leader without the client's listener has an error of its own

    @classmethod
    def of(cls, version: int) -> "Form":
        return cls.VERSION_0 if version == 0 else cls.VERSION_1 if version < 6 else cls.VERSION_6


def reachable_brokers(image: MetadataImage, listener: str) -> list[ReachableBroker]:
    """The living brokers that have this listener, and where it is."""
    found = []
    for registration in image.active_brokers():
        end_point = registration.end_point(listener)
        if end_point is not None:
            found.append((registration, end_point))
    return found


class TopicRows:
    """The rows for one listener and form, as long as the brokers do not change."""

    __slots__ = ("brokers", "_image_brokers", "_listener", "_form", "_reachable", "_rows")

    def __init__(self, image: MetadataImage, listener: str, form: Form) -> None:
        self.brokers = reachable_brokers(image, listener)
        self._image_brokers = image.brokers
        self._listener = listener
        self._form = form
        self._reachable = frozenset(registration.broker_id for registration, _ in self.brokers)
        self._rows: dict[str, tuple[TopicImage, MetadataResponseTopic]] = {}

    def is_valid_for(self, image: MetadataImage) -> bool:
        return self._image_brokers is image.brokers

    def forget_deleted(self, image: MetadataImage) -> None:
        if len(self._rows) > 2 * len(image.topics) + SLACK:
            self._rows = {name: row for name, row in self._rows.items() if name in image.topics}

    def row(self, topic: TopicImage) -> MetadataResponseTopic:
        known = self._rows.get(topic.name)
        if known is not None and known[0] is topic:
            return known[1]
        row = MetadataResponseTopic(
            error_code=NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=is_internal(topic.name),
            partitions=tuple(self._partition(index, state) for index, state in topic.in_order()),
        )
        self._rows[topic.name] = (topic, row)
        return row

    def _partition(self, index: int, state: PartitionState) -> MetadataResponsePartition:
        reachable = self._reachable
        has_leader = state.leader in reachable
        error_code = NONE if has_leader else self._leader_error(state.leader)
        replicas, isr = state.replicas, state.isr
        offline = tuple(replica for replica in replicas if replica not in reachable)
        if offline and self._form is Form.VERSION_0:
            replicas = tuple(replica for replica in replicas if replica in reachable)
            isr = tuple(replica for replica in isr if replica in reachable)
            error_code = ReplicaNotAvailable.code if has_leader else error_code
        return MetadataResponsePartition(
            error_code=error_code,
            partition_index=index,
            leader_id=state.leader if has_leader else NO_LEADER,
            leader_epoch=state.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=isr,
            offline_replicas=offline,
        )

    def _leader_error(self, leader: int) -> int:
        registration = self._image_brokers.get(leader)
        lacks_listener = registration is not None and registration.end_point(self._listener) is None
        if lacks_listener and self._form is Form.VERSION_6:
            return ListenerNotFound.code
        return LeaderNotAvailable.code


class TopicRowCache:
    """All rows of a broker. Listeners and forms are few, so there is no bound on their number."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[tuple[str, Form], TopicRows] = {}

    def rows(self, image: MetadataImage, listener: str, version: int) -> TopicRows:
        key = (listener, Form.of(version))
        rows = self._rows.get(key)
        if rows is None or not rows.is_valid_for(image):
            rows = self._rows[key] = TopicRows(image, *key)
        else:
            rows.forget_deleted(image)
        return rows
