"""A decision announces nothing before its record is committed: lines of the log, counters, causes of aborts."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from kits.node.sim_node import NODE
from kits.node.sim_node import simulated as simulated_node
from kits.node.two_phase_node import TwoPhaseNode
from kits.node.txn_node import Pair, hearing
from twofold.broker.coordinators.transactions.shard import TransactionShard
from twofold.config.internal_topics import TRANSACTION_STATE
from twofold.coordinator.transaction.heartbeats import AbortCause

INTERVAL_MS = 500
HOUR_S = 3_600
INVALID_REQUEST = 42


class Announced(NamedTuple):
    lines: int = 0
    fenced: int = 0
    timed_out: int = 0
    silent: int = 0
    removed_ids: int = 0
    cause: AbortCause | None = None


NOTHING = Announced()


class Node(TwoPhaseNode):
    """`act` is repeated after the failed append, as a client or the next sweep does it."""

    pair: Pair = (-1, -1)

    async def open(self, *, interval: int = 0, two_phase: bool = False, timeout: int = 600_000) -> None:
        """An open transaction of the id x."""
        self.pair = (await self.vow7("x", timeout, interval, two_phase=two_phase, keep=False)).pair
        assert await self.produce(self.pair, 0, version=12) == 0

    async def take_over(self) -> int:
        """InitProducerId of another client: an error code, or 0."""
        answer = await self.vow7("x", 600_000, 0, two_phase=False, keep=False)
        return answer if isinstance(answer, int) else 0

    async def finish(self, commit: bool) -> int:
        answer = await self.end(self.pair, commit, version=5)
        return answer if isinstance(answer, int) else 0

    def announced(self, shard: TransactionShard, heard: list[str]) -> Announced:
        counts = self.broker.transactions.counts
        lines = [line for line in heard if "transaction of 'x'" in line or "transactional id x: producer" in line]
        return Announced(
            len(lines), counts.fenced, counts.timed_out, counts.silent, counts.removed_ids, shard.causes.get("x")
        )


async def sweep_soon(node: Node) -> int:
    await node.sleep(3 * INTERVAL_MS / 1000 + 1.2)
    return 0


async def sweep_late(node: Node) -> int:
    await node.sleep(2 * HOUR_S)
    return 0


@dataclass(frozen=True)
class Kind:
    """A kind of decision that has effects."""

    prepare: Callable[[Node], Awaitable[Any]]
    act: Callable[[Node], Awaitable[int]]
    expected: Announced


KINDS = {
    "InitProducerId that takes an id over": Kind(
        Node.open, Node.take_over, Announced(lines=1, fenced=1)
    ),
    "InitProducerId that takes over an id with heartbeats": Kind(
        lambda node: node.open(interval=INTERVAL_MS * 100), Node.take_over, Announced(lines=1, fenced=1)
    ),
    "InitProducerId that takes over a two-phase transaction": Kind(
        lambda node: node.open(two_phase=True), Node.take_over, Announced(lines=1, fenced=1)
    ),
    "EndTxn that commits a two-phase transaction": Kind(
        lambda node: node.open(two_phase=True), lambda node: node.finish(True), Announced(lines=1)
    ),
    "EndTxn that aborts a two-phase transaction": Kind(
        lambda node: node.open(two_phase=True), lambda node: node.finish(False), Announced(lines=1)
    ),
    "EndTxn that aborts a transaction with heartbeats": Kind(
        lambda node: node.open(interval=INTERVAL_MS * 100),
        lambda node: node.finish(False),
        Announced(cause=AbortCause.CLIENT),
    ),
    "the sweep of timeouts": Kind(
        lambda node: node.open(timeout=10_000), sweep_late, Announced(lines=1, timed_out=1)
    ),
    "the sweep of heartbeats": Kind(
        lambda node: node.open(interval=INTERVAL_MS), sweep_soon,
        Announced(lines=1, silent=1, cause=AbortCause.HEARTBEAT),
    ),
    "the sweep of unused ids": Kind(
        lambda node: node.vow(two_phase=False), sweep_late, Announced(removed_ids=1)
    ),
}  # fmt: skip

watched = simulated_node(
    Node,
    transaction_two_phase_commit_enable="true",
    transactional_id_expiration_ms=HOUR_S * 1000,
    transaction_remove_expired_transaction_cleanup_interval_ms=2 * HOUR_S * 1000 - 60_000,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=2 * HOUR_S * 1000 - 60_000,
)


@pytest.mark.parametrize("name", KINDS)
@watched
async def test_a_failed_append_leaves_no_line_no_counter_and_no_cause(node: Node, name: str) -> None:
    kind = KINDS[name]
    await kind.prepare(node)
    shard = node.shard()
    with hearing(logging.getLogger("twofold"), logging.INFO) as heard:
        node.sim.disk(NODE).fail_writes(1, match=TRANSACTION_STATE)
        failed = await kind.act(node)
        assert node.announced(shard, heard) == NOTHING, heard
        assert failed or "sweep" in name
        await node.sleep(120)  # the log is opened anew, and its shard loaded
        if not node.announced(node.shard(), heard).removed_ids:
            for _ in range(3):
                if not await kind.act(node):
                    break
        found = node.announced(node.shard(), heard)
        if kind.expected.cause is None:
            found = found._replace(cause=None)  # a later transition has made it forgotten
        assert found == kind.expected, heard


@watched
async def test_a_decision_that_is_reverted_leaves_no_line(node: Node) -> None:
    await node.open(two_phase=True)
    shard = node.shard()
    with hearing(logging.getLogger("twofold"), logging.INFO) as heard:
        answer = node.send(
            "EndTxn", 5, transactional_id="x", producer_id=node.pair[0], producer_epoch=node.pair[1], committed=True
        )
        assert not answer.is_answered(), "the record is in the log, and not on disk yet"
        node.lead_anew()
        assert (await answer())["error_code"]
        assert node.announced(shard, heard) == NOTHING


@watched
async def test_an_empty_id_is_refused_before_a_coordinator_is_looked_for(node: Node) -> None:
    pair = (await node.vow()).pair
    node.broker.transactions.shards.clear()
    assert await node.add(pair, 0) == [16], "no coordinator is here"
    assert await node.add(pair, 0, name="") == [INVALID_REQUEST]
    for version in (3, 5):
        assert await node.end(pair, name="", version=version) == INVALID_REQUEST
    assert await node.vow("") == INVALID_REQUEST
    answer = await node.ask("TxnHeartbeat", 0, transactional_id="", producer_id=pair[0], producer_epoch=pair[1])
    assert answer["error_code"] == INVALID_REQUEST
