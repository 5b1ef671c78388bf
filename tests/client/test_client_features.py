"""Admin.describe_features and Admin.update_features against a scripted broker."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kits.client.scripted_broker import PORT, FakeBroker
from twofold.client import Admin, Feature, FeatureUpdate, UpgradeType
from twofold.runtime.sim import Simulation
from twofold.wire.apis import KEYS
from twofold.wire.errors import InvalidUpdateVersion, NotController, UnsupportedVersion
from twofold.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from twofold.wire.messages.update_features import UpdatableFeatureResult, UpdateFeaturesResponse

TV = "transaction.version"
DOWN = {TV: FeatureUpdate(1, UpgradeType.SAFE_DOWNGRADE)}


def play(story: Callable[[FakeBroker, Admin], Awaitable[None]]) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            broker = await FakeBroker(sim.runtime("one"), "one", topics={}).start()
            async with Admin(bootstrap_servers=f"one:{PORT}", runtime=sim.runtime("client")) as admin:
                await story(broker, admin)

        sim.run(main(), timeout_s=3600)


def told(broker: FakeBroker, request: Any) -> ApiVersionsResponse:
    rows = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in broker.versions.items()]
    return ApiVersionsResponse(
        error_code=0,
        api_keys=rows,
        supported_features=[
            SupportedFeatureKey(name="a", min_version=1, max_version=4),
            SupportedFeatureKey(name="off", min_version=0, max_version=1),
        ],
        finalized_features_epoch=7,
        finalized_features=[
            FinalizedFeatureKey(name="a", min_version_level=3, max_version_level=3),
            FinalizedFeatureKey(name="untold", min_version_level=2, max_version_level=2),
        ],
    )


def test_features_are_what_the_broker_supports_and_what_the_cluster_finalized() -> None:
    async def story(broker: FakeBroker, admin: Admin) -> None:
        broker.script("ApiVersions", told, told)
        found = await admin.describe_features()
        assert found.epoch == 7
        assert found.features == {
            "a": Feature("a", 1, 4, 3),
            "off": Feature("off", 0, 1, 0),
            "untold": Feature("untold", 0, 0, 2),
        }

    play(story)


def test_an_update_says_what_it_is_and_is_sent_again_to_a_controller() -> None:
    async def story(broker: FakeBroker, admin: Admin) -> None:
        moved = UpdateFeaturesResponse(error_code=NotController.code, error_message=None)
        done = UpdateFeaturesResponse(error_code=0, error_message=None)
        broker.script("UpdateFeatures", lambda *_: moved, lambda *_: done)
        await admin.update_features(DOWN)
        assert broker.seen["UpdateFeatures"] == 2
        (row,) = broker.requests[-1][2].feature_updates
        assert (row.feature, row.max_version_level, row.upgrade_type) == (TV, 1, UpgradeType.SAFE_DOWNGRADE)

    play(story)


def test_a_refusal_is_raised_with_its_reason_wherever_it_stands() -> None:
    async def story(broker: FakeBroker, admin: Admin) -> None:
        whole = UpdateFeaturesResponse(error_code=InvalidUpdateVersion.code, error_message="the whole")
        row = UpdatableFeatureResult(feature=TV, error_code=InvalidUpdateVersion.code, error_message="the row")
        one = UpdateFeaturesResponse(error_code=0, error_message=None, results=[row])
        broker.versions[KEYS["UpdateFeatures"]] = (0, 1)
        broker.script("UpdateFeatures", lambda *_: whole, lambda *_: one)
        with pytest.raises(InvalidUpdateVersion, match="the whole"):
            await admin.update_features(DOWN)
        with pytest.raises(InvalidUpdateVersion, match="the row"):
            await admin.update_features(DOWN)

    play(story)


def test_a_broker_that_cannot_only_validate_is_not_asked() -> None:
    async def story(broker: FakeBroker, admin: Admin) -> None:
        broker.versions[KEYS["UpdateFeatures"]] = (0, 0)
        with pytest.raises(UnsupportedVersion, match="instead of only checking"):
            await admin.update_features(DOWN, validate_only=True)
        assert "UpdateFeatures" not in broker.seen

    play(story)
