"""The topics of the cluster and the configurations of groups, as the machine of consumer groups asks for them."""

from collections.abc import Sequence
from uuid import UUID

from twofold.broker.core import BrokerCore
from twofold.config.group import group_timings
from twofold.controller.delta import ImageDelta
from twofold.controller.image import GROUP_RESOURCE, ConfigOwner, MetadataImage
from twofold.coordinator.group.consumer.surroundings import SubscribableTopic, Timings
from twofold.machine.maps import Map

_NOTHING: Map[str, str] = Map()


class ClusterOfGroups:
    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self.topics_version = 0
        self.newest_topic_version = -1
        self._racks = _racks_of(core.image)

    def apply(self, delta: ImageDelta, image: MetadataImage) -> None:
        racks = _racks_of(image) if delta.changed_brokers else self._racks
        if delta.changed_topics or delta.deleted_topics or racks != self._racks:
            self.topics_version += 1
        self._racks = racks
        if any(change.is_new for change in delta.changed_topics):
            self.newest_topic_version = image.offset

    def topic(self, name: str) -> SubscribableTopic | None:
        topic = self._core.image.topics.get(name)
        return None if topic is None else SubscribableTopic(topic.topic_id, len(topic.partitions))

    def racks(self, name: str) -> Sequence[Sequence[str]]:
        topic, racks = self._core.image.topics.get(name), self._racks
        if topic is None or not racks:
            return ()
        states = (topic.partitions[index] for index in range(len(topic.partitions)))
        return [[racks[broker] for broker in state.replicas if broker in racks] for state in states]

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._core.image.topic_names.get(topic_id)

    def timings(self, group_id: str) -> Timings:
        own = self._core.image.configs.get(ConfigOwner(GROUP_RESOURCE, group_id), _NOTHING)
        return Timings(*group_timings(own, self._core.settings))


def _racks_of(image: MetadataImage) -> dict[int, str]:
    """By the ids of brokers that have one."""
    return {broker_id: broker.rack for broker_id, broker in image.brokers.items() if broker.rack is not None}
