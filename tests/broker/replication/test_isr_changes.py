"""Changes of in-sync replicas on their way to the controller: one request at a time, and nothing is forgotten."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from uuid import UUID

from twofold.broker.partitions.neighbours import Neighbours
from twofold.broker.partitions.partition import Partition
from twofold.broker.replication.isr_changes import RETRY_S, Identity, IsrChanges
from twofold.config.settings import Settings
from twofold.config.topic import LogConfig
from twofold.controller.image import PartitionState
from twofold.log.manager import LogManager, LogOptions
from twofold.replication.leader import FollowerFetch
from twofold.runtime.sim import Simulation
from twofold.types import TopicPartition
from twofold.wire.errors import NetworkException
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


class World:
    """Partitions that broker 1 leads and 2 follows, and a controller that answers when the test says so."""

    def __init__(self, sim: Simulation) -> None:
        self.runtime = sim.runtime("b1")
        self.config = LogConfig.resolve({}, Settings.from_mapping({}))
        self.logs = LogManager(self.runtime, "/data", LogOptions(), default_config=self.config)
        self.logs.load()
        self.broker_epoch = 10
        self.asked: list[tuple[AlterPartitionRequest, asyncio.Future[AlterPartitionResponse]]] = []
        self.changes = IsrChanges(self.runtime, lambda: Identity(1, self.broker_epoch), self._alter)
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


def play(story: Callable[[World], Awaitable[None]]) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            world = World(sim)
            await story(world)
            await world.changes.close()

        sim.run(main(), timeout_s=60)


def test_a_change_says_which_processes_are_meant():
    async def story(world):
        partition = world.partition(1)
        world.join(partition)
        await world.turn()
        ((request, _),) = world.asked
        assert (request.broker_id, request.broker_epoch) == (1, 10)
        (row,) = request.topics[0].partitions
        assert (row.leader_epoch, row.partition_epoch, row.leader_recovery_state) == (4, 7, 0)
        assert [(m.broker_id, m.broker_epoch) for m in row.new_isr_with_epochs] == [(1, 10), (2, 20)]
        world.answer()
        await world.turn()
        assert (partition.isr, partition.partition_epoch, len(world.asked)) == ((1, 2), 8, 1)

    play(story)


def test_what_is_proposed_in_one_turn_goes_together_and_the_rest_with_the_next_request():
    async def story(world):
        first, second, third = world.partition(1, 0), world.partition(1, 1), world.partition(2)
        world.join(first)
        world.join(second)
        await world.turn()
        world.join(third)
        await world.turn(1)
        assert (len(world.asked), world.named()) == (1, [(1, 0), (1, 1)])
        world.answer()
        await world.turn()
        assert (len(world.asked), world.named()) == (2, [(2, 0)])

    play(story)


def test_a_controller_that_cannot_say_is_asked_again():
    async def story(world):
        one, other = world.partition(1), world.partition(2)
        world.join(one)
        world.join(other)
        await world.turn()
        world.asked[-1][1].set_exception(NetworkException("the connection is gone"))
        await world.turn(RETRY_S / 2)
        assert len(world.asked) == 1
        await world.turn(RETRY_S)
        assert (len(world.asked), world.named()) == (2, [(1, 0), (2, 0)])
        world.answer(top=41)
        world.broker_epoch = 11  # registered again meanwhile
        await world.turn(2 * RETRY_S)
        request, _ = world.asked[-1]
        assert (len(world.asked), request.broker_epoch) == (3, 11)
        world.answer(41)
        await world.turn(2 * RETRY_S)
        assert len(world.asked) == 4
        world.answer(without=(1,))
        await world.turn(2 * RETRY_S)
        assert (other.isr, len(world.asked), world.named()) == ((1, 2), 5, [(1, 0)])
        world.answer()
        await world.turn(1)
        assert (one.isr, len(world.asked)) == ((1, 2), 5)

    play(story)


def test_what_the_metadata_has_settled_is_not_asked_again():
    async def story(world):
        partition = world.partition(1)
        world.join(partition)
        await world.turn()
        world.answer(top=77)
        partition.follow(PartitionState((1, 2), (2,), 2, 5, 8))
        await world.turn(1)
        assert len(world.asked) == 1
        world.join(world.partition(2))
        await world.turn()
        assert world.named() == [(2, 0)]

    play(story)


def test_an_answer_for_a_change_that_was_replaced_does_not_end_the_new_one():
    async def story(world):
        partition = world.partition(1)
        world.join(partition)
        await world.turn()
        partition.become_leader(PartitionState((1, 2), (1,), 1, 4, 8), 0)
        world.join(partition)
        pending = partition.leading.isr.pending
        assert pending.partition_epoch == 8
        world.answer(107)
        await world.turn()
        assert partition.leading.isr.pending == pending
        assert len(world.asked) == 2
        world.answer()
        await world.turn()
        assert (partition.isr, partition.partition_epoch) == ((1, 2), 9)

    play(story)


def test_nothing_is_asked_after_the_end():
    async def story(world):
        partition = world.partition(1)
        world.join(partition)
        await world.turn()
        await world.changes.close()
        world.join(world.partition(2))
        await world.turn(1)
        assert len(world.asked) == 1

    play(story)
