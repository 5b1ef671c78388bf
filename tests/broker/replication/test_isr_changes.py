"""Changes of in-sync replicas on their way to the controller: one request at a time, and nothing is forgotten."""

from collections.abc import Awaitable, Callable

from kits.replication.led_partitions import LedPartitions
from twofold.broker.replication.isr_changes import RETRY_S
from twofold.controller.image import PartitionState
from twofold.runtime.sim import Simulation
from twofold.wire.errors import NetworkException


def play(story: Callable[[LedPartitions], Awaitable[None]]) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            world = LedPartitions(sim)
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
