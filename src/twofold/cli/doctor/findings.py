"""What `twofold doctor` finds: one line per check, and what helps."""

from enum import StrEnum
from typing import NamedTuple


class Grade(StrEnum):
    """Only a problem makes the command fail."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    check: str
    level: Grade
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Grade.OK, text)


def note(check: str, text: str, advice: str = "") -> Finding:
    return Finding(check, Grade.NOTE, text, advice)


def warning(check: str, text: str, advice: str = "") -> Finding:
    return Finding(check, Grade.WARNING, text, advice)


def problem(check: str, text: str, advice: str = "") -> Finding:
    return Finding(check, Grade.PROBLEM, text, advice)
