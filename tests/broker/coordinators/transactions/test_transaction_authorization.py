"""Which permissions the APIs of transactions ask for, one table; nothing happens where one is missing."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kits.node.admin_world import Deny
from kits.node.txn_node import Node, Pair, exact
from twofold.broker.network.authorizer import CLUSTER_NAME, AllowAll, Operation
from twofold.config.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from twofold.records.batch import BatchBuilder

READ, WRITE, DESCRIBE, ALTER = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER
CLUSTER_ACTION, IDEMPOTENT_WRITE = Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE
ID, GROUP, TOPIC = "x", "g", "t"

Ask = Callable[[Node, Pair], Awaitable[Any]]


async def init(node: Node, _: Pair) -> Any:
    answer = await node.init()
    return answer if isinstance(answer, int) else 0


async def init_without_id(node: Node, _: Pair) -> Any:
    return (await node.ask("InitProducerId", 4, transactional_id=None, transaction_timeout=60_000))["error_code"]


async def add(node: Node, pair: Pair) -> Any:
    (code,) = await node.add(pair, 1)
    return code


async def add_for_brokers(node: Node, pair: Pair) -> Any:
    row = {
        "transactional_id": ID,
        "producer_id": pair[0],
        "producer_epoch": pair[1],
        "verify_only": True,
        "topics": [{"name": TOPIC, "partitions": [0]}],
    }
    return (await node.ask("AddPartitionsToTxn", 4, transactions=[row]))["error_code"]


async def add_offsets(node: Node, pair: Pair) -> Any:
    answer = await node.ask(
        "AddOffsetsToTxn", 3, transactional_id=ID, producer_id=pair[0], producer_epoch=pair[1], group_id=GROUP
    )
    return answer["error_code"]


async def commit_offsets(node: Node, pair: Pair) -> Any:
    rows = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    answer = await node.ask(
        "TxnOffsetCommit", 3, transactional_id=ID, group_id=GROUP, producer_id=pair[0], producer_epoch=pair[1],
        generation_id=-1, member_id="", topics=rows,
    )  # fmt: skip
    return answer["topics"][0]["partitions"][0]["error_code"]


async def end(node: Node, pair: Pair) -> Any:
    return await node.end(pair)


async def produce(node: Node, pair: Pair) -> Any:
    return await node.produce(pair)


async def write_markers(node: Node, pair: Pair) -> Any:
    marker = {
        "producer_id": pair[0],
        "producer_epoch": pair[1],
        "transaction_result": False,
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    answer = await node.ask("WriteTxnMarkers", 1, markers=[marker])
    return answer["markers"][0]["topics"][0]["partitions"][0]["error_code"]


async def describe(node: Node, _: Pair) -> Any:
    return (await node.describe())["error_code"]


async def find(node: Node, _: Pair) -> Any:
    return (await node.ask("FindCoordinator", 3, key=ID, key_type=1))["error_code"]


async def with_a_group(node: Node) -> Pair:
    """A producer with a transaction in which offsets may be committed."""
    while (await node.ask("FindCoordinator", 3, key=GROUP, key_type=0))["error_code"]:
        await node.sleep(0.01)
    pair: Pair = await node.init()
    assert await node.add(pair, 0) == [0]
    assert await add_offsets(node, pair) == 0
    return pair


TABLE: dict[str, tuple[Ask, list[tuple[Operation, str]], int]] = {
    "InitProducerId needs WRITE on the id": (init, [(WRITE, ID)], 53),
    "AddPartitionsToTxn needs WRITE on the id": (add, [(WRITE, ID)], 53),
    "AddPartitionsToTxn needs WRITE on the topic": (add, [(WRITE, TOPIC)], 29),
    "AddPartitionsToTxn 4 needs CLUSTER_ACTION": (add_for_brokers, [(CLUSTER_ACTION, CLUSTER_NAME)], 31),
    "AddOffsetsToTxn needs WRITE on the id": (add_offsets, [(WRITE, ID)], 53),
    "AddOffsetsToTxn needs READ on the group": (add_offsets, [(READ, GROUP)], 30),
    "TxnOffsetCommit needs WRITE on the id": (commit_offsets, [(WRITE, ID)], 53),
    "TxnOffsetCommit needs READ on the group": (commit_offsets, [(READ, GROUP)], 30),
    "TxnOffsetCommit needs READ on the topic": (commit_offsets, [(READ, TOPIC)], 29),
    "EndTxn needs WRITE on the id": (end, [(WRITE, ID)], 53),
    "Produce needs WRITE on the id": (produce, [(WRITE, ID)], 53),
    "Produce needs WRITE on the topic": (produce, [(WRITE, TOPIC)], 29),
    "WriteTxnMarkers needs ALTER or CLUSTER_ACTION": (
        write_markers, [(ALTER, CLUSTER_NAME), (CLUSTER_ACTION, CLUSTER_NAME)], 31,
    ),
    "DescribeTransactions needs DESCRIBE on the id": (describe, [(DESCRIBE, ID)], 53),
    "FindCoordinator needs DESCRIBE on the id": (find, [(DESCRIBE, ID)], 53),
}  # fmt: skip


@pytest.mark.parametrize("rule", TABLE)
@exact()
async def test_an_api_of_transactions_is_refused_without_its_permission(node: Node, rule: str) -> None:
    ask, denied, code = TABLE[rule]
    pair = await with_a_group(node)
    before, ends = node.shard().state.entries[ID], node.end_offset()
    node.broker.core.authorizer = Deny(*denied)
    assert await ask(node, pair) == code
    assert node.shard().state.entries[ID] == before, "nothing was written"
    assert node.end_offset() == ends
    node.broker.core.authorizer = AllowAll()
    assert await ask(node, pair) in (0, 51), "allowed, it is answered"


@exact()
async def test_a_producer_without_an_id_needs_to_be_allowed_to_write_somewhere(node: Node) -> None:
    node.broker.core.authorizer = Deny((IDEMPOTENT_WRITE, CLUSTER_NAME))
    assert await init_without_id(node, (-1, -1)) == 0
    node.broker.core.authorizer = Deny((IDEMPOTENT_WRITE, CLUSTER_NAME), (WRITE, "any"))
    assert await init_without_id(node, (-1, -1)) == 31


@exact()
async def test_one_topic_without_permission_stops_the_whole_request(node: Node) -> None:
    pair = await node.init()
    await node.create_topic("other")
    node.broker.core.authorizer = Deny((WRITE, "other"))
    rows = [{"name": name, "partitions": [0]} for name in ("other", "t")]
    answer = await node.ask(
        "AddPartitionsToTxn", 3, v3_and_below_transactional_id=ID, v3_and_below_producer_id=pair[0],
        v3_and_below_producer_epoch=pair[1], v3_and_below_topics=rows,
    )  # fmt: skip
    codes = {
        topic["name"]: topic["results_by_partition"][0]["partition_error_code"]
        for topic in answer["results_by_topic_v3_and_below"]
    }
    assert codes == {"other": 29, "t": 55}
    assert await node.state() == "Empty"


@exact()
async def test_an_id_that_may_not_be_described_is_not_in_the_list(node: Node) -> None:
    await node.init("x")
    await node.init("y")
    node.broker.core.authorizer = Deny((DESCRIBE, "x"))
    assert set(await node.list()) == {"y"}


@pytest.mark.parametrize("topic", [TRANSACTION_STATE, CONSUMER_OFFSETS])
@exact()
async def test_internal_topics_are_read_by_clients_and_never_written(node: Node, topic: str) -> None:
    pair = await with_a_group(node)
    assert await commit_offsets(node, pair) == 0
    index = next(p.topic_partition.partition for p in node.broker.replicas.partitions() if _wrote_to(p, topic))
    partition = node.broker.replicas.leader(topic, index)
    part = {"partition": index, "fetch_offset": 0, "partition_max_bytes": 100_000}
    body = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 100_000, "isolation_level": 0}
    answer = await node.ask("Fetch", 11, **body, topics=[{"topic": topic, "partitions": [part]}])
    row = answer["responses"][0]["partitions"][0]
    assert row["error_code"] == 0 and row["records"]
    end_offset = partition.log.log_end_offset
    builder = BatchBuilder()
    builder.add(b"key", b"value", 0)
    rows = [{"name": topic, "partition_data": [{"index": index, "records": builder.build()}]}]
    answer = await node.ask("Produce", 9, transactional_id=None, acks=-1, timeout=1000, topic_data=rows)
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == 17
    assert partition.log.log_end_offset == end_offset


def _wrote_to(partition: Any, topic: str) -> bool:
    return bool(partition.topic_partition.topic == topic and partition.log.log_end_offset)
