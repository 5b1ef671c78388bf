"""KIP-1309 inside a broker, on simulated time: who is aborted, when, and what it is told afterwards."""

from typing import Any

import pytest

from kits.node.admin_world import Deny
from kits.node.sim_node import COORDINATORS
from kits.node.sim_node import simulated as simulated_node
from kits.node.txn_node import Node, Pair, held_markers
from twofold.broker.api import txn_heartbeat
from twofold.broker.network.authorizer import Operation
from twofold.broker.network.dispatch import TXN_HEARTBEAT
from twofold.config.internal_topics import TRANSACTION_STATE, coordinator_partition
from twofold.wire.apis import KEYS

DAY_MS = 86_400_000


class Beating(Node):
    async def start_with(self, interval: int, *, timeout: int = 600_000, name: str = "x", **more: Any) -> Any:
        answer = await self.ask(
            "InitProducerId",
            7,
            transactional_id=name,
            transaction_timeout=timeout,
            transaction_heartbeat_interval_ms=interval,
            producer_id=-1,
            producer_epoch=-1,
            enable2_pc=more.get("two_phase", False),
            keep_prepared_txn=more.get("keep", False),
        )
        return answer["error_code"] or (answer["producer_id"], answer["producer_epoch"])

    async def beat(self, pair: Pair, name: str = "x") -> int:
        answer = await self.ask("TxnHeartbeat", 0, transactional_id=name, producer_id=pair[0], producer_epoch=pair[1])
        assert (answer["error_message"] is None) == (answer["error_code"] == 0)
        return int(answer["error_code"])


def beating(**settings: object) -> Any:
    return simulated_node(Beating, transaction_max_timeout_ms=DAY_MS, **settings)


@beating()
async def test_129_heartbeat_liveness_and_decision_14_a_new_start_after_a_restart(node: Beating) -> None:
    pair = await node.start_with(500)
    await node.produce(pair, 0, version=12)
    for _ in range(60):
        await node.sleep(0.5)
        assert await node.beat(pair) == 0
    assert await node.state() == "Ongoing"
    await node.restart()
    await node.sleep(1.0)
    assert await node.state() == "Ongoing", "a new coordinator gives a new start"
    assert await node.beat(pair) == 0
    await node.sleep(2.1)
    assert await node.state() == "CompleteAbort"
    assert node.broker.transactions.counts.silent == 1


@beating()
async def test_a_dead_producer_with_a_day_of_timeout_is_gone_after_three_intervals_and_a_tick(node: Beating) -> None:
    pair = await node.start_with(5_000, timeout=DAY_MS)
    await node.produce(pair, 0, version=12)
    began = node.sim.now_s
    while await node.state() == "Ongoing":
        await node.sleep(0.05)
    assert 15.0 < node.sim.now_s - began <= 16.1
    assert node.stable_offset() == node.end_offset() == 2


@beating()
async def test_a_paused_producer_is_told_what_happened_and_goes_on(node: Beating) -> None:
    pair = await node.start_with(500)
    await node.produce(pair, 0, version=12)
    await node.sleep(5)
    assert await node.beat(pair) == 120
    after = await node.end(pair, commit=False, version=5)
    assert after == (pair[0], pair[1] + 1)
    assert await node.produce(after, 0, version=12) == 0
    assert await node.beat(after) == 0
    assert await node.end(after, version=5) == (pair[0], pair[1] + 2)


@beating()
async def test_a_heartbeat_that_is_late_for_the_end_of_its_own_transaction_is_harmless(node: Beating) -> None:
    pair = await node.start_with(500)
    for commit in (True, False):
        await node.produce(pair, 0, version=12)
        after = await node.end(pair, commit=commit, version=5)
        assert await node.beat(pair) == 0
        await node.sleep(0.01)
        assert await node.beat(pair) == 0
        assert await node.beat(after) == 0
        pair = after


@beating()
async def test_130_heartbeat_validation(node: Beating) -> None:
    assert await node.start_with(600_001) == 42
    assert await node.start_with(-1) == 42
    assert await node.start_with(1000, two_phase=True) == 42, "before it is asked whether two-phase commit is allowed"
    pair = await node.init(version=6)
    assert node.shard().committed.entries["x"].heartbeat_interval_ms == 0
    assert await node.beat(pair) == 0, "no interval was promised: no effect"


@beating()
async def test_between_transactions_silence_means_nothing(node: Beating) -> None:
    pair = await node.start_with(500)
    await node.sleep(60)
    assert await node.state() == "Empty"
    await node.produce(pair, 0, version=12)
    pair = await node.end(pair, version=5)
    await node.sleep(60)
    assert await node.state() == "CompleteCommit"
    assert await node.produce(pair, 0, version=12) == 0
    await node.sleep(1.0)
    assert await node.state() == "Ongoing", "the time starts with the transaction"


@beating()
async def test_decision_08_adding_partitions_is_a_sign_of_life_and_producing_alone_is_not(node: Beating) -> None:
    pair = await node.start_with(500)
    await node.add(pair, 0)
    for _ in range(5):
        await node.sleep(1)
        assert await node.add(pair, 0) == [0]
    assert await node.state() == "Ongoing"
    for sequence in range(3):
        await node.sleep(0.8)
        await node.produce(pair, 0, sequence=sequence)
    assert await node.state() == "CompleteAbort"


@beating()
async def test_heartbeats_do_not_extend_the_timeout(node: Beating) -> None:
    pair = await node.start_with(500, timeout=5_000)
    await node.produce(pair, 0, version=12)
    for _ in range(40):
        await node.sleep(0.4)
        await node.beat(pair)
    assert await node.state() == "CompleteAbort"
    assert (node.broker.transactions.counts.timed_out, node.broker.transactions.counts.silent) == (1, 0)


@beating()
async def test_a_wrong_heartbeat_is_told_what_is_wrong(node: Beating) -> None:
    pair = await node.start_with(500)
    assert await node.beat(pair, name="") == 42
    assert await node.beat((-1, 0)) == 42
    assert await node.beat((pair[0], -1)) == 42
    assert await node.beat(pair, name="nobody") in (105, 16)
    assert await node.beat((pair[0] + 7, 0)) == 49
    assert await node.beat((pair[0], 9)) == 90
    second = await node.start_with(500)
    assert await node.beat(pair) == 90
    assert await node.beat(second) == 0
    node.broker.transactions._resign(node.shard().index)
    assert await node.beat(second) == 16


@beating()
async def test_decision_34_without_permission_a_heartbeat_is_no_sign_of_life(node: Beating) -> None:
    pair = await node.start_with(500)
    await node.produce(pair, 0, version=12)
    node.broker.core.authorizer = Deny((Operation.WRITE, "x"))
    for _ in range(6):
        await node.sleep(0.4)
        assert await node.beat(pair) == 53
    assert node.shard().committed.entries["x"].state.wire_name == "CompleteAbort"


@beating(transaction_two_phase_commit_enable="true")
async def test_a_two_phase_transaction_takes_no_heartbeats_and_no_silence_ends_it(node: Beating) -> None:
    pair = await node.start_with(500)
    await node.produce(pair, 0, version=12)
    kept = await node.start_with(0, two_phase=True, keep=True)
    await node.sleep(600)
    assert await node.state() == "Ongoing"
    assert await node.beat(kept) == 42
    assert await node.end(kept, version=5) != 90
    await node.sleep(0.01)
    assert node.stable_offset() == node.end_offset() == 2


@pytest.mark.parametrize(("enabled", "newest"), [("true", 7), ("false", 6)])
def test_decision_33_the_heartbeat_and_its_version_are_there_together_or_not_at_all(enabled: str, newest: int) -> None:
    @simulated_node(Beating, transaction_heartbeat_enable=enabled)
    async def story(node: Beating) -> None:
        answer = await node.ask("ApiVersions", 3, client_software_name="t", client_software_version="1")
        served = {row["api_key"]: row["max_version"] for row in answer["api_keys"]}
        assert (served[22], 95 in served) == (newest, newest == 7)

    story()


def test_decision_01_the_key_is_95_and_one_constant() -> None:
    assert (KEYS["TxnHeartbeat"], txn_heartbeat.KEY, TXN_HEARTBEAT) == (95, 95, 95)


@beating()
async def test_decision_05_without_a_transactional_id_the_interval_is_ignored(node: Beating) -> None:
    answer = await node.ask(
        "InitProducerId", 7, transactional_id=None, transaction_timeout=1, transaction_heartbeat_interval_ms=-5
    )
    assert (answer["error_code"], answer["producer_epoch"]) == (0, 0)


@beating()
async def test_decision_15_a_wall_clock_that_jumps_does_not_end_a_transaction_that_beats(node: Beating) -> None:
    pair = await node.start_with(500, timeout=DAY_MS)
    await node.produce(pair, 0, version=12)
    for jump_ms in (3_600_000, -7_200_000):
        node.sim.jump_clock("node", jump_ms)
        for _ in range(4):
            await node.sleep(0.5)
            assert await node.beat(pair) == 0
    assert await node.state() == "Ongoing"


@beating()
async def test_decision_28_an_error_comes_with_a_text_and_success_without(node: Beating) -> None:
    pair = await node.start_with(500)
    for sent, told in ((pair, None), ((pair[0], 9), "epoch")):
        answer = await node.ask("TxnHeartbeat", 0, transactional_id="x", producer_id=sent[0], producer_epoch=sent[1])
        assert (answer["error_message"] is None) if told is None else (told in answer["error_message"])


@beating()
async def test_decision_29_a_heartbeat_is_answered_without_delay_whatever_is_under_way(node: Beating) -> None:
    pair = await node.start_with(500)
    await node.add(pair, 0)
    with held_markers(node):
        await node.end(pair)
        answer = node.send("TxnHeartbeat", 0, transactional_id="x", producer_id=pair[0], producer_epoch=pair[1])
        assert answer.is_answered()
        assert (await answer())["throttle_time"] == 0


@beating()
async def test_decision_30_metrics_tell_of_heartbeats(node: Beating) -> None:
    pair = await node.start_with(500)
    await node.produce(pair, 0, version=12)
    assert sum(len(shard.signs_ms) for shard in node.broker.transactions.led()) == 1
    await node.sleep(5)
    assert (node.broker.transactions.counts.silent, len(node.shard().signs_ms)) == (1, 0)


@beating()
async def test_decision_32_time_without_a_coordinator_does_not_count(node: Beating) -> None:
    pair = await node.start_with(500)
    await node.produce(pair, 0, version=12)
    node.broker.transactions._resign(node.shard().index)
    await node.sleep(30)
    assert await node.beat(pair) == 16
    index = coordinator_partition("x", COORDINATORS)
    node.broker.transactions._lead(index, node.broker.replicas.leader(TRANSACTION_STATE, index).leader_epoch)
    await node.sleep(1)
    assert await node.state() == "Ongoing"
    assert await node.beat(pair) == 0
