"""On which brokers the replicas of a topic are to be: pure, and the same for the same question.

1. A partition keeps the replicas that it has on the brokers that were named: what need not move does not.
2. New replicas go to racks that the partition has none in, then to the brokers with the fewest replicas.
3. The preferred leader, the first of the list, is the replica whose broker leads the fewest partitions. Where a
   partition keeps all of its replicas, it keeps their order too.
"""

from collections import Counter
from collections.abc import Mapping, Sequence


def spread(
    partitions: Mapping[int, Sequence[int]], brokers: Mapping[int, str | None], factor: int
) -> dict[int, tuple[int, ...]]:
    """The replicas of each partition. `partitions`: where they are now; `brokers`: where they may be, and the racks."""
    if not 0 < factor <= len(brokers):
        raise ValueError(f"{factor} replicas need as many brokers, and there are {len(brokers)}")
    load: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    kept = {index: _kept(replicas, brokers, factor) for index, replicas in partitions.items()}
    for replicas in kept.values():
        load.update(replicas)
    chosen: dict[int, tuple[int, ...]] = {}
    for index in sorted(kept):
        replicas = list(kept[index])
        while len(replicas) < factor:
            replicas.append(_next(replicas, brokers, load))
            load[replicas[-1]] += 1
        if tuple(replicas) != tuple(partitions[index]):
            leader = min(replicas, key=lambda broker: (leads[broker], replicas.index(broker)))
            replicas.remove(leader)
            replicas.insert(0, leader)
        leads[replicas[0]] += 1
        chosen[index] = tuple(replicas)
    return chosen


def _kept(replicas: Sequence[int], brokers: Mapping[int, str | None], factor: int) -> list[int]:
    """At most `factor` of those that may stay, of as many racks as there are among them."""
    stay = [broker for broker in dict.fromkeys(replicas) if broker in brokers]
    first_of_racks = [
        broker for at, broker in enumerate(stay) if brokers[broker] not in {brokers[b] for b in stay[:at]}
    ]
    preferred = first_of_racks + [broker for broker in stay if broker not in first_of_racks]
    wanted = set(preferred[:factor])
    return [broker for broker in stay if broker in wanted]


def _next(replicas: Sequence[int], brokers: Mapping[int, str | None], load: Counter[int]) -> int:
    racks = {brokers[broker] for broker in replicas} - {None}
    free = [broker for broker in brokers if broker not in replicas]
    return min(free, key=lambda broker: (brokers[broker] in racks, load[broker], broker))
