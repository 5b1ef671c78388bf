"""Options as they were given, and the values that they may have. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from twofold.spark.errors import OptionError

T = TypeVar("T")

KAFKA = "kafka."
HADOOP = "spark.hadoop."
_TIME_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class GivenOptions:
    """The options as they were given. Their names do not care about case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.names = list(options)
        """As they were written: Spark hands them over in lower case, and the command line as the user did."""
        self._values = {name.lower(): value for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return None if value is None else value.strip()

    def parsed(self, name: str, parse: Callable[[str, str], T], default: T) -> T:
        value = self.text(name)
        return default if value is None else parse(name, value)

    @property
    def kafka(self) -> dict[str, str]:
        """The settings of Kafka's clients, without the prefix."""
        return {name[len(KAFKA) :]: value for name, value in self._values.items() if name.startswith(KAFKA)}

    @property
    def hadoop(self) -> tuple[tuple[str, str], ...]:
        """Spark's settings of file systems, with their prefix."""
        return tuple(sorted((name, value) for name, value in self._values.items() if name.startswith(HADOOP)))


def checked(parse: Callable[..., T], *args: str) -> T:
    try:
        return parse(*args)
    except ValueError as error:
        raise OptionError(str(error)) from None


def parse_integer(name: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or abs(int(text)) >= 2**63:
        raise OptionError(f"{name}={text!r} is not a whole number")
    return int(text)


def parse_number(name: str, text: str) -> int:
    if parse_integer(name, text) < 0:
        raise OptionError(f"{name}={text} is negative")
    return int(text)


def parse_positive(name: str, text: str) -> int:
    if parse_integer(name, text) <= 0:
        raise OptionError(f"{name}={text} must be positive")
    return int(text)


def parse_flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(f"{name}={text!r} is neither true nor false")
    return text.lower() == "true"


def one_of(*allowed: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text.lower() not in allowed:
            raise OptionError(f"{name}={text!r} is none of {', '.join(allowed)}")
        return text.lower()

    return parse


def not_empty(name: str, text: str) -> str:
    if not text:
        raise OptionError(f"{name} is empty: give it a value or leave it out")
    return text


def parse_time(name: str, text: str) -> int:
    """Spark's durations, 15m or 500ms; a number alone is milliseconds."""
    match: Any = re.fullmatch(r"([0-9]+) *([a-z]*)", text.lower())
    unit = _TIME_UNITS_MS.get(match.group(2) or "ms") if match else None
    if unit is None:
        raise OptionError(f"{name}={text!r} is not a time: use a number and one of {', '.join(_TIME_UNITS_MS)}")
    return int(int(match.group(1)) * unit)
