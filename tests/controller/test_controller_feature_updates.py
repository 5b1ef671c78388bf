"""UpdateFeatures: which levels are taken, which error comes first, and that the levels survive a restart."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kits.metadata.controller import (
    after,
    broker_records,
    context,
    fold,
    image_with,
    new_controller,
    new_disk,
    register,
    run,
)
from kits.metadata.operations import perform
from twofold.controller.feature_updates import update_features
from twofold.controller.features import SUPPORTED_FEATURES, initial_levels
from twofold.controller.image import MetadataImage, PartitionState
from twofold.controller.records import FeatureLevel, FeatureRange, Partition, Topic
from twofold.machine import Result
from twofold.wire.errors import InvalidUpdateVersion
from twofold.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from twofold.wire.values import UpgradeType

UP, SAFE, UNSAFE = UpgradeType
TV, MV, GV = "transaction.version", "metadata.version", "group.version"

IMAGE = image_with(1)
TOPIC_ID, DIRECTORY = UUID(int=1 << 64), UUID(int=2 << 64)

Update = tuple[str, int, int]


def request(*updates: Update, validate_only: bool = False) -> UpdateFeaturesRequest:
    rows = [FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind) for name, level, kind in updates]
    return UpdateFeaturesRequest(feature_updates=rows, validate_only=validate_only)


def update(image: MetadataImage, *updates: Update, validate_only: bool = False) -> Result[Any, Any]:
    return perform(update_features(image, request(*updates, validate_only=validate_only), context(image)))


def levels(image: MetadataImage, *updates: Update) -> dict[str, int]:
    """What is finalized after a request that must be taken."""
    result = update(image, *updates)
    assert result.response.error_code == 0
    return dict(after(image, result.records).features)


def test_a_new_cluster_starts_at_its_initial_levels():
    assert dict(IMAGE.features) == {MV: 30, GV: 1, TV: 2}


def test_group_version_goes_down_and_up_again():
    down = after(IMAGE, [FeatureLevel(GV, 0)])
    assert levels(IMAGE, (GV, 0, SAFE)) == {MV: 30, TV: 2}
    assert levels(down, (GV, 1, UP)) == {MV: 30, GV: 1, TV: 2}
    assert update(IMAGE, (GV, 1, UP)).records == []


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
        ((MV, 29, SAFE), r"cordoned log directories \(30, 4.3-IV0\) would be lost: .* unsafe downgrade"),
        ((MV, 24, SAFE), "cordoned log directories"),
        ((MV, 23, UNSAFE), r"transaction.version=2 needs metadata.version 24 \(4.0-IV2\)"),
        ((MV, 6, UNSAFE), "supports 7 to 30"),
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


def at(level: int) -> MetadataImage:
    """The image at a level of metadata.version, with what needs a higher one switched off."""
    off = [FeatureLevel(name, 0) for name, needs in ((TV, 24), (GV, 22)) if level < needs]
    return after(IMAGE, [*off, FeatureLevel(MV, level)])


CHANGED = (8, 11, 13, 14, 15, 17, 23, 30)  # by these levels Kafka changed what the metadata can hold


def test_metadata_version_goes_down_safely_where_nothing_can_be_lost():
    for now in range(8, 31):
        for to in range(7, now):
            if any(to < level <= now for level in CHANGED):
                with pytest.raises(InvalidUpdateVersion, match="would be lost"):
                    update(at(now), (MV, to, SAFE), (TV, 0, SAFE), (GV, 0, SAFE))
            else:
                assert levels(at(now), (MV, to, SAFE), (TV, 0, SAFE), (GV, 0, SAFE))[MV] == to


def test_a_refused_downgrade_names_all_that_would_be_lost():
    with pytest.raises(InvalidUpdateVersion) as error:
        update(at(30), (MV, 12, SAFE), (TV, 0, SAFE), (GV, 0, SAFE))
    told = str(error.value)
    for number, what in ((30, "cordoned"), (23, "eligible"), (17, "log directories"), (13, "transactions")):
        assert what in told and f"({number}, " in told
    assert "SCRAM" not in told


@pytest.mark.parametrize("level", range(7, 30))
def test_an_unsafe_downgrade_leads_to_any_level_and_back(level: int):
    down = [(MV, level, UNSAFE), (TV, 0, SAFE), (GV, 0, SAFE)]
    for updates in (down, down[::-1]):
        lower = after(IMAGE, update(IMAGE, *updates).records)
        assert dict(lower.features) == {MV: level}
        assert dict(after(lower, update(lower, (MV, 30, UP)).records).features) == {MV: 30}


def test_eligible_leader_replicas_are_switched_off_below_their_level():
    elr = "eligible.leader.replicas.version"
    image = after(IMAGE, [FeatureLevel(elr, 1), FeatureLevel("share.version", 1)])
    off = [(TV, 0, SAFE), (GV, 0, SAFE)]
    assert levels(image, (MV, 22, UNSAFE), *off) == {MV: 22, "share.version": 1}
    assert levels(image, (MV, 23, UNSAFE), *off) == {MV: 23, "share.version": 1, elr: 1}


@pytest.mark.parametrize(("name", "level", "needs"), [(TV, 1, 24), (TV, 3, 24)])
def test_a_feature_needs_its_metadata_version(name: str, level: int, needs: int):
    low = at(needs - 1)
    with pytest.raises(InvalidUpdateVersion, match=f"{name}={level} needs metadata.version {needs} .* it is at"):
        update(low, (name, level, UP))
    assert levels(low, (name, level, UP), (MV, needs, UP))[name] == level
    high = after(at(needs), [FeatureLevel(name, level)])
    with pytest.raises(InvalidUpdateVersion, match="lower it to 0 in the same request"):
        update(high, (MV, needs - 1, UNSAFE))
    assert levels(high, (MV, needs - 1, UNSAFE), (name, 0, SAFE)) == {MV: needs - 1, GV: 1}


def test_a_group_version_that_a_folder_has_keeps_metadata_version_up():
    high = after(at(22), [FeatureLevel(GV, 1)])
    with pytest.raises(InvalidUpdateVersion, match=r"group\.version=1 needs .* lower it to 0 in the same request"):
        update(high, (MV, 21, UNSAFE))
    assert levels(high, (MV, 21, UNSAFE), (GV, 0, SAFE)) == {MV: 21}


def test_a_feature_that_was_switched_on_below_its_level_goes_down_and_off():
    """Apache Kafka lets it be on; what is refused is to make it worse."""
    image = after(at(20), [FeatureLevel(TV, 2)])
    assert levels(image, (TV, 1, SAFE))[TV] == 1
    assert levels(image, (MV, 21, UP)) == {MV: 21, TV: 2}
    with pytest.raises(InvalidUpdateVersion, match=r"needs metadata\.version 24"):
        update(image, (MV, 19, SAFE))


def test_what_a_lower_level_cannot_carry_is_gone_with_the_update():
    image = fold(
        [*initial_levels(), *broker_records(1), Topic("a", TOPIC_ID), Partition(0, TOPIC_ID, (1,), (1,), 1,
         directories=(DIRECTORY,))]
    ).image  # fmt: skip
    lower = after(image, update(image, (MV, 16, UNSAFE), (TV, 0, SAFE), (GV, 0, SAFE)).records)
    assert lower.brokers[1].log_dirs == ()
    assert lower.partition("a", 0) == PartitionState((1,), (1,), 1, 0, 0)
    higher = after(image, update(image, (MV, 25, UNSAFE)).records)
    assert (higher.topics, higher.brokers) == (image.topics, image.brokers)


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
    assert update(IMAGE, (TV, 1, SAFE), validate_only=True).records == []
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
_updates = st.lists(
    st.tuples(_names, st.integers(-2, 32) | st.integers(0, 3), st.integers(1, 3) | st.integers(-1, 4)), max_size=4
)


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
        for feature in SUPPORTED_FEATURES:
            assert feature.name not in image.features or image.features[MV] >= feature.needs


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
