"""quota.open.transactions.max: a principal at its bound begins no other transaction, and loses none."""

import logging
from functools import partial
from typing import Any

from kits.node.guarded_node import ALICE, GuardedNode
from kits.node.sim_node import simulated as simulated_node
from kits.node.txn_node import Node, hearing, simulated
from kits.security import rights
from kits.security.rights import Right
from twofold.broker.network.context import Peer
from twofold.config.keys.missing import STANDARD_AUTHORIZER
from twofold.security.acl_codes import Operation

CONCURRENT_TRANSACTIONS = 51

bounded = partial(simulated, quota_open_transactions_max=2, add_partitions_to_txn_retry_backoff_max_ms=0)
guarded = simulated_node(
    GuardedNode,
    authorizer_class_name=STANDARD_AUTHORIZER,
    super_users="User:ANONYMOUS",
    quota_open_transactions_max=1,
)


async def ended(node: Node, pair: Any, name: str, **more: Any) -> None:
    while (answer := await node.end(pair, name=name, **more)) == CONCURRENT_TRANSACTIONS:
        await node.sleep(0.01)
    assert answer == 0 or isinstance(answer, tuple)


@bounded()
async def test_the_next_transaction_begins_when_another_is_decided(node: Node) -> None:
    pairs = {name: await node.init(name) for name in "abc"}
    for name in "ab":
        assert await node.add(pairs[name], 0, name=name) == [0]
    assert await node.add(pairs["c"], 0, name="c") == [CONCURRENT_TRANSACTIONS]
    assert await node.add(pairs["a"], 1, name="a") == [0], "an open transaction goes on"
    assert [await node.state(name) for name in "abc"] == ["Ongoing", "Ongoing", "Empty"]
    await ended(node, pairs["a"], "a")
    assert await node.add(pairs["c"], 0, name="c") == [0]


@bounded()
async def test_every_request_that_begins_a_transaction_is_bounded(node: Node) -> None:
    pairs = {name: await node.init(name) for name in "abc"}
    for name in "ab":
        assert await node.add(pairs[name], 0, name=name) == [0]
    c = {"transactional_id": "c", "producer_id": pairs["c"][0], "producer_epoch": pairs["c"][1]}
    for version in range(4):
        assert await node.add(pairs["c"], 0, name="c", version=version) == [CONCURRENT_TRANSACTIONS]
    transaction = {**c, "verify_only": False, "topics": [{"name": "t", "partitions": [0]}]}
    for version in (4, 5):
        many = await node.ask("AddPartitionsToTxn", version, transactions=[transaction])
        row = many["results_by_transaction"][0]["topic_results"][0]["results_by_partition"][0]
        assert row["partition_error_code"] == CONCURRENT_TRANSACTIONS
    while (await node.ask("FindCoordinator", 3, key="g", key_type=0))["error_code"]:
        await node.sleep(0.01)
    for version in range(5):
        answer = await node.ask("AddOffsetsToTxn", version, **c, group_id="g")
        assert answer["error_code"] == CONCURRENT_TRANSACTIONS
    for version in (12, 13):
        assert await node.produce(pairs["c"], name="c", version=version) == CONCURRENT_TRANSACTIONS
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
    body = {**c, "group_id": "g", "topics": [{"name": "t", "partitions": [offset]}]}
    answer = await node.ask("TxnOffsetCommit", 5, **body)
    assert answer["topics"][0]["partitions"][0]["error_code"] == CONCURRENT_TRANSACTIONS
    await ended(node, pairs["b"], "b")
    assert await node.produce(pairs["c"], name="c", version=12) == 0


@bounded()
async def test_what_is_open_counts_after_a_restart(node: Node) -> None:
    pairs = {name: await node.init(name) for name in "abc"}
    for name in "ab":
        assert await node.add(pairs[name], 0, name=name) == [0]
    await node.restart()
    assert await node.add(pairs["c"], 0, name="c") == [CONCURRENT_TRANSACTIONS]
    assert await node.state("a") == "Ongoing"
    await ended(node, pairs["b"], "b", commit=False)
    assert await node.add(pairs["c"], 0, name="c") == [0]


@bounded()
async def test_what_times_out_makes_room(node: Node) -> None:
    pairs = {name: await node.init(name, timeout=5000) for name in "abc"}
    for name in "ab":
        assert await node.add(pairs[name], 0, name=name) == [0]
    assert await node.add(pairs["c"], 0, name="c") == [CONCURRENT_TRANSACTIONS]
    await node.sleep(30)
    assert await node.add(pairs["c"], 0, name="c") == [0]


@simulated(quota_open_transactions_max=1)
async def test_a_request_at_the_bound_is_answered_at_once(node: Node) -> None:
    """Nothing of its id is under way, so there is nothing to wait for."""
    first, second = await node.init("a"), await node.init("b")
    assert await node.add(first, 0, name="a") == [0]
    before = node.broker.runtime.clock.monotonic()
    assert await node.add(second, 0, name="b") == [CONCURRENT_TRANSACTIONS]
    assert node.broker.runtime.clock.monotonic() - before < 0.05


@guarded
async def test_a_principal_at_its_bound_keeps_no_other_from_its_transactions_nor_is_a_super_user_exempt(
    node: GuardedNode,
) -> None:
    names = ("one", "two", "three", "four")
    pairs = {name: await node.init(name) for name in names}
    grants = [Right(Operation.WRITE, rights.TXN, name) for name in names[:2]]
    await node.grant(*grants, Right(Operation.WRITE, rights.TOPIC, "t"))

    async def add_as_alice(name: str) -> list[int]:
        admin, node._peer = node._peer, Peer("10.0.0.9", 4712, "PLAINTEXT", ALICE)
        try:
            return await node.add(pairs[name], 0, name=name)
        finally:
            node._peer = admin

    assert await add_as_alice("one") == [0]
    assert await add_as_alice("two") == [CONCURRENT_TRANSACTIONS]
    assert await node.add(pairs["three"], 0, name="three") == [0], "another principal, a super user"
    assert await node.add(pairs["four"], 0, name="four") == [CONCURRENT_TRANSACTIONS]
    await ended(node, pairs["one"], "one")
    assert await add_as_alice("two") == [0]


@bounded()
async def test_a_flood_of_refusals_is_told_in_few_lines_that_name_principal_and_setting(node: Node) -> None:
    pairs = {name: await node.init(name) for name in "abc"}
    for name in "ab":
        await node.add(pairs[name], 0, name=name)
    with hearing(logging.getLogger("twofold"), logging.WARNING) as heard:
        for _ in range(50):
            assert await node.add(pairs["c"], 0, name="c") == [CONCURRENT_TRANSACTIONS]
    lines = [line for line in heard if "quota.open.transactions.max" in line]
    assert 1 <= len(lines) <= 5
    assert lines[0] == (
        "'c' cannot begin a transaction: clients that did not log in may have 2 open here and have 2: "
        "quota.open.transactions.max"
    )
