"""A stranger that may write to a topic cannot fence a transactional producer with its id and a higher epoch."""

import logging

import pytest

from kits.node.txn_node import Node, exact

INVALID_TXN_STATE, OLD_EPOCH = 48, 47


async def between_transactions(node: Node) -> tuple[int, int]:
    pair: tuple[int, int] = await node.init()
    assert await node.add(pair, 0) == [0]
    assert await node.produce(pair) == 0
    assert await node.end(pair) == 0
    await node.sleep(0.1)
    return pair


async def owner_goes_on(node: Node, pair: tuple[int, int]) -> None:
    """With the sequence that follows its first batch, which the marker has not reset."""
    assert await node.add(pair, 0) == [0]
    assert await node.produce(pair, sequence=1) == 0
    assert await node.end(pair) == 0


@exact()
async def test_a_plain_batch_under_a_transactional_id_is_refused_and_the_owner_goes_on(node: Node) -> None:
    pair = await between_transactions(node)
    end = node.end_offset()
    for epoch, sequence in ((pair[1], 1), (pair[1] + 1, 0), (32767, 0)):
        assert await node.produce((pair[0], epoch), sequence=sequence, name=None) == INVALID_TXN_STATE
    assert node.end_offset() == end
    await owner_goes_on(node, pair)


@exact()
async def test_the_refusal_holds_after_kill_nine(node: Node) -> None:
    pair = await between_transactions(node)
    await node.restart()
    assert await node.produce((pair[0], pair[1] + 1), name=None) == INVALID_TXN_STATE
    await owner_goes_on(node, pair)


@exact()
async def test_the_refusal_holds_inside_a_transaction(node: Node) -> None:
    pair = await node.init()
    assert await node.add(pair, 0) == [0]
    assert await node.produce(pair) == 0
    assert await node.produce((pair[0], pair[1] + 1), name=None) == INVALID_TXN_STATE
    assert await node.end(pair) == 0


@exact()
async def test_a_lower_epoch_is_still_told_that_it_is_old(node: Node) -> None:
    pair = await between_transactions(node)
    pair = await node.init(pair=pair)
    assert await node.add(pair, 0) == [0]
    assert await node.produce(pair) == 0
    assert await node.produce((pair[0], pair[1] - 1), name=None) == OLD_EPOCH


@exact()
async def test_a_plain_producer_is_not_concerned(node: Node) -> None:
    answer = await node.ask("InitProducerId", 4, transactional_id=None, transaction_timeout=1000)
    pair = (answer["producer_id"], answer["producer_epoch"])
    assert await node.produce(pair, name=None) == 0
    assert await node.produce((pair[0], pair[1] + 1), name=None) == 0, "what an idempotent producer does after an error"


@exact()
async def test_where_the_owner_has_not_written_yet_the_leader_cannot_know(node: Node) -> None:
    """The gap that stays: docs/guide/quotas.md tells it."""
    pair = await node.init()
    assert await node.produce((pair[0], pair[1] + 1), name=None) == 0


def test_the_refusal_is_in_the_log_of_the_broker(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        test_a_plain_batch_under_a_transactional_id_is_refused_and_the_owner_goes_on()
    lines = [record.getMessage() for record in caplog.records if "refused a batch" in record.getMessage()]
    assert len(lines) == 3 and "User:ANONYMOUS" in lines[0] and "t-0" in lines[0]
