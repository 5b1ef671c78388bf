"""Where the replicas of new partitions go: striped over racks and brokers, as Kafka does it.

1. Leaders rotate over the racks, and within a rack over its brokers; the other replicas follow in the next racks.
2. The first replica is never on a broker that is fenced; others are only where no other one is left in the rack. A
   broker that is shutting down, or whose directories are all cordoned (KIP-1066), gets nothing by itself.
3. One request gets at most `max.partitions.per.request`: a client that asks for two billion, by mistake or by
   intent, must not keep the controller from all others for hours.
4. After as many partitions as there are unfenced brokers the order is shuffled, so that pairs of brokers do not repeat.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from twofold.controller.context import Chance, Context
from twofold.controller.image import BrokerRegistration
from twofold.wire.errors import InvalidReplicationFactor, PolicyViolation


class Placement(NamedTuple):
    """Replicas for so many partitions, the leader's broker first; decided as they are taken, once."""

    partitions: int
    factor: int
    replicas: Iterator[tuple[int, ...]]


def given_placement(replicas: Sequence[tuple[int, ...]]) -> Placement:
    """What the request lays down; not empty."""
    return Placement(len(replicas), len(replicas[0]), iter(replicas))


class _Ring:
    """Brokers in a random order that starts one later in every round."""

    __slots__ = ("_brokers", "_next", "_round", "_start")

    def __init__(self, brokers: list[int]) -> None:
        self._brokers = brokers
        self._round = 0
        self._start = 0
        self._next = 0

    def shuffle(self, random: Chance) -> None:
        random.shuffle(self._brokers)

    def take(self, round_: int) -> int | None:
        """The next broker of this round; None when all were taken."""
        size = len(self._brokers)
        if self._round != round_ and size:
            self._round, self._next, self._start = round_, 0, (self._start + 1) % size
        if self._next >= size:
            return None
        self._next += 1
        return self._brokers[(self._next - 1 + self._start) % size]


class _Rack:
    __slots__ = ("active", "others")

    def __init__(self, brokers: list[BrokerRegistration]) -> None:
        self.active = _Ring([broker.broker_id for broker in brokers if broker.is_active])
        self.others = _Ring([broker.broker_id for broker in brokers if not broker.is_active])

    def shuffle(self, random: Chance) -> None:
        self.active.shuffle(random)
        self.others.shuffle(random)

    def take(self, round_: int) -> int | None:
        found = self.active.take(round_)
        return self.others.take(round_) if found is None else found


class StripedPlacer:
    def __init__(self, brokers: Iterable[BrokerRegistration], context: Context) -> None:
        random: Chance = context.random
        by_rack: dict[str | None, list[BrokerRegistration]] = {}
        usable = (broker for broker in brokers if not broker.in_controlled_shutdown and not broker.is_cordoned)
        for broker in sorted(usable, key=lambda broker: broker.broker_id):
            by_rack.setdefault(broker.rack, []).append(broker)
        # Brokers without a rack share one; whether a cluster mixes both does not matter to the order.
        self._racks = [_Rack(by_rack[name]) for name in sorted(by_rack, key=lambda name: name or "")]
        self._brokers = sum(map(len, by_rack.values()))
        self._active = sum(broker.is_active for members in by_rack.values() for broker in members)
        self._random = random
        self._round = 0
        self._placed = 0
        self._most = context.settings.int("max.partitions.per.request")
        for rack in self._racks:
            rack.shuffle(random)
        self._offset = random.randrange(len(self._racks)) if self._racks else 0

    def place(self, partitions: int, replication_factor: int) -> Placement:
        """Where so many partitions go."""
        self._check(replication_factor)
        self._placed += partitions
        if self._placed > self._most:
            raise PolicyViolation(
                f"{self._placed} new partitions at once are excessively many: max.partitions.per.request={self._most}"
            )
        if self._brokers == 1:
            return Placement(partitions, 1, repeat(self._place_one(1), partitions))
        replicas = (self._place_one(replication_factor) for _ in range(partitions))
        return Placement(partitions, replication_factor, replicas)

    def _check(self, replication_factor: int) -> None:
        if replication_factor > self._brokers:
            raise InvalidReplicationFactor(
                f"Unable to replicate the partition {replication_factor} time(s): {self._brokers} broker(s) registered."
            )
        if not self._active:
            raise InvalidReplicationFactor(
                f"Unable to replicate the partition {replication_factor} time(s): all brokers are fenced."
            )

    def _place_one(self, replication_factor: int) -> tuple[int, ...]:
        racks, count = self._racks, len(self._racks)
        if self._round == self._active > 1:
            self._random.shuffle(racks)
            for rack in racks:
                rack.shuffle(self._random)
            self._round = 0
        start = self._offset % count
        order = [(start + step) % count for step in range(count)]
        leader, leading_rack = self._take_leader(order)
        replicas = [leader]
        turns = [at for at in order if at != leading_rack] + [leading_rack]
        turn = 0
        while len(replicas) < replication_factor:
            found = racks[turns[turn % count]].take(self._round)
            if found is not None:
                replicas.append(found)
            turn += 1
        self._round += 1
        self._offset = start + 1
        return tuple(replicas)

    def _take_leader(self, order: list[int]) -> tuple[int, int]:
        for at in order:
            found = self._racks[at].active.take(self._round)
            if found is not None:
                return found, at
        raise InvalidReplicationFactor("all brokers are fenced")
