"""What a consumer group may set for itself: resources of type GROUP in IncrementalAlterConfigs (KIP-848, KIP-1263).

1. A group need not exist. What it does not set is the broker's setting of the same name with `group.` before it.
2. A value lies within the bounds that the broker has for it, and a session is longer than a heartbeat, whichever of the
   two the group has set. Bounds that were narrowed since move a stored value to the nearest one that they allow.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from twofold.config.definition import ConfigError, ConfigKey, ConfigType, at_least
from twofold.config.settings import DEFINITIONS as SETTINGS
from twofold.config.settings import Settings

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigKey(ConfigKey):
    setting: str
    least: str  # the settings that bound it
    most: str


def _setting(name: str) -> str:
    return SETTINGS[name].name


def _key(name: str, setting: str, least: str, most: str, minimum: int = 1) -> GroupConfigKey:
    broker = SETTINGS[setting]
    return GroupConfigKey(
        name=name,
        type=ConfigType.INT,
        default=broker.default,
        doc=broker.doc,
        rule=at_least(minimum),
        setting=setting,
        least=least,
        most=most,
    )


_KEYS = (
    _key(
        ASSIGNMENT_INTERVAL,
        _setting("group.consumer.assignment.interval.ms"),
        _setting("group.consumer.min.assignment.interval.ms"),
        _setting("group.consumer.max.assignment.interval.ms"),
        minimum=0,
    ),
    _key(
        HEARTBEAT_INTERVAL,
        _setting("group.consumer.heartbeat.interval.ms"),
        _setting("group.consumer.min.heartbeat.interval.ms"),
        _setting("group.consumer.max.heartbeat.interval.ms"),
    ),
    _key(
        SESSION_TIMEOUT,
        _setting("group.consumer.session.timeout.ms"),
        _setting("group.consumer.min.session.timeout.ms"),
        _setting("group.consumer.max.session.timeout.ms"),
    ),
)
DEFINITIONS: Mapping[str, GroupConfigKey] = {key.name: key for key in _KEYS}


def group_value(name: str, own: Mapping[str, str], settings: Settings) -> int:
    """What holds for a group that has set these."""
    key = DEFINITIONS[name]
    text = own.get(name)
    if text is None:
        return settings.int(key.setting)
    try:
        value = int(text)
    except ValueError:
        return settings.int(key.setting)  # of a folder that another program wrote
    return min(max(value, settings.int(key.least)), settings.int(key.most))


def group_timings(own: Mapping[str, str], settings: Settings) -> Iterator[int]:
    """Session timeout, heartbeat interval and assignment interval."""
    if not own:
        return (settings.int(DEFINITIONS[name].setting) for name in _TIMINGS)
    return (group_value(name, own, settings) for name in _TIMINGS)


_TIMINGS = (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNMENT_INTERVAL)


def check_group_bounds(settings: Settings) -> None:
    """Raises ConfigError where the broker's own values break the rules for those of groups."""
    for key in DEFINITIONS.values():
        value, least, most = settings.int(key.setting), settings.int(key.least), settings.int(key.most)
        if not least <= value <= most:
            raise ConfigError(key.setting, str(value), f"must be from {key.least}={least} to {key.most}={most}")
    session, heartbeat = DEFINITIONS[SESSION_TIMEOUT].setting, DEFINITIONS[HEARTBEAT_INTERVAL].setting
    if settings.int(session) <= settings.int(heartbeat):
        allowed = f"must be more than {heartbeat}={settings.int(heartbeat)}"
        raise ConfigError(session, str(settings.int(session)), allowed)


def validate_group_configs(configs: Mapping[str, str], settings: Settings) -> None:
    """Raises ConfigError for the first value that a group cannot have."""
    for name, text in configs.items():
        key = DEFINITIONS.get(name)
        if key is None:
            raise ConfigError(name, None, "groups have no such configuration")
        value = key.parse(text)
        least, most = settings.int(key.least), settings.int(key.most)
        if not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(name, text, f"must be from {key.least}={least} to {key.most}={most}")
    session, heartbeat = (group_value(name, configs, settings) for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL))
    if session <= heartbeat:
        raise ConfigError(SESSION_TIMEOUT, str(session), f"must be more than {HEARTBEAT_INTERVAL}={heartbeat}")
