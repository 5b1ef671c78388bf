"""Whether a broker may be a member of a cluster, by the metadata of its controllers: asked before it registers.

1. Features above the levels that this software knows: the controller would refuse the registration without a reason
   (UNSUPPORTED_VERSION). Those of Apache Kafka's defaults that Twofold does not have are named with the command that
   lowers them; it is safe while the cluster runs.
2. Cordoned directories are known from metadata.version 30 on: below it the controller would place partitions here.
3. Access control entries without an authorizer: this broker would allow every client what they forbid.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from twofold.config.authorization import CLASS_NAME, AuthorizerSettings
from twofold.config.keys.missing import STANDARD_AUTHORIZER
from twofold.controller.features import ELIGIBLE_LEADER_REPLICAS_VERSION, SUPPORTED_FEATURES
from twofold.controller.image import METADATA_VERSION, MetadataImage
from twofold.controller.levels import CORDONED_LOG_DIRECTORIES, describe

TWOFOLD_VERSION = "twofold.version"


class ClaimedFeature(NamedTuple):
    name: str
    min_version: int
    max_version: int


CLAIMED: Sequence[ClaimedFeature] = (
    *(ClaimedFeature(one.name, one.min_version, one.max_version) for one in SUPPORTED_FEATURES),
    ClaimedFeature("kraft.version", 0, 1),
    ClaimedFeature(ELIGIBLE_LEADER_REPLICAS_VERSION, 0, 1),
    ClaimedFeature(TWOFOLD_VERSION, 0, 1),
)
"""What a member registers. Others read from `twofold.version` what this broker can do beyond Apache Kafka."""


def joining_problem(
    image: MetadataImage, *, is_cordoned: bool, authorizer: AuthorizerSettings | None = None
) -> str | None:
    """What keeps a broker from being a member: what was found, and what to do."""
    return next(_problems(image, is_cordoned, authorizer), None)


def _problems(image: MetadataImage, is_cordoned: bool, authorizer: AuthorizerSettings | None) -> Iterator[str]:
    yield from _features(image)
    level = image.features.get(METADATA_VERSION, 0)
    if is_cordoned and level < CORDONED_LOG_DIRECTORIES:
        yield (
            f"{METADATA_VERSION} is {describe(level)}, and a broker is kept free of partitions from "
            f"{describe(CORDONED_LOG_DIRECTORIES)} on: run `kafka-features.sh {_server(image)}upgrade --feature "
            f"{METADATA_VERSION}={CORDONED_LOG_DIRECTORIES}`"
        )
    if authorizer is None and image.acls:
        yield (
            f"the cluster has {len(image.acls)} access control entries, and no authorizer is set here that obeys them: "
            f"set {CLASS_NAME}={STANDARD_AUTHORIZER}"
        )


def _features(image: MetadataImage) -> Iterator[str]:
    ranges = {one.name: (one.min_version, one.max_version) for one in CLAIMED}
    too_high: list[str] = []
    lowered: list[str] = []
    for name, level in sorted(image.features.items()):
        low, high = ranges.get(name, (0, 0))
        if level < low:
            yield (
                f"the cluster has {name} at {level}, and Twofold knows it from {low} on: upgrade it with "
                f"`kafka-features.sh {_server(image)}upgrade --feature {name}={low}`"
            )
        if level > high:
            too_high.append(f"{name} at {level}")
            lowered.append(f"--feature {name}={high}")
    if too_high:
        yield (
            f"the cluster has finalized {', '.join(too_high)}, and Twofold does not serve that: lower it with "
            f"`kafka-features.sh {_server(image)}downgrade {' '.join(lowered)}` while the cluster runs, and start again"
        )


def _server(image: MetadataImage) -> str:
    """Where the tool finds the cluster."""
    for broker in image.active_brokers():
        for at in broker.end_points:
            return f"--bootstrap-server {at.host}:{at.port} "
    return "--bootstrap-server HOST:PORT "
