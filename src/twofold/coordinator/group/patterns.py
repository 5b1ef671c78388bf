"""Patterns of topic names that the broker matches for members of a group: those of RE2, and the whole name must match.

RE2 takes time in proportion to the text, whatever the pattern, so a client cannot stop the broker with one. Apache
Kafka has RE2J, a translation of it. Two differences are known: RE2J refuses `\\C`, so this does too; and RE2 bounds
nested repetitions such as `(a{1000}){1000}`, which RE2J does not.
"""

from collections.abc import Iterable
from typing import Any

from twofold.extras import install_command, missing


def check(regex: str) -> str | None:
    """Why it is no pattern that this broker can match; None if it is one."""
    if missing("re2"):
        return f"this broker cannot match patterns, because RE2 is not installed: {install_command('re2')}"
    if _matches_a_byte(regex):
        return "invalid escape sequence: \\C"
    try:
        _compiled(regex)
    except ValueError as error:
        return str(error)
    return None


def matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match. The pattern has passed `check`."""
    fullmatch = _compiled(regex).fullmatch
    return frozenset(name for name in names if fullmatch(name) is not None)


def _compiled(regex: str) -> Any:
    import re2  # here, because few brokers are ever asked and every start would pay for it

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(text) from None


def _matches_a_byte(regex: str) -> bool:
    """Whether `\\C` stands in it as an operator: not between \\Q and \\E, and not behind another backslash."""
    place = 0
    while (place := regex.find("\\", place)) >= 0:
        follower = regex[place + 1 : place + 2]
        if follower == "C":
            return True
        place += 2
        if follower == "Q":
            end = regex.find("\\E", place)
            if end < 0:
                return False
            place = end + 2
    return False
