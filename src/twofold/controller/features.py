"""The features of a cluster: which levels this software can work with, and which a new cluster starts at."""

from typing import NamedTuple

from twofold.controller.image import METADATA_VERSION
from twofold.controller.records import FeatureLevel


class SupportedFeature(NamedTuple):
    name: str
    min_version: int
    max_version: int
    initial: int  # the level that a new cluster starts at; 0 is off


TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"

SUPPORTED_FEATURES = (
    SupportedFeature(METADATA_VERSION, 7, 30, 30),
    SupportedFeature(GROUP_VERSION, 0, 1, 1),
    SupportedFeature(TRANSACTION_VERSION, 0, 3, 2),
)

# What a cluster of Apache Kafka may have finalized and Twofold has no part for, and up to which level that is harmless:
# the level stays as it is and changes nothing here.
KEPT_FEATURES = {"eligible.leader.replicas.version": 1, "share.version": 1, "streams.version": 1}


def initial_levels() -> list[FeatureLevel]:
    """The records that a new cluster begins with, metadata.version first: it says how to read the rest."""
    return [FeatureLevel(feature.name, feature.initial) for feature in SUPPORTED_FEATURES if feature.initial]
