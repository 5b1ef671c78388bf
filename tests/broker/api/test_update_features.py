"""UpdateFeatures at a whole broker: permission, versions, and what clients see in ApiVersions."""

import pytest

from kits.node.running import running
from kits.node.sockets import on_loop
from twofold.broker.network.authorizer import AllowAll, Operation
from twofold.wire.apis import KEYS
from twofold.wire.messages.api_versions import ApiVersionsRequest
from twofold.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

UPDATE, API_VERSIONS = KEYS["UpdateFeatures"], KEYS["ApiVersions"]
TV = "transaction.version"
UP, SAFE = 1, 2


def update(level, kind=UP, **fields):
    row = FeatureUpdateKey(feature=TV, max_version_level=level, upgrade_type=kind)
    return UpdateFeaturesRequest(feature_updates=[row], **fields)


async def seen(client):
    """The epoch and the level of transaction.version as a client is told."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = await client.call(request, API_VERSIONS, 4)
    levels = {row.name: row.max_version_level for row in answer.finalized_features}
    return answer.finalized_features_epoch, levels.get(TV, 0)


def test_a_new_level_is_told_with_a_higher_epoch_by_the_time_of_the_answer(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            client, other = await node.connect(), await node.connect()
            epoch, level = await seen(other)
            assert level == 2
            for level, kind in ((1, SAFE), (0, SAFE), (3, UP), (2, SAFE)):
                response = await client.call(update(level, kind), UPDATE, 2)
                assert response.error_code == 0
                before, (epoch, told) = epoch, await seen(other)
                assert told == level and epoch > before

    scenario()


def test_levels_survive_a_restart_and_the_epoch_does_not_go_back(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            client = await node.connect()
            await client.call(update(1, SAFE), UPDATE, 2)
            epoch, _ = await seen(client)
        async with running(tmp_path) as node:
            after, level = await seen(await node.connect())
            assert level == 1 and after >= epoch

    scenario()


@pytest.mark.parametrize("version", range(3))
def test_rows_are_told_up_to_version_1(tmp_path, version):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            client = await node.connect()
            response = await client.call(update(3), UPDATE, version)
            assert response.error_code == 0
            assert [row.feature for row in response.results] == ([TV] if version < 2 else [])
            refused = await client.call(update(9), UPDATE, version)
            assert refused.error_code == 95 and not refused.results
            assert "supports 0 to 3" in refused.error_message

    scenario()


def test_validate_only_changes_nothing(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            client = await node.connect()
            assert (await client.call(update(1, SAFE, validate_only=True), UPDATE, 2)).error_code == 0
            assert (await seen(client))[1] == 2

    scenario()


def test_needs_alter_on_the_cluster(tmp_path):
    class NoAlter(AllowAll):
        def authorize(self, context, operation, resource_type, resource_name, *, quiet=False):
            return operation is not Operation.ALTER

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            node.broker.core.authorizer = NoAlter()
            client = await node.connect()
            response = await client.call(update(1, SAFE), UPDATE, 2)
            assert response.error_code == 31
            assert (await seen(client))[1] == 2

    scenario()
