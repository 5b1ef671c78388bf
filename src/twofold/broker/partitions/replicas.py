"""The partitions of this broker: found by name or id in the metadata image, created when first used.

1. A partition with one replica exists here from its first use on, not from its creation: five thousand partitions that
   no client uses cost nothing but their rows in the image. One with several replicas exists from the image on, because
   a follower has to fetch, and a leader to hear its followers.
2. Everything is looked up in the latest image; a partition object only remembers what the image said of its leader.
3. In a new image a partition's fetcher stops before the partition leads, or goes. A log that is not for this broker any
   more goes with its partition. At the start it is set aside instead: the metadata may be another's.
4. Topics are compared by their ids: one that was deleted and created again between two images is another.
"""

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from twofold.broker.partitions.neighbours import Neighbours
from twofold.broker.partitions.partition import Partition
from twofold.broker.partitions.purgatory import Purgatory
from twofold.config.settings import Settings
from twofold.config.topic import LogConfig
from twofold.controller.delta import ImageDelta, TopicChange
from twofold.controller.image import TOPIC_RESOURCE, ConfigOwner, MetadataImage, PartitionState, TopicImage
from twofold.log.log import PartitionLog
from twofold.log.manager import LogManager
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaStorageError, NotLeaderOrFollower, UnknownTopicId, UnknownTopicOrPartition

if TYPE_CHECKING:
    from twofold.broker.replication.fetchers import ReplicaFetchers

log = logging.getLogger(__name__)


class Traffic(NamedTuple):
    """What went through partitions that were deleted: the totals of a broker never fall."""

    messages_in: int
    bytes_in: int
    bytes_out: int

    def plus(self, partition: Partition) -> "Traffic":
        return Traffic(
            self.messages_in + partition.messages_in,
            self.bytes_in + partition.bytes_in,
            self.bytes_out + partition.bytes_out,
        )


class ReplicaManager:
    def __init__(
        self, runtime: Runtime, settings: Settings, logs: LogManager, node_id: int, now_ms: Callable[[], int]
    ) -> None:
        """`now_ms`: a clock that counts the time in which this broker could listen."""
        self.neighbours = Neighbours(
            node_id,
            lambda broker_id: self.image.broker(broker_id),
            now_ms,
            lambda: self._settings.int("replica.lag.time.max.ms"),
        )
        self.purgatory = Purgatory(runtime.timers)
        self.image: MetadataImage = MetadataImage()
        self._runtime = runtime
        self._settings = settings
        self._logs = logs
        self._node_id = node_id
        self._partitions: dict[tuple[str, int], Partition] = {}
        self.gone = Traffic(0, 0, 0)
        self.on_mended: Callable[[TopicPartition], None] | None = None
        self.fetchers: ReplicaFetchers | None = None  # of a member of a cluster; set before the first image
        self.is_leaving = False  # in controlled shutdown: what was moved away is not fetched any more
        self._has_image = False
        logs.on_mended = self._take_log

    def partitions(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    # --- finding ---

    def leader(self, topic: str, index: int) -> Partition:
        """The partition, if it exists and this broker leads it."""
        partition = self._partitions.get((topic, index))
        if partition is None:
            partition = self._create(topic, index)
        if not partition.is_leader:
            raise partition.not_leading()
        return partition

    def hosted(self, topic: str, index: int) -> Partition:
        """The partition, if it exists and this broker has a replica of it in use, or leads it."""
        partition = self._partitions.get((topic, index))
        return self._create(topic, index) if partition is None else partition

    def find(self, topic: str, index: int) -> Partition | None:
        """The partition if it was used."""
        return self._partitions.get((topic, index))

    def topic_name(self, topic_id: UUID) -> str:
        """The name behind a topic id."""
        name = self.image.topic_names.get(topic_id)
        if name is None:
            raise UnknownTopicId(f"no topic has the id {topic_id}")
        return name

    def _create(self, name: str, index: int) -> Partition:
        topic, state = self.state(name, index)
        if state.leader != self._node_id:
            raise NotLeaderOrFollower(f"{name}-{index}: broker {state.leader} leads, not this one")
        partition = self._make(topic, index)
        self._follow(partition, state)
        self._partitions[partition.topic_partition] = partition
        return partition

    def _make(self, topic: TopicImage, index: int) -> Partition:
        topic_partition = TopicPartition(topic.name, index)
        partition_log = self._logs.get_or_create(topic_partition, topic.topic_id, self.log_config(topic.name))
        return Partition(topic_partition, topic.topic_id, partition_log, self._runtime.spawn, self.neighbours)

    def state(self, name: str, index: int) -> tuple[TopicImage, PartitionState]:
        """What the image says of a partition."""
        topic = self.image.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name}")
        state = topic.partitions.get(index)
        if state is None:
            raise UnknownTopicOrPartition(f"topic {name} has {len(topic.partitions)} partitions, {index} is not one")
        return topic, state

    def log_config(self, topic: str) -> LogConfig:
        return LogConfig.resolve(self.image.topic_configs(topic), self._settings)

    # --- following the metadata ---

    def apply(self, delta: ImageDelta, image: MetadataImage, settings: Settings) -> None:
        """Make what is here agree with a new image."""
        self.image = image
        settings_changed = settings is not self._settings
        self._settings = settings
        if self.fetchers is not None and not self._has_image:
            self.set_strays_aside()
        self._has_image = True
        for topic in delta.deleted_topics:
            self._delete(topic)
        for change in delta.changed_topics:
            if self.fetchers is not None:
                self._follow_replicas(change, self.fetchers)
            elif not change.is_new:  # a new one was never used
                self._follow_topic(change)
        if self.fetchers is not None and delta.changed_brokers:
            self.fetchers.brokers_changed()
            for partition in self._partitions.values():
                partition.look_at_followers()  # one that is gone holds nothing back
        for partition_log in self._logs.logs() if settings_changed or delta.changed_configs else ():
            name = partition_log.topic_partition.topic
            if settings_changed or ConfigOwner(TOPIC_RESOURCE, name) in delta.changed_configs:
                partition_log.update_config(self.log_config(name))

    def _follow_topic(self, change: TopicChange) -> None:
        name, states = change.topic.name, change.topic.partitions
        if len(change.partitions) > len(self._partitions):
            changed = set(change.partitions)
            used = [index for topic, index in self._partitions if topic == name and index in changed]
        else:
            used = [index for index in change.partitions if (name, index) in self._partitions]
        for index in used:
            self._follow(self._partitions[name, index], states[index])

    def _follow_replicas(self, change: TopicChange, fetchers: "ReplicaFetchers") -> None:
        """In a cluster: what the image says of each partition, for a broker that may have a replica of it, or had."""
        topic = change.topic
        for index, state in change.changed():
            name = TopicPartition(topic.name, index)
            partition = self._partitions.get(name)
            if self._node_id not in state.replicas:
                if partition is not None or self._logs.get(name) is not None:
                    self._leave(name, state)
                continue
            if partition is None:
                if len(state.replicas) == 1:
                    continue
                partition = self._partitions[name] = self._make(topic, index)
            self._follow_replica(partition, state, fetchers)

    def _follow_replica(self, partition: Partition, state: PartitionState, fetchers: "ReplicaFetchers") -> None:
        name, is_leader = partition.topic_partition, state.leader == self._node_id
        should_fetch = state.has_leader and not is_leader and not (self.is_leaving and self._node_id not in state.isr)
        if not should_fetch:
            fetchers.stop(name)
        try:
            self._follow(partition, state)
        except KafkaStorageError as error:  # tried again when the log was mended; the other partitions go on
            log.error("%s cannot be led: %s", name, error)
        if should_fetch:
            fetchers.follow(partition, state.leader, state.leader_epoch)

    def _leave(self, name: TopicPartition, state: PartitionState) -> None:
        """The partition was moved to other brokers."""
        assert self.fetchers is not None
        self.fetchers.stop(name)
        partition = self._partitions.pop(name, None)
        if partition is not None:
            self._follow(partition, state)
            self.gone = self.gone.plus(partition)
        self._logs.delete(name)

    def _delete(self, topic: TopicImage) -> None:
        logs = self._logs.logs()
        if len(logs) < len(topic.partitions):  # most were never used
            doomed = [one.topic_partition for one in logs if one.topic_partition.topic == topic.name]
        else:
            doomed = [TopicPartition(topic.name, index) for index in topic.partitions]
        for topic_partition in doomed:
            if self.fetchers is not None:
                self.fetchers.stop(topic_partition)
            partition = self._partitions.pop(topic_partition, None)
            if partition is not None:
                partition.delete()
                self.gone = self.gone.plus(partition)
            self._logs.delete(topic_partition)

    def _follow(self, partition: Partition, state: PartitionState) -> None:
        if state.leader == self._node_id:
            partition.become_leader(state, self.neighbours.now_ms())
        else:
            partition.follow(state)

    def _take_log(self, mended: PartitionLog) -> None:
        """A log had failed and was opened anew; its settings may have changed meanwhile."""
        topic_partition = mended.topic_partition
        if self.image.topic(topic_partition.topic) is not None:
            mended.update_config(self.log_config(topic_partition.topic))
        partition = self._partitions.get(topic_partition)
        if partition is not None:
            partition.take_log(mended)
            state = self.image.partition(*topic_partition)
            if self.fetchers is not None and state is not None:
                self._follow_replica(partition, state, self.fetchers)
                self.fetchers.refresh(topic_partition)
        if self.on_mended is not None:
            self.on_mended(topic_partition)

    def set_strays_aside(self) -> None:
        """Logs that the metadata does not want here: of a topic that it does not know, because a deletion was cut short
        or because it is another's, or of a partition that has no replica on this broker.

        A topic that is created later under the same name must not find them.
        """
        for partition_log in self._logs.logs():
            state = self.image.partition(*partition_log.topic_partition)
            if state is None or self._node_id not in state.replicas:
                self._logs.set_aside(partition_log.topic_partition)
