"""The group coordinator of this broker: its shards, and what goes on in them without being asked.

1. Offsets that no client used for `offsets.retention.minutes`, and those of deleted topics, are removed in the
   background, some hundred groups at a time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from twofold.broker.coordinators.groups.cluster import ClusterOfGroups
from twofold.broker.coordinators.groups.shard import GroupShard
from twofold.broker.coordinators.service import CoordinatorService
from twofold.broker.core import BrokerCore
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.controller.delta import ImageDelta
from twofold.controller.features import GROUP_VERSION
from twofold.controller.image import MetadataImage
from twofold.coordinator.group.consumer.checks import check_request
from twofold.coordinator.group.consumer.subscriptions import Resolution
from twofold.coordinator.group.consumer.surroundings import ConsumerGroupConfig
from twofold.coordinator.group.context import Client, GroupConfig
from twofold.coordinator.group.patterns import matching
from twofold.coordinator.group.records import LogRecord, TransactionEnd
from twofold.coordinator.group.state import GroupsState
from twofold.log.api import TransactionMarker
from twofold.machine.runtime import Result
from twofold.records.compression import Codec
from twofold.wire.errors import CoordinatorNotAvailable, InvalidGroupId, KafkaError, NotCoordinator, UnsupportedVersion
from twofold.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

OFFSETS_PER_TURN = 2000
NAMES_PER_TURN = 2000  # that patterns are matched with

R = TypeVar("R")
T = TypeVar("T")

log = logging.getLogger(__name__)


class GroupService(CoordinatorService[GroupShard]):
    topic = CONSUMER_OFFSETS
    what = "group"

    def __init__(self, core: BrokerCore) -> None:
        super().__init__(core)
        self._config = GroupConfig.from_settings(core.settings)
        self._consumer_config = ConsumerGroupConfig.from_settings(core.settings)
        self.cluster = ClusterOfGroups(core)
        self._deleted_topics: dict[int, set[str]] = {}  # by shard, of those that are still to be cleaned up

    def shard(self, group_id: str, *, allow_empty: bool = False) -> GroupShard:
        """The shard of a group, if it is here and ready."""
        if not group_id and not allow_empty:
            raise InvalidGroupId("the group id is empty")
        return super().shard(group_id)

    def check_room(self) -> None:
        """What a group wants to remember must leave the room alone that ends transactions."""
        if self._core.logs.reserve.is_short:
            raise CoordinatorNotAvailable("the disk is full: no offsets can be committed")

    # --- following the metadata ---

    def apply(self, delta: ImageDelta, image: MetadataImage) -> None:
        self.cluster.apply(delta, image)
        self.follow(delta)
        gone = {topic.name for topic in delta.deleted_topics}
        if gone:
            self._forget_topics(gone)

    def make_shard(self, index: int, epoch: int) -> GroupShard:
        core = self._core
        settings = core.settings
        return GroupShard(
            index,
            epoch,
            lambda: core.replicas.leader(CONSUMER_OFFSETS, index),
            core.runtime,
            core.attention,
            core.replicas.purgatory,
            self._config,
            self.cluster,
            consumer_config=self._consumer_config,
            commit_timeout_ms=settings.int("offsets.commit.timeout.ms"),
            codec=Codec(settings.int("offsets.topic.compression.codec")),
        )

    async def load_shard(self, shard: GroupShard) -> None:
        await shard.load(self._core.settings.int("offsets.load.buffer.size"))
        if self._deleted_topics.get(shard.index):
            await self._clean_up_topics(shard)

    def answer_early(self) -> None:
        """The broker stops: requests that wait for other members are answered."""
        self._stopping = True
        for shard in self.led():
            shard.stop_waiting(NotCoordinator("the broker is stopping"))

    # --- consumer groups ---

    def check_consumer_protocol(self) -> None:
        """Whether the cluster and this broker serve groups of the consumer protocol."""
        if not self._core.image.features.get(GROUP_VERSION, 0):
            raise UnsupportedVersion("group.version is 0: raise it with `twofold cluster features set group.version=1`")
        if "consumer" not in self._core.settings.list("group.coordinator.rebalance.protocols"):
            raise UnsupportedVersion("group.coordinator.rebalance.protocols does not have `consumer`")

    def consumer_heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> "asyncio.Future[ConsumerGroupHeartbeatResponse]":
        check_request(request, context.version, self._consumer_config)
        shard = self.shard(request.group_id)

        def resolve(resolution: Resolution) -> None:
            name = f"patterns of group {resolution.group_id}"
            self._core.runtime.spawn(self._resolve(shard, resolution, context), name=name)

        return shard.consumer_heartbeat(request, client_of(context), resolve)

    async def _resolve(self, shard: GroupShard, resolution: Resolution, context: RequestContext) -> None:
        """Find the topics of a group's patterns that the client which asked may see; others are served in between."""
        try:
            image, authorizer = self._core.image, self._core.authorizer
            found: dict[str, set[str]] = {pattern: set() for pattern in resolution.patterns}
            names = list(image.topics)
            for start in range(0, len(names), NAMES_PER_TURN):
                some = names[start : start + NAMES_PER_TURN]
                for pattern, topics in found.items():
                    topics.update(matching(pattern, some))
                await self._core.runtime.timers.sleep(0)
            wanted = sorted(set().union(*found.values()))
            allowed = {
                name
                for name in wanted
                if authorizer.authorize(context, Operation.DESCRIBE, AclResourceType.TOPIC, name, quiet=True)
            }
            outcome = {pattern: frozenset(topics & allowed) for pattern, topics in found.items()}
            shard.resolved(resolution, outcome, image.offset)
        except KafkaError as error:
            log.warning("the patterns of group %s are not resolved now: %s", resolution.group_id, error)
        finally:
            shard.consumers.resolution_ended(resolution.group_id)

    # --- in the background ---

    async def run_background(self) -> None:
        """Let offsets and groups expire, until cancelled."""
        timers = self._core.runtime.timers
        while True:
            await timers.sleep(self._core.settings.int("offsets.retention.check.interval.ms") / 1000)
            if self._core.logs.clock_watch.is_doubtful():
                continue
            for shard in self.led():
                await self._sweep(
                    shard, lambda shard, state, group_id: shard.offsets.expire(state, group_id, shard.now())
                )

    def _forget_topics(self, topics: Iterable[str]) -> None:
        for shard in self.led():
            known = self._deleted_topics.setdefault(shard.index, set())
            known.update(topics)
            if shard.is_active:
                self._core.runtime.spawn(self._clean_up_topics(shard), name=f"offsets of deleted topics in {shard}")

    async def _clean_up_topics(self, shard: GroupShard) -> None:
        topics = self._deleted_topics.pop(shard.index, set())
        # A topic that was created again meanwhile may have new commits.
        gone = [topic for topic in sorted(topics) if self._core.image.topic(topic) is None]
        if gone:
            await self._sweep(shard, lambda shard, state, group_id: shard.offsets.delete_topics(state, group_id, gone))

    async def _sweep(self, shard: GroupShard, find: Callable[[GroupShard, GroupsState, str], list[LogRecord]]) -> None:
        """Write what `find` says of each group; a turn of the loop looks at a bounded number of offsets."""
        looked_at = 0
        for group_id in sorted([*shard.state.groups, *shard.state.consumers]):
            if not shard.is_active:
                return
            state = shard.state
            looked_at += 1 + sum(map(len, state.topics(group_id).values()))
            records = find(shard, state, group_id)
            if records:
                self._remove(shard, group_id, records)
            if looked_at >= OFFSETS_PER_TURN:
                looked_at = 0
                await self._core.runtime.timers.sleep(0)

    def _remove(self, shard: GroupShard, group_id: str, records: list[LogRecord]) -> None:
        try:
            done = shard.remove(lambda state, now: Result(records, None), group_id)
        except KafkaError as error:
            log.warning("%d offsets of group %s are not removed now: %s", len(records), group_id, error)
        else:
            done.add_done_callback(lambda done: done.cancelled() or done.exception())  # tried again in the next round

    # --- transactions ---

    def complete_transaction(
        self,
        partition: int,
        ending: TransactionMarker,
        *,
        durable: bool = False,
    ) -> "asyncio.Future[None]":
        """Write the marker of a transaction to a partition of `__consumer_offsets`; done when its offsets are visible.

        What the log refuses is raised: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        shard = self.shards.get(partition)
        if shard is None:
            raise NotCoordinator(f"{CONSUMER_OFFSETS}-{partition} is led by another broker")
        shard.check_active()
        marker = TransactionEnd(*ending)
        shard.partition.two_phase.pop(ending.producer_id, None)
        return shard.write_in_transaction(lambda state, now: Result([marker], None), durable=durable)


def client_of(context: RequestContext) -> Client:
    return Client(context.version, context.client_id or "", f"/{context.client_host}")
