"""How old an open transaction is, and when a producer is forgotten: by the broker's clock, not by the records'."""

import logging
from typing import Any

from broker.metrics.test_metrics import REPLICAS, scrape
from kits.node.txn_node import Node, Pair, hearing, simulated
from twofold.broker.metrics.reading import open_since
from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.coordinator.transaction.states import State
from twofold.log.api import OpenTransaction
from twofold.records.batch import BatchBuilder
from twofold.types import ProducerEpoch, ProducerId, TopicPartition

LATE = f"{REPLICAS}partitionswithlatetransactionscount"
OPEN_FOR = "twofold_txn_partition_open_seconds"
AT_LEAST = "twofold_txn_partitions_open_at_least"
WHERE = {"topic": "t", "partition": 0}
YEAR_MS = 365 * 86_400_000
HOUR_S = 3_600


async def put(node: Node, pair: Pair, sequence: int = 0, *, ago_ms: int, name: str | None = "x") -> tuple[int, int]:
    """A record with an old date; (error code, offset)."""
    builder = BatchBuilder(
        producer_id=pair[0], producer_epoch=pair[1], base_sequence=sequence, transactional=name is not None
    )
    builder.add(b"k", b"v", node.broker.runtime.clock.wall_ms() - ago_ms)
    rows = [{"index": 0, "records": builder.build()}]
    data: list[dict[str, Any]] = [{"name": "t", "partition_data": rows}]
    answer = await node.ask("Produce", 9, transactional_id=name, acks=-1, timeout=1000, topic_data=data)
    row = answer["responses"][0]["partition_responses"][0]
    return int(row["error_code"]), int(row["base_offset"])


async def age_s(node: Node) -> float:
    return (await scrape(node))(OPEN_FOR, **WHERE) or 0.0


@simulated(transaction_max_timeout_ms=900_000)
async def test_a_backfill_with_the_dates_of_last_year_is_not_late(node: Node) -> None:
    pair = await node.init(timeout=900_000)
    assert await node.add(pair, 0) == [0]
    assert await put(node, pair, ago_ms=YEAR_MS) == (0, 0)
    await node.sleep(5)
    page = await scrape(node)
    assert page(LATE) == 0
    assert 5 <= (page(OPEN_FOR, **WHERE) or 0) < 5.1


@simulated(transaction_max_timeout_ms=900_000)
async def test_the_age_goes_on_over_a_restart_from_the_start_at_the_coordinator(node: Node) -> None:
    pair = await node.init(timeout=900_000)
    assert await node.add(pair, 0, 1) == [0, 0]
    await node.sleep(30)
    assert await put(node, pair, ago_ms=YEAR_MS) == (0, 0)
    await node.sleep(5)
    await node.restart()
    await node.sleep(5)
    assert 40 <= await age_s(node) < 41


def forget(node: Node) -> None:
    """The coordinator loses the id, as an expired or deleted one: nobody but the partition knows the transaction."""
    node.write_raw("x", None)


@simulated()
async def test_what_no_coordinator_has_is_as_old_as_its_first_append_over_restarts(node: Node) -> None:
    pair = await node.init()
    assert await node.add(pair, 0) == [0]
    assert await put(node, pair, ago_ms=YEAR_MS) == (0, 0)
    forget(node)
    await node.broker.stop()
    await node.start()
    await node.sleep(2 * HOUR_S)
    for _ in range(2):
        await node.restart()
        await node.sleep(30)
    page = await scrape(node)
    assert 2 * HOUR_S + 60 <= (page(OPEN_FOR, **WHERE) or 0) < 2 * HOUR_S + 61
    assert (page(LATE), page(AT_LEAST)) == (1, 0)


@simulated(transaction_max_timeout_ms=900_000)
async def test_what_was_not_kept_counts_from_the_restart_and_is_shown_as_at_least(node: Node) -> None:
    pair = await node.init()
    assert await node.add(pair, 0) == [0]
    assert await put(node, pair, ago_ms=YEAR_MS) == (0, 0)
    forget(node)
    with hearing(logging.getLogger("twofold.broker.partitions.held_lso"), logging.WARNING) as heard:
        await node.restart()
        await node.sleep(30)
        page = await scrape(node)
        assert 30 <= (page(OPEN_FOR, **WHERE) or 0) < 31
        assert (page(LATE), page(AT_LEAST)) == (0, 1)
        await node.sleep(900)
    (line,) = heard
    assert "t-0" in line and "for at least 9" in line


@simulated(producer_id_expiration_ms=HOUR_S * 1000, log_retention_ms=-1)
async def test_an_idempotent_producer_with_old_timestamps_is_not_forgotten_while_it_works(node: Node) -> None:
    for sequence in range(3):
        assert await put(node, (4711, 0), sequence, ago_ms=YEAR_MS, name=None) == (0, sequence)
        await node.sleep(0.9 * HOUR_S)
        assert await put(node, (4711, 0), sequence, ago_ms=YEAR_MS, name=None) == (0, sequence), "the retry is one"
    await node.restart()
    await node.sleep(0.05 * HOUR_S)
    assert await put(node, (4711, 0), 2, ago_ms=YEAR_MS, name=None) == (0, 2), "after a restart, too"
    assert await put(node, (4711, 0), 3, ago_ms=YEAR_MS, name=None) == (0, 3)
    await node.sleep(1.2 * HOUR_S)
    assert (await scrape(node))(f"{REPLICAS}produceridcount") == 0, "silent for longer than producer.id.expiration.ms"


def test_the_coordinator_says_since_when_only_of_the_transaction_that_it_has_open() -> None:
    here, elsewhere = TopicPartition("t", 0), TopicPartition("t", 1)
    producer_id, epoch, following = ProducerId(7), ProducerEpoch(3), ProducerEpoch(4)
    opened = OpenTransaction(5, producer_id, epoch, since_ms=2000, is_exact=False)
    ongoing = TransactionMetadata(producer_id, epoch, 60_000, State.ONGOING, frozenset({here}), start_ms=1000)
    assert open_since(opened, here, ongoing) == (1000, True)
    assert open_since(opened, here, None) == (2000, False)
    assert open_since(opened, here, ongoing._replace(producer_epoch=following)) == (2000, False), "that is the next one"
    assert open_since(opened, here, ongoing._replace(partitions=frozenset({elsewhere}))) == (2000, False)
    ending = ongoing._replace(producer_epoch=following, state=State.PREPARE_COMMIT)
    assert open_since(opened, here, ending) == (1000, True), "its marker comes with a higher epoch"
