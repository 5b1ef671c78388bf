"""AlterConfigs (key 33): what a resource has of its own is replaced as a whole."""

import asyncio
from typing import Any

import pytest

from kits.node.admin_world import Deny, World, scenario, settle
from twofold.broker.network.authorizer import CLUSTER_NAME, Operation

TOPIC, BROKER = 2, 4
Resource = tuple[int, str, dict[str, str | None] | list[tuple[str, str | None]]]


async def alter(world: World, version: int, *resources: Resource, validate_only: bool = False) -> Any:
    rows = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [
                {"name": key, "value": value}
                for key, value in (configs.items() if isinstance(configs, dict) else configs)
            ],
        }
        for kind, name, configs in resources
    ]
    answer = await world.ask("AlterConfigs", version, resources=rows, validate_only=validate_only)
    return answer["responses"]


def codes(rows: Any) -> list[tuple[str, int]]:
    return [(row["resource_name"], row["error_code"]) for row in rows]


@pytest.mark.parametrize("version", [0, 1, 2])
@scenario
async def test_what_is_not_named_goes_back_to_its_default(version: int) -> None:
    world = World()
    await world.create("t", retention_ms="5", cleanup_policy="compact")
    (row,) = await alter(world, version, (TOPIC, "t", {"retention.ms": "5", "segment.ms": "9"}))
    assert (row["error_code"], row["error_message"]) == (0, None)
    assert (row["resource_type"], row["resource_name"]) == (TOPIC, "t")
    assert dict(world.image.topic_configs("t")) == {"retention.ms": "5", "segment.ms": "9"}
    assert codes(await alter(world, version, (TOPIC, "t", {}))) == [("t", 0)]
    assert dict(world.image.topic_configs("t")) == {}


@scenario
async def test_brokers_and_their_defaults_are_replaced_each_on_their_own() -> None:
    world = World()
    both: dict[str, str | None] = {"message.max.bytes": "2000", "log.retention.ms": "7"}
    assert codes(await alter(world, 2, (BROKER, "", both), (BROKER, "1", both))) == [("", 0), ("1", 0)]
    assert codes(await alter(world, 2, (BROKER, "1", {"message.max.bytes": "3000"}))) == [("1", 0)]
    assert dict(world.image.broker_configs(1)) == {"message.max.bytes": "3000"}
    assert dict(world.image.broker_configs()) == both


@scenario
async def test_validate_only_changes_nothing() -> None:
    world = World()
    await world.create("t", retention_ms="5")
    assert codes(await alter(world, 2, (TOPIC, "t", {}), validate_only=True)) == [("t", 0)]
    rows = await alter(world, 2, (TOPIC, "t", {"retention.ms": "soon"}), validate_only=True)
    assert codes(rows) == [("t", 40)]
    assert dict(world.image.topic_configs("t")) == {"retention.ms": "5"}


@pytest.mark.parametrize(
    ("kind", "name", "configs", "code"),
    [
        (TOPIC, "none", {"retention.ms": "1"}, 3),
        (TOPIC, "a b", {"retention.ms": "1"}, 17),
        (TOPIC, "", {"retention.ms": "1"}, 42),
        (TOPIC, "t", {"retention.ms": "soon"}, 40),
        (TOPIC, "t", {"no.such": "1"}, 40),
        (TOPIC, "t", {"retention.ms": None}, 42),
        (TOPIC, "t", {"segment.ms": "5000", "retention.ms": "soon"}, 40),
        (BROKER, "2", {"message.max.bytes": "1"}, 42),
        (BROKER, "one", {"message.max.bytes": "1"}, 42),
        (BROKER, "1", {"node.id": "5"}, 42),
        (BROKER, "1", {"message.max.bytes": "big"}, 42),
        (0, "x", {"retention.ms": "1"}, 42),
        (3, "x", {}, 42),
    ],
)
@scenario
async def test_changes_that_cannot_be(kind: int, name: str, configs: dict[str, str | None], code: int) -> None:
    world = World()
    await world.create("t", flush_ms="77")
    assert codes(await alter(world, 2, (kind, name, configs))) == [(name, code)]
    assert dict(world.image.topic_configs("t")) == {"flush.ms": "77"}


@scenario
async def test_each_resource_is_decided_on_its_own_unless_it_comes_twice() -> None:
    world = World()
    for name in ("t", "u"):
        await world.create(name, flush_ms="77")
    change: dict[str, str | None] = {"retention.ms": "7"}
    rows = await alter(world, 2, (TOPIC, "u", change), (TOPIC, "u", {}), (TOPIC, "none", change), (TOPIC, "t", change))
    assert sorted(codes(rows)) == [("none", 3), ("t", 0), ("u", 42), ("u", 42)]
    assert dict(world.image.topic_configs("u")) == {"flush.ms": "77"}
    assert dict(world.image.topic_configs("t")) == change
    assert await alter(world, 2) == []


@scenario
async def test_altering_needs_permission() -> None:
    world = World(authorizer=Deny((Operation.ALTER_CONFIGS, "t"), (Operation.ALTER_CONFIGS, CLUSTER_NAME)))
    await world.create("t")
    assert codes(await alter(world, 2, (TOPIC, "t", {"retention.ms": "7"}))) == [("t", 29)]
    assert codes(await alter(world, 2, (BROKER, "", {"message.max.bytes": "1"}))) == [("", 31)]


@scenario
async def test_a_controller_that_takes_longer_than_request_timeout_ms_is_a_timeout() -> None:
    world = World({"request.timeout.ms": "2000"})
    await world.create("t")
    world.controller.gate = asyncio.Event()
    asked = asyncio.create_task(alter(world, 2, (TOPIC, "t", {"retention.ms": "7"})))
    await settle()
    world.time.advance(2.1)
    await settle()
    assert codes(asked.result()) == [("t", 7)]
