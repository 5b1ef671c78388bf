"""The `cooperative-sticky` assignor: balanced, and as much as possible stays where it is (KIP-54, KIP-429).

1. A member keeps what it owns. Where several members claim a partition, the claim of the highest generation counts;
   two claims of one generation both count for nothing.
2. What has no owner goes to the subscriber that has least; of those, to the first by member id.
3. As long as a partition's owner has at least two more than another subscriber, one of its partitions moves there. With
   equal subscriptions no member ends with two more than another.
4. A partition that another member may still be reading is withheld: no member gets it in this generation. Its owner
   gives it up and joins again, and the next assignment has it.
"""

import heapq
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from twofold.client.consumer.assignors.model import (
    NO_GENERATION,
    Assignments,
    RebalanceProtocol,
    SubscribedMember,
    in_javas_order,
    partitions_of,
    sorted_assignments,
)
from twofold.types import TopicPartition

_GENERATION = struct.Struct(">i")


class CooperativeStickyAssignor:
    name = "cooperative-sticky"
    protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def assign(self, members: Sequence[SubscribedMember], partitions: Mapping[str, int]) -> Assignments:
        claims = _claims_of(members)
        known = {topic: count for topic, count in partitions.items() if count > 0}
        board = _Board(members, known)
        for tp, claimants in claims.items():
            owner = _owner_of(claimants)
            if owner is not None and tp.partition < known.get(tp.topic, 0) and board.subscribes(owner, tp.topic):
                board.keep(tp, owner)
        free = board.free()
        for tp in free:
            board.place(tp)
        board.even_out(free)
        board.even_out(board.all_partitions())
        allowed = {
            member: [tp for tp in owned if _may_start(member, claims.get(tp, ()))]
            for member, owned in board.holdings.items()
        }
        return sorted_assignments(allowed)

    def user_data(self, generation: int) -> bytes:
        """For leaders whose client is too old to read the generation in the subscription itself."""
        return _GENERATION.pack(generation)


def generation_of(member: SubscribedMember) -> int:
    """As its subscription tells, or the user data of a client that is too old for that."""
    if member.generation == NO_GENERATION and len(member.user_data) == _GENERATION.size:
        return int(_GENERATION.unpack(member.user_data)[0])
    return member.generation


_Claim = tuple[int, str]  # generation, member id


def _claims_of(members: Iterable[SubscribedMember]) -> dict[TopicPartition, list[_Claim]]:
    claims: dict[TopicPartition, list[_Claim]] = defaultdict(list)
    for member in members:
        generation = generation_of(member)
        for tp in dict.fromkeys(member.owned):
            claims[TopicPartition(*tp)].append((generation, member.id))
    return claims


def _owner_of(claimants: list[_Claim]) -> str | None:
    highest = max(generation for generation, _ in claimants)
    owners = [member for generation, member in claimants if generation == highest]
    return owners[0] if len(owners) == 1 else None


def _may_start(member: str, claimants: Iterable[_Claim]) -> bool:
    """No other member claims it, or only in generations before that of the member's own claim."""
    own = max((generation for generation, claimant in claimants if claimant == member), default=None)
    others = [generation for generation, claimant in claimants if claimant != member]
    return not others or (own is not None and own > max(others))


class _Board:
    """Which member has which partitions, while they are dealt out."""

    def __init__(self, members: Sequence[SubscribedMember], partitions: Mapping[str, int]) -> None:
        ordered = sorted(members, key=lambda member: in_javas_order(member.id))
        self._partitions = partitions
        self._topics = {member.id: frozenset(member.topics) for member in ordered}
        self._origin: dict[TopicPartition, str] = {}
        self._owner: dict[TopicPartition, str] = {}
        self.holdings: dict[str, list[TopicPartition]] = {member.id: [] for member in ordered}
        places = {member.id: place for place, member in enumerate(ordered)}
        self._subscribers = {
            topic: tuple(name for name in self.holdings if topic in self._topics[name]) for topic in partitions
        }
        self._queues = _Queues(self.holdings, places, set(self._subscribers.values()))

    def subscribes(self, member: str, topic: str) -> bool:
        return topic in self._topics[member]

    def all_partitions(self) -> list[TopicPartition]:
        """Those with the fewest possible owners first: they have the least choice."""
        topics = sorted(self._partitions, key=lambda topic: (len(self._subscribers[topic]), topic))
        return [tp for topic in topics if self._subscribers[topic] for tp in partitions_of(topic, self._partitions)]

    def free(self) -> list[TopicPartition]:
        return [tp for tp in self.all_partitions() if tp not in self._owner]

    def keep(self, tp: TopicPartition, member: str) -> None:
        self._origin[tp] = member
        self._give(tp, member)

    def place(self, tp: TopicPartition) -> None:
        self._give(tp, self._queues.least(self._subscribers[tp.topic]))

    def even_out(self, movable: Sequence[TopicPartition]) -> None:
        """Move these until no move makes the numbers more even. It ends: the sum of the squares falls with each."""
        moved = True
        while moved:
            moved = False
            for tp in movable:
                owner, least = self._owner[tp], self._queues.least(self._subscribers[tp.topic])
                if len(self.holdings[owner]) > len(self.holdings[least]) + 1:
                    self._move(self._best_to_move(tp, owner, least), owner, least)
                    moved = True

    def _best_to_move(self, tp: TopicPartition, owner: str, to: str) -> TopicPartition:
        """One of the same topic that comes home; else one that the owner has only just got; else this one."""
        choice = [other for other in self.holdings[owner] if other.topic == tp.topic]
        home = next((other for other in choice if self._origin.get(other) == to), None)
        return home or next((other for other in choice if self._origin.get(other) != owner), tp)

    def _move(self, tp: TopicPartition, owner: str, to: str) -> None:
        self.holdings[owner].remove(tp)
        self._queues.changed(owner)
        self._give(tp, to)

    def _give(self, tp: TopicPartition, member: str) -> None:
        self._owner[tp] = member
        self.holdings[member].append(tp)
        self._queues.changed(member)


class _Queues:
    """Which member of each set has least. An entry that is out of date is dropped when it comes to the front."""

    def __init__(
        self,
        holdings: Mapping[str, Sequence[TopicPartition]],
        places: Mapping[str, int],
        groups: Iterable[tuple[str, ...]],
    ) -> None:
        self._holdings = holdings
        self._places = places
        self._heaps = {group: [(0, places[member], member) for member in group] for group in groups}
        self._of: dict[str, list[list[tuple[int, int, str]]]] = defaultdict(list)
        for group, heap in self._heaps.items():
            for member in group:
                self._of[member].append(heap)

    def changed(self, member: str) -> None:
        for heap in self._of[member]:
            heapq.heappush(heap, (len(self._holdings[member]), self._places[member], member))

    def least(self, group: tuple[str, ...]) -> str:
        heap = self._heaps[group]
        while heap[0][0] != len(self._holdings[heap[0][2]]):
            heapq.heappop(heap)
        return heap[0][2]
