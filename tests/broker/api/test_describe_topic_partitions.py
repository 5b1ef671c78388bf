"""DescribeTopicPartitions (key 75): pages of topics in the order of their names."""

from typing import Any

import pytest

from kits.node.admin_world import OTHER_LISTENER, Deny, World, scenario
from twofold.broker.network.authorizer import Operation

ALL_OPERATIONS = 3576
NOT_TOLD = -(2**31)


async def describe(
    world: World, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None
) -> dict[str, Any]:
    at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    topics = [{"name": name} for name in names]
    return await world.ask("DescribeTopicPartitions", 0, topics=topics, response_partition_limit=limit, cursor=at)


def shape(answer: dict[str, Any]) -> list[tuple[str, int, list[int]]]:
    return [
        (row["name"], row["error_code"], [partition["partition_index"] for partition in row["partitions"]])
        for row in answer["topics"]
    ]


def cursor_of(answer: dict[str, Any]) -> tuple[str, int] | None:
    cursor = answer["next_cursor"]
    return None if cursor is None else (cursor["topic_name"], cursor["partition_index"])


async def three_topics() -> World:
    world = World()
    for name, partitions in (("b", 3), ("a", 2), ("c", 1)):
        await world.create(name, partitions)
    return world


@scenario
async def test_topics_come_in_the_order_of_their_names_each_once() -> None:
    world = await three_topics()
    everything = [("a", 0, [0, 1]), ("b", 0, [0, 1, 2]), ("c", 0, [0])]
    answer = await describe(world)
    assert (shape(answer), cursor_of(answer)) == (everything, None)
    assert shape(await describe(world, "c", "a", "c")) == [everything[0], everything[2]]


@scenario
async def test_a_row_tells_the_leader_and_what_may_be_done() -> None:
    world = await three_topics()
    (row,) = (await describe(world, "c"))["topics"]
    assert (row["topic_id"], row["is_internal"]) == (world.topic_id("c"), False)
    assert row["topic_authorized_operations"] == ALL_OPERATIONS
    (partition,) = row["partitions"]
    assert partition == {
        "error_code": 0,
        "partition_index": 0,
        "leader_id": 1,
        "leader_epoch": 0,
        "replica_nodes": [1],
        "isr_nodes": [1],
        "eligible_leader_replicas": [],
        "last_known_elr": [],
        "offline_replicas": [],
    }


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("names", [(), ("c", "b", "a")], ids=["all", "named"])
@scenario
async def test_pages_of_any_size_give_every_partition_once(names: tuple[str, ...], limit: int) -> None:
    world = await three_topics()
    found: list[tuple[str, int]] = []
    cursor = None
    for _ in range(10):
        answer = await describe(world, *names, limit=limit, cursor=cursor)
        page = [(name, index) for name, _, indexes in shape(answer) for index in indexes]
        assert len(page) <= limit
        found += page
        cursor = cursor_of(answer)
        if cursor is None:
            break
    assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]


@scenario
async def test_the_broker_has_a_limit_too_and_no_client_gets_less_than_one() -> None:
    world = World({"max.request.partition.size.limit": "2"})
    await world.create("t", 3)
    assert cursor_of(await describe(world)) == ("t", 2)
    for limit in (0, -1):
        assert cursor_of(await describe(world, limit=limit)) == ("t", 1)


@scenario
async def test_a_cursor_of_a_topic_that_is_gone_goes_on_behind_it() -> None:
    world = await three_topics()
    assert shape(await describe(world, cursor=("aa", 7))) == [("b", 0, [0, 1, 2]), ("c", 0, [0])]
    assert shape(await describe(world, cursor=("b", 9))) == [("b", 0, []), ("c", 0, [0])]
    assert shape(await describe(world, cursor=("d", 0))) == []


@pytest.mark.parametrize("cursor", [("x", 0), ("a", -1)])
@scenario
async def test_a_cursor_that_cannot_be_fails_all(cursor: tuple[str, int]) -> None:
    world = await three_topics()
    assert shape(await describe(world, "a", "b", cursor=cursor)) == [("a", 42, []), ("b", 42, [])]


@scenario
async def test_topics_that_are_not_count_for_nothing() -> None:
    world = await three_topics()
    answer = await describe(world, "a b", "aa", "__consumer_offsets", "c", limit=1)
    assert shape(answer) == [("__consumer_offsets", 3, []), ("a b", 17, []), ("aa", 3, []), ("c", 0, [0])]
    assert answer["topics"][0]["is_internal"] is True
    assert answer["topics"][0]["topic_authorized_operations"] == ALL_OPERATIONS
    assert answer["topics"][0]["topic_id"] is None


@scenario
async def test_describing_needs_permission() -> None:
    world = await three_topics()
    world.authorizer = Deny((Operation.DESCRIBE, "a"))
    assert shape(await describe(world)) == [("b", 0, [0, 1, 2]), ("c", 0, [0])]
    answer = await describe(world, "a", "c")
    assert shape(answer) == [("c", 0, [0]), ("a", 29, [])]
    assert answer["topics"][1]["topic_authorized_operations"] == NOT_TOLD


@scenario
async def test_a_leader_that_cannot_be_reached_is_none() -> None:
    world = await three_topics()
    world.register(1, listener=OTHER_LISTENER)
    (row,) = (await describe(world, "c"))["topics"]
    (partition,) = row["partitions"]
    assert (partition["error_code"], partition["leader_id"], partition["offline_replicas"]) == (0, -1, [1])
