"""Circular information flow (G1c): transactions that would each have to come before the other.

An edge from one committed transaction to another says that the first was decided before the second. Only what a log
with transactions promises makes an edge:

    wr       the second read, as committed, what the first wrote
    ww       both wrote to a partition, and the first was over there before the second began there
    session  one instance of a transactional id made both, in this order
    offsets  both committed a position of the same group: the lower one comes first, and whoever began at a position
             comes before whoever moved it on (so two that began at the same one are a cycle: a lost update)

No edge: records that interleave in a partition (G0), and a partition that was read before another one of the same
transaction (each partition has its own marker). Both are what the protocol allows, so cycles through them are no news.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from sim.broker.watch import require
from sim.transactions.check import Logs
from sim.transactions.history import History, Txn, decode_value
from sim.transactions.log import Block, Entry, Fate
from twofold.types import TopicPartition


class Edge(NamedTuple):
    first: str
    second: str
    why: str


def no_cycles(history: History, logs: Logs) -> None:
    cycle = find_cycle(edges(history, logs))
    require(not cycle, "circular flow: " + "; ".join(f"{e.first} before {e.second} ({e.why})" for e in cycle))


def edges(history: History, logs: Logs) -> list[Edge]:
    committed = {
        decode_value(entry.value).label
        for log in logs.values()
        for entry in log.entries.values()
        if entry.block.fate is Fate.COMMITTED
    }
    txns = [txn for txn in history.txns if txn.label in committed]
    found = [*_reads(txns), *_writes(logs), *_sessions(txns), *_offsets(txns)]
    return [edge for edge in found if edge.first != edge.second and {edge.first, edge.second} <= committed]


def _reads(txns: list[Txn]) -> Iterator[Edge]:
    for txn in txns:
        for tp, offset, value in txn.reads:
            yield Edge(decode_value(value).label, txn.label, f"wr {tp}@{offset}")


def _writes(logs: Logs) -> Iterator[Edge]:
    """Neighbours only: the rest follows."""
    for tp, log in logs.items():
        blocks = [block for block in log.blocks if block.fate is Fate.COMMITTED]
        for block in blocks:
            before = [other for other in blocks if _end(other) < block.first_offset]
            latest_start = max((other.first_offset for other in before), default=-1)
            for other in before:
                if _end(other) > latest_start:
                    yield Edge(_owner(log.entries, other), _owner(log.entries, block), f"ww {tp}")


def _end(block: Block) -> int:
    assert block.marker is not None
    return block.marker.offset


def _owner(entries: Mapping[int, Entry], block: Block) -> str:
    return decode_value(entries[block.first_offset].value).label


def _sessions(txns: list[Txn]) -> Iterator[Edge]:
    last: dict[str, Txn] = {}
    for txn in sorted(txns, key=lambda txn: (txn.instance, txn.number)):
        before = last.get(txn.instance)
        if before is not None:
            yield Edge(before.label, txn.label, "session")
        last[txn.instance] = txn


def _offsets(txns: list[Txn]) -> Iterator[Edge]:
    moves: dict[tuple[str, TopicPartition], list[tuple[int, str]]] = defaultdict(list)
    for txn in txns:
        for tp, start in txn.consumed_from.items():
            moves[txn.group, tp].append((start, txn.label))
    for (_, tp), rows in moves.items():
        rows.sort()
        for (start, first), (next_start, second) in pairwise(rows):
            yield Edge(first, second, f"offsets {tp}@{next_start}")
            if start == next_start:
                yield Edge(second, first, f"offsets {tp}@{start}")


def find_cycle(all_edges: list[Edge]) -> list[Edge]:
    """Some cycle, shortest within its component; empty when there is none."""
    following: dict[str, list[Edge]] = defaultdict(list)
    for edge in all_edges:
        following[edge.first].append(edge)
    # What has nothing before it, or nothing after it, is on no cycle: peel it off until only cycles are left.
    incoming: dict[str, int] = defaultdict(int)
    for edge in all_edges:
        incoming[edge.second] += 1
    ready = [node for node in following if not incoming[node]]
    removed: set[str] = set()
    while ready:
        node = ready.pop()
        removed.add(node)
        for edge in following[node]:
            incoming[edge.second] -= 1
            if not incoming[edge.second]:
                ready.append(edge.second)
    rest = [node for node in following if node not in removed]
    found = [cycle for node in rest if (cycle := _way_back(node, following))]
    return min(found, key=len, default=[])


def _way_back(start: str, following: Mapping[str, list[Edge]]) -> list[Edge]:
    """The shortest way from a node to itself."""
    came: dict[str, Edge] = {}
    layer = [start]
    while layer:
        upcoming = []
        for node in layer:
            for edge in following.get(node, ()):
                if edge.second == start:
                    way = [edge]
                    while way[-1].first != start:
                        way.append(came[way[-1].first])
                    return way[::-1]
                if edge.second not in came:
                    came[edge.second] = edge
                    upcoming.append(edge.second)
        layer = upcoming
    return []
