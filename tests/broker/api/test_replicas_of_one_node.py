"""Where replicas are, and who leads, on one node: keys 34, 43, 45, 46 and 55. Apache Kafka's answers to the same and
more are compared in `interop/cases/replicas.py`."""

from typing import Any

import pytest

from kits.node.admin_world import Deny
from kits.node.sim_node import SimNode, simulated
from twofold.broker.network.authorizer import CLUSTER_NAME, Operation

METADATA = "__cluster_metadata"


def metadata_log(*partitions: int) -> dict[str, Any]:
    return {"topics": [{"topic_name": METADATA, "partitions": [{"partition_index": index} for index in partitions]}]}


@simulated(SimNode)
async def test_the_quorum_is_this_node_and_nothing_lags(node: SimNode) -> None:
    answer = await node.ask("DescribeQuorum", 2, **metadata_log(0))
    (row,) = answer["topics"][0]["partitions"]
    (voter,) = row["current_voters"]
    assert (row["leader_id"], voter["replica_id"], row["observers"]) == (1, 1, [])
    assert voter["log_end_offset"] == row["high_watermark"] > 0
    assert voter["last_fetch_timestamp"] == node.broker.runtime.clock.wall_ms()
    assert voter["replica_directory_id"] is not None


@simulated(SimNode)
async def test_the_high_watermark_of_the_quorum_moves_with_the_metadata(node: SimNode) -> None:
    before = await node.ask("DescribeQuorum", 0, **metadata_log(0))
    row = {"name": "another", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    await node.ask("CreateTopics", 4, topics=[row], timeout=5000, validate_only=False)
    after = await node.ask("DescribeQuorum", 0, **metadata_log(0))
    first, second = (answer["topics"][0]["partitions"][0]["high_watermark"] for answer in (before, after))
    assert second > first


@simulated(SimNode)
async def test_only_the_metadata_partition_alone_has_a_quorum(node: SimNode) -> None:
    for asked in ([1], [0, 0], [0, 1]):
        answer = await node.ask("DescribeQuorum", 2, **metadata_log(*asked))
        assert [row["error_code"] for row in answer["topics"][0]["partitions"]] == [3] * len(asked)
        assert (answer["error_code"], answer["nodes"]) == (0, [])


@pytest.mark.parametrize("kind", [0, 1])
@simulated(SimNode)
async def test_no_election_is_needed_where_one_replica_leads(node: SimNode, kind: int) -> None:
    rows = [{"topic": "t", "partitions": [0, 9]}, {"topic": "none", "partitions": [0]}]
    answer = await node.ask("ElectLeaders", 2, topic_partitions=rows, timeout=5000, election_type=kind)
    found = [row["error_code"] for topic in answer["replica_election_results"] for row in topic["partition_result"]]
    assert (answer["error_code"], found) == (0, [84, 3, 3])
    answer = await node.ask("ElectLeaders", 2, topic_partitions=None, timeout=5000, election_type=kind)
    assert {"topic": "t", "partition_result": []} in answer["replica_election_results"]


@simulated(SimNode)
async def test_a_partition_can_only_be_sent_to_where_it_is(node: SimNode) -> None:
    async def outcome(replicas: list[int] | None) -> tuple[int, str | None]:
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": replicas}]}]
        answer = await node.ask("AlterPartitionReassignments", 1, timeout=5000, topics=topics)
        (row,) = answer["responses"][0]["partitions"]
        return row["error_code"], row["error_message"]

    assert await outcome([1]) == (0, None)
    assert (await outcome(None))[0] == 85
    code, message = await outcome([1, 2])
    assert code == 39 and "there is no broker 2" in str(message)
    assert [(await outcome(replicas))[0] for replicas in ([], [1, 1])] == [39, 39]
    listed = await node.ask("ListPartitionReassignments", 0, timeout=5000, topics=None)
    assert (listed["error_code"], listed["topics"]) == (0, [])


@simulated(SimNode)
async def test_there_is_one_directory_to_move_to(node: SimNode) -> None:
    for path, index, code in (("/data", 0, 0), ("/data", 9, 3), ("/other", 0, 57), ("/other", 9, 57)):
        dirs = [{"path": path, "topics": [{"name": "t", "partitions": [index]}]}]
        answer = await node.ask("AlterReplicaLogDirs", 2, dirs=dirs)
        row = {"partition_index": index, "error_code": code}
        assert answer["results"] == [{"topic_name": "t", "partitions": [row]}]


@simulated(SimNode)
async def test_a_client_without_patience_is_told_at_once_where_there_is_something_to_do(node: SimNode) -> None:
    moves = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}]}]
    for topics, code in ((moves, 7), ([], 0)):
        assert (await node.ask("AlterPartitionReassignments", 1, timeout=0, topics=topics))["error_code"] == code
    answer = await node.ask("ElectLeaders", 2, topic_partitions=[], timeout=0, election_type=0)
    assert answer["error_code"] == 7
    assert (await node.ask("ListPartitionReassignments", 0, timeout=0, topics=None))["error_code"] == 0


@simulated(SimNode)
async def test_directories_are_not_told_to_a_client_that_may_not_alter(node: SimNode) -> None:
    node.broker.core.authorizer = Deny((Operation.ALTER, CLUSTER_NAME))
    dirs = [{"path": "/data", "topics": [{"name": "t", "partitions": [0, 9]}]}]
    answer = await node.ask("AlterReplicaLogDirs", 2, dirs=dirs)
    assert {row["error_code"] for row in answer["results"][0]["partitions"]} == {31}
