"""UpdateFeatures as a pure function of the image.

Rules, in the order in which the first to fail decides. All updates of a request count, or none: one that is refused is
the answer for all of them, INVALID_UPDATE_VERSION (95).

1. A feature named twice: the last row counts.
2. An upgrade type other than UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE.
3. A negative level; a feature that this controller does not know; a level that this controller or any registered
   broker cannot work with.
4. A lower level as UPGRADE; a higher one as a downgrade. The level that holds already is fine as either. A higher level
   of what is not served yet.
5. metadata.version goes down as a safe downgrade only past levels that did not change the metadata, as an unsafe one to
   any level (Apache Kafka refuses that): what the lower level cannot carry is gone at once, eligible leader replicas
   are switched off below the level that has them, and what is written from then on has the versions of that level. The
   controller refuses that while a metadata transaction is open, whose end the level might not know.
6. A feature that needs a metadata.version keeps it from going below, and is not switched on below it. Both may go down
   in one request.

Level 0 switches a feature off: it is no longer among the finalized ones. A level that holds already writes nothing.
"""

from collections.abc import Iterator, Mapping

from twofold.controller.context import Context
from twofold.controller.features import ELIGIBLE_LEADER_REPLICAS_VERSION, SUPPORTED_FEATURES
from twofold.controller.image import METADATA_VERSION, MetadataImage
from twofold.controller.levels import ELIGIBLE_LEADER_REPLICAS, changes_between, describe
from twofold.controller.operation import Operation
from twofold.controller.records import FeatureLevel
from twofold.wire.errors import NONE, InvalidUpdateVersion
from twofold.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from twofold.wire.values import UpgradeType

_UPGRADE_TYPES = frozenset(UpgradeType)
_SUPPORTED = {feature.name: feature for feature in SUPPORTED_FEATURES}


def update_features(
    image: MetadataImage, request: UpdateFeaturesRequest, context: Context
) -> Operation[UpdateFeaturesResponse]:
    updates = {update.feature: update for update in request.feature_updates}
    for update in updates.values():
        _check(image, update, context)
    for update in updates.values():
        _check_needs(image, updates, update)
    if not request.validate_only:
        for update in updates.values():
            if update.max_version_level != image.features.get(update.feature, 0):
                yield FeatureLevel(update.feature, update.max_version_level)
        yield from _switched_off(image, updates)
    return UpdateFeaturesResponse(
        error_code=NONE,
        error_message=None,
        # The text is what Apache Kafka puts into a row that went well.
        results=[
            UpdatableFeatureResult(feature=update.feature, error_code=NONE, error_message="NONE")
            for update in request.feature_updates
        ],
    )


def _check(image: MetadataImage, update: FeatureUpdateKey, context: Context) -> None:
    name, level = update.feature, update.max_version_level
    now = image.features.get(name, 0)
    if update.upgrade_type not in _UPGRADE_TYPES:
        raise _refusal(update, f"{update.upgrade_type} is no upgrade type: 1 upgrade, 2 safe and 3 unsafe downgrade")
    if level < 0:
        raise _refusal(update, "levels begin at 0")
    _check_supported(image, update, context)
    if level < now and update.upgrade_type == UpgradeType.UPGRADE:
        raise _refusal(update, f"it is at {now}: to go down, ask for a downgrade")
    if level > now and update.upgrade_type != UpgradeType.UPGRADE:
        raise _refusal(update, f"it is at {now}: a downgrade cannot lead up")
    if name == METADATA_VERSION and level < now:
        _check_downgrade(update, now)


def _check_downgrade(update: FeatureUpdateKey, now: int) -> None:
    """Of metadata.version."""
    lost = changes_between(update.max_version_level, now)
    if lost and update.upgrade_type == UpgradeType.SAFE_DOWNGRADE:
        what = ", ".join(f"{level.brings} ({level.number}, {level.name})" for level in reversed(lost))
        raise _refusal(
            update, f"it is at {describe(now)}, and {what} would be lost: to give that up, ask for an unsafe downgrade"
        )


def _check_needs(image: MetadataImage, updates: Mapping[str, FeatureUpdateKey], update: FeatureUpdateKey) -> None:
    """Refuse a level of metadata.version that a feature cannot have, and of a feature under this metadata.version."""

    def level(name: str) -> int:
        return updates[name].max_version_level if name in updates else image.features.get(name, 0)

    metadata_version = level(METADATA_VERSION)
    goes_down = update.feature == METADATA_VERSION and metadata_version < image.features.get(METADATA_VERSION, 0)
    for feature in SUPPORTED_FEATURES:
        if not level(feature.name) or metadata_version >= feature.needs:
            continue
        needs = f"{feature.name}={level(feature.name)} needs {METADATA_VERSION} {describe(feature.needs)} or newer"
        if goes_down:
            raise _refusal(update, f"{needs}: lower it to 0 in the same request")
        if feature.name == update.feature and level(feature.name) > image.features.get(feature.name, 0):
            raise _refusal(update, f"{needs}, it is at {describe(metadata_version)}")


def _switched_off(image: MetadataImage, updates: Mapping[str, FeatureUpdateKey]) -> list[FeatureLevel]:
    """What has no meaning here and cannot be under the metadata.version that is asked for."""
    update = updates.get(METADATA_VERSION)
    if update is None or update.max_version_level >= ELIGIBLE_LEADER_REPLICAS:
        return []
    return [FeatureLevel(name, 0) for name in (ELIGIBLE_LEADER_REPLICAS_VERSION,) if name in image.features]


def _check_supported(image: MetadataImage, update: FeatureUpdateKey, context: Context) -> None:
    if update.feature not in _SUPPORTED:
        known = ", ".join(sorted(_SUPPORTED))
        raise _refusal(update, f"controller {context.node_id} does not know this feature; known are {known}")
    for supporter, low, high in _supporters(image, update.feature, context.node_id):
        if not low <= update.max_version_level <= high:
            raise _refusal(update, f"{supporter} supports {low} to {high}")


def _supporters(image: MetadataImage, name: str, node_id: int) -> Iterator[tuple[str, int, int]]:
    """All that have to work with the new level: fenced brokers too, because they come back."""
    own = _SUPPORTED[name]
    yield f"controller {node_id}", own.min_version, own.max_version
    for broker_id, broker in sorted(image.brokers.items()):
        found = next((feature for feature in broker.features if feature.name == name), None)
        low, high = (0, 0) if found is None else (found.min_supported_version, found.max_supported_version)
        yield f"broker {broker_id}", low, high


def _refusal(update: FeatureUpdateKey, why: str) -> InvalidUpdateVersion:
    return InvalidUpdateVersion(f"nothing was changed: {update.feature}={update.max_version_level}: {why}")
