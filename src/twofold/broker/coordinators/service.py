"""A coordinator of this broker: a shard for each partition of its internal topic that the broker leads.

1. A key (a group, a transactional id) belongs to the partition that its hash chooses; the leader of that partition
   coordinates it. Every other broker answers NOT_COORDINATOR.
2. Shards follow the metadata: led in a new epoch means loaded anew, led by another means resigned.
3. The number of partitions is fixed when the topic is first seen: with another number every key would hash elsewhere.
"""

import asyncio
import logging
from typing import Any, Generic, TypeVar

from twofold.broker.coordinators.shard import CoordinatorShard
from twofold.broker.core import BrokerCore
from twofold.config.internal_topics import coordinator_partition
from twofold.controller.delta import ImageDelta
from twofold.types import TopicPartition
from twofold.wire.errors import CoordinatorNotAvailable, NotCoordinator

Sh = TypeVar("Sh", bound=CoordinatorShard[Any, Any])

log = logging.getLogger(__name__)


class CoordinatorService(Generic[Sh]):
    topic: str
    what: str  # a key is, in messages

    def __init__(self, core: BrokerCore) -> None:
        self.shards: dict[int, Sh] = {}
        self._core = core
        self._partitions = 0
        self._is_open = False
        self._stopping = False

    # --- what a kind of coordinator adds ---

    def make_shard(self, index: int, epoch: int) -> Sh:
        raise TypeError(f"{type(self).__name__} does not say how its shards are made")

    async def load_shard(self, shard: Sh) -> None:
        raise TypeError(f"{type(self).__name__} does not say how its shards are loaded")

    # --- finding ---

    def shard(self, key: str) -> Sh:
        """The shard of a key, if it is here and ready."""
        if self._stopping:
            raise CoordinatorNotAvailable("the broker is stopping")
        shard = self.shards.get(coordinator_partition(key, self._partitions)) if self._partitions else None
        if shard is None:
            raise NotCoordinator(f"{self.what} {key} is not coordinated by this broker")
        if not shard.is_active:
            shard.check_active()
        return shard

    def led(self) -> list[Sh]:
        return [shard for _, shard in sorted(self.shards.items())]

    # --- following the metadata ---

    def follow(self, delta: ImageDelta) -> None:
        """Called with every new image, after the replicas."""
        if any(topic.name == self.topic for topic in delta.deleted_topics):
            self._partitions = 0
            for index in list(self.shards):
                self._resign(index)
        for change in delta.changed_topics:
            if change.topic.name == self.topic:
                self._fix_partitions(len(change.topic.partitions))
                for index, state in change.changed():
                    if state.leader == self._core.node_id:
                        self._lead(index, state.leader_epoch)
                    else:
                        self._resign(index)

    def _fix_partitions(self, partitions: int) -> None:
        if self._partitions not in (0, partitions):
            log.error(
                "%s has %d partitions now; its keys stay on the first %d, since every key would belong elsewhere",
                self.topic, partitions, self._partitions,
            )  # fmt: skip
            return
        self._partitions = partitions

    def _lead(self, index: int, epoch: int) -> None:
        known = self.shards.get(index)
        if self._stopping or index >= self._partitions or (known is not None and known.epoch >= epoch):
            return
        self._resign(index)
        shard = self.shards[index] = self.make_shard(index, epoch)
        if self._is_open:
            self._begin(shard)

    def reload(self, partition: TopicPartition) -> None:
        """Its log had failed and was opened anew: it may hold more or less than the shard knows."""
        known = self.shards.get(partition.partition) if partition.topic == self.topic else None
        if known is not None and not self._stopping:
            self._resign(known.index, f"the log of {known} had failed, it is loaded anew")
            shard = self.shards[known.index] = self.make_shard(known.index, known.epoch)
            if self._is_open:
                self._begin(shard)

    def open(self) -> "list[asyncio.Task[None]]":
        """Begin to load what is led. Not earlier than the broker is registered, which begins a new epoch of all that it
        leads: what was loaded for the one before would be loaded twice."""
        self._is_open = True
        begun = [self._begin(shard) for shard in self.led()]
        return [task for task in begun if task is not None]

    def _begin(self, shard: Sh) -> "asyncio.Task[None] | None":
        known_log = self._core.logs.get(TopicPartition(self.topic, shard.index))
        if known_log is None or not known_log.exists:
            shard.open_empty()
            return None
        return self._core.runtime.spawn(self.load_shard(shard), name=f"load {shard}")

    def _resign(self, index: int, reason: str = "") -> None:
        shard = self.shards.pop(index, None)
        if shard is not None:
            shard.resign(NotCoordinator(reason or f"{shard} is led by another broker"))

    def stop(self) -> None:
        self._stopping = True
        for index in list(self.shards):
            self._resign(index)
