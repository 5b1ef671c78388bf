"""Prepared means durable: what a two-phase producer was told survives a power cut, whatever the settings of flushing.

Other producers may lose at a power cut what they were told; that is how Kafka is configured by default, and the tests
here show it, so that they would notice if a disk lost nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kits.node.sim_node import COORDINATORS, NODE
from kits.node.two_phase_node import NONE, Given, TwoPhaseNode, play
from kits.node.txn_node import Pair
from twofold.broker.coordinators.transactions.shard import TransactionShard
from twofold.config.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE, coordinator_partition
from twofold.coordinator.transaction.records import NEVER_MS
from twofold.runtime.sim import CutMode
from twofold.types import TopicPartition

SEEDS = range(2)
MODES = pytest.mark.parametrize("cut_mode", [CutMode.ORDERED, CutMode.REORDERED], ids=["ordered", "reordered"])
VERBS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
PARTITIONS = {TopicPartition("t", 0), TopicPartition("t", 1)}


@dataclass
class Told:
    """What the client of a story was told, and nothing else."""

    two_phase: bool = True
    pair: Pair = NONE
    holder: Pair = NONE
    records: dict[int, int] = field(default_factory=dict)
    offset: int | None = None
    decision: bool | None = None
    is_complete: bool = False


async def init(node: TwoPhaseNode, told: Told) -> None:
    told.pair = told.holder = (await node.vow(two_phase=told.two_phase)).pair


async def produce(node: TwoPhaseNode, told: Told, partition: int) -> None:
    sequence = told.records.get(partition, 0)
    assert await node.send_batch(told.pair, partition, sequence)() == 0
    told.records[partition] = sequence + 1


async def first(node: TwoPhaseNode, told: Told) -> None:
    await produce(node, told, 0)


async def second(node: TwoPhaseNode, told: Told) -> None:
    await produce(node, told, 1)


async def offsets(node: TwoPhaseNode, told: Told) -> None:
    assert await node.commit_offset(told.pair, 7) == 0
    told.offset = 7


async def keep(node: TwoPhaseNode, told: Told) -> None:
    given = await node.keep(two_phase=told.two_phase)
    assert given.ongoing == told.pair
    assert given.pair > told.holder, "no identity is given out twice"
    told.holder = given.pair


async def commit(node: TwoPhaseNode, told: Told) -> None:
    told.holder = await node.end(told.holder, True, version=5)
    told.decision = True


async def abort(node: TwoPhaseNode, told: Told) -> None:
    told.holder = await node.end(told.holder, False, version=5)
    told.decision = False


async def complete(node: TwoPhaseNode, told: Told) -> None:
    await node.settled()
    told.is_complete = True


Step = Callable[[TwoPhaseNode, Told], Awaitable[None]]
COMMITTED: list[Step] = [init, first, offsets, second, first, keep, keep, commit, complete]
ABORTED: list[Step] = [init, first, second, offsets, second, keep, abort, complete]
PLAIN: list[Step] = [init, first, offsets, second, commit, complete]


async def check(node: TwoPhaseNode, told: Told) -> None:
    """All that was told is there, and nothing was decided that nobody asked for."""
    if told.pair == NONE:
        return
    if told.decision is not None:
        assert await node.settled() == ("CompleteCommit" if told.decision else "CompleteAbort")
        entry = node.entry()
        assert (entry.producer_id, entry.producer_epoch) == told.holder
    else:
        main, client = node.identities()
        assert main == told.pair
        assert told.holder in (main, client)
        assert await node.state() == ("Ongoing" if told.records or told.offset else "Empty")
        assert node.entry().timeout_ms == NEVER_MS
    for partition, count in told.records.items():
        assert await node.read(partition, committed=False) == list(range(count))
        visible = list(range(count)) if told.decision else []
        assert await node.read(partition) == visible
    if told.offset is not None:
        stable = await node.offset()
        assert stable == {None: "error 88", True: told.offset, False: -1}[told.decision]


def tell(steps: list[Step], cut_after: Callable[[int], bool], *, two_phase: bool = True, **how: Any) -> Told:
    """The steps, with power cuts; each is followed by a look at what is left."""
    told = Told(two_phase)

    async def story(node: TwoPhaseNode) -> None:
        await node.ready()
        for place, step in enumerate(steps):
            await step(node, told)
            if cut_after(place):
                await node.cut_power()
                await check(node, told)
        await check(node, told)

    play(story, **how)
    return told


# A power cut after each answer


@MODES
@pytest.mark.parametrize("place", range(len(COMMITTED)), ids=lambda place: f"{place}-{COMMITTED[place].__name__}")
def test_a_power_cut_after_any_answer_takes_nothing_of_a_commit(place: int, cut_mode: CutMode) -> None:
    for seed in SEEDS:
        told = tell(COMMITTED, place.__eq__, seed=seed, cut_mode=cut_mode)
        assert told.records == {0: 2, 1: 1}


@MODES
@pytest.mark.parametrize("place", range(len(ABORTED)), ids=lambda place: f"{place}-{ABORTED[place].__name__}")
def test_a_power_cut_after_any_answer_takes_nothing_of_an_abort(place: int, cut_mode: CutMode) -> None:
    for seed in SEEDS:
        tell(ABORTED, place.__eq__, seed=seed, cut_mode=cut_mode)


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("steps", [COMMITTED, ABORTED], ids=["commit", "abort"])
def test_a_power_cut_after_every_answer(steps: list[Step], cut_mode: CutMode) -> None:
    for seed in range(3):
        tell(steps, lambda place: True, seed=seed, cut_mode=cut_mode)


@pytest.mark.slow
def test_a_power_cut_may_take_what_another_producer_was_told() -> None:
    """As configured: this is what the tests above would see without the syncs."""
    lost = 0
    for seed in SEEDS:
        for place in range(len(PLAIN)):
            try:
                tell(PLAIN, place.__eq__, two_phase=False, seed=seed)
            except (AssertionError, KeyError, TypeError):
                lost += 1
    assert lost >= len(PLAIN)


# The older protocol, other acks


@pytest.mark.slow
@pytest.mark.parametrize("verified", [True, False])
def test_the_older_protocol_is_as_durable(verified: bool) -> None:
    async def story(node: TwoPhaseNode) -> None:
        await node.ready()
        pair = (await node.vow()).pair
        assert await node.add(pair, 0, 1) == [0, 0]
        group = {"transactional_id": "x", "group_id": "g", "producer_id": pair[0], "producer_epoch": pair[1]}
        assert (await node.ask("AddOffsetsToTxn", 4, **group))["error_code"] == 0
        for partition in (0, 1):
            assert await node.send_batch(pair, partition, version=11)() == 0
        assert await node.commit_offset(pair, 7, version=4) == 0
        await node.cut_power()
        assert await node.read(0, committed=False) == await node.read(1, committed=False) == [0]
        assert await node.offset() == "error 88"
        assert await node.send_batch(pair, 0, 1, version=11)() == 0
        await node.cut_power()
        assert await node.read(0, committed=False) == [0, 1]
        assert await node.end(pair, True, version=4) == 0
        await node.cut_power()
        assert await node.settled() == "CompleteCommit"
        await node.cut_power()
        assert await node.read(0) == [0, 1]
        assert await node.offset() == 7

    for seed in range(3):
        play(story, seed, transaction_partition_verification_enable=str(verified).lower())


def test_an_acknowledgement_of_the_leader_alone_waits_for_its_disk_too() -> None:
    async def story(node: TwoPhaseNode) -> None:
        pair = (await node.vow()).pair
        assert await node.send_batch(pair, acks=1)() == 0
        await node.cut_power()
        assert await node.read(committed=False) == [0]

    for seed in SEEDS:
        play(story, seed)


# Answers to who asks again


def test_a_repeated_batch_is_not_acknowledged_before_the_first_one_is_on_disk() -> None:
    async def story(node: TwoPhaseNode) -> None:
        pair = (await node.vow()).pair
        assert await node.send_batch(pair)() == 0
        node.sim.blocking_delay_s = (1.0, 1.0)
        answers = [node.send_batch(pair, 0, 1) for _ in range(3)]
        await node.sleep(0.9)
        assert not any(answer.is_answered() for answer in answers), "the disk is slow"
        assert node.end_offset() == 2
        await node.sleep(2)
        assert [await answer() for answer in answers] == [0, 0, 0]
        await node.cut_power()
        assert await node.read(committed=False) == [0, 1]

    for seed in SEEDS:
        play(story, seed)


def test_what_a_killed_process_left_unsynced_is_synced_before_it_is_acknowledged_to_a_retry() -> None:
    async def story(node: TwoPhaseNode) -> None:
        pair = (await node.vow()).pair
        assert await node.send_batch(pair)() == 0
        node.sim.blocking_delay_s = (1.0, 1.0)
        sent = [node.send_batch(pair, 0, 1), node.send_batch(pair, 1, 0)]
        await node.sleep(0.5)
        assert not any(answer.is_answered() for answer in sent)
        node.sim.blocking_delay_s = (0.00001, 0.002)
        await node.kill()
        assert await node.send_batch(pair, 0, 1)() == 0, "written by the process before, a repetition for this one"
        assert await node.send_batch(pair, 1, 0)() == 0
        assert (node.end_offset(0), node.end_offset(1)) == (2, 1)
        await node.cut_power()
        assert await node.read(0, committed=False) == [0, 1]
        assert await node.read(1, committed=False) == [0]
        assert node.entry().partitions == PARTITIONS

    for seed in SEEDS:
        play(story, seed)


@VERBS
def test_a_decision_that_a_killed_process_left_unsynced_is_on_disk_before_it_is_told_again(commit: bool) -> None:
    async def story(node: TwoPhaseNode) -> None:
        await node.prepared()
        given = await node.keep()
        node.sim.blocking_delay_s = (1.0, 1.0)
        body = {"transactional_id": "x", "producer_id": given.pair[0], "producer_epoch": given.pair[1]}
        sent = node.send("EndTxn", 5, committed=commit, **body)
        await node.sleep(0.5)
        assert not sent.is_answered()
        node.sim.blocking_delay_s = (0.00001, 0.002)
        await node.kill()
        after = await node.end(given.pair, commit, version=5)
        assert after == (given.pair[0], given.pair[1] + 1)
        await node.cut_power()
        assert await node.settled() == ("CompleteCommit" if commit else "CompleteAbort")
        assert await node.end(given.pair, commit, version=5) == after

    for seed in SEEDS:
        play(story, seed)


# Markers


@VERBS
def test_markers_are_on_disk_before_the_transaction_is_complete(monkeypatch: pytest.MonkeyPatch, commit: bool) -> None:
    completed: list[dict[TopicPartition, bool]] = []
    watched: list[TwoPhaseNode] = []
    original = TransactionShard._complete

    def complete(shard: TransactionShard, *args: Any) -> None:
        (node,) = watched
        completed.append({name: log.recovery_point == log.log_end_offset for name, log in node.logs().items()})
        original(shard, *args)

    monkeypatch.setattr(TransactionShard, "_complete", complete)

    async def story(node: TwoPhaseNode) -> None:
        watched[:] = [node]
        await node.prepared(offset=7)
        given = await node.keep()
        await node.end(given.pair, commit, version=5)
        await node.settled()
        await node.cut_power()
        for partition in (0, 1):
            assert node.stable_offset(partition) == node.end_offset(partition) == 2
        assert await node.offset() == (7 if commit else -1)

    for seed in SEEDS:
        play(story, seed)
    assert len(completed) == len(SEEDS) and all(all(row.values()) for row in completed), completed


@VERBS
def test_a_kill_between_marker_and_sync_leaves_no_transaction_hanging(commit: bool) -> None:
    async def story(node: TwoPhaseNode) -> None:
        await node.prepared(offset=7)
        given = await node.keep()
        await node.end(given.pair, commit, version=5)
        while node.end_offset() == 1:
            await node.sleep(0.00001)
        assert await node.state() in ("PrepareCommit", "PrepareAbort")
        await node.kill()
        await node.settled()
        await node.cut_power()
        assert await node.settled() == ("CompleteCommit" if commit else "CompleteAbort")
        for partition in (0, 1):
            assert node.stable_offset(partition) == node.end_offset(partition) >= 2
        assert await node.offset() == (7 if commit else -1)

    for seed in SEEDS:
        play(story, seed)


# A transaction that becomes a two-phase one when it is prepared (decision 16)


async def unprepared(node: TwoPhaseNode) -> Pair:
    """An open transaction of a producer that promised nothing yet, and nothing of it on disk."""
    await node.ready()
    pair: Pair = (await node.vow(two_phase=False)).pair
    for partition in (0, 1):
        assert await node.produce(pair, partition, version=12) == 0
    assert await node.commit_offset(pair, 7) == 0
    return pair


def is_on_disk(node: TwoPhaseNode) -> list[bool]:
    return [log.recovery_point == log.log_end_offset for log in node.logs().values()]


@VERBS
@MODES
def test_a_transaction_that_is_converted_is_on_disk_when_that_is_answered(commit: bool, cut_mode: CutMode) -> None:
    async def story(node: TwoPhaseNode) -> None:
        pair = await unprepared(node)
        assert is_on_disk(node) == [False] * 3
        given = await node.keep()
        assert given == Given((pair[0], pair[1] + 1), pair)
        assert is_on_disk(node) == [True] * 3
        await node.cut_power()
        assert node.identities() == (pair, given.pair)
        assert node.entry().timeout_ms == NEVER_MS
        assert await node.read(0, committed=False) == await node.read(1, committed=False) == [0]
        assert await node.offset() == "error 88"
        given = await node.keep()
        assert given.ongoing == pair
        await node.end(given.pair, commit, version=5)
        await node.cut_power()
        assert await node.settled() == ("CompleteCommit" if commit else "CompleteAbort")
        assert await node.read() == ([0] if commit else [])
        assert await node.offset() == (7 if commit else -1)

    for seed in range(3):
        play(story, seed, cut_mode)


def test_the_answer_to_a_conversion_waits_for_every_partition() -> None:
    async def story(node: TwoPhaseNode) -> None:
        await unprepared(node)
        node.sim.blocking_delay_s = (1.0, 1.0)
        asked = asyncio.ensure_future(node.keep())
        while not asked.done():
            await node.sleep(0.1)
            assert asked.done() == all(is_on_disk(node)) or not asked.done()
        assert is_on_disk(node) == [True] * 3

    play(story)


@pytest.mark.parametrize("match", ["/t-0/", "/t-1/", f"/{CONSUMER_OFFSETS}-"])
def test_a_conversion_whose_sync_fails_is_no_vow_and_can_be_repeated(match: str) -> None:
    async def story(node: TwoPhaseNode) -> None:
        pair = await unprepared(node)
        disk = node.sim.disk(NODE)
        disk.fail_syncs(1, match=match)
        assert await node.keep() == 15, "not prepared: the caller must not write down that it is"
        assert await node.keep() == 15, "a file whose sync failed is not trusted before it was opened again"
        await node.kill()
        given = await node.keep()
        assert given.ongoing == pair
        await node.cut_power()
        assert node.identities() == (pair, given.pair)
        assert await node.read(0, committed=False) == await node.read(1, committed=False) == [0]
        assert await node.offset() == "error 88"

    for seed in SEEDS:
        play(story, seed)


def test_a_vow_that_is_not_on_disk_is_not_answered() -> None:
    """The same for the coordinator's own partition."""

    async def story(node: TwoPhaseNode) -> None:
        pair = await unprepared(node)
        node.sim.disk(NODE).fail_syncs(1, match=f"/{TRANSACTION_STATE}-{coordinator_partition('x', COORDINATORS)}/")
        assert await node.keep() in (15, 16)
        await node.kill()
        given = await node.keep()
        assert given.ongoing == pair
        await node.cut_power()
        assert node.identities() == (pair, given.pair)

    for seed in SEEDS:
        play(story, seed)


def test_what_its_old_instance_still_writes_after_the_conversion_is_durable_as_well() -> None:
    async def story(node: TwoPhaseNode) -> None:
        pair = await unprepared(node)
        node.sim.blocking_delay_s = (0.5, 0.5)
        asked = asyncio.ensure_future(node.keep())
        await node.sleep(1.2)
        assert not asked.done()
        while await node.send_batch(pair, 0, 1)() != 0:  # leaders cannot know yet that it is a zombie
            await node.sleep(0.01)
        await asked
        assert await node.send_batch(pair, 1, 1)() == 0
        node.sim.blocking_delay_s = (0.00001, 0.002)
        await node.cut_power()
        assert await node.read(0, committed=False) == await node.read(1, committed=False) == [0, 1]

    for seed in SEEDS:
        play(story, seed)


def test_a_heartbeat_transaction_is_converted_at_prepare() -> None:
    """Alive by heartbeats until it is prepared, and from then on nobody's silence ends it."""

    async def story(node: TwoPhaseNode) -> None:
        await node.ready()
        pair = (await node.vow7("x", 60_000, 1_000, two_phase=False, keep=False)).pair
        assert await node.produce(pair, version=12) == 0
        await node.sleep(2)
        assert await node.state() == "Ongoing"
        given = await node.vow7("x", 60_000, 0, two_phase=True, keep=True)
        assert given == Given((pair[0], pair[1] + 1), pair)
        assert node.entry().heartbeat_interval_ms == 0
        await node.sleep(1000)
        await node.cut_power()
        assert await node.state() == "Ongoing"
        assert await node.end((await node.keep()).pair, True, version=5) == (pair[0], pair[1] + 3)
        assert await node.settled() == "CompleteCommit"
        assert await node.read() == [0]

    for seed in SEEDS:
        play(story, seed)
