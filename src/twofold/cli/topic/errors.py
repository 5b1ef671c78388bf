"""Errors about topics in the words of `twofold topic`."""

from collections.abc import Mapping
from typing import Any

from twofold.cli.admin import complain_of_all
from twofold.wire.errors import KafkaError, TopicAlreadyExists, UnknownTopicOrPartition


def report(
    errors: Mapping[Any, KafkaError], verb: str, bootstrap_server: str, ignored: tuple[type[KafkaError], ...] = ()
) -> int:
    """Say what failed; returns the exit code."""
    return complain_of_all(errors, verb, lambda _, error: _reason(error, bootstrap_server), ignored)


def _reason(error: KafkaError, bootstrap_server: str) -> str:
    if isinstance(error, UnknownTopicOrPartition):
        return f"no such topic at {bootstrap_server}; `twofold topic list` shows those that exist"
    if isinstance(error, TopicAlreadyExists):
        return f"it exists at {bootstrap_server} already; --if-not-exists accepts that"
    return str(error)
