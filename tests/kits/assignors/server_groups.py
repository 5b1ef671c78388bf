"""Groups of the new protocol as a server-side assignor sees them, at the start and after changes; and what always
holds."""

import random
import uuid
from collections.abc import Iterable
from dataclasses import replace

from twofold.coordinator.group.assignors import Assignment, GroupSpec, MemberSpec
from twofold.types import TopicId

PREFIXES = ("", "\ufb01-", "\U0001f40d-")  # the order of UTF-16 is not that of code points


def topic_id(chance: random.Random) -> TopicId:
    return uuid.UUID(int=chance.getrandbits(128))


def member_id(chance: random.Random) -> str:
    return f"{chance.choice(PREFIXES)}{chance.getrandbits(60):015x}"


def make_group(members: Iterable[MemberSpec], partitions: dict[TopicId, int], *, homogeneous: bool) -> GroupSpec:
    by_id = {member.member_id: member for member in members}
    return GroupSpec(by_id, partitions, homogeneous)


def random_group(chance: random.Random, *, homogeneous: bool, members: int = 14, topics: int = 14) -> GroupSpec:
    partitions = {topic_id(chance): chance.choice((1, 2, 3, 7, 12, 60)) for _ in range(chance.randint(1, topics))}
    return grown_by(GroupSpec({}, partitions, homogeneous), chance.randint(1, members), chance)


def grown_by(group: GroupSpec, count: int, chance: random.Random) -> GroupSpec:
    """With new members, which have no target."""
    members = dict(group.members)
    for _ in range(count):
        instance = f"{chance.choice(PREFIXES)}{chance.randrange(10**6)}" if chance.random() < 0.3 else None
        fresh = MemberSpec(member_id(chance), instance, _subscription(group, chance), {})
        members[fresh.member_id] = fresh
    return replace(group, members=members)


def _subscription(group: GroupSpec, chance: random.Random) -> frozenset[TopicId]:
    known = list(group.partitions)
    if group.homogeneous:
        return frozenset(known)
    return frozenset(chance.sample(known, chance.randint(0, len(known))))


def after(group: GroupSpec, found: Assignment) -> GroupSpec:
    """The same group, with what was assigned as its target."""
    members = {name: replace(member, target=found[name]) for name, member in group.members.items()}
    return replace(group, members=members)


def changed(group: GroupSpec, chance: random.Random) -> GroupSpec:
    """Some members are gone, some are new, a topic has grown, and the subscription may be another."""
    stay = chance.sample(sorted(group.members), chance.randint(0, len(group.members)))
    members = {name: group.members[name] for name in stay}
    partitions = {topic: count + chance.choice((0, 0, 0, 5)) for topic, count in group.partitions.items()}
    if chance.random() < 0.3:
        partitions[topic_id(chance)] = chance.randint(1, 9)
    if len(partitions) > 1 and chance.random() < 0.3:
        del partitions[chance.choice(list(partitions))]
    group = GroupSpec(members, partitions, group.homogeneous)
    for name in stay:
        topics = group.members[name].topics & partitions.keys()
        if group.homogeneous or chance.random() < 0.3:
            topics = _subscription(group, chance)
        members[name] = replace(members[name], topics=topics)
    return grown_by(group, chance.randint(0 if stay else 1, 5), chance)


def check_assignment(group: GroupSpec, found: Assignment) -> None:
    """Every partition of a topic with subscribers has one owner, and the owner subscribes to the topic."""
    assert found.keys() == group.members.keys()
    owned = [(topic, n) for target in found.values() for topic, numbers in target.items() for n in numbers]
    subscribed = frozenset[TopicId]().union(*(member.topics for member in group.members.values()))
    assert len(owned) == len(set(owned))
    assert set(owned) == {(topic, n) for topic in subscribed for n in range(group.partitions[topic])}
    for name, target in found.items():
        assert target.keys() <= group.members[name].topics
        assert all(target.values())


def loads(found: Assignment) -> list[int]:
    return sorted(sum(map(len, target.values())) for target in found.values())


def kept(group: GroupSpec, found: Assignment) -> int:
    """How many partitions stay where they are."""
    none = frozenset[int]()
    return sum(
        len(numbers & found[name].get(topic, none))
        for name, member in group.members.items()
        for topic, numbers in member.target.items()
    )
