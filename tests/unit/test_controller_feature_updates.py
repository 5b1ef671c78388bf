"""UpdateFeatures: which levels are taken, which error comes first, and that the levels survive a restart."""

from dataclasses import replace
from typing import Any

import pytest
from controller_kit import after, context, image_with, new_controller, new_disk, register, run
from hypothesis import given
from hypothesis import strategies as st

from twofold.controller.feature_updates import UpgradeType, update_features
from twofold.controller.features import SUPPORTED_FEATURES
from twofold.controller.image import MetadataImage
from twofold.controller.records import FeatureLevel, FeatureRange
from twofold.machine import Result
from twofold.wire.errors import InvalidUpdateVersion
from twofold.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

UP, SAFE, UNSAFE = UpgradeType
TV, MV, GV = "transaction.version", "metadata.version", "group.version"

IMAGE = image_with(1)

Update = tuple[str, int, int]


def request(*updates: Update, validate_only: bool = False) -> UpdateFeaturesRequest:
    rows = [FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind) for name, level, kind in updates]
    return UpdateFeaturesRequest(feature_updates=rows, validate_only=validate_only)


def update(image: MetadataImage, *updates: Update, validate_only: bool = False) -> Result[Any, Any]:
    return update_features(image, request(*updates, validate_only=validate_only), context(image))


def levels(image: MetadataImage, *updates: Update) -> dict[str, int]:
    """What is finalized after a request that must be taken."""
    result = update(image, *updates)
    assert result.response.error_code == 0
    return dict(after(image, result.records).features)


def test_a_new_cluster_starts_at_its_initial_levels():
    assert dict(IMAGE.features) == {MV: 30, GV: 1, TV: 2}


@pytest.mark.parametrize("kind", [SAFE, UNSAFE])
@pytest.mark.parametrize("level", [0, 1])
def test_transaction_version_goes_down_when_asked_for_as_a_downgrade(level: int, kind: int):
    assert levels(IMAGE, (TV, level, kind)).get(TV, 0) == level


def test_transaction_version_goes_up_to_3():
    assert levels(IMAGE, (TV, 3, UP))[TV] == 3
    off = after(IMAGE, [FeatureLevel(TV, 0)])
    assert levels(off, (TV, 2, UP))[TV] == 2


def test_level_0_is_no_longer_finalized():
    assert TV not in levels(IMAGE, (TV, 0, SAFE))


@pytest.mark.parametrize("kind", [UP, SAFE, UNSAFE])
def test_the_level_that_holds_is_taken_as_any_type_and_writes_nothing(kind: int):
    for name, level in IMAGE.features.items():
        assert update(IMAGE, (name, level, kind)).records == []
    off = after(IMAGE, [FeatureLevel(TV, 0)])
    assert update(off, (TV, 0, kind)).records == []


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        ((TV, 1, 0), "no upgrade type"),
        ((TV, 1, 4), "no upgrade type"),
        ((TV, 1, -1), "no upgrade type"),
        ((TV, -1, SAFE), "begin at 0"),
        ((TV, -1, UP), "begin at 0"),
        (("no.such", 1, UP), "does not know"),
        (("no.such", 0, SAFE), "does not know"),
        (("", 1, UP), "does not know"),
        (("kraft.version", 1, UP), "does not know"),
        ((TV, 4, UP), "supports 0 to 3"),
        ((TV, 99, SAFE), "supports 0 to 3"),
        ((TV, 1, UP), "ask for a downgrade"),
        ((TV, 0, UP), "ask for a downgrade"),
        ((TV, 3, SAFE), "cannot lead up"),
        ((TV, 3, UNSAFE), "cannot lead up"),
        ((MV, 0, SAFE), "supports 7 to 30"),
        ((MV, 31, UP), "supports 7 to 30"),
        ((MV, 29, UP), "ask for a downgrade"),
        ((MV, 29, SAFE), "never goes down"),
        ((MV, 7, UNSAFE), "never goes down"),
    ],
    ids=str,
)
def test_refused_updates_say_why(refused: Update, says: str):
    with pytest.raises(InvalidUpdateVersion, match=says) as error:
        update(IMAGE, refused)
    assert f"{refused[0]}={refused[1]}" in str(error.value)


def test_metadata_version_goes_up():
    old = after(IMAGE, [FeatureLevel(MV, 25)])
    assert levels(old, (MV, 30, UP))[MV] == 30


def test_one_refused_update_stops_all_of_its_request():
    for updates in ([(TV, 1, SAFE), ("no.such", 1, UP)], [("no.such", 1, UP), (TV, 1, SAFE)]):
        with pytest.raises(InvalidUpdateVersion, match=r"no\.such"):
            update(IMAGE, *updates)


def test_of_a_feature_named_twice_the_last_row_counts():
    assert levels(IMAGE, (TV, 1, SAFE), (TV, 2, UP))[TV] == 2
    assert levels(IMAGE, (TV, 2, UP), (TV, 1, SAFE))[TV] == 1
    result = update(IMAGE, (TV, 2, UP), (TV, 1, SAFE))
    assert [row.feature for row in result.response.results] == [TV, TV]


def test_validate_only_checks_and_changes_nothing():
    assert update(IMAGE, (TV, 1, SAFE), validate_only=True).records == ()
    with pytest.raises(InvalidUpdateVersion):
        update(IMAGE, (TV, 1, UP), validate_only=True)


def test_every_registered_broker_must_be_able_to_work_with_the_level():
    """A fenced one as well: it would be refused when it comes back."""
    image = image_with(1, 2, fenced=(2,))
    registration = image.brokers[2]
    weaker = tuple(FeatureRange(TV, 0, 2) if x.name == TV else x for x in registration.features)
    old = replace(image, brokers=image.brokers.set(2, replace(registration, features=weaker)))
    with pytest.raises(InvalidUpdateVersion, match="broker 2 supports 0 to 2"):
        update(old, (TV, 3, UP))
    without = tuple(x for x in registration.features if x.name != TV)
    none = replace(image, brokers=image.brokers.set(2, replace(registration, features=without)))
    with pytest.raises(InvalidUpdateVersion, match="broker 2 supports 0 to 0"):
        update(none, (TV, 1, SAFE))


_names = st.sampled_from([*(feature.name for feature in SUPPORTED_FEATURES), "no.such", ""])
_updates = st.lists(st.tuples(_names, st.integers(-2, 32), st.integers(-1, 4)), max_size=4)


@given(st.lists(_updates, max_size=5))
def test_whatever_is_asked_every_level_stays_one_that_is_supported(requests: list[list[Update]]):
    image = IMAGE
    supported = {feature.name: feature for feature in SUPPORTED_FEATURES}
    for updates in requests:
        try:
            image = after(image, update(image, *updates).records)
        except InvalidUpdateVersion:
            continue
        for name, level in image.features.items():
            assert supported[name].min_version <= level <= supported[name].max_version
        assert image.features[MV] == 30


def test_levels_survive_a_restart_and_the_epoch_grows():
    disk = new_disk()

    async def first() -> int:
        controller = new_controller(disk)
        await controller.start()
        await register(controller)
        before = controller.image.offset
        response = await controller.update_features(request((TV, 1, SAFE)))
        assert response.error_code == 0
        assert controller.image.features[TV] == 1
        assert controller.image.offset > before
        offset = controller.image.offset
        await controller.stop()
        return offset

    async def second(offset: int) -> None:
        controller = new_controller(disk)
        await controller.start()
        assert controller.image.features[TV] == 1
        assert controller.image.offset >= offset
        await controller.update_features(request((TV, 0, SAFE)))
        await controller.stop()

    async def third() -> None:
        controller = new_controller(disk)
        await controller.start()
        assert TV not in controller.image.features
        assert controller.image.features[MV] == 30
        await controller.stop()

    run(second(run(first())))
    run(third())
