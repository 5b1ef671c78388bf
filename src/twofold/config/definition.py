"""What a configuration key is: a name, a type, a default, a rule for its value and a sentence about it.

A value is written as text (in a file, a request or a metadata record) and read by its type:

1. Text is trimmed first. A boolean is `true` or `false` in any case; a number must fit the bits of its type; a list
   is split at commas, and where it stands for a set, each value counts once.
2. `text_of(parse(text))` is the canonical spelling, which is what DescribeConfigs shows.
3. A value that the type or the rule refuses raises `ConfigError`, which names the key, the value, where it came from
   and what is allowed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeAlias

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigType(IntEnum):
    """The codes that DescribeConfigs v3+ carries."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class ConfigSource(IntEnum):
    """Where a value comes from: the codes that DescribeConfigs carries, strongest first."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    GROUP_CONFIG = 8


class ConfigError(ValueError):
    """A value that cannot be used. It is not shown where it is None: it may be a secret."""

    def __init__(self, key: str, value: str | None, allowed: str, source: str = "") -> None:
        came_from = f" (from {source})" if source else ""
        shown = key if value is None else f"{key}={value}"
        super().__init__(f"{shown}{came_from}: {allowed}")
        self.key = key
        self.value = value
        self.allowed = allowed
        self.source = source

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, str | None, str, str]]:
        return ConfigError, (self.key, self.value, self.allowed, self.source)


@dataclass(frozen=True, slots=True)
class Rule:
    """Which values of the right type are allowed, and how to say so."""

    text: str
    accepts: Callable[[Value], bool]
    # A list in which a value that comes again says nothing new.
    is_set: bool = False


def at_least(minimum: float) -> Rule:
    return Rule(f"at least {minimum}", lambda value: isinstance(value, int | float) and value >= minimum)


def between(minimum: float, maximum: float) -> Rule:
    return Rule(
        f"from {minimum} to {maximum}", lambda value: isinstance(value, int | float) and minimum <= value <= maximum
    )


def one_of(*names: str) -> Rule:
    return Rule(f"one of {', '.join(names)}", lambda value: value in names)


def one_of_ignoring_case(*names: str) -> Rule:
    folded = frozenset(name.lower() for name in names)
    return Rule(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value.lower() in folded)


def some_of(*names: str) -> Rule:
    """A list of names out of these."""
    allowed = frozenset(names)
    return Rule(
        f"any of {', '.join(names)}",
        lambda value: isinstance(value, tuple) and allowed.issuperset(value),
        is_set=True,
    )


def one_or_more_of(*names: str) -> Rule:
    """A list of different names out of these, with at least one."""
    allowed = frozenset(names)
    return Rule(
        f"one or more of {', '.join(names)}, each once",
        lambda value: (
            isinstance(value, tuple) and bool(value) and allowed.issuperset(value) and len(set(value)) == len(value)
        ),
    )


def positive_or_unlimited() -> Rule:
    return Rule("at least 1, or negative for no limit", lambda value: isinstance(value, int) and value != 0)


def level(minimum: int, maximum: int, default: int) -> Rule:
    """A compression level: in the codec's range, or the value that leaves the choice to the codec."""
    return Rule(
        f"from {minimum} to {maximum}, or {default}",
        lambda value: isinstance(value, int) and (value == default or minimum <= value <= maximum),
    )


_THROTTLED = re.compile(r"\d+:\d+")

THROTTLED_REPLICAS = Rule(
    "a list of partition:broker, or * for all",
    lambda value: (
        value in ((), ("*",)) or (isinstance(value, tuple) and all(_THROTTLED.fullmatch(replica) for replica in value))
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One row of a table."""

    name: str
    type: ConfigType
    default: Value
    doc: str
    rule: Rule | None = None
    importance: Importance = Importance.MEDIUM

    @property
    def is_sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def allowed(self) -> str:
        kind = _KINDS[self.type]
        return f"{kind}, {self.rule.text}" if self.rule else kind

    def parse(self, text: str, *, source: str = "") -> Value:
        try:
            value = _PARSERS[self.type](text.strip())
        except ValueError:
            raise ConfigError(self.name, text, f"must be {self.allowed}", source) from None
        if self.rule is not None and not self.rule.accepts(value):
            raise ConfigError(self.name, text, f"must be {self.allowed}", source)
        if self.rule is not None and self.rule.is_set and isinstance(value, tuple):
            return tuple(dict.fromkeys(value))
        return value


def text_of(value: Value) -> str | None:
    """The canonical spelling, as Kafka shows it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float):
        return repr(value).upper().replace("E+", "E")
    return str(value)


def _boolean(text: str) -> bool:
    folded = text.lower()
    if folded not in ("true", "false"):
        raise ValueError(text)
    return folded == "true"


_INTEGER = re.compile(r"[+-]?[0-9]+")


def _integer(bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def parse(text: str) -> int:
        # int() alone would take underscores and any alphabet's digits.
        if not _INTEGER.fullmatch(text) or not -limit <= int(text) < limit:
            raise ValueError(text)
        return int(text)

    return parse


def _double(text: str) -> float:
    if "_" in text:
        raise ValueError(text)
    return float(text)


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


_PARSERS: dict[ConfigType, Callable[[str], Value]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: str,
    ConfigType.INT: _integer(32),
    ConfigType.SHORT: _integer(16),
    ConfigType.LONG: _integer(64),
    ConfigType.DOUBLE: _double,
    ConfigType.LIST: _list,
    ConfigType.CLASS: str,
    ConfigType.PASSWORD: str,
}

_KINDS = {
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a string",
    ConfigType.INT: "a 32-bit integer",
    ConfigType.SHORT: "a 16-bit integer",
    ConfigType.LONG: "a 64-bit integer",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a list separated by commas",
    ConfigType.CLASS: "a class name",
    ConfigType.PASSWORD: "a secret",
}
