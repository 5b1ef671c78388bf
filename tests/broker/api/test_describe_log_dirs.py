"""DescribeLogDirs (key 35): what lies in the data directory, and how much room there is."""

from typing import Any

import pytest

from kits.node.admin_world import Deny
from kits.node.sim_node import NODE, SimNode, simulated
from twofold.broker.network.authorizer import CLUSTER_NAME, Operation
from twofold.records.batch import BatchBuilder


async def write(node: SimNode) -> int:
    builder = BatchBuilder()
    builder.add(b"k", b"v" * 100, node.broker.runtime.clock.wall_ms())
    records = builder.build()
    data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    await node.ask("Produce", 7, acks=-1, timeout=1000, topic_data=data)
    return len(records)


async def describe(node: SimNode, version: int = 4, topics: Any = None) -> dict[str, Any]:
    answer = await node.ask("DescribeLogDirs", version, topics=topics)
    assert answer.get("error_code", 0) == 0
    (row,) = answer["results"]
    return dict(row)


def sizes(row: dict[str, Any]) -> dict[tuple[str, int], int]:
    return {
        (topic["name"], partition["partition_index"]): partition["partition_size"]
        for topic in row["topics"]
        for partition in topic["partitions"]
    }


@pytest.mark.parametrize("version", range(1, 6))
@simulated(SimNode)
async def test_every_version_tells_the_sizes(node: SimNode, version: int) -> None:
    size = await write(node)
    row = await describe(node, version)
    assert (row["error_code"], row["log_dir"]) == (0, "/data")
    found = sizes(row)
    assert (found["t", 0], found["t", 1]) == (size, 0)
    assert {topic["name"] for topic in row["topics"]} == {"t", "__consumer_offsets"}
    for topic in row["topics"]:
        for partition in topic["partitions"]:
            assert (partition["offset_lag"], partition["is_future_key"]) == (0, False)
    if version >= 4:
        assert 0 < row["usable_bytes"] < row["total_bytes"]
    if version >= 5:
        assert row["is_cordoned"] is False


@simulated(SimNode)
async def test_only_the_partitions_asked_for(node: SimNode) -> None:
    size = await write(node)
    for asked, found in (
        ([{"topic": "t", "partitions": [0]}], {("t", 0): size}),
        (
            [{"topic": "t", "partitions": [0, 0, 1, 9]}, {"topic": "t", "partitions": [0]}],
            {("t", 0): size, ("t", 1): 0},
        ),
        ([{"topic": "none", "partitions": [0]}], {}),
        ([{"topic": "t", "partitions": []}], {}),
        ([], {}),
    ):
        assert sizes(await describe(node, topics=asked)) == found


@simulated(SimNode)
async def test_a_log_that_was_not_opened_since_the_start_has_its_size(node: SimNode) -> None:
    size = await write(node)
    await node.broker.stop()
    node.sim.disk(NODE).fail_reads(1_000, match="/data/t-0/")  # or the first look would open it
    await node.start()
    assert sizes(await describe(node))["t", 0] == size
    log = node.broker.logs.get(("t", 0))  # type: ignore[arg-type]
    assert log is not None and not log.is_open


@simulated(SimNode)
async def test_a_directory_that_is_gone_is_offline(node: SimNode) -> None:
    await write(node)
    disk = node.broker.runtime.disk
    disk.rename("/data", "/elsewhere")
    row = await describe(node)
    disk.rename("/elsewhere", "/data")
    assert (row["error_code"], row["log_dir"], row["topics"]) == (56, "/data", [])
    assert (row["total_bytes"], row["usable_bytes"]) == (-1, -1)


@pytest.mark.parametrize("version", [2, 3, 5])
@simulated(SimNode)
async def test_describing_needs_permission(node: SimNode, version: int) -> None:
    node.broker.core.authorizer = Deny((Operation.DESCRIBE, CLUSTER_NAME))
    answer = await node.ask("DescribeLogDirs", version, topics=None)
    assert answer["results"] == []
    assert answer.get("error_code", 31) == 31
