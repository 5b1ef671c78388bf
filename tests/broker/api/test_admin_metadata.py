"""Metadata, rule by rule."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from kits.node.admin_world import OTHER_LISTENER, Deny, World, scenario, settle
from oracle.wire import fit
from twofold.broker.network.authorizer import CLUSTER_NAME, Operation
from twofold.controller.records import Partition, PartitionChange, Topic

UNKNOWN_ID = UUID(int=5 << 100)
NOT_ASKED = -(2**31)


def body(version: int, names: list[str] | None = None, ids: list[UUID] | None = None, **more: Any) -> dict[str, Any]:
    rows: list[dict[str, Any]] | None = None if names is None else [{"name": name} for name in names]
    if ids is not None:
        rows = [*(rows or []), *({"name": None, "topic_id": topic_id} for topic_id in ids)]
    return fit("Metadata", version, {"topics": rows, "allow_auto_topic_creation": False, **more})


async def rows(world: World, version: int, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await world.ask("Metadata", version, **body(version, *args, **kwargs)))["topics"]
    return found


def codes(found: list[dict[str, Any]]) -> dict[str | None, int]:
    return {row["name"]: row["error_code"] for row in found}


@pytest.mark.parametrize("version", range(14))
@scenario
async def test_every_version_tells_brokers_topics_and_partitions(version: int) -> None:
    world = World()
    await world.create("t", 3)
    answer = await world.ask("Metadata", version, **body(version, ["t"]))
    assert [(row["node_id"], row["host"], row["port"]) for row in answer["brokers"]] == [(1, "host-1", 9001)]
    assert answer.get("controller_id", 1) == 1
    assert answer.get("cluster_id", "a-cluster") == "a-cluster"
    (topic,) = answer["topics"]
    assert (topic["error_code"], topic["name"]) == (0, "t")
    assert topic.get("topic_id", world.topic_id("t")) == world.topic_id("t")
    assert topic.get("topic_authorized_operations", NOT_ASKED) == NOT_ASKED
    assert [row["partition_index"] for row in topic["partitions"]] == [0, 1, 2]
    for row in topic["partitions"]:
        assert (row["error_code"], row["leader_id"], row["replica_nodes"], row["isr_nodes"]) == (0, 1, [1], [1])
        assert row.get("leader_epoch", 0) == 0
        assert row.get("offline_replicas", []) == []


@pytest.mark.parametrize("version", range(14))
@scenario
async def test_a_null_list_is_all_topics_and_an_empty_one_none_but_in_version_0(version: int) -> None:
    world = World()
    await world.create("a")
    await world.create("b")
    empty = await rows(world, version, [])
    assert codes(empty) == ({"a": 0, "b": 0} if version == 0 else {})
    if version > 0:
        assert codes(await rows(world, version, None)) == {"a": 0, "b": 0}


@scenario
async def test_names_are_answered_once_and_in_order() -> None:
    world = World()
    await world.create("b")
    found = await rows(world, 9, ["x", "b", "x", "b"])
    assert [(row["name"], row["error_code"]) for row in found] == [("x", 3), ("b", 0)]


@scenario
async def test_internal_topics_are_marked() -> None:
    world = World()
    await world.create("__consumer_offsets")
    await world.create("_mine")
    internal = {row["name"]: row["is_internal"] for row in await rows(world, 9, None)}
    assert internal == {"__consumer_offsets": True, "_mine": False}


@pytest.mark.parametrize("create", [False, True])
@scenario
async def test_illegal_names_are_invalid_and_never_created(create: bool) -> None:
    world = World()
    names = ["", ".", "..", "a b", "ü", "x" * 250]
    found = await rows(world, 9, names, allow_auto_topic_creation=create)
    assert codes(found) == dict.fromkeys(names, 17)
    await settle()
    assert world.controller.requests == []


# Ids


@pytest.mark.parametrize("version", [12, 13])
@scenario
async def test_topics_by_id(version: int) -> None:
    world = World()
    await world.create("t")
    await world.create("other")
    known = world.topic_id("t")
    assert codes(await rows(world, version, ids=[known, known])) == {"t": 0}
    (unknown,) = await rows(world, version, ids=[UNKNOWN_ID])
    assert (unknown["error_code"], unknown["name"], unknown["topic_id"]) == (100, None, UNKNOWN_ID)
    assert codes(await rows(world, version, ["other"], [known])) == {"t": 0}
    both = {"topics": [{"name": "other", "topic_id": known}], "allow_auto_topic_creation": False}
    assert codes((await world.ask("Metadata", version, **both))["topics"]) == {"t": 0}


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("row", [{"name": None}, {"name": "t", "topic_id": UNKNOWN_ID}])
@scenario
async def test_ids_and_null_names_fail_versions_10_and_11(version: int, row: dict[str, Any]) -> None:
    world = World()
    await world.create("t")
    answer = await world.ask("Metadata", version, topics=[row, {"name": "t"}], allow_auto_topic_creation=False)
    assert [topic["error_code"] for topic in answer["topics"]] == [42, 42]
    assert (answer["brokers"], answer["controller_id"], answer["cluster_id"]) == ([], -1, None)


@scenario
async def test_a_row_with_neither_name_nor_id_fails_the_request() -> None:
    answer = await World().ask("Metadata", 13, topics=[{"name": None}], allow_auto_topic_creation=False)
    assert (answer["error_code"], answer["topics"][0]["error_code"], answer["topics"][0]["name"]) == (-1, -1, "")


# Creation on demand


@pytest.mark.parametrize("version", range(14))
@scenario
async def test_a_missing_topic_is_unknown_now_and_there_soon(version: int) -> None:
    world = World({"num.partitions": "4"})
    assert codes(await rows(world, version, ["new"], allow_auto_topic_creation=True)) == {"new": 3}
    await settle()
    (row,) = await rows(world, version, ["new"])
    assert (row["error_code"], len(row["partitions"])) == (0, 4)


@pytest.mark.parametrize(
    ("version", "setting", "asked", "created"),
    [(3, "true", True, True), (4, "true", False, False), (4, "true", True, True), (9, "false", True, False)],
)
@scenario
async def test_setting_request_and_version_allow_creation(
    version: int, setting: str, asked: bool, created: bool
) -> None:
    world = World({"auto.create.topics.enable": setting})
    assert codes(await rows(world, version, ["new"], allow_auto_topic_creation=asked)) == {"new": 3}
    await settle()
    assert (world.image.topic("new") is not None) is created


@scenario
async def test_many_requests_for_a_topic_ask_the_controller_once() -> None:
    world = World()
    world.controller.gate = asyncio.Event()
    for _ in range(5):
        await rows(world, 9, ["new"], allow_auto_topic_creation=True)
    await rows(world, 9, ["new", "other"], allow_auto_topic_creation=True)
    await settle()
    asked = [[topic.name for topic in request.topics] for request in world.controller.requests]
    assert asked == [["new"], ["other"]]
    world.controller.gate.set()
    await settle()
    assert codes(await rows(world, 9, ["new", "other"])) == {"new": 0, "other": 0}


@scenario
async def test_creations_in_flight_are_bounded_and_the_rest_come_when_asked_for_again() -> None:
    world = World()
    names = [f"t{index}" for index in range(1500)]
    for expected in (1000, 1500):
        world.controller.gate = asyncio.Event()
        for _ in range(2):
            await rows(world, 9, names, allow_auto_topic_creation=True)
        world.controller.gate.set()
        await settle()
        assert len(world.image.topics) == expected


@scenario
async def test_a_creation_that_failed_is_tried_again_by_the_next_request() -> None:
    world = World({"default.replication.factor": "2"})
    for _ in range(2):
        assert codes(await rows(world, 9, ["new"], allow_auto_topic_creation=True)) == {"new": 3}
        await settle()
    assert len(world.controller.requests) == 2
    world.register(2)
    await rows(world, 9, ["new"], allow_auto_topic_creation=True)
    await settle()
    assert codes(await rows(world, 9, ["new"])) == {"new": 0}


@scenario
async def test_an_internal_topic_is_created_with_its_own_settings() -> None:
    world = World({"num.partitions": "4", "offsets.topic.num.partitions": "7"})
    await rows(world, 9, ["__consumer_offsets"], allow_auto_topic_creation=True)
    await settle()
    (row,) = await rows(world, 9, ["__consumer_offsets"])
    assert (len(row["partitions"]), row["is_internal"]) == (7, True)
    assert world.image.topic_configs("__consumer_offsets")["cleanup.policy"] == "compact"


# Permissions


@scenario
async def test_topics_that_may_not_be_described() -> None:
    world = World(authorizer=Deny((Operation.DESCRIBE, "secret"), (Operation.DESCRIBE, "nothing")))
    await world.create("secret")
    await world.create("open")
    assert codes(await rows(world, 9, None)) == {"open": 0}
    assert codes(await rows(world, 9, ["open", "secret", "nothing"])) == {"open": 0, "secret": 29, "nothing": 29}
    (row,) = await rows(world, 12, ids=[world.topic_id("secret")])
    assert (row["error_code"], row["name"], row["topic_id"]) == (29, None, world.topic_id("secret"))
    (row,) = await rows(world, 12, ["secret"])
    assert row["topic_id"] is None


@scenario
async def test_creation_needs_permission_on_the_cluster_or_the_topic() -> None:
    world = World(authorizer=Deny((Operation.CREATE, CLUSTER_NAME), (Operation.CREATE, "no")))
    found = await rows(world, 9, ["yes", "no"], allow_auto_topic_creation=True)
    assert codes(found) == {"yes": 3, "no": 29}
    await settle()
    assert world.image.topic("yes") is not None and world.image.topic("no") is None


@pytest.mark.parametrize(("version", "cluster"), [(8, 8096), (9, 8096), (10, 8096), (11, None), (13, None)])
@scenario
async def test_authorized_operations_where_asked_for(version: int, cluster: int | None) -> None:
    world = World()
    await world.create("t")
    asked: dict[str, Any] = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    answer = await world.ask("Metadata", version, **body(version, ["t"], **asked))
    assert answer["topics"][0]["topic_authorized_operations"] == 3576
    assert answer.get("cluster_authorized_operations") == cluster


@scenario
async def test_authorized_operations_leave_out_what_is_denied() -> None:
    world = World(authorizer=Deny((Operation.WRITE, "t"), (Operation.DESCRIBE, CLUSTER_NAME)))
    await world.create("t")
    asked: dict[str, Any] = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    answer = await world.ask("Metadata", 9, **body(9, ["t"], **asked))
    assert answer["topics"][0]["topic_authorized_operations"] == 3576 - (1 << Operation.WRITE)
    assert answer["cluster_authorized_operations"] == 0


# Brokers that are not there


def with_partition(world: World, replicas: tuple[int, ...], leader: int) -> None:
    topic_id = UUID(int=1 << 100)
    world.apply(Topic("t", topic_id), Partition(0, topic_id, replicas, replicas, leader, leader_epoch=6))


@pytest.mark.parametrize("version", range(14))
@scenario
async def test_a_partition_without_a_leader(version: int) -> None:
    world = World()
    with_partition(world, (1,), -1)
    (partition,) = (await rows(world, version, ["t"]))[0]["partitions"]
    assert (partition["error_code"], partition["leader_id"]) == (5, -1)
    assert partition.get("leader_epoch", 6) == 6


@pytest.mark.parametrize("version", range(14))
@scenario
async def test_a_leader_without_the_clients_listener(version: int) -> None:
    world = World()
    world.register(2, listener=OTHER_LISTENER)
    with_partition(world, (2, 1), 2)
    answer = await world.ask("Metadata", version, **body(version, ["t"]))
    assert [row["node_id"] for row in answer["brokers"]] == [1]
    (partition,) = answer["topics"][0]["partitions"]
    assert (partition["error_code"], partition["leader_id"]) == (72 if version >= 6 else 5, -1)


@pytest.mark.parametrize("version", range(14))
@scenario
async def test_replicas_that_cannot_be_reached(version: int) -> None:
    world = World()
    world.register(2, fenced=True)
    with_partition(world, (1, 2, 3), 1)
    (partition,) = (await rows(world, version, ["t"]))[0]["partitions"]
    if version == 0:
        assert (partition["error_code"], partition["replica_nodes"], partition["isr_nodes"]) == (9, [1], [1])
    else:
        assert (partition["error_code"], partition["replica_nodes"]) == (0, [1, 2, 3])
        assert partition.get("offline_replicas", [2, 3]) == [2, 3]


@scenario
async def test_the_controller_is_a_living_broker() -> None:
    world = World()
    world.register(2)
    assert (await world.ask("Metadata", 9, **body(9, [])))["controller_id"] == 1
    world.register(1, fenced=True)
    assert (await world.ask("Metadata", 9, **body(9, [])))["controller_id"] == 2
    world.register(2, fenced=True)
    assert (await world.ask("Metadata", 9, **body(9, [])))["controller_id"] == -1


@scenario
async def test_racks_are_told() -> None:
    world = World()
    world.register(2, rack="r2")
    assert [row["rack"] for row in (await world.ask("Metadata", 9, **body(9, [])))["brokers"]] == [None, "r2"]


# Rows that are kept


@scenario
async def test_rows_are_built_once_and_follow_every_change() -> None:
    world = World()
    await world.create("t")
    await world.create("u")
    view = world.topic_rows.rows(world.image, "PLAINTEXT", 9)
    topic = world.image.topic("t")
    assert topic is not None
    first = view.row(topic)
    assert view.row(topic) is first
    await world.ask("CreatePartitions", 0, topics=[{"name": "u", "count": 2, "assignments": None}], timeout=1000)
    assert world.topic_rows.rows(world.image, "PLAINTEXT", 12) is view
    topic = world.image.topic("t")
    assert topic is not None
    assert view.row(topic) is first
    assert [len(row["partitions"]) for row in await rows(world, 9, ["t", "u"])] == [1, 2]
    world.apply(PartitionChange(0, world.topic_id("t"), leader=-1, isr=()))
    assert (await rows(world, 9, ["t"]))[0]["partitions"][0]["error_code"] == 5
    world.apply(PartitionChange(0, world.topic_id("t"), leader=1, isr=(1,)))
    assert (await rows(world, 9, ["t"]))[0]["partitions"][0]["error_code"] == 0
    world.register(1, fenced=True)
    assert (await rows(world, 9, ["t"]))[0]["partitions"][0]["error_code"] == 5


@scenario
async def test_rows_of_deleted_topics_are_forgotten() -> None:
    world = World()
    for index in range(150):
        await world.create(f"t{index}")
        await rows(world, 9, [f"t{index}"])
        await world.ask("DeleteTopics", 1, topic_names=[f"t{index}"], timeout=1000)
    view = world.topic_rows.rows(world.image, "PLAINTEXT", 9)
    assert len(view._rows) <= 101
