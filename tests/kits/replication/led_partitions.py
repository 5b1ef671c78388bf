"""Partitions that broker 1 leads and broker 2 follows, without a broker around them; the test is the controller."""

import asyncio
from typing import NamedTuple
from uuid import UUID

from twofold.broker.partitions.neighbours import Neighbours
from twofold.broker.partitions.partition import Partition
from twofold.broker.replication.isr_changes import BrokerIdentity, IsrChanges
from twofold.config.settings import Settings
from twofold.config.topic import LogConfig
from twofold.controller.image import PartitionState
from twofold.log.manager import LogManager, LogOptions
from twofold.replication.leader import FollowerFetch
from twofold.runtime.sim import Simulation
from twofold.types import TopicPartition
from twofold.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionDataResult,
    TopicDataResult,
)

LAG_MS = 30_000


class Broker(NamedTuple):
    epoch: int
    is_active: bool = True


class LedPartitions:
    """Requests for changes of in-sync replicas wait until the test answers them."""

    def __init__(self, sim: Simulation) -> None:
        self.runtime = sim.runtime("b1")
        self.config = LogConfig.resolve({}, Settings.from_mapping({}))
        self.logs = LogManager(self.runtime, "/data", LogOptions(), default_config=self.config)
        self.logs.load()
        self.broker_epoch = 10
        self.asked: list[tuple[AlterPartitionRequest, asyncio.Future[AlterPartitionResponse]]] = []
        self.changes = IsrChanges(self.runtime, lambda: BrokerIdentity(1, self.broker_epoch), self._alter)
        self.neighbours = Neighbours(1, {1: Broker(10), 2: Broker(20)}.get, lambda: 0, lambda: LAG_MS)
        self.neighbours.propose = self.changes.propose

    async def _alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        answer: asyncio.Future[AlterPartitionResponse] = asyncio.get_running_loop().create_future()
        self.asked.append((request, answer))
        return await answer

    def partition(self, topic: int, index: int = 0) -> Partition:
        name = TopicPartition(f"t{topic}", index)
        partition_log = self.logs.get_or_create(name, UUID(int=topic), self.config)
        partition = Partition(name, UUID(int=topic), partition_log, self.runtime.spawn, self.neighbours)
        partition.become_leader(PartitionState((1, 2), (1,), 1, 4, 7), 0)
        return partition

    def join(self, partition: Partition) -> None:
        partition.followed(2, FollowerFetch(0, 0, 20))

    async def turn(self, seconds: float = 0.0) -> None:
        await self.runtime.timers.sleep(seconds)
        for _ in range(5):
            await self.runtime.timers.sleep(0)

    def answer(self, code: int = 0, *, top: int = 0, without: tuple[int, ...] = ()) -> None:
        """To the request that was asked last: `code` in every row but those of the topics `without`."""
        request, answer = self.asked[-1]
        topics = [
            TopicDataResult(
                topic_id=topic.topic_id,
                partitions=[
                    PartitionDataResult(
                        partition_index=row.partition_index,
                        error_code=code,
                        leader_id=1,
                        leader_epoch=row.leader_epoch,
                        isr=[member.broker_id for member in row.new_isr_with_epochs],
                        partition_epoch=row.partition_epoch + 1,
                    )
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
            if topic.topic_id is not None and topic.topic_id.int not in without
        ]
        answer.set_result(AlterPartitionResponse(error_code=top, topics=() if top else topics))

    def named(self) -> list[tuple[int, int]]:
        """The partitions of the last request."""
        request, _ = self.asked[-1]
        return [
            (topic.topic_id.int, row.partition_index)
            for topic in request.topics
            if topic.topic_id is not None
            for row in topic.partitions
        ]
