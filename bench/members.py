"""Groups of the new protocol (KIP-848) beside Apache Kafka: the cost of a heartbeat, and rebalances of one large group.

1. A heartbeat of a member that has all it should have, in 100, 1,000 and 10,000 groups of one member each, and in one
   group of 2,000 members: processor time of the broker. Members share a few connections, one request at a time on each.
   Both brokers run at once and take turns.
2. Beside those groups, rebalances of a group of 2,000 members that heartbeat once per second: all join, the topic gets
   twice the partitions (every target changes at once), half of the members leave, and come back (the others give up
   half of what they have). How long until every partition has its one new owner, and how long another client waits at
   most meanwhile; the same for a description of the group.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.table import Table

from bench.against import connect, create
from bench.member_load import LANES, Crowd, Lanes, Member, encoded
from bench.pings import Pings
from bench.processor import cpu_seconds, precise_cpu_seconds
from bench.report import Report, progress
from bench.servers import KAFKA, TWOFOLD, Target, TunedOracle, TwofoldServer, jars_or_skip
from twofold.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from twofold.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest

SETTINGS = {
    "group.consumer.max.size": "100000",
    "group.consumer.max.session.timeout.ms": "3600000",
    "group.consumer.session.timeout.ms": "3600000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.assignment.interval.ms": "1000",
}
SIZES = (100, 1_000, 10_000)
MEMBERS = 2_000
ONE_TOPIC, GATHERED_TOPIC, LARGE_TOPIC = "one", "gathered", "large"
HEARTBEATS = 2_000
WARM_UP = 40_000  # a JVM compiles while it runs
ROUNDS = 20
INTERVAL_S = 1.0
QUIET_S = 5.0
MOST_TIMES_KAFKA = 1.5
MOST_STALL_MS = 200

Row = dict[str, float]


@contextmanager
def contender(name: str) -> Iterator[Target]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="twofold-members-")))
        if name == KAFKA:
            (directory / "kafka").mkdir()
            oracle = TunedOracle(jars_or_skip(), directory / "kafka", SETTINGS)
            stack.callback(oracle.stop)
            oracle.start()
            yield Target(KAFKA, oracle.bootstrap_servers, oracle.pid)
        else:
            server = stack.enter_context(TwofoldServer(directory / "twofold", SETTINGS))
            yield Target(TWOFOLD, server.bootstrap_servers, server.pid)


@contextmanager
def contenders(with_oracle: bool) -> Iterator[dict[str, Target]]:
    names = [TWOFOLD, KAFKA] if with_oracle else [TWOFOLD]
    with ExitStack() as stack:
        yield {name: stack.enter_context(contender(name)) for name in names}


def address(target: Target) -> tuple[str, int]:
    host, port = target.address.rsplit(":", 1)
    return host, int(port)


@contextmanager
def lanes_to(target: Target) -> Iterator[Lanes]:
    lanes = Lanes(*address(target))
    try:
        yield lanes
    finally:
        lanes.close()


def members_of(group: str, topic: str, count: int) -> list[Member]:
    return [Member(group, f"{group}-{number:06}-0123456789abcdef", topic) for number in range(count)]


class Side:
    """One broker with the groups of one member each, and a way to them."""

    def __init__(self, target: Target, stack: ExitStack) -> None:
        self.target = target
        self.lanes = stack.enter_context(lanes_to(target))
        self._crowd = Crowd(self.lanes, INTERVAL_S)
        prepare(target, ONE_TOPIC, 1)

    def grow_to(self, groups: int) -> list[bytes]:
        """The heartbeats of so many members."""
        wanted = [member for number in range(groups) for member in members_of(f"g{number}", ONE_TOPIC, 1)]
        self._crowd.add([member for member in wanted if member.id not in self._crowd.members])
        while any(member.epoch == 0 or member.share != 1 for member in self._crowd.members.values()):
            self._crowd.run_for(0.2)
        return [encoded(member) for member in self._crowd.members.values()]

    def cost_us(self, heartbeats: list[bytes], first: int) -> float:
        """Of some of them, from `first` on."""
        some = [heartbeats[(first + number) % len(heartbeats)] for number in range(HEARTBEATS)]
        spent = precise_cpu_seconds(self.target.pid)
        self.lanes.repeat(some)
        return (precise_cpu_seconds(self.target.pid) - spent) / HEARTBEATS * 1e6

    def warm_up(self, heartbeats: list[bytes]) -> None:
        self.lanes.repeat([heartbeats[number % len(heartbeats)] for number in range(WARM_UP)])


def costs(sides: dict[str, Side], heartbeats: dict[str, list[bytes]]) -> Row:
    """Processor time of the brokers, in the cheapest of rounds in which they take turns: what else runs on the machine
    empties their caches, and only adds to it."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(ROUNDS):
        for name, side in sides.items():
            found[name].append(side.cost_us(heartbeats[name], number * HEARTBEATS))
    return {name: min(rounds) for name, rounds in found.items()}


def heartbeats_of(targets: dict[str, Target], sizes: tuple[int, ...], members: int) -> dict[str, Row]:
    """Each size adds groups to those that are there; last comes the one large group."""
    rows: dict[str, Row] = {}
    with ExitStack() as stack:
        sides = {name: Side(target, stack) for name, target in targets.items()}
        for size in sizes:
            heartbeats = {name: side.grow_to(size) for name, side in sides.items()}
            if not rows:
                for name, side in sides.items():
                    side.warm_up(heartbeats[name])
            rows[f"{size:,} groups"] = costs(sides, heartbeats)
        large = {name: gather(side, members) for name, side in sides.items()}
        rows[f"one group of {members:,}"] = costs(sides, large)
    return rows


def gather(side: Side, count: int) -> list[bytes]:
    prepare(side.target, GATHERED_TOPIC, count)
    everyone = members_of("gathered", GATHERED_TOPIC, count)
    crowd = Crowd(side.lanes, INTERVAL_S)
    crowd.add(everyone)
    crowd.run_until_even(count)
    return [encoded(member) for member in everyone]


def prepare(target: Target, topic: str, partitions: int) -> None:
    client = connect(target)
    create(client, topic, partitions)
    client.ask(FindCoordinatorRequest(key="g0"), 10, 2)  # creates the topic of the offsets
    client.close()


def grow(target: Target, topic: str, partitions: int) -> None:
    client = connect(target)
    wanted = CreatePartitionsTopic(name=topic, count=partitions, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=60_000, validate_only=False)
    answer = client.ask(request, 37, 2).results[0]
    if answer.error_code:
        raise RuntimeError(f"{topic} could not grow: error {answer.error_code}")
    client.close()


def describe(target: Target, pings: Pings, count: int) -> Row:
    """As `kafka-consumer-groups.sh --describe` asks."""
    client = connect(target)
    pings.longest_ms()
    spent, started = cpu_seconds(target.pid), time.monotonic()
    request = ConsumerGroupDescribeRequest(group_ids=["large"], include_authorized_operations=False)
    (row,) = client.ask(request, 69, 1).groups
    seconds = time.monotonic() - started
    client.close()
    if row.error_code or row.group_state != "Stable" or len(row.members) != count:
        raise RuntimeError(f"error {row.error_code}, {row.group_state} with {len(row.members)} members")
    return {"seconds": seconds, "stall_ms": pings.longest_ms(), "cpu_s": cpu_seconds(target.pid) - spent}


def rebalances(target: Target, count: int) -> dict[str, Row]:
    prepare(target, LARGE_TOPIC, count)
    everyone = members_of("large", LARGE_TOPIC, count)
    half = everyone[::2]
    rows: dict[str, Row] = {}
    with lanes_to(target) as lanes, Pings(*address(target)) as pings:
        crowd = Crowd(lanes, INTERVAL_S)

        def measured(name: str, partitions: int) -> None:
            spent = cpu_seconds(target.pid)
            seconds = crowd.run_until_even(partitions)
            cpu_s = cpu_seconds(target.pid) - spent
            crowd.run_for(0.5)
            rows[name] = {"seconds": seconds, "stall_ms": pings.longest_ms(), "cpu_s": cpu_s}

        crowd.add(everyone)
        measured("all join", count)
        crowd.run_for(QUIET_S)
        rows["none"] = {"seconds": QUIET_S, "stall_ms": pings.longest_ms(), "cpu_s": 0.0}
        rows["described"] = describe(target, pings, count)
        grow(target, LARGE_TOPIC, 2 * count)
        pings.longest_ms()
        measured("twice the partitions", 2 * count)
        crowd.leave(half)
        measured("half leave", 2 * count)
        crowd.add(members_of("large", LARGE_TOPIC, count)[::2])
        measured("half come back", 2 * count)
    return rows


def run(report: Report, *, sizes: tuple[int, ...] = SIZES, members: int = MEMBERS, with_oracle: bool = True) -> None:
    with contenders(with_oracle) as targets:
        show_heartbeats(report, heartbeats_of(targets, sizes, members))
        show_rebalances(report, rebalances_of(targets, members), members)


def run_heartbeats(
    report: Report, *, sizes: tuple[int, ...] = SIZES, members: int = MEMBERS, with_oracle: bool = True
) -> None:
    with contenders(with_oracle) as targets:
        show_heartbeats(report, heartbeats_of(targets, sizes, members))


def rebalances_of(targets: dict[str, Target], members: int) -> dict[str, dict[str, Row]]:
    return {name: rebalances(target, members) for name, target in progress(targets.items(), "rebalances")}


def show_heartbeats(report: Report, rows: dict[str, Row]) -> None:
    table = Table(title=f"a ConsumerGroupHeartbeat, processor time of the broker, {LANES} connections")
    first = next(iter(rows.values()))
    for column in ("members", *(f"{name}, us" for name in first), "times Kafka", "vs first"):
        table.add_column(column, justify="right")
    for place, row in rows.items():
        report.add("heartbeats of KIP-848", place, row)
        times = f"{row[TWOFOLD] / row[KAFKA]:.2f}" if KAFKA in row else "-"
        table.add_row(place, *(f"{value:.0f}" for value in row.values()), times, f"{row[TWOFOLD] / first[TWOFOLD]:.2f}")
    table.caption = f"goal: at most {MOST_TIMES_KAFKA} times Apache Kafka, and flat"
    report.show(table)


def show_rebalances(report: Report, large: dict[str, dict[str, Row]], members: int) -> None:
    table = Table(title=f"a rebalance of {members:,} members, a heartbeat each second")
    for column in ("what", *(f"{name}: {what}" for name in large for what in ("s", "cpu s", "longest wait ms"))):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what in large[TWOFOLD]:
        values = {f"{name}_{key}": row for name, rows in large.items() for key, row in rows[what].items()}
        report.add("rebalances of KIP-848", what, values)
        cells = [f"{rows[what][key]:.1f}" for rows in large.values() for key in ("seconds", "cpu_s", "stall_ms")]
        table.add_row(what, *cells)
    table.caption = f"goal: no client waits for {MOST_STALL_MS} ms"
    report.show(table)
