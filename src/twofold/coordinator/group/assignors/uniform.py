"""`uniform`: members differ by at most one partition, and keep what they have as far as that allows.

For a group whose members all subscribe to the same. Others are in `heterogeneous`.

1. Each member keeps of its target what its share allows. A member with one partition more than the others keeps it,
   while partitions are left over.
2. What a member gives up joins what no member has, and the members with room take from the front, in order.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from twofold.coordinator.group.assignors.heterogeneous import assign_heterogeneous
from twofold.coordinator.group.assignors.model import Assignment, GroupSpec, Target
from twofold.coordinator.group.assignors.orders import APACHE_KAFKAS, Orders
from twofold.types import TopicId

Partition = tuple[TopicId, int]


def assign_uniformly(group: GroupSpec, orders: Orders = APACHE_KAFKAS) -> Assignment:
    if not group.members:
        return {}
    if not group.homogeneous:
        return assign_heterogeneous(group, orders)
    return _assign_homogeneous(group, orders)


def _assign_homogeneous(group: GroupSpec, orders: Orders) -> Assignment:
    topics = next(iter(group.members.values())).topics
    if not topics:
        return {member_id: {} for member_id in group.members}
    order = orders.members(group.members)
    share, extras = divmod(sum(group.partitions[topic] for topic in topics), len(order))
    pool = list(_in_no_target(group, orders.subscribed(topics)))
    kept: dict[str, Target] = {}
    room: dict[str, int] = {}
    for left, member_id in zip(range(len(order), 0, -1), order, strict=True):
        allowance = share + (extras > 0)
        target, given_up = _keep(group.members[member_id].target, topics, allowance, orders)
        pool += given_up
        free = allowance - sum(map(len, target.values()))
        has_extra = extras > 0
        if free and has_extra and left > extras:
            free -= 1  # enough members follow that may have more use for it
            has_extra = False
        extras -= has_extra
        kept[member_id] = target
        if free:
            room[member_id] = free
    taken = iter(pool)
    for member_id, free in room.items():
        kept[member_id] = _add(kept[member_id], [found for _, found in zip(range(free), taken, strict=False)])
    return kept


def _in_no_target(group: GroupSpec, topics: Iterable[TopicId]) -> Iterator[Partition]:
    owned: dict[TopicId, set[int]] = defaultdict(set)
    for member in group.members.values():
        for topic, numbers in member.target.items():
            owned[topic] |= numbers
    for topic in topics:
        taken = owned[topic]
        yield from ((topic, number) for number in range(group.partitions[topic]) if number not in taken)


def _keep(target: Target, topics: frozenset[TopicId], room: int, orders: Orders) -> tuple[Target, list[Partition]]:
    """What stays of a target, and what of it others may have. A topic that the group left is for no member."""
    if topics.issuperset(target) and sum(map(len, target.values())) <= room:
        return target, []
    kept: dict[TopicId, frozenset[int]] = {}
    given_up: list[Partition] = []
    for topic in orders.assigned(target):
        numbers = target[topic]
        if topic not in topics:
            continue
        if len(numbers) > room:
            ordered = orders.partitions(numbers)
            given_up += ((topic, number) for number in ordered[room:])
            numbers = frozenset(ordered[:room])
        if numbers:
            kept[topic] = numbers
            room -= len(numbers)
    return kept, given_up


def _add(target: Target, partitions: Iterable[Partition]) -> Target:
    more: dict[TopicId, list[int]] = defaultdict(list)
    for topic, number in partitions:
        more[topic].append(number)
    return {**target, **_joined(target, more)} if more else target


def _joined(target: Target, more: Mapping[TopicId, Iterable[int]]) -> Target:
    none: frozenset[int] = frozenset()
    return {topic: target.get(topic, none).union(numbers) for topic, numbers in more.items()}
