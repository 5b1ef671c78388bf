"""Every setting that Twofold knows: names, types and defaults are those of Kafka 4.3's server.properties.

Two defaults differ, so that a broker starts without any setting: `node.id` is 1 and `log.dir` is `./twofold-data`.
"""

from collections.abc import Mapping

from twofold.config.keys import controller, coordinators, foreign, log, server
from twofold.config.keys.foreign import FOREIGN_FAMILIES, foreign_family
from twofold.config.keys.key import SettingKey

__all__ = ["DEFINITIONS", "FOREIGN_FAMILIES", "SECTIONS", "SYNONYMS", "SettingKey", "foreign_family"]

SECTIONS: Mapping[str, tuple[SettingKey, ...]] = {
    "Server": server.KEYS,
    "Topics and logs": log.KEYS,
    "Coordinators": coordinators.KEYS,
    "Controller": controller.KEYS,
    "What Twofold does not have": foreign.KEYS,
}

DEFINITIONS: Mapping[str, SettingKey] = {key.name: key for keys in SECTIONS.values() for key in keys}

# What is asked in the place of a key that nobody set, strongest first, the key itself included.
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    name: group
    for group in (
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ("log.roll.ms", "log.roll.hours"),
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
        ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    )
    for name in group
}
