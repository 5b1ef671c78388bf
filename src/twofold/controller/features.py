"""The features of a cluster: which levels this software can work with, and which a new cluster starts at."""

from typing import NamedTuple

from twofold.controller.image import METADATA_VERSION, MetadataImage
from twofold.controller.levels import NEWEST, OLDEST, TRANSACTIONS
from twofold.controller.records import FeatureLevel


class SupportedFeature(NamedTuple):
    name: str
    min_version: int
    max_version: int
    initial: int  # the level that a new cluster starts at; 0 is off
    needs: int = 0  # the metadata.version without which the feature is off


TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"

SUPPORTED_FEATURES = (
    SupportedFeature(METADATA_VERSION, OLDEST, NEWEST, NEWEST),
    SupportedFeature(GROUP_VERSION, 0, 1, 1, needs=22),
    SupportedFeature(TRANSACTION_VERSION, 0, 3, 2, needs=24),
)

# What a cluster of Apache Kafka may have finalized and Twofold has no part for, and up to which level that is harmless:
# the level stays as it is and changes nothing here.
KEPT_FEATURES = {ELIGIBLE_LEADER_REPLICAS_VERSION: 1, "share.version": 1, "streams.version": 1}


def initial_levels() -> list[FeatureLevel]:
    """The records that a new cluster begins with, metadata.version first: it says how to read the rest."""
    return [FeatureLevel(feature.name, feature.initial) for feature in SUPPORTED_FEATURES if feature.initial]


def metadata_version(image: MetadataImage) -> int:
    """The level that holds; the newest as long as none is decided."""
    return image.features.get(METADATA_VERSION, NEWEST)


def supports_transactions(image: MetadataImage) -> bool:
    """Whether every reader of the metadata log understands metadata transactions."""
    return metadata_version(image) >= TRANSACTIONS
