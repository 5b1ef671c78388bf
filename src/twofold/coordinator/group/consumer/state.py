"""What the log says of one consumer group.

1. A group is a value, and a function of its records. A decision applies the records that it makes to the group as it
   goes on, through the same `apply` that replays them.
2. Counts and indexes (static members, users of topics and patterns, holders of partitions) follow from the records.
3. A partition has one holder: the member that has it assigned, or has not yet given it up. In a compacted log two
   members may seem to hold one for a while: the higher member epoch wins, and a removal only removes its own.
4. State and kind of subscription are derived, never stored.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from twofold.coordinator.group.consumer.records import (
    CURRENT,
    GROUP_EPOCH,
    PATTERN,
    SUBSCRIPTION,
    TARGET,
    TARGET_EPOCH,
    ConsumerGroupRecord,
    Current,
    MemberSubscription,
    Partitions,
    Resolved,
)
from twofold.machine.maps import Map

STABLE, UNREVOKED, UNRELEASED = 0, 1, 2
LEFT, LEFT_FOR_A_WHILE = -1, -2

FIRST_EPOCH = 1
NO_TARGET = -1
NO_PARTITIONS: Partitions = {}
NEVER_JOINED = Current(0, -1, STABLE)
NO_PLACE = Current(LEFT, -1, STABLE)
NO_PATTERN = ""
NOTHING_SAID = MemberSubscription()

Holder: TypeAlias = tuple[UUID, int]


class ConsumerGroupState(Enum):
    """Named as clients see them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the target is older than what it has to reflect
    RECONCILING = "Reconciling"  # a member is on its way to the target
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    member_id: str
    subscription: MemberSubscription = NOTHING_SAID
    current: Current = NEVER_JOINED

    @property
    def epoch(self) -> int:
        return self.current.epoch

    @property
    def is_classic(self) -> bool:
        return self.subscription.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.current.state == STABLE and self.current.epoch == target_epoch

    def holds(self) -> Iterator[Holder]:
        """Partitions that no other member may have: assigned ones, and those that are not given up yet."""
        for held in (self.current.assigned, self.current.pending):
            for topic, partitions in held.items():
                for partition in partitions:
                    yield topic, partition


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    group_id: str
    epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    target_epoch: int = NO_TARGET
    target_timestamp_ms: int = 0
    members: Map[str, ConsumerMember] = field(default_factory=Map)
    targets: Map[str, Partitions] = field(default_factory=Map)
    patterns: Map[str, Resolved] = field(default_factory=Map)
    static: Map[str, str] = field(default_factory=Map)
    topic_users: Map[str, int] = field(default_factory=Map)
    pattern_users: Map[str, int] = field(default_factory=Map)
    holders: Map[Holder, str] = field(default_factory=Map)
    classic_members: int = 0

    # --- derived ---

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self.static.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def target(self, member_id: str) -> Partitions:
        return self.targets.get(member_id, NO_PARTITIONS)

    def subscribed_topics(self) -> set[str]:
        """Names of topics that a member wants, by name or by a pattern; they need not exist."""
        topics = set(self.topic_users)
        for pattern in self.pattern_users:
            resolved = self.patterns.get(pattern)
            if resolved is not None:
                topics.update(resolved.topics)
        return topics

    def topics_of(self, subscription: MemberSubscription) -> Iterable[str]:
        resolved = self.patterns.get(subscription.pattern) if subscription.pattern else None
        if resolved is None:
            return subscription.topics
        return {*subscription.topics, *resolved.topics} if subscription.topics else resolved.topics

    def is_subscribed_to(self, topic: str) -> bool:
        if topic in self.topic_users:
            return True
        return any(topic in resolved.topics for resolved in self.patterns.values())

    @property
    def is_homogeneous(self) -> bool:
        """Whether all members want the same."""
        members = len(self.members)
        if not self.pattern_users:
            return all(users == members for users in self.topic_users.values())
        return not self.topic_users and len(self.pattern_users) == 1 and sum(self.pattern_users.values()) == members

    # --- records ---

    def apply(self, record: ConsumerGroupRecord) -> "ConsumerGroup":
        """The group after a record, unless that removes it (type 3 without a value)."""
        kind, _, name, value = record
        if kind == CURRENT:
            return self._set_current(name, value)
        if kind == TARGET:
            if value is None:
                return self if name not in self.targets else replace(self, targets=self.targets.delete(name))
            return replace(self, targets=self.targets.set(name, value))
        if kind == SUBSCRIPTION:
            return self._remove(name) if value is None else self._subscribe(name, value)
        if kind == GROUP_EPOCH and value is not None:
            return replace(self, epoch=value.epoch, metadata_hash=value.metadata_hash)
        if kind == TARGET_EPOCH:
            if value is None:
                return replace(self, target_epoch=NO_TARGET, target_timestamp_ms=0)
            return replace(self, target_epoch=value.epoch, target_timestamp_ms=value.timestamp_ms)
        if kind == PATTERN:
            if value is None:
                return self if name not in self.patterns else replace(self, patterns=self.patterns.delete(name))
            return replace(self, patterns=self.patterns.set(name, value))
        return self

    def _set_current(self, member_id: str, value: Current | None) -> "ConsumerGroup":
        before = self.members.get(member_id)
        if before is None:
            if value is None:
                return self
            before = ConsumerMember(member_id)
        after = replace(before, current=NO_PLACE if value is None else value)
        holders = self._moved(before, after)
        return replace(self, members=self.members.set(member_id, after), holders=holders)

    def _moved(self, before: ConsumerMember, after: ConsumerMember | None) -> Map[Holder, str]:
        member_id = before.member_id
        old = set(before.holds())
        new = set() if after is None else set(after.holds())
        if old == new:
            return self.holders
        holders = self.holders.mutate()
        for place in old - new:
            if self.holders.get(place) == member_id:
                del holders[place]
        for place in new if after is not None else ():
            other = self.holders.get(place, member_id)
            if other == member_id or self.members[other].epoch <= after.epoch:  # type: ignore[union-attr]
                holders[place] = member_id
        return holders.finish()

    def _subscribe(self, member_id: str, wanted: MemberSubscription) -> "ConsumerGroup":
        before = self.members.get(member_id)
        after = ConsumerMember(member_id, wanted) if before is None else replace(before, subscription=wanted)
        old = MemberSubscription() if before is None else before.subscription
        static = self.static
        if old.instance_id != wanted.instance_id and old.instance_id is not None:
            static = _without(static, old.instance_id, member_id)
        if wanted.instance_id is not None:
            static = static.set(wanted.instance_id, member_id)
        return replace(
            self,
            members=self.members.set(member_id, after),
            static=static,
            topic_users=_recounted(self.topic_users, old.topics, wanted.topics),
            pattern_users=_recounted(self.pattern_users, _one(old.pattern), _one(wanted.pattern)),
            classic_members=self.classic_members + (wanted.classic is not None) - (old.classic is not None),
        )

    def _remove(self, member_id: str) -> "ConsumerGroup":
        member = self.members.get(member_id)
        if member is None:
            return self
        old = member.subscription
        static = self.static
        if old.instance_id is not None:
            static = _without(static, old.instance_id, member_id)
        return replace(
            self,
            members=self.members.delete(member_id),
            static=static,
            topic_users=_recounted(self.topic_users, old.topics, ()),
            pattern_users=_recounted(self.pattern_users, _one(old.pattern), ()),
            holders=self._moved(member, None),
            classic_members=self.classic_members - member.is_classic,
        )


def _one(pattern: str) -> tuple[str, ...]:
    return (pattern,) if pattern else ()


def _without(static: Map[str, str], instance_id: str, member_id: str) -> Map[str, str]:
    return static.delete(instance_id) if static.get(instance_id) == member_id else static


def _recounted(users: Map[str, int], old: tuple[str, ...], new: tuple[str, ...]) -> Map[str, int]:
    if old == new:
        return users
    changed = users.mutate()
    for names, by in ((new, 1), (old, -1)):
        for name in names:
            count = changed.get(name, 0) + by
            if count:
                changed[name] = count
            else:
                changed.pop(name, None)
    return changed.finish()
