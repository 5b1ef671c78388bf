"""DescribeConfigs and IncrementalAlterConfigs as a broker answers them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kits.node.admin_world import Deny, World, scenario, settle
from oracle.wire import fit
from twofold.broker.network.authorizer import CLUSTER_NAME, Operation
from twofold.config.settings import DEFINITIONS as SETTINGS
from twofold.config.topic import DEFINITIONS as TOPIC_CONFIGS

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
ALTERED = (TOPIC, "t", [("retention.ms", SET, "7")])


async def describe(
    world: World, version: int, kind: int, name: str, keys: Sequence[str] | None = None, **flags: bool
) -> dict[str, Any]:
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    body = fit("DescribeConfigs", version, {"resources": [row], **flags})
    (found,) = (await world.ask("DescribeConfigs", version, **body))["results"]
    assert (found["resource_type"], found["resource_name"]) == (kind, name)
    return dict(found)


async def alter(world: World, version: int, *resources: tuple[int, str, Any], validate_only: bool = False) -> Any:
    rows = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "config_operation": op, "value": value} for key, op, value in configs],
        }
        for kind, name, configs in resources
    ]
    answer = await world.ask("IncrementalAlterConfigs", version, resources=rows, validate_only=validate_only)
    return answer["responses"]


def configs(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    assert found["error_code"] == 0, found
    return {row["name"]: row for row in found["configs"]}


@pytest.mark.parametrize("version", range(1, 5))
@scenario
async def test_every_version_describes_a_topic(version: int) -> None:
    world = World()
    await world.create("t", retention_ms="5")
    found = await describe(world, version, TOPIC, "t")
    assert found["error_message"] == ""
    rows = configs(found)
    assert len(rows) == 33
    row = rows["retention.ms"]
    assert (row["value"], row["config_source"], row["read_only"], row["is_sensitive"]) == ("5", 1, False, False)
    assert row["synonyms"] == []
    if version >= 3:
        assert (row["config_type"], row["documentation"]) == (5, None)


@scenario
async def test_documentation_and_synonyms_where_asked_for() -> None:
    world = World()
    await world.create("t", segment_bytes="2000000")
    found = configs(await describe(world, 4, TOPIC, "t", include_synonyms=True, include_documentation=True))
    row = found["segment.bytes"]
    assert row["documentation"] == TOPIC_CONFIGS["segment.bytes"].doc
    assert [(synonym["name"], synonym["value"], synonym["source"]) for synonym in row["synonyms"]] == [
        ("segment.bytes", "2000000", 1),
        ("log.segment.bytes", "1073741824", 5),
    ]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        (["retention.ms"], ["retention.ms"]),
        (["retention.ms", "retention.ms", "no.such"], ["retention.ms"]),
        (["no.such"], []),
    ],
)
@pytest.mark.parametrize("version", [1, 4])
@scenario
async def test_only_the_keys_asked_for(version: int, keys: list[str], names: list[str]) -> None:
    world = World()
    await world.create("t")
    assert [*configs(await describe(world, version, TOPIC, "t", keys))] == names
    assert len(configs(await describe(world, version, TOPIC, "t", []))) == 33


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [(TOPIC, "none", 3), (TOPIC, "", 17), (TOPIC, "a b", 17), (BROKER, "2", 42), (BROKER, "one", 42), (0, "x", 42),
     (3, "x", 42), (99, "x", 42), (-1, "x", 42)],
)  # fmt: skip
@scenario
async def test_resources_that_are_not(kind: int, name: str, code: int) -> None:
    found = await describe(World(), 4, kind, name)
    assert (found["error_code"], found["configs"]) == (code, [])


@scenario
async def test_this_broker_describes_itself() -> None:
    world = World({"num.partitions": "3"})
    found = configs(await describe(world, 4, BROKER, "1", include_synonyms=True))
    assert len(found) == sum(not key.internal for key in SETTINGS.values())
    row = found["num.partitions"]
    assert (row["value"], row["config_source"], row["read_only"], row["config_type"]) == ("3", 4, True, 3)
    assert [(synonym["value"], synonym["source"]) for synonym in row["synonyms"]] == [("3", 4), ("1", 5)]
    assert found["message.max.bytes"]["read_only"] is False


@scenario
async def test_what_was_changed_while_running_shows_at_the_broker_at_topics_and_at_the_cluster() -> None:
    world = World({"message.max.bytes": "1000"})
    await world.create("t")
    assert configs(await describe(world, 4, BROKER, "")) == {}
    rows = await alter(world, 1, (BROKER, "", [("message.max.bytes", SET, "2000")]))
    assert [row["error_code"] for row in rows] == [0]
    rows = await alter(world, 1, (BROKER, "1", [("message.max.bytes", SET, "3000")]))
    assert [row["error_code"] for row in rows] == [0]
    row = configs(await describe(world, 4, BROKER, "1", ["message.max.bytes"], include_synonyms=True))
    values = [(synonym["value"], synonym["source"]) for synonym in row["message.max.bytes"]["synonyms"]]
    assert values == [("3000", 2), ("2000", 3), ("1000", 4), ("1048588", 5)]
    row = configs(await describe(world, 4, BROKER, ""))
    assert [(name, config["value"], config["config_source"]) for name, config in row.items()] == [
        ("message.max.bytes", "2000", 3)
    ]
    row = configs(await describe(world, 4, TOPIC, "t", ["max.message.bytes"]))
    assert (row["max.message.bytes"]["value"], row["max.message.bytes"]["config_source"]) == ("3000", 2)


@scenario
async def test_describing_needs_permission() -> None:
    denied = Deny((Operation.DESCRIBE_CONFIGS, "t"), (Operation.DESCRIBE_CONFIGS, CLUSTER_NAME))
    world = World(authorizer=denied)
    await world.create("t")
    await world.create("u")
    assert (await describe(world, 4, TOPIC, "t"))["error_code"] == 29
    assert (await describe(world, 4, TOPIC, "u"))["error_code"] == 0
    assert (await describe(world, 4, BROKER, "1"))["error_code"] == 31
    assert (await describe(world, 4, BROKER, ""))["error_code"] == 31


# IncrementalAlterConfigs


@pytest.mark.parametrize("version", [0, 1])
@scenario
async def test_a_change_is_in_force_when_the_answer_goes_out(version: int) -> None:
    world = World()
    await world.create("t")
    (row,) = await alter(world, version, ALTERED)
    assert (row["error_code"], row["error_message"]) == (0, None)
    assert (row["resource_type"], row["resource_name"]) == (TOPIC, "t")
    assert configs(await describe(world, 4, TOPIC, "t"))["retention.ms"]["value"] == "7"
    await alter(world, version, (TOPIC, "t", [("retention.ms", DELETE, None)]))
    assert configs(await describe(world, 4, TOPIC, "t"))["retention.ms"]["value"] == "604800000"
    await alter(world, version, (TOPIC, "t", [("cleanup.policy", APPEND, "compact")]))
    assert configs(await describe(world, 4, TOPIC, "t"))["cleanup.policy"]["value"] == "delete,compact"
    await alter(world, version, (TOPIC, "t", [("cleanup.policy", SUBTRACT, "delete")]))
    assert configs(await describe(world, 4, TOPIC, "t"))["cleanup.policy"]["value"] == "compact"


@scenario
async def test_validate_only_changes_nothing() -> None:
    world = World()
    await world.create("t")
    (row,) = await alter(world, 1, ALTERED, validate_only=True)
    assert row["error_code"] == 0
    assert dict(world.image.topic_configs("t")) == {}


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (TOPIC, "none", ("retention.ms", SET, "1"), 3),
        (TOPIC, "a b", ("retention.ms", SET, "1"), 17),
        (TOPIC, "", ("retention.ms", SET, "1"), 42),
        (TOPIC, "t", ("retention.ms", SET, "soon"), 40),
        (TOPIC, "t", ("no.such", SET, "1"), 40),
        (TOPIC, "t", ("retention.ms", SET, None), 42),
        (TOPIC, "t", ("retention.ms", APPEND, "1"), 40),
        (TOPIC, "t", ("retention.ms", 9, "1"), -1),
        (BROKER, "2", ("message.max.bytes", SET, "1"), 42),
        (BROKER, "one", ("message.max.bytes", SET, "1"), 42),
        (BROKER, "1", ("node.id", SET, "5"), 42),
        (BROKER, "", ("socket.request.max.bytes", SET, "5"), 42),
        (BROKER, "1", ("message.max.bytes", SET, "big"), 42),
        (BROKER, "1", ("no.such", SET, "1"), 0),
        (0, "x", ("retention.ms", SET, "1"), 42),
        (3, "x", ("retention.ms", SET, "1"), 42),
    ],
)
@scenario
async def test_changes_that_cannot_be(kind: int, name: str, change: tuple[str, int, str | None], code: int) -> None:
    world = World()
    await world.create("t")
    (row,) = await alter(world, 1, (kind, name, [change]))
    assert (row["error_code"], row["resource_type"], row["resource_name"]) == (code, kind, name)


@scenario
async def test_each_resource_is_decided_on_its_own_unless_it_comes_twice() -> None:
    world = World()
    await world.create("t")
    await world.create("u")
    change = [("retention.ms", SET, "7")]
    rows = await alter(world, 1, (TOPIC, "u", change), (TOPIC, "u", change), (TOPIC, "none", change), ALTERED)
    assert sorted((row["resource_name"], row["error_code"]) for row in rows) == [
        ("none", 3),
        ("t", 0),
        ("u", 42),
        ("u", 42),
    ]
    assert await alter(world, 1) == []


@scenario
async def test_altering_needs_permission() -> None:
    denied = Deny((Operation.ALTER_CONFIGS, "t"), (Operation.ALTER_CONFIGS, CLUSTER_NAME))
    world = World(authorizer=denied)
    await world.create("t")
    (row,) = await alter(world, 1, ALTERED)
    assert row["error_code"] == 29
    (row,) = await alter(world, 1, (BROKER, "", [("message.max.bytes", SET, "1")]))
    assert row["error_code"] == 31
    assert dict(world.image.topic_configs("t")) == {}


@scenario
async def test_a_controller_that_takes_longer_than_request_timeout_ms_is_a_timeout() -> None:
    world = World({"request.timeout.ms": "2000"})
    await world.create("t")
    world.controller.gate = asyncio.Event()
    asked = asyncio.create_task(alter(world, 1, ALTERED))
    await settle()
    world.time.advance(1.9)
    await settle()
    assert not asked.done()
    world.time.advance(0.2)
    await settle()
    assert [row["error_code"] for row in asked.result()] == [7]
