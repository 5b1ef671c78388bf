"""Which topic names are allowed.

1. ASCII letters and digits, '.', '_' and '-'; 1 to 249 of them (a directory name with room for a partition number and
   a suffix); not '.' or '..'.
2. '.' and '_' are the same character to metrics: two topics whose names differ only there collide.
"""

import re

from twofold.wire.errors import InvalidTopicException

MAX_LENGTH = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_valid_topic(name: str) -> bool:
    return _LEGAL.fullmatch(name) is not None and name not in (".", "..")


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION with the reason, or do nothing."""
    if not is_valid_topic(name):
        raise InvalidTopicException(f"no topic can have this name: {_reason(name)}")


def collision_key(name: str) -> str:
    """Equal for names that collide."""
    return name.replace(".", "_")


def _reason(name: str) -> str:
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return f"'{name}' is a directory to the file system"
    if len(name) > MAX_LENGTH:
        return f"'{name}' has {len(name)} characters, {MAX_LENGTH} are the most"
    return f"'{name}' has other characters than ASCII letters and digits, '.', '_' and '-'"
