"""ListConfigResources (key 74), whose version 0 is ListClientMetricsResources."""

from typing import Any

import pytest

from kits.node.admin_world import Deny, World, scenario
from twofold.broker.network.authorizer import CLUSTER_NAME, Operation

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32


async def listed(world: World, version: int, **body: Any) -> Any:
    """The (type, name) pairs in order, or the error code."""
    answer = await world.ask("ListConfigResources", version, **body)
    rows = [(row.get("resource_type", METRICS), row["resource_name"]) for row in answer["config_resources"]]
    assert not (answer["error_code"] and rows)
    return answer["error_code"] or sorted(rows)


@scenario
async def test_version_0_lists_the_subscriptions_of_client_metrics_of_which_there_are_none() -> None:
    world = World()
    await world.create("t")
    assert await listed(world, 0) == []


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ([], [(TOPIC, "t"), (TOPIC, "u"), (BROKER, "1"), (LOGGER, "1")]),
        ([TOPIC], [(TOPIC, "t"), (TOPIC, "u")]),
        ([BROKER, BROKER], [(BROKER, "1")]),
        ([LOGGER], [(LOGGER, "1")]),
        ([METRICS, GROUP], []),
        ([TOPIC, 3], 35),
        ([0], 35),
        ([-1], 35),
    ],
)
@scenario
async def test_version_1_lists_the_types_asked_for(kinds: list[int], found: Any) -> None:
    world = World()
    await world.create("t")
    await world.create("u", retention_ms="5")
    assert await listed(world, 1, resource_types=kinds) == found


@pytest.mark.parametrize("version", [0, 1])
@scenario
async def test_listing_needs_permission(version: int) -> None:
    world = World(authorizer=Deny((Operation.DESCRIBE_CONFIGS, CLUSTER_NAME)))
    assert await listed(world, version) == 31
