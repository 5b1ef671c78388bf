"""What a broker tells of its partitions after a start, before any client touches one of them."""

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from broker.metrics.test_metrics import REPLICAS, Page, scrape
from kits.node.disk_fault_node import FaultyNode
from kits.node.sim_node import simulated as simulated_node
from kits.node.two_phase_node import TwoPhaseNode, two_phase
from kits.node.txn_node import Node, simulated
from twofold.broker.partitions.first_look import WITHIN_S, FirstLook
from twofold.types import TopicPartition

LATE = f"{REPLICAS}partitionswithlatetransactionscount"
PRODUCER_IDS = f"{REPLICAS}produceridcount"
LAG = "kafka_cluster_partition_laststableoffsetlag"
NOT_LOOKED_AT = "twofold_partitions_not_looked_at"
OPEN, QUIET = {"topic": "t", "partition": 0}, {"topic": "t", "partition": 1}

Restart = Callable[[Node], Awaitable[None]]


async def stop_and_start(node: Node) -> None:
    await node.broker.stop()
    await node.start()


async def kill_and_start(node: Node) -> None:
    await node.restart()


both_ends = pytest.mark.parametrize("restart", [stop_and_start, kill_and_start])


async def looked(node: Node) -> Page:
    """What is told `WITHIN_S` after the start, by a broker that nobody has asked anything about the topic."""
    await node.sleep(WITHIN_S)
    return await scrape(node)


@both_ends
@simulated(transaction_max_timeout_ms=3_600_000)
async def test_after_a_restart_late_transactions_and_producers_are_told_before_a_client_comes(
    node: Node, restart: Restart
) -> None:
    pair = await node.init(timeout=3_600_000)
    assert await node.add(pair, 0) == [0]
    assert await node.produce(pair) == 0
    assert await node.produce(pair, sequence=1) == 0
    assert await node.produce((4711, 0), 1, name=None) == 0
    await restart(node)
    page = await looked(node)
    assert page(NOT_LOOKED_AT) == 0
    assert page(PRODUCER_IDS) == 2
    assert (page(LAG, **OPEN), page("twofold_txn_last_stable_offset", **OPEN)) == (2, 0)
    assert (page(LAG, **QUIET), page("twofold_txn_last_stable_offset", **QUIET)) == (0, 1)
    assert (page("twofold_txn_partition_open_seconds", **OPEN) or 0) >= WITHIN_S
    assert page(LATE) == 0


@both_ends
@two_phase()
async def test_after_a_restart_a_transaction_that_is_late_counts_as_late(node: TwoPhaseNode, restart: Restart) -> None:
    given = await node.vow()
    assert await node.produce(given.pair, version=12) == 0
    await node.sleep(900 + 300)
    await restart(node)
    page = await looked(node)
    assert page(LATE) == 1
    assert (page("twofold_txn_partition_open_seconds", **OPEN) or 0) >= 1200


@simulated()
async def test_what_was_not_looked_at_yet_is_counted(node: Node) -> None:
    for index in (0, 1):
        assert await node.produce((4711, 0), index, name=None) == 0
    broker = node.broker
    look = FirstLook(broker.replicas, broker.logs, broker.runtime)
    look.begin()
    count = look.remaining
    assert count == sum(known.exists for known in broker.logs.logs()) >= 2
    await look.run()
    assert look.remaining == 0


@simulated()
async def test_after_a_clean_stop_a_look_leaves_nothing_for_the_next_one_to_write(node: Node) -> None:
    assert await node.produce((4711, 0), 0, name=None) == 0
    await stop_and_start(node)
    await looked(node)
    known = node.broker.logs.get(TopicPartition("t", 0))
    assert known is not None and known.is_open
    assert known.prepare_close() is None


@partial(simulated_node, FaultyNode)()
async def test_a_log_that_cannot_be_opened_stays_counted_until_it_can(node: FaultyNode) -> None:
    assert await node.put("a", pid=7, sequence=0) == 0
    await node.broker.stop()
    node.disk.fail_reads(1_000, match="/data/t-0/")
    await node.start()
    await node.sleep(5)
    page = await scrape(node)  # type: ignore[arg-type]
    assert (page(NOT_LOOKED_AT), page(PRODUCER_IDS)) == (1, 0)
    assert page(f"{REPLICAS}offlinereplicacount") == 1
    node.disk.clear_faults()
    await node.sleep(120)
    page = await scrape(node)  # type: ignore[arg-type]
    assert (page(NOT_LOOKED_AT), page(PRODUCER_IDS)) == (0, 1)
