"""What members subscribe to: names at once, patterns once they are resolved.

1. A pattern is checked when it is new to the group, and stands for no topics until it is resolved. It is resolved
   aside, by the rights of the client whose heartbeat asked for it, and the outcome is a record.
2. All patterns of a group are resolved together: when one is not resolved yet, when topics were created since, and from
   time to time. Not sooner than ten seconds after the last time, and once at a time. When that was is in the records.
3. The group epoch rises when a member gives up its pattern or takes one that is resolved, and when a resolution changes
   anything; not for a pattern that stands for nothing yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from twofold.coordinator.group import patterns
from twofold.coordinator.group.consumer.draft import Draft
from twofold.coordinator.group.consumer.records import PATTERN, Resolved
from twofold.wire.errors import InvalidRegularExpression

SHORTEST_REFRESH_MS = 10_000


class PatternChange(Enum):
    NONE = "the pattern is the same"
    UNRESOLVED = "the pattern is another one, whose topics are not known"
    RESOLVED = "the pattern is gone, or another one whose topics are known"


@dataclass(frozen=True, slots=True)
class Resolution:
    """Patterns of a group that are to be resolved, with the topics that exist now."""

    group_id: str
    patterns: frozenset[str]


def change_pattern(draft: Draft, old: str, new: str) -> PatternChange:
    """A member has another pattern than before; its new subscription is in the draft."""
    if old == new:
        return PatternChange.NONE
    draft.forget_pattern(old)
    if not new:
        return PatternChange.RESOLVED
    if draft.group.pattern_users[new] == 1:
        refusal = patterns.check(new)
        if refusal is not None:
            raise InvalidRegularExpression(f"the pattern {new!r} is no valid RE2 expression: {refusal}")
        return PatternChange.UNRESOLVED
    return PatternChange.RESOLVED if new in draft.group.patterns else PatternChange.UNRESOLVED


def wanted_resolution(draft: Draft, before: Mapping[str, Resolved]) -> Resolution | None:
    """What is to be resolved now, if it is time and something asks for it. `before` is what patterns stood for before
    the heartbeat: their records tell of the last time, and the heartbeat may have taken one back."""
    group = draft.group
    if not group.pattern_users:
        return None
    known = before.values()
    last_ms = max((resolved.timestamp_ms for resolved in known), default=None)
    age_ms = None if last_ms is None else draft.now.wall_ms - last_ms
    if age_ms is not None and 0 <= age_ms <= SHORTEST_REFRESH_MS:
        return None
    is_due = (
        any(pattern not in group.patterns for pattern in group.pattern_users)
        or max((resolved.version for resolved in known), default=-1) < draft.cluster.newest_topic_version
        or (age_ms is not None and not 0 <= age_ms <= draft.config.pattern_refresh_interval_ms)
    )
    return Resolution(group.group_id, frozenset(group.pattern_users)) if is_due else None


def resolve(draft: Draft, found: Mapping[str, frozenset[str]], version: int) -> None:
    """Take the topics that were found for patterns."""
    has_changed = False
    for pattern in sorted(found):
        if pattern not in draft.group.pattern_users:
            continue
        topics = tuple(sorted(found[pattern]))
        before = draft.group.patterns.get(pattern)
        has_changed |= topics != (() if before is None else tuple(sorted(before.topics)))
        draft.emit(PATTERN, pattern, Resolved(topics, version, draft.now.wall_ms))
    if draft.records:
        draft.check_metadata(has_changed=has_changed)
