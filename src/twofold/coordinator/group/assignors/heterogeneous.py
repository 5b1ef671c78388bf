"""`uniform` for a group whose members subscribe to different topics.

1. Each member keeps of its target what it still subscribes to.
2. The partitions that no member has go to the least loaded subscribers of their topic, the topic with the most
   partitions per subscriber first.
3. Topic by topic, the most loaded subscribers hand partitions to the least loaded, until a whole round changes
   nothing or `MOST_ROUNDS` are over.

A member's load is how many partitions it has of all topics. Members are indexes into their order in the group.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from twofold.coordinator.group.assignors.levels import Levels
from twofold.coordinator.group.assignors.model import Assignment, GroupSpec, Target
from twofold.coordinator.group.assignors.orders import Orders
from twofold.types import TopicId

MOST_ROUNDS = 16
_NOBODY = -1
_HALF = 1 << 63


def assign_heterogeneous(group: GroupSpec, orders: Orders) -> Assignment:
    order = orders.members(group.members)
    subscribers: dict[TopicId, list[int]] = defaultdict(list)
    for index, member_id in enumerate(order):
        for topic in group.members[member_id].topics:
            subscribers[topic].append(index)
    holdings = _Holdings(group, order, subscribers)
    topics = _sorted(subscribers, group.partitions)
    for topic in topics:
        _assign_rest(topic, holdings, subscribers[topic])
    _balance([topic for topic in topics if len(subscribers[topic]) > 1], holdings, subscribers)
    return dict(zip(order, holdings.targets(), strict=True))


class _Holdings:
    """What each member has at the moment."""

    def __init__(self, group: GroupSpec, order: Sequence[str], topics: Iterable[TopicId]) -> None:
        self.loads = [0] * len(order)
        self.owners = {topic: [_NOBODY] * group.partitions[topic] for topic in topics}
        self._kept: list[Target] = []
        self._changed: dict[TopicId, set[int]] = {topic: set() for topic in self.owners}
        for index, member_id in enumerate(order):
            member = group.members[member_id]
            target = member.target
            if not member.topics.issuperset(target):
                target = {topic: numbers for topic, numbers in target.items() if topic in member.topics}
            self._kept.append(target)
            self.loads[index] = sum(map(len, target.values()))
            for topic, numbers in target.items():
                owners = self.owners[topic]
                for number in numbers:
                    owners[number] = index

    def give(self, topic: TopicId, number: int, index: int) -> None:
        owners, changed = self.owners[topic], self._changed[topic]
        before = owners[number]
        if before != _NOBODY:
            self.loads[before] -= 1
            changed.add(before)
        owners[number] = index
        self.loads[index] += 1
        changed.add(index)

    def targets(self) -> list[Target]:
        """A member without a change gets what it kept, as it is."""
        found = list(self._kept)
        fresh: dict[int, dict[TopicId, frozenset[int]]] = {}
        for topic, changed in self._changed.items():
            if not changed:
                continue
            numbers_of = _grouped(self.owners[topic])
            for index in changed:
                target = fresh.setdefault(index, dict(self._kept[index]))
                if numbers := numbers_of.get(index):
                    target[topic] = frozenset(numbers)
                else:
                    target.pop(topic, None)
        for index, target in fresh.items():
            found[index] = target
        return found


def _sorted(subscribers: Mapping[TopicId, Sequence[int]], partitions: Mapping[TopicId, int]) -> list[TopicId]:
    """By partitions per subscriber, most first; then by subscribers, fewest first; then by id, as Java compares
    them."""

    def place(topic: TopicId) -> tuple[float, int, int, int]:
        count, number = len(subscribers[topic]), topic.int
        return -(partitions[topic] / count), count, (number >> 64) ^ _HALF, (number & (2 * _HALF - 1)) ^ _HALF

    return sorted(subscribers, key=place)


def _grouped(owners: Sequence[int]) -> dict[int, list[int]]:
    """The partitions of each owner, ascending."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, owner in enumerate(owners):
        found[owner].append(number)
    return found


def _assign_rest(topic: TopicId, holdings: _Holdings, subscribers: Sequence[int]) -> None:
    free = [number for number, owner in enumerate(holdings.owners[topic]) if owner == _NOBODY]
    if free:
        levels = Levels(subscribers, holdings.loads)
        for number in free:
            holdings.give(topic, number, levels.next_lowest())


def _balance(topics: Sequence[TopicId], holdings: _Holdings, subscribers: Mapping[TopicId, Sequence[int]]) -> None:
    last_moved = _NOBODY
    for _ in range(MOST_ROUNDS):
        for place, topic in enumerate(topics):
            if place == last_moved:
                return
            if _balance_topic(topic, holdings, subscribers[topic]) or last_moved == _NOBODY:
                last_moved = place


def _balance_topic(topic: TopicId, holdings: _Holdings, subscribers: Sequence[int]) -> bool:
    """Whether a partition moved."""
    mine = list(map(holdings.loads.__getitem__, subscribers))
    if max(mine) - min(mine) <= 1:
        return False
    levels = Levels(subscribers, holdings.loads)
    to_give = _grouped(holdings.owners[topic])
    moved = False
    while True:
        giver = levels.next_highest()
        while giver is not None and not to_give.get(giver):
            levels.pass_over()
            giver = levels.next_highest()
        if giver is None:
            return moved
        number = to_give[giver].pop()
        taker = levels.next_lowest()
        if levels.are_even:
            return moved
        holdings.give(topic, number, taker)
        moved = True
