"""Markers that a power cut took, from every subset of a transaction's partitions: all of it ends as it was decided.

The players go on as if nothing had happened; what is watched and checked is what the seeds of `test_sim_transactions`
are checked for, torn transactions first of all.
"""

import os
from itertools import combinations, count
from random import Random

import pytest
from sim_txn_history import Value, Write
from sim_txn_stage import NEVER, A, B, Player, Stage, play
from sim_txn_watch import PREPARED
from sim_world import BROKER, DATA

from support.lost_tail import ends_with_marker, last_segment, lose_batches
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.coordinator.transaction.states import State
from twofold.runtime.files import read_file
from twofold.types import TopicPartition

SEEDS = 200 if os.environ.get("TWOFOLD_LONG") == "1" else 25
OFFSETS = TopicPartition(CONSUMER_OFFSETS, 0)
PLACES = (A, B, OFFSETS)
SUBSETS = [places for count in range(1, len(PLACES) + 1) for places in combinations(PLACES, count)]
COMPLETE = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


async def is_over(stage: Stage) -> None:
    await stage.until(lambda: stage.state_of() in COMPLETE, "the end of the transaction")


async def come_back(stage: Stage, lost: tuple[TopicPartition, ...]) -> None:
    runs = stage.node.runs
    lose_batches(stage.sim, BROKER, dict.fromkeys(lost, 1))
    await stage.until(lambda: stage.node.runs > runs and stage.node.up.is_set(), "the restart")


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

    async def story(stage: Stage) -> None:
        random = Random(f"lost markers {seed}")
        players = [stage.player(name, name) for name in ("one", "two")]
        for player in players:
            await player.init()
        for _ in range(4):
            for _ in range(random.randint(1, 5)):
                player = random.choice(players)
                if random.random() < 0.2:
                    await player.init()
                elif random.random() < 0.5:
                    await player.insist(commit=random.random() < 0.6)
                else:
                    await only(player, random.choice((A, B)), commit=random.random() < 0.6)
            for name in ("one", "two"):
                await stage.until(lambda name=name: stage.state_of(name) is not State.ONGOING, name)
                await stage.until(lambda name=name: stage.state_of(name) not in PREPARED, name)
            marked = [place for place in PLACES if may_lose_its_marker(stage, place)]
            await come_back(stage, tuple(place for place in marked if random.random() < 0.6))

    play(story, seed=seed)


def is_repaired(stage: Stage) -> bool:
    broker = stage.node.broker
    logs = [] if broker is None else [broker.logs.get(place) for place in PLACES]
    return bool(logs) and all(log is not None and log.last_stable_offset == log.log_end_offset for log in logs)


async def only(player: Player, partition: TopicPartition, *, commit: bool) -> None:
    """A transaction in one partition alone: others keep the marker of an earlier one as their last batch."""
    txn = player.begin()

    async def write() -> None:
        await player._send(txn, [Write(partition, Value(txn.label, 0).encode())])

    await player.transaction(txn, write, commit=commit)


def may_lose_its_marker(stage: Stage, place: TopicPartition) -> bool:
    """Whether the partition ends with one that was not synced, and was not there after the cut before either."""
    log = None if stage.node.broker is None else stage.node.broker.logs.get(place)
    if log is None or not log.exists:
        return False
    certain = max((model.durable_to for model in stage.watch.of(place)), default=0)
    if max(certain, log.recovery_point) >= log.log_end_offset:
        return False
    disk = stage.sim.disk(BROKER)
    return ends_with_marker(read_file(disk, last_segment(disk, f"{DATA}/{place}")))
