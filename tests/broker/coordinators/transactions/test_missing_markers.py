"""Markers that a power cut took (`broker.missing_markers`): what is proven is written again before anything else
happens to the transactional id. What is not is named, left alone, and kept apart from what the id writes next."""

import pytest

from kits.folders.lost_tail import lose_batches
from kits.node.sim_node import COORDINATORS, NODE
from kits.node.two_phase_node import TwoPhaseNode, two_phase
from kits.node.txn_node import Pair
from twofold.config.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE, coordinator_partition
from twofold.coordinator.transaction.states import State
from twofold.types import ProducerEpoch, TopicPartition

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
OFFSETS = TopicPartition(CONSUMER_OFFSETS, coordinator_partition("g", COORDINATORS))
RECORDS = TopicPartition(TRANSACTION_STATE, coordinator_partition("x", COORDINATORS))
CONCURRENT, WRONG_ID = 51, 49


async def transact(node: TwoPhaseNode, pair: Pair, *partitions: int, commit: bool = True) -> Pair:
    """A whole transaction of TV2 with all its markers; returns the pair that its client goes on with."""
    for partition in partitions:
        assert await node.produce(pair, partition, version=12) == 0
    following: Pair = await node.end(pair, commit, version=5)
    await node.settled()
    return following


async def transact_tv1(node: TwoPhaseNode, pair: Pair, sequence: int, *, commit: bool) -> None:
    assert await node.add(pair, 0, 1) == [0, 0]
    for partition in (0, 1):
        assert await node.produce(pair, partition, sequence) == 0
    assert await node.end(pair, commit) == 0
    await node.settled()


async def come_back(node: TwoPhaseNode, **lost: int) -> None:
    """The power goes; `first=1` is one batch of the first partition."""
    places = {"first": FIRST, "second": SECOND, "offsets": OFFSETS, "records": RECORDS}
    lose_batches(node.sim, NODE, {places[name]: count for name, count in lost.items()})
    await node.start()
    await node.loaded()


async def repaired(node: TwoPhaseNode) -> None:
    """Readers see everything, as soon as the marker is on disk."""
    for _ in range(500):
        if all(log.last_stable_offset == log.log_end_offset for log in node.logs().values()):
            return
        await node.sleep(0.01)
    raise AssertionError(f"{reasons(node)} are left")


async def set_apart(node: TwoPhaseNode, pair: Pair) -> None:
    """The id has another producer id than before."""
    for _ in range(500):
        if node.entry().producer_id != pair[0]:
            return
        await node.sleep(0.01)
    raise AssertionError(f"{node.entry()} has the producer id of {pair}")


def reasons(node: TwoPhaseNode) -> list[tuple[TopicPartition, str]]:
    return [(row.orphan.partition, row.reason) for row in node.broker.missing_markers.unproven]


# Proven


@pytest.mark.parametrize("commit", [True, False])
def test_the_outcome_is_found_in_older_records_when_the_id_has_gone_on(commit: bool) -> None:
    @two_phase()
    async def story(node: TwoPhaseNode) -> None:
        pair = await node.init()
        pair = await transact(node, pair, 0, 1, commit=commit)
        pair = await transact(node, pair, 1)
        pair = await transact(node, pair, 1, commit=False)
        await come_back(node, first=1)
        await repaired(node)
        assert await node.read(0) == ([0] if commit else [])
        assert node.stable_offset(0) == node.end_offset(0) == 2
        assert reasons(node) == []
        pair = await transact(node, pair, 0)
        assert await node.read(0) == ([0, 2] if commit else [2])

    story()


@two_phase()
async def test_the_outcome_is_found_when_the_next_instance_has_taken_the_id(node: TwoPhaseNode) -> None:
    await transact(node, await node.init(), 0, 1)
    again = await node.init()
    await come_back(node, first=1, second=1)
    await repaired(node)
    assert [await node.read(partition) for partition in (0, 1)] == [[0], [0]]
    await transact(node, again, 0)
    assert await node.read(0) == [0, 2]


@two_phase()
async def test_a_transaction_that_ended_with_the_last_epoch_is_proven_under_its_old_producer_id(
    node: TwoPhaseNode,
) -> None:
    pair = await node.init()
    node.write_raw("x", node.entry()._replace(producer_epoch=ProducerEpoch(32765), state=State.EMPTY))
    node.lead_anew()
    await node.loaded()
    pair = await node.init()
    assert pair[1] == 32766
    following = await transact(node, pair, 0, 1)
    assert following[0] != pair[0] and following[1] == 0
    await come_back(node, first=1)
    await repaired(node)
    assert await node.read(0) == [0]
    await transact(node, following, 0)
    assert await node.read(0) == [0, 2]


@pytest.mark.parametrize("commit", [True, False])
def test_a_kept_two_phase_transaction_is_repaired_to_what_the_outside_decided(commit: bool) -> None:
    @two_phase()
    async def story(node: TwoPhaseNode) -> None:
        await node.prepared(offset=7)
        kept = await node.keep()
        await node.end(kept.pair, commit, version=5)
        await node.settled()
        await come_back(node, first=1, offsets=1)
        await repaired(node)
        assert [await node.read(partition) for partition in (0, 1)] == ([[0], [0]] if commit else [[], []])
        assert await node.offset() == (7 if commit else -1)
        assert reasons(node) == []

    story()


@two_phase()
async def test_nothing_is_decided_about_an_id_before_its_missing_marker_is_on_disk(node: TwoPhaseNode) -> None:
    pair = await transact(node, await node.init(), 0, 1)
    lose_batches(node.sim, NODE, {FIRST: 1})
    node.sim.blocking_delay_s = (0.5, 0.5)
    await node.start()
    while not node.shard().is_active:
        await node.sleep(0.01)
    assert await node.produce(pair, 0, version=12) == CONCURRENT
    assert node.end_offset(0) == 2 and node.stable_offset(0) == 0
    while (code := await node.produce(pair, 0, version=12)) == CONCURRENT:
        await node.sleep(0.01)
    assert code == 0
    assert node.log("t", 0).recovery_point >= 2, "the marker came first, and was synced"


@two_phase()
async def test_after_a_clean_stop_nothing_is_looked_for(node: TwoPhaseNode) -> None:
    pair = await node.init()
    assert await node.produce(pair, 0, version=12) == 0
    await node.broker.stop()
    await node.start()
    assert not node.broker.logs.was_unclean
    await node.broker.stop()


# Not proven


@two_phase()
async def test_before_transaction_version_2_nothing_is_proven_and_it_is_left_alone(node: TwoPhaseNode) -> None:
    pair = await node.init()
    await transact_tv1(node, pair, 0, commit=False)
    await transact_tv1(node, pair, 1, commit=True)
    await come_back(node, first=1)
    assert [await node.read(0), await node.read(1)] == [[], [2]]
    assert node.stable_offset(0) == 2 and node.end_offset(0) == 3
    ((partition, reason),) = reasons(node)
    assert partition == FIRST and "share one epoch" in reason
    await set_apart(node, pair)
    # Its producer cannot add to what is open there, and neither can the next one.
    assert await node.add(pair, 0) == [WRONG_ID]
    again = await node.init()
    assert again[0] != pair[0]
    assert await node.produce(again, 0, version=12) == 0
    await node.end(again, False, version=5)
    await node.settled()
    assert node.stable_offset(0) == 2


@two_phase()
async def test_a_pair_is_not_given_out_again_where_the_coordinator_lost_its_records(node: TwoPhaseNode) -> None:
    pair = await transact(node, await node.init(), 1)
    assert await node.produce(pair, 0, version=12) == 0
    # ONGOING, which was written last, goes, and the batch of that transaction stays.
    await come_back(node, records=1)
    await set_apart(node, pair)
    assert node.entry().state is State.EMPTY
    ((partition, reason),) = reasons(node)
    assert partition == FIRST and "lost its newest records" in reason
    # Whatever the id does next says nothing about the pair that is open there.
    following = await node.init()
    for _ in range(3):
        following = await transact(node, following, 1)
    await node.kill()
    assert node.stable_offset(0) == 0 and await node.read(0) == []
    assert [row[0] for row in reasons(node)] == [FIRST]


@two_phase()
async def test_an_open_transaction_that_is_behind_is_aborted_and_its_id_gets_a_new_producer_id(
    node: TwoPhaseNode,
) -> None:
    first = await node.init()
    assert await node.produce(first, 1, version=12) == 0
    second = await node.end(first, True, version=5)
    await node.settled()
    assert await node.produce(second, 0, version=12) == 0
    # What is left says that the first transaction is open: PREPARE, COMPLETE and the second ONGOING are gone.
    await come_back(node, records=3, second=1)
    assert await node.settled() == "CompleteAbort"
    assert node.entry().producer_id != first[0]
    assert await node.read(1) == [] and node.stable_offset(1) == node.end_offset(1)
    assert [row[0] for row in reasons(node)] == [FIRST]


@two_phase()
async def test_an_open_two_phase_transaction_is_never_ended_by_this(node: TwoPhaseNode) -> None:
    pair = await node.prepared()
    await come_back(node)
    assert node.entry().state is State.ONGOING and node.identities()[0] == pair
    assert reasons(node) == []


@two_phase()
async def test_a_producer_that_no_id_has_is_named(node: TwoPhaseNode) -> None:
    pair = await node.init()
    assert await node.produce(pair, 0, version=12) == 0
    await come_back(node, records=2)
    assert reasons(node) == [(FIRST, "no transactional id has this producer id")]
