"""What a consumer is subscribed to: names of topics, or a pattern of RE2.

With the new protocol of groups the broker matches a pattern. With the classic one it is matched here against the names
of all topics, when it is new and then every `metadata_max_age_ms`. Internal topics match none. Apache Kafka's client
has java.util.regex; RE2 takes nearly the same patterns and none that need exponential time.
"""

from collections.abc import Callable, Iterable
from typing import Any

from twofold.client.consumer.group.listener import RebalanceListener
from twofold.extras import require
from twofold.wire.errors import InvalidRegularExpression, InvalidTopicException
from twofold.wire.messages.metadata import MetadataResponse

Matcher = Callable[[str], bool]


class Subscription:
    """Of one call of `subscribe`; `topics` grows and shrinks with what a pattern matches. Of a pattern that the broker
    matches it has those that the member reads."""

    __slots__ = ("_matches", "listener", "matched_at", "pattern", "topics")

    def __init__(
        self,
        topics: Iterable[str],
        pattern: str | None,
        listener: RebalanceListener | None,
        *,
        broker_matches: bool = False,
    ) -> None:
        self.listener = listener or RebalanceListener()
        self.pattern = pattern
        self.topics = frozenset(topics)
        self.matched_at = float("-inf")
        self._matches = None if pattern is None or broker_matches else matcher(pattern)

    def is_due(self, now: float, max_age_s: float) -> bool:
        """Whether the pattern should be matched against the names of all topics."""
        return self._matches is not None and now - self.matched_at >= max_age_s

    def match(self, response: MetadataResponse, now: float) -> None:
        """With the answer that has all topics."""
        assert self._matches is not None
        self.matched_at = now
        found = [row.name for row in response.topics if row.name is not None and not row.is_internal]
        self.topics = frozenset(name for name in found if self._matches(name))


def check_topics(topics: "Iterable[str] | str", pattern: str | None) -> tuple[str, ...]:
    if isinstance(topics, str):
        raise TypeError(f"subscribe takes a list of topics: write subscribe([{topics!r}])")
    names = tuple(dict.fromkeys(topics))
    if bool(names) == (pattern is not None):
        raise ValueError("subscribe takes topics or a pattern" + (", not both" if names else ": neither was given"))
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise InvalidTopicException(f"{name!r} is no name of a topic")
    return names


def matcher(pattern: str) -> Matcher:
    """Whether a whole name matches. MissingExtra has the command that installs RE2."""
    require("re2", f"the pattern {pattern!r}")
    import re2

    options: Any = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidRegularExpression(f"{pattern!r} is no pattern of RE2: {text}") from None
    return lambda name: compiled.fullmatch(name) is not None
