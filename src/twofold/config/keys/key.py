"""One row of the settings' table."""

from dataclasses import dataclass

from twofold.config.definition import ConfigKey, ConfigType, Importance, Rule, Value
from twofold.config.keys.missing import Refused

BOOLEAN, STRING, INT, SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
LONG, DOUBLE, LIST, CLASS = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST, ConfigType.CLASS
HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingKey(ConfigKey):
    # May be altered while the broker runs.
    dynamic: bool = False
    # Known and obeyed, but never shown.
    internal: bool = False
    # False: accepted and shown, without consequence in Twofold.
    effect: bool = True
    # Stops the start with values that would be believed.
    refused: Refused | None = None


def setting(
    name: str,
    kind: ConfigType,
    default: Value,
    *,
    doc: str,
    rule: Rule | None = None,
    importance: Importance = MEDIUM,
    dynamic: bool = False,
    internal: bool = False,
    effect: bool = True,
    refused: Refused | None = None,
) -> SettingKey:
    return SettingKey(
        name=name,
        type=kind,
        default=default,
        doc=doc,
        rule=rule,
        importance=importance,
        dynamic=dynamic,
        internal=internal,
        effect=effect,
        refused=refused,
    )
