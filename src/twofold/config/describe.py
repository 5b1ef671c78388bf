"""What DescribeConfigs and CreateTopics say about configurations: value, source and synonyms.

1. The synonyms of a key are all places where it is written down, strongest first, and its default last: of the key
   itself and of those it falls back to (`log.retention.ms` to `log.retention.hours`). What stands before the key's own
   first entry is left out, so a key that has no value of its own shows no synonyms, and the source DEFAULT.
2. A topic's configuration is described by its own value, if any, followed by the synonyms of the broker setting that
   it is named after. Kafka's quirk is kept: `log.retention.hours` alone changes the value of a topic's `retention.ms`
   and does not show among its synonyms.
3. CreateTopics tells the source of the value that applies, without that quirk, and a topic's own values as they were
   written.
4. A sensitive value is never shown, an internal key only where it is set.
5. The documentation of a key that changes nothing in Twofold says so.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from twofold.config.definition import ConfigKey, ConfigSource, ConfigType, Value, text_of
from twofold.config.group import DEFINITIONS as GROUP_CONFIGS
from twofold.config.group import group_value
from twofold.config.keys import SYNONYMS
from twofold.config.keys.key import SettingKey
from twofold.config.settings import DEFINITIONS as SETTINGS
from twofold.config.settings import Settings
from twofold.config.topic import DEFINITIONS as TOPIC_CONFIGS
from twofold.config.topic import TopicConfigKey, set_synonyms

# They have no default in Kafka, so none is listed as a synonym.
_REQUIRED_BY_KAFKA = ("node.id", "process.roles", "controller.listener.names")


@dataclass(frozen=True, slots=True)
class SynonymRow:
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigRow:
    name: str
    value: str | None
    type: ConfigType
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[SynonymRow, ...]
    doc: str


def describe_topic(
    overrides: Mapping[str, str], settings: Settings, names: Container[str] | None = None
) -> Iterator[ConfigRow]:
    """Every configuration of a topic with these overrides, or those that are named."""
    for key in TOPIC_CONFIGS.values():
        if names is not None and key.name not in names:
            continue
        if not key.internal or key.name in overrides:
            value, _ = _effective(key, overrides, settings)
            synonyms = _setting_synonyms(key.synonyms[0].setting, settings) if key.synonyms else ()
            if key.name in overrides:
                own = SynonymRow(key.name, _shown(key, value), ConfigSource.DYNAMIC_TOPIC_CONFIG)
                synonyms = (own, *synonyms)
            yield _row(key, value, synonyms, read_only=False)


def describe_group(overrides: Mapping[str, str], settings: Settings) -> Iterator[ConfigRow]:
    """Every configuration of a group with these of its own; what it has not set is the broker's."""
    for key in GROUP_CONFIGS.values():
        value = group_value(key.name, overrides, settings)
        rows = _setting_synonyms(key.setting, settings)
        source = rows[0].source if rows else ConfigSource.DEFAULT_CONFIG
        if key.name in overrides:
            source = ConfigSource.GROUP_CONFIG
            rows = (SynonymRow(key.name, str(value), source), *rows)
        yield ConfigRow(key.name, str(value), key.type, source, False, False, rows, key.doc)


def describe_broker(settings: Settings) -> Iterator[ConfigRow]:
    """Every setting of this broker."""
    for key in SETTINGS.values():
        if not key.internal or settings.is_set(key.name):
            yield _row(key, settings[key.name], _setting_synonyms(key.name, settings), read_only=not key.dynamic)


def describe_cluster_defaults(dynamic: Mapping[str, str]) -> Iterator[ConfigRow]:
    """What was set for all brokers while they run; the rest of their settings is their own."""
    for name, text in sorted(dynamic.items()):
        key = SETTINGS.get(name)
        if key is not None:
            own = SynonymRow(name, _shown_text(key, text), ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
            yield _row(key, key.parse(text), (own,), read_only=not key.dynamic)


def effective_topic_configs(overrides: Mapping[str, str], settings: Settings) -> Iterator[ConfigRow]:
    """Value and source of every configuration, as CreateTopics tells them."""
    for key in sorted(TOPIC_CONFIGS.values(), key=lambda key: key.name):
        if not key.internal or key.name in overrides:
            value, source = _effective(key, overrides, settings)
            shown = _shown_text(key, overrides[key.name]) if key.name in overrides else _shown(key, value)
            yield ConfigRow(key.name, shown, key.type, source, False, key.is_sensitive, (), _documentation(key))


def _effective(key: TopicConfigKey, overrides: Mapping[str, str], settings: Settings) -> tuple[Value, ConfigSource]:
    if key.name in overrides:
        return key.parse(overrides[key.name]), ConfigSource.DYNAMIC_TOPIC_CONFIG
    for synonym in set_synonyms(key, settings):
        source, _ = next(settings.history(synonym.setting))
        return synonym.convert(settings[synonym.setting]), source
    return key.default, ConfigSource.DEFAULT_CONFIG


def _setting_synonyms(name: str, settings: Settings) -> tuple[SynonymRow, ...]:
    group = SYNONYMS.get(name, (name,))
    rows = [
        SynonymRow(member, _shown_text(SETTINGS[member], text), source)
        for member in group
        for source, text in settings.history(member)
    ]
    rows.sort(key=lambda row: row.source)
    for member in group:
        default = SETTINGS[member].default
        if default is not None and member not in _REQUIRED_BY_KAFKA:
            rows.append(SynonymRow(member, _shown(SETTINGS[member], default), ConfigSource.DEFAULT_CONFIG))
    while rows and rows[0].name != name:
        del rows[0]
    return tuple(rows)


def _row(
    key: SettingKey | TopicConfigKey, value: Value, synonyms: tuple[SynonymRow, ...], *, read_only: bool
) -> ConfigRow:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    doc = _documentation(key)
    return ConfigRow(key.name, _shown(key, value), key.type, source, read_only, key.is_sensitive, synonyms, doc)


def _documentation(key: SettingKey | TopicConfigKey) -> str:
    return key.doc if key.effect else f"{key.doc} (Without effect in Twofold.)"


def _shown(key: ConfigKey, value: Value) -> str | None:
    return None if key.is_sensitive else text_of(value)


def _shown_text(key: ConfigKey, text: str) -> str | None:
    return None if key.is_sensitive else text
