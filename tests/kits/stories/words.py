"""How stories name errors, identities and times."""

import re

from twofold.types import TopicPartition
from twofold.wire.errors import error_for

Pair = tuple[int, int]
NO_PAIR: Pair = (-1, -1)

_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def name_of(code: int) -> str:
    return "ok" if code == 0 else error_for(code).name


def identity(pair: Pair) -> str:
    return f"producer {pair[0]} epoch {pair[1]}"


def seconds(duration: str) -> float:
    """`10s`, `500ms`, `2h`."""
    match = re.fullmatch(r"(\d+)([a-z]+)", duration)
    assert match is not None and match[2] in _UNITS, f"{duration!r} is no duration"
    return int(match[1]) * _UNITS[match[2]]


def milliseconds(duration: str) -> int:
    return round(seconds(duration) * 1000)


def place(text: str) -> TopicPartition:
    """`orders-0`"""
    topic, _, index = text.rpartition("-")
    return TopicPartition(topic, int(index))
