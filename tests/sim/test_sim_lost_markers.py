"""Markers that a power cut took, from every subset of a transaction's partitions: all of it ends as it was decided.

The players go on as if nothing had happened; what is watched and checked is what the seeds of `test_sim_transactions`
are checked for, torn transactions first of all.
"""

from itertools import combinations, count

import pytest

from sim.broker.world import BROKER
from sim.transactions.lost_markers import PLACES, come_back, simulate_lost_markers
from sim.transactions.stage import NEVER, Stage, play
from twofold.coordinator.transaction.states import State
from twofold.types import TopicPartition

SEEDS = 12
SUBSETS = [places for count in range(1, len(PLACES) + 1) for places in combinations(PLACES, count)]
COMPLETE = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


async def is_over(stage: Stage) -> None:
    await stage.until(lambda: stage.state_of() in COMPLETE, "the end of the transaction")


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("lost", SUBSETS, ids=lambda places: "+".join(map(str, places)))
def test_markers_lost_on_any_subset_of_partitions_are_written_again(
    lost: tuple[TopicPartition, ...], commit: bool
) -> None:
    async def story(stage: Stage) -> None:
        player = stage.player()
        await player.init()
        await player.insist()
        await player.insist(commit=commit)
        await is_over(stage)
        await come_back(stage, lost)
        await player.insist(commit=not commit)

    play(story)


@pytest.mark.slow
@pytest.mark.parametrize("power_cut", [True, False], ids=["power", "kill"])
def test_the_broker_dies_again_at_any_write_of_the_repair(power_cut: bool) -> None:
    for operations in count():
        crashes = 0

        async def story(stage: Stage, operations: int = operations) -> None:
            nonlocal crashes
            player = stage.player()
            await player.init()
            await player.insist()
            await is_over(stage)
            disk = stage.sim.disk(BROKER)
            before = disk.crashes + 1
            stage.on_started = lambda: stage.crash_after(operations, power_cut=power_cut)
            await come_back(stage, PLACES)
            await stage.until(lambda: is_repaired(stage), "the repair")
            disk.cut_power_after(NEVER)
            crashes = disk.crashes - before
            await player.insist()

        play(story, seed=operations)
        if not crashes:
            assert operations > 10
            return


@pytest.mark.parametrize("seed", range(SEEDS))
def test_lost_markers_seed(seed: int) -> None:
    """Two ids, any number of transactions to one or both partitions, and again and again the power goes."""
    simulate_lost_markers(seed)


def is_repaired(stage: Stage) -> bool:
    broker = stage.node.broker
    logs = [] if broker is None else [broker.logs.get(place) for place in PLACES]
    return bool(logs) and all(log is not None and log.last_stable_offset == log.log_end_offset for log in logs)
