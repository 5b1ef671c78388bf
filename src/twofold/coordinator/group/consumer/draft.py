"""A consumer group while a request is decided: the records so far, and the group that follows from them.

1. The order of the records is the one in which Apache Kafka can load them.
2. The group epoch rises once per request at most. It stands for what the members want and for what exists of that,
   which is compared by a hash.
3. A target is computed for all members at once, and not sooner after the last one than the group's assignment interval
   (KIP-1263). Until then the last target holds.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from twofold.coordinator.group.assignors import ASSIGNORS
from twofold.coordinator.group.assignors.hashes import group_hash, topic_hash
from twofold.coordinator.group.assignors.model import GroupSpec, MemberSpec
from twofold.coordinator.group.assignors.orders import by_bucket, grown, string_hash
from twofold.coordinator.group.consumer.reconciliation import Aim, Owned, step
from twofold.coordinator.group.consumer.records import (
    CURRENT,
    GROUP_EPOCH,
    PATTERN,
    SUBSCRIPTION,
    TARGET,
    TARGET_EPOCH,
    TOPICS,
    ConsumerGroupRecord,
    GroupEpoch,
    MemberSubscription,
    TargetEpoch,
)
from twofold.coordinator.group.consumer.state import NO_PARTITIONS, UNREVOKED, ConsumerGroup, ConsumerMember
from twofold.coordinator.group.consumer.surroundings import ConsumerGroupConfig, GroupSurroundings
from twofold.coordinator.group.context import Instant
from twofold.coordinator.group.records import LogRecord
from twofold.wire.errors import UnknownServerError

# Kinds of deadlines. What a member of the classic protocol has to do next: join, then sync.
SESSION, REVOCATION, JOIN, SYNC = "session", "revocation", "join", "sync"


@dataclass(frozen=True, slots=True)
class Timer:
    """A deadline that is set, or ended (None), once the records are in the log."""

    kind: str
    member_id: str
    after_ms: int | None
    if_unset: bool = False


@dataclass(slots=True)
class Draft:
    group: ConsumerGroup
    cluster: GroupSurroundings
    config: ConsumerGroupConfig
    now: Instant
    records: list[LogRecord] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    has_checked_metadata: bool = False
    rebalances: int = 0

    def emit(self, kind: int, name: str, value: Any | None) -> None:
        record = ConsumerGroupRecord(kind, self.group.group_id, name, value)
        self.records.append(record)
        self.group = self.group.apply(record)

    def set_timer(self, kind: str, member_id: str, after_ms: int | None, *, if_unset: bool = False) -> None:
        self.timers.append(Timer(kind, member_id, after_ms, if_unset))

    # --- members ---

    def subscribe(self, member_id: str, wanted: MemberSubscription) -> None:
        member = self.group.members.get(member_id)
        if member is None or member.subscription != wanted:
            self.emit(SUBSCRIPTION, member_id, wanted)

    def remove(self, member_id: str) -> None:
        """The last user of a pattern takes it along; see `forget_pattern`."""
        for kind in (CURRENT, TARGET, SUBSCRIPTION):
            self.emit(kind, member_id, None)

    def end_timers(self, member_id: str) -> None:
        for kind in (SESSION, REVOCATION, JOIN, SYNC):
            self.set_timer(kind, member_id, None)

    def forget_pattern(self, pattern: str) -> None:
        """Take a pattern back, if no member uses it any more."""
        if pattern and pattern not in self.group.pattern_users:
            self.emit(PATTERN, pattern, None)

    # --- the group epoch ---

    def metadata_hash(self) -> int:
        found = []
        for name in sorted(self.group.subscribed_topics()):
            topic = self.cluster.topic(name)
            if topic is not None:
                found.append(topic_hash(topic.topic_id, name, topic.partitions, self.cluster.racks(name)))
        return group_hash(found) if found else 0

    def check_metadata(self, *, has_changed: bool) -> None:
        """Raise the epoch where the members want something else, or find something else of what they want."""
        self.has_checked_metadata = True
        found = self.metadata_hash()
        if has_changed or found != self.group.metadata_hash:
            self.raise_epoch(found)
            self.rebalances += 1

    def raise_epoch(self, metadata_hash: int) -> None:
        self.emit(GROUP_EPOCH, "", GroupEpoch(self.group.epoch + 1, metadata_hash))

    # --- the target ---

    def is_target_due(self) -> bool:
        group = self.group
        if group.target_epoch >= group.epoch:
            return False
        interval_ms = self.cluster.timings(group.group_id).assignment_interval_ms
        # A clock that was set back must not stop a group for as long.
        return not 0 <= self.now.wall_ms - group.target_timestamp_ms < interval_ms

    def maybe_assign(self) -> None:
        if not self.is_target_due():
            return
        group = self.group
        name = preferred_assignor(group.members.values(), self.config.assignors)
        try:
            targets = ASSIGNORS[name](self._spec())
        except Exception as error:
            raise UnknownServerError(f"the assignor {name} failed on group {group.group_id}: {error}") from error
        for member_id in group.members:
            given = targets.get(member_id, NO_PARTITIONS)
            target = {topic: frozenset(found) for topic, found in given.items() if found}
            if group.targets.get(member_id) != target:
                self.emit(TARGET, member_id, target)
        self.emit(TARGET_EPOCH, "", TargetEpoch(group.epoch, self.now.wall_ms))

    def _spec(self) -> GroupSpec:
        group, cluster = self.group, self.cluster
        ids: dict[str, UUID] = {}
        partitions: dict[UUID, int] = {}
        for name in group.subscribed_topics():
            topic = cluster.topic(name)
            if topic is not None:
                ids[name] = topic.topic_id
                partitions[topic.topic_id] = topic.partitions
        wanted: dict[tuple[tuple[str, ...], str], frozenset[UUID]] = {}
        members: dict[str, MemberSpec] = {}
        for member_id, member in group.members.items():
            subscription = member.subscription
            key = (subscription.topics, subscription.pattern)
            if key not in wanted:
                wanted[key] = frozenset(ids[name] for name in group.topics_of(subscription) if name in ids)
            members[member_id] = MemberSpec(member_id, subscription.instance_id, wanted[key], group.target(member_id))
        return GroupSpec(members, partitions, group.is_homogeneous)

    # --- a member's step ---

    def reconcile(self, member_id: str, owned: Owned | None, *, has_changed: bool) -> ConsumerMember:
        group = self.group
        member = group.members[member_id]
        if not has_changed and member.is_reconciled_to(group.target_epoch):
            return member
        topics = (self.cluster.topic(name) for name in group.topics_of(member.subscription))
        wanted = {topic.topic_id for topic in topics if topic is not None}

        def is_held_by_another(topic: UUID, partition: int) -> bool:
            return group.holders.get((topic, partition), member_id) != member_id

        target = group.target(member_id)
        current = step(member.current, Aim(group.target_epoch, target, wanted, has_changed, owned, is_held_by_another))
        if current != member.current:
            self.emit(CURRENT, member_id, current)
            if not member.is_classic:
                timeout_ms = member.subscription.rebalance_timeout_ms if current.state == UNREVOKED else None
                self.set_timer(REVOCATION, member_id, timeout_ms)
        return self.group.members[member_id]


def preferred_assignor(members: Iterable[ConsumerMember], known: tuple[str, ...]) -> str:
    """The one that most members name, of several the first in Java's order; the first known one where none is named."""
    votes = Counter(member.subscription.assignor for member in members)
    named = by_bucket([name for name in known if votes[name]], string_hash, grown(len(known)))
    return max(named, key=lambda name: votes[name], default=known[0])


def removal_of(group: ConsumerGroup, names: Mapping[str, str] | None = None) -> list[LogRecord]:
    """The records that remove a group. `names` are members whose records were already replaced under another id."""
    group_id = group.group_id
    renamed = names or {}
    members = [renamed.get(member_id, member_id) for member_id in group.members]
    rows = [
        *((CURRENT, member_id) for member_id in members),
        *((TARGET, member_id) for member_id in members),
        (TARGET_EPOCH, ""),
        *((SUBSCRIPTION, member_id) for member_id in members),
        *((PATTERN, pattern) for pattern in group.patterns),
        (TOPICS, ""),
        (GROUP_EPOCH, ""),
    ]
    return [ConsumerGroupRecord(kind, group_id, name, None) for kind, name in rows]
