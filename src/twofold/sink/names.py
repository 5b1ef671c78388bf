"""Transactional ids and topics of a sink. Pure.

1. An id is `<prefix>|<process>|<slot>` and belongs to one process at a time; `<prefix>|driver` writes the decisions.
2. Whose an id is, is found by taking it apart: a prefix that begins another one (`a`, `a.b`) never matches its ids.
"""

import hashlib
import json
import re

DRIVER = "driver"
MAX_PREFIX = 200
OF_QUERY = "spark-"
"""What a prefix begins with that no user chose."""
ONCE = f"{OF_QUERY}once"
ONCE_TOPIC = f"{ONCE}.decisions"
"""The journal of all writes that were given no prefix. Each has a key of its own there."""
_PREFIX = re.compile(r"[a-zA-Z0-9._-]+")
_TASK = re.compile(r"[0-9a-f]{8}\|[0-9]+")


def check_prefix(prefix: str) -> str:
    """ValueError for what cannot be part of a topic's name."""
    if not _PREFIX.fullmatch(prefix) or len(prefix) > MAX_PREFIX:
        raise ValueError(
            f"transactionalIdPrefix={prefix!r} is part of the name of a topic: use up to {MAX_PREFIX} letters, digits, "
            "'.', '_' and '-'"
        )
    return prefix


def prefix_of_query(query_id: str) -> str:
    """The same wherever the checkpoint lies, and however its path is spelled."""
    return check_prefix(f"{OF_QUERY}{query_id}")


def prefix_of_checkpoint(location: str) -> str:
    """Under which name the version before wrote: it went by the path of the checkpoint as it was spelled."""
    plain = re.sub(r"^file:/+", "/", location).rstrip("/") or "/"
    return f"{OF_QUERY}{hashlib.sha256(plain.encode()).hexdigest()[:16]}"


def prefix_once(token: str, number: int) -> str:
    """For writes that come one after the other, each of which was given no prefix."""
    return f"{ONCE}-{token}-{number}"


def prefix_of_write(write_id: str, topic: str | None) -> str:
    """For a writeId that was given no prefix: the same whenever it comes again for that topic."""
    return f"{ONCE}-{hashlib.sha256(json.dumps([topic, write_id]).encode()).hexdigest()[:16]}"


def decision_topic(prefix: str) -> str:
    return f"{prefix}.decisions"


def driver_id(prefix: str) -> str:
    return f"{prefix}|{DRIVER}"


def task_id(prefix: str, process: str, slot: int) -> str:
    return f"{prefix}|{process}|{slot}"


def is_task_id(prefix: str, transactional_id: str) -> bool:
    owner, separator, rest = transactional_id.partition("|")
    return owner == prefix and bool(separator) and _TASK.fullmatch(rest) is not None


def task_pattern(prefix: str) -> str:
    """A pattern of RE2 for the ids of tasks, for brokers that filter (KIP-1152)."""
    return re.escape(prefix) + r"\|[0-9a-f]{8}\|[0-9]+"
