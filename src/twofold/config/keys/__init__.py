"""Every setting that Twofold knows: names, types and defaults are those of Kafka 4.3's server.properties.

Two defaults differ, so that a broker starts without any setting: `node.id` is 1 and `log.dir` is `./twofold-data`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from twofold.config.keys import controller, coordinators, foreign, log, security, server
from twofold.config.keys.foreign import FOREIGN_FAMILIES, REFUSED_NAMES, SECURITY_FAMILIES, foreign_family
from twofold.config.keys.key import SettingKey
from twofold.config.keys.missing import LISTENERS_STAY, MissingPart, Refused, unless_empty

__all__ = [
    "DEFINITIONS",
    "FOREIGN_FAMILIES",
    "REFUSED_NAMES",
    "SECTIONS",
    "SYNONYMS",
    "LISTENER_PREFIX",
    "ListenerKey",
    "SettingKey",
    "foreign_family",
    "is_known",
    "listener_key",
    "refusal",
    "refusal_while_running",
    "refused_key",
]

LISTENER_PREFIX = "listener.name."

SECTIONS: Mapping[str, tuple[SettingKey, ...]] = {
    "Server": server.KEYS,
    "Security": security.KEYS,
    "Topics and logs": log.KEYS,
    "Coordinators": coordinators.KEYS,
    "Controller": controller.KEYS,
    "What Twofold does not have": foreign.KEYS,
}

DEFINITIONS: Mapping[str, SettingKey] = {key.name: key for keys in SECTIONS.values() for key in keys}

# What is asked in the place of a key that is not set, strongest first, the key itself included.
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


@dataclass(frozen=True, slots=True)
class ListenerKey:
    """A key of one listener, perhaps of one of its mechanisms. The names are in capitals."""

    listener: str
    mechanism: str | None
    key: SettingKey


def listener_key(name: str) -> ListenerKey | None:
    """`listener.name.external.scram-sha-256.sasl.jaas.config` in its parts, if it has an effect for a listener."""
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    if rest in security.PER_LISTENER:
        return ListenerKey(listener.upper(), None, DEFINITIONS[rest])
    mechanism, _, rest = rest.partition(".")
    if rest in security.PER_MECHANISM:
        return ListenerKey(listener.upper(), mechanism.upper(), DEFINITIONS[rest])
    return None


def is_known(name: str) -> bool:
    """Whether a setting is read, or refused."""
    return name in DEFINITIONS or listener_key(name) is not None or refused_key(name) is not None


def refused_key(name: str) -> tuple[Refused, SettingKey | None] | None:
    """Which values of a setting stop the start, and the key by which its text is read, if it has one."""
    own = DEFINITIONS.get(name)
    if own is not None:
        return None if own.refused is None else (own.refused, own)
    if name in REFUSED_NAMES:
        return REFUSED_NAMES[name], None
    if name.startswith(LISTENER_PREFIX):
        return refused_key(_without_listener(name))
    for family, missing in SECURITY_FAMILIES.items():
        if name.startswith(family):
            return unless_empty(missing), None
    return None


def refusal_while_running(name: str, text: str) -> MissingPart | None:
    """As `refusal`, for a change of a running broker: its listeners stay as they are."""
    of_listener = listener_key(name)
    key = DEFINITIONS.get(name) if of_listener is None else of_listener.key
    if key is not None and (of_listener is not None or key in security.KEYS):
        return None if key.parse(text) in (key.default, "", ()) else LISTENERS_STAY
    return refusal(name, text)


def _without_listener(name: str) -> str:
    """`sasl.jaas.config` of `listener.name.internal.plain.sasl.jaas.config`, where plain is a mechanism."""
    _, _, setting = name.removeprefix(LISTENER_PREFIX).partition(".")
    _, dot, of_mechanism = setting.partition(".sasl.")
    return f"sasl.{of_mechanism}" if dot else setting


def refusal(name: str, text: str) -> MissingPart | None:
    """What a setting relies on and Twofold does not have. A text that its key cannot read is a ConfigError."""
    found = refused_key(name)
    if found is None:
        return None
    refused, key = found
    value = text.strip() if key is None else key.parse(text)
    return None if refused.accepts(value) else refused.missing
