"""The principal that opened a transaction, and the endless transaction: what holds readers back, and for how long."""

import logging
from typing import Any

import pytest

from kits.node.guarded_node import ALICE, GuardedNode, guarded
from kits.node.txn_node import Node, Pair, simulated
from kits.security import rights
from kits.security.rights import Right
from twofold.broker.network.context import Peer
from twofold.security.acl_codes import Operation

HOUR_S = 3600
WRITE_ID = Right(Operation.WRITE, rights.TXN, "mine")
WRITE_TOPIC = Right(Operation.WRITE, rights.TOPIC, "t")
TWO_PHASE = Right(Operation.TWO_PHASE_COMMIT, rights.TXN, "mine")
DESCRIBE = Right(Operation.DESCRIBE, rights.TXN, "mine")


async def init(node: GuardedNode, *, enable_2pc: bool, timeout_ms: int = 60_000) -> Any:
    body = {"transactional_id": "mine", "transaction_timeout": timeout_ms, "keep_prepared_txn": False}
    answer = await node.as_alice("InitProducerId", 6, **body, enable2_pc=enable_2pc)
    return answer["error_code"] or (answer["producer_id"], answer["producer_epoch"])


async def write(node: GuardedNode, pair: Pair) -> int:
    """A record of a transaction of alice, which the coordinator begins at the same time."""
    admin, node._peer = node._peer, Peer("10.0.0.9", 4712, "PLAINTEXT", ALICE)
    try:
        return await node.produce(pair, name="mine", version=12)
    finally:
        node._peer = admin


async def opened_by(node: Node, name: str = "mine") -> Any:
    shard = node.shard(name)
    return shard.committed.entries[name].opened_by


@guarded
async def test_without_the_right_no_transaction_holds_readers_back_beyond_the_largest_timeout(
    node: GuardedNode,
) -> None:
    await node.grant(WRITE_ID, WRITE_TOPIC)
    assert await init(node, enable_2pc=True) == 53
    assert await init(node, enable_2pc=False, timeout_ms=2**31 - 1) == 50, "a timeout is bound as well"
    pair = await init(node, enable_2pc=False, timeout_ms=900_000)
    assert await write(node, pair) == 0
    before = node.stable_offset()
    await node.sleep(0.5 * HOUR_S)
    assert node.stable_offset() > before and node.stable_offset() == node.end_offset()


@guarded
async def test_with_the_right_the_principal_is_named_after_kill_nine_and_an_operator_ends_it(
    node: GuardedNode,
) -> None:
    await node.grant(WRITE_ID, WRITE_TOPIC, TWO_PHASE)
    pair = await init(node, enable_2pc=True)
    assert await write(node, pair) == 0
    await node.sleep(HOUR_S)  # four times the largest timeout of a transaction
    await node.restart()
    held = node.stable_offset()
    assert held < node.end_offset() and await opened_by(node) == ALICE
    await node.grant(WRITE_ID)
    answer = await node.as_alice("DescribeTransactions", 0, transactional_ids=["mine"])
    assert answer["transaction_states"][0]["error_code"] == 0, "WRITE implies DESCRIBE"
    await node.grant()
    answer = await node.as_alice("DescribeTransactions", 0, transactional_ids=["mine"])
    assert answer["transaction_states"][0]["error_code"] == 53, "no principal is told without DESCRIBE"
    assert isinstance(await node.init("mine"), int)  # 51: the operator's request has begun to abort it
    while isinstance(await node.init("mine"), int):
        await node.sleep(0.01)
    assert node.stable_offset() == node.end_offset()
    assert await opened_by(node) == "", "it is complete"


@guarded
async def test_later_partitions_and_the_decision_keep_the_principal_that_opened_it(node: GuardedNode) -> None:
    await node.grant(WRITE_ID, WRITE_TOPIC)
    pair = await init(node, enable_2pc=False)
    assert await write(node, pair) == 0
    assert await node.add(pair, 1, name="mine") == [0], "a super user adds another partition"
    assert await opened_by(node) == ALICE


@simulated()
async def test_a_client_that_did_not_log_in_leaves_no_trace_in_the_record(node: Node) -> None:
    pair = await node.init("x")
    assert await node.add(pair, 0) == [0]
    assert await opened_by(node, "x") == ""


async def end(node: GuardedNode, pair: Pair, *, as_alice: bool) -> int:
    ask = node.as_alice if as_alice else node.ask
    producer_id, epoch = pair
    body = {"transactional_id": "mine", "producer_id": producer_id, "producer_epoch": epoch, "committed": False}
    answer = await ask("EndTxn", 5, **body)
    return int(answer["error_code"])


def audited(caplog: pytest.LogCaptureFixture, request: str) -> list[str]:
    found = [record for record in caplog.records if record.name == "twofold.audit"]
    return [record.getMessage() for record in found if record.getMessage().startswith(request)]


@pytest.mark.parametrize("request_name", ["EndTxn", "InitProducerId"])
def test_the_audit_names_the_principal_that_ended_the_transaction_of_another(
    caplog: pytest.LogCaptureFixture, request_name: str
) -> None:
    @guarded
    async def story(node: GuardedNode) -> None:
        await node.grant(WRITE_ID, WRITE_TOPIC)
        pair = await init(node, enable_2pc=False)
        assert await write(node, pair) == 0
        if request_name == "EndTxn":
            assert await end(node, pair, as_alice=False) == 0
        else:
            assert await node.init("mine") == 51, "the transaction is being aborted"
            await node.sleep(1)

    with caplog.at_level(logging.INFO):
        story()
    (line,) = audited(caplog, request_name)
    assert line.startswith(f"{request_name} by User:ANONYMOUS (") and "abort the transaction of 'mine'" in line
    assert line.endswith(f"opened by {ALICE}")


def test_a_client_that_ends_transactions_of_its_own_writes_few_lines_and_hides_none_of_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @guarded
    async def story(node: GuardedNode) -> None:
        await node.grant(WRITE_ID, WRITE_TOPIC, TWO_PHASE)
        for round_ in range(41):
            pair = await init(node, enable_2pc=True)
            while isinstance(pair, int):
                await node.sleep(0.001)
                pair = await init(node, enable_2pc=True)
            assert await write(node, pair) == 0
            assert await end(node, pair, as_alice=round_ < 40) == 0

    with caplog.at_level(logging.INFO):
        story()
    lines = audited(caplog, "EndTxn")
    assert len(lines) < 40
    assert [line for line in lines if "opened by" in line] == lines[-1:]
