"""CreateTopics, DeleteTopics and CreatePartitions as a broker answers them."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from kits.node.admin_world import Deny, World, scenario, settle
from oracle.wire import fit
from twofold.broker.network.authorizer import CLUSTER_NAME, Operation

UNKNOWN_ID = UUID(int=5 << 100)


def topic(name: str, partitions: int = 1, factor: int = 1, **configs: str) -> dict[str, Any]:
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {"name": name, "num_partitions": partitions, "replication_factor": factor, "configs": rows}


def codes(answer: dict[str, Any], key: str = "topics") -> dict[str, int]:
    return {row["name"]: row["error_code"] for row in answer[key]}


async def delete(world: World, version: int, *names: str, **more: Any) -> dict[str, Any]:
    body = {"topics": [{"name": name, "topic_id": None} for name in names], "topic_names": list(names), **more}
    return await world.ask("DeleteTopics", version, **fit("DeleteTopics", version, {"timeout": 1000, **body}))


# CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
@scenario
async def test_a_new_topic_can_be_used_when_the_answer_goes_out(version: int) -> None:
    world = World()
    answer = await world.ask("CreateTopics", version, topics=[topic("t", 3, retention_ms="5")], timeout=1000)
    assert codes(answer) == {"t": 0}
    found = world.image.topic("t")
    assert found is not None and len(found.partitions) == 3
    (row,) = answer["topics"]
    if version >= 5:
        assert (row["num_partitions"], row["replication_factor"], row["topic_config_error_code"]) == (3, 1, 0)
        told = {config["name"]: (config["value"], config["config_source"]) for config in row["configs"]}
        assert told["retention.ms"] == ("5", 1)
        assert told["segment.bytes"] == ("1073741824", 5)
        assert len(told) == 33
    if version >= 7:
        assert row["topic_id"] == found.topic_id


@scenario
async def test_the_controllers_refusals_reach_the_client() -> None:
    world = World()
    rows = [topic("a"), topic("b", 0), topic("c", 1, 9), topic("d", retention_ms="x"), topic("no good"), topic("a.b")]
    answer = await world.ask("CreateTopics", 7, topics=[*rows, topic("twice"), topic("twice")], timeout=1000)
    assert codes(answer) == {"a": 0, "b": 37, "c": 38, "d": 40, "no good": 17, "a.b": 0, "twice": 42}
    assert len(answer["topics"]) == 7
    assert codes(await world.ask("CreateTopics", 7, topics=[topic("a"), topic("a_b")], timeout=1000)) == {
        "a": 36,
        "a_b": 17,
    }


@pytest.mark.parametrize("version", range(2, 8))
@scenario
async def test_validate_only_creates_nothing(version: int) -> None:
    world = World()
    answer = await world.ask("CreateTopics", version, topics=[topic("t")], timeout=1000, validate_only=True)
    assert codes(answer) == {"t": 0}
    assert world.image.topic("t") is None


@scenario
async def test_creation_needs_permission_on_the_cluster_or_the_topic() -> None:
    world = World(authorizer=Deny((Operation.CREATE, CLUSTER_NAME), (Operation.CREATE, "no")))
    answer = await world.ask("CreateTopics", 7, topics=[topic("yes"), topic("no"), topic("no")], timeout=1000)
    assert codes(answer) == {"yes": 0, "no": 29}
    assert len(answer["topics"]) == 2
    assert world.image.topic("no") is None


@scenario
async def test_configurations_are_told_only_to_principals_that_may_see_them() -> None:
    world = World(authorizer=Deny((Operation.DESCRIBE_CONFIGS, "t")))
    (row,) = (await world.ask("CreateTopics", 7, topics=[topic("t")], timeout=1000))["topics"]
    assert (row["error_code"], row["topic_config_error_code"]) == (0, 29)
    assert (row["num_partitions"], row["replication_factor"], row["configs"]) == (-1, -1, [])


@pytest.mark.parametrize(
    ("api", "version", "body", "rows"),
    [
        ("CreateTopics", 7, {"topics": [topic("a"), topic("b")]}, "topics"),
        ("CreatePartitions", 3, {"topics": [{"name": "a", "count": 2, "assignments": None}]}, "results"),
        ("DeleteTopics", 6, {"topics": [{"name": "a", "topic_id": None}]}, "responses"),
    ],
)
@scenario
async def test_a_controller_that_takes_too_long_is_a_timeout_for_every_topic(
    api: str, version: int, body: dict[str, Any], rows: str
) -> None:
    world = World()
    world.controller.gate = asyncio.Event()
    asked = asyncio.create_task(world.ask(api, version, timeout=500, **body))
    await settle()
    assert not asked.done()
    world.time.advance(0.5)
    await settle()
    answer = asked.result()
    assert set(codes(answer, rows).values()) == {7}
    world.controller.gate.set()
    await settle()
    if api == "CreateTopics":
        assert world.image.topic("a") is not None, "the work goes on although nobody waits"


@scenario
async def test_no_timer_is_left_behind() -> None:
    world = World()
    await world.create("t")
    assert world.time.waiting == 0


# DeleteTopics


@pytest.mark.parametrize("version", range(1, 7))
@scenario
async def test_a_deleted_topic_is_gone_when_the_answer_goes_out(version: int) -> None:
    world = World()
    await world.create("t")
    topic_id = world.topic_id("t")
    answer = await delete(world, version, "t", "none")
    assert codes(answer, "responses") == {"t": 0, "none": 3}
    assert world.image.topic("t") is None
    if version >= 6:
        assert {row["name"]: row["topic_id"] for row in answer["responses"]} == {"t": topic_id, "none": None}


@scenario
async def test_topics_are_deleted_by_id_from_version_6_on() -> None:
    world = World()
    await world.create("t")
    topic_id = world.topic_id("t")
    rows = [{"name": None, "topic_id": topic_id}, {"name": None, "topic_id": UNKNOWN_ID}]
    answer = await world.ask("DeleteTopics", 6, topics=rows, timeout=1000)
    found = {row["topic_id"]: (row["name"], row["error_code"]) for row in answer["responses"]}
    assert found == {topic_id: ("t", 0), UNKNOWN_ID: (None, 100)}


@pytest.mark.parametrize("version", range(1, 7))
@scenario
async def test_deletion_can_be_disabled(version: int) -> None:
    world = World({"delete.topic.enable": "false"})
    await world.create("t")
    assert codes(await delete(world, version, "t"), "responses") == {"t": 42 if version < 3 else 73}
    assert world.image.topic("t") is not None


@pytest.mark.parametrize("operation", [Operation.DELETE, Operation.DESCRIBE])
@pytest.mark.parametrize("version", [1, 6])
@scenario
async def test_deletion_needs_permission(operation: Operation, version: int) -> None:
    world = World(authorizer=Deny((operation, "no"), (Operation.DELETE, CLUSTER_NAME)))
    await world.create("no")
    await world.create("yes")
    assert codes(await delete(world, version, "no", "yes"), "responses") == {"no": 29, "yes": 0}
    assert world.image.topic("no") is not None and world.image.topic("yes") is None
    if version == 6:
        rows = [{"name": None, "topic_id": world.topic_id("no")}]
        answer = await world.ask("DeleteTopics", 6, topics=rows, timeout=1000)
        named = None if operation is Operation.DESCRIBE else "no"
        assert [(row["name"], row["error_code"]) for row in answer["responses"]] == [(named, 29)]


@scenario
async def test_delete_on_the_cluster_permits_the_deletion_of_every_topic() -> None:
    world = World(authorizer=Deny((Operation.DELETE, "t"), (Operation.DESCRIBE, "t")))
    await world.create("t")
    assert codes(await delete(world, 1, "t"), "responses") == {"t": 0}


@scenario
async def test_a_missing_topic_looks_like_a_forbidden_one_to_a_client_that_may_not_describe_it() -> None:
    world = World(authorizer=Deny((Operation.DESCRIBE, "none"), (Operation.DELETE, CLUSTER_NAME)))
    assert codes(await delete(world, 1, "none"), "responses") == {"none": 29}


# CreatePartitions


@pytest.mark.parametrize("version", range(4))
@scenario
async def test_partitions_are_added(version: int) -> None:
    world = World()
    await world.create("t")
    rows = [{"name": "t", "count": 3, "assignments": None}, {"name": "none", "count": 3, "assignments": None}]
    answer = await world.ask("CreatePartitions", version, topics=rows, timeout=1000, validate_only=False)
    assert codes(answer, "results") == {"t": 0, "none": 3}
    found = world.image.topic("t")
    assert found is not None and len(found.partitions) == 3


@scenario
async def test_adding_partitions_validate_only_adds_none() -> None:
    world = World()
    await world.create("t")
    rows = [{"name": "t", "count": 3, "assignments": None}]
    answer = await world.ask("CreatePartitions", 3, topics=rows, timeout=1000, validate_only=True)
    assert codes(answer, "results") == {"t": 0}
    found = world.image.topic("t")
    assert found is not None and len(found.partitions) == 1


@scenario
async def test_adding_partitions_needs_permission() -> None:
    world = World(authorizer=Deny((Operation.ALTER, "no")))
    await world.create("no")
    await world.create("yes")
    rows = [{"name": name, "count": 2, "assignments": None} for name in ("no", "yes", "no")]
    answer = await world.ask("CreatePartitions", 3, topics=rows, timeout=1000, validate_only=False)
    assert codes(answer, "results") == {"yes": 0, "no": 29}
    assert len(answer["results"]) == 2
