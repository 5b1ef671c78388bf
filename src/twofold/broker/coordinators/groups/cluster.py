"""The topics of the cluster and the configurations of groups, as the machine of consumer groups asks for them."""

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

    def apply(self, delta: ImageDelta, image: MetadataImage) -> None:
        if delta.changed_topics or delta.deleted_topics:
            self.topics_version += 1
        if any(change.is_new for change in delta.changed_topics):
            self.newest_topic_version = image.offset

    def topic(self, name: str) -> SubscribableTopic | None:
        topic = self._core.image.topics.get(name)
        return None if topic is None else SubscribableTopic(topic.topic_id, len(topic.partitions))

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._core.image.topic_names.get(topic_id)

    def timings(self, group_id: str) -> Timings:
        own = self._core.image.configs.get(ConfigOwner(GROUP_RESOURCE, group_id), _NOTHING)
        return Timings(*group_timings(own, self._core.settings))
