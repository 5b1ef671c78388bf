"""How cost grows, beside Apache Kafka: the same raw requests to both, each started afresh for every size.

- partitions of one topic: creating them, a produce request of one batch, and memory;
- open transactions of other producers: a whole transaction of one record;
- groups with committed offsets: a commit.

Cost is the median time of a request on an otherwise idle connection and the broker's processor time for it.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.table import Table

from bench.groups import commit
from bench.processor import cpu_seconds
from bench.report import Report, progress
from bench.servers import KAFKA, TWOFOLD, Target, TwofoldServer, kafka
from bench.transaction_curves import Committer
from bench.transaction_folder import TOPIC
from bench.wire import Client
from kits.processes.server import memory_of
from twofold.records.batch import BatchBuilder
from twofold.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest
from twofold.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from twofold.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

PARTITIONS = (10, 100, 1000, 3000)
OPEN = (10, 100, 1000, 3000)
GROUPS = (10, 100, 1000)
PROBES = 1000
WARM_UP_S = 4
PATIENCE_S = 120
NOT_LEADER = 6
Measure = Callable[[Client, Target, int], dict[str, float]]


@contextmanager
def contender(name: str) -> Iterator[tuple[Target, Client]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="twofold-against-")))
        if name == KAFKA:
            target = stack.enter_context(kafka(directory))
        else:
            server = stack.enter_context(TwofoldServer(directory / "twofold"))
            target = Target(TWOFOLD, server.bootstrap_servers, server.pid)
        client = connect(target)
        stack.callback(client.close)
        yield target, client


def connect(target: Target) -> Client:
    host, port = target.address.rsplit(":", 1)
    return Client(host, int(port))


def create(client: Client, name: str, partitions: int) -> float:
    """Seconds until every partition has a leader."""
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
    started = time.perf_counter()
    client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 19, 5)
    deadline = started + PATIENCE_S
    while time.perf_counter() < deadline:
        row = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 3, 9).topics[0]
        if not row.error_code and len(row.partitions) == partitions and not any(p.error_code for p in row.partitions):
            return time.perf_counter() - started
        time.sleep(0.01)
    raise RuntimeError(f"{name} with {partitions} partitions was not there after {PATIENCE_S} s")


def cost(target: Target, probe: Callable[[int], None]) -> dict[str, float]:
    """A request that is asked again and again, after others to warm up: a JVM compiles while it runs."""
    end, number = time.perf_counter() + WARM_UP_S, 0
    while time.perf_counter() < end:
        probe(number)
        number += 1
    spent, times = cpu_seconds(target.pid), []
    for number in range(PROBES):
        started = time.perf_counter()
        probe(number)
        times.append(time.perf_counter() - started)
    processor_us = (cpu_seconds(target.pid) - spent) / PROBES * 1e6
    ordered = sorted(times)
    return {
        "p50_us": statistics.median(times) * 1e6,
        "p99_us": ordered[int(PROBES * 0.99)] * 1e6,
        "cpu_us": processor_us,
        "memory_mb": memory_of(target.pid) / 1e6,
    }


def with_partitions(client: Client, target: Target, count: int) -> dict[str, float]:
    created_s = create(client, "many", count)
    builder = BatchBuilder()
    builder.add(None, bytes(1000), int(time.time() * 1000))
    data = builder.build()

    def produce(number: int) -> None:
        rows = [PartitionProduceData(index=(number * 7919) % count, records=data)]
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name="many", partition_data=rows)]
        )
        deadline = time.perf_counter() + PATIENCE_S
        code = NOT_LEADER
        while code == NOT_LEADER and time.perf_counter() < deadline:  # the controller knows of it, its broker not yet
            code = client.ask(request, 0, 8).responses[0].partition_responses[0].error_code
        if code:
            raise RuntimeError(f"a batch was answered with error {code}")

    for number in range(count):
        produce(number)  # the first batch of a partition opens its files: not part of the curve
    return {"create_s": created_s} | cost(target, produce)


def with_open_transactions(client: Client, target: Target, count: int) -> dict[str, float]:
    create(client, TOPIC, 1)
    client.ask(FindCoordinatorRequest(key="any", key_type=1), 10, 2)  # creates the topic of the transactions
    for number in range(count):
        Committer(client, f"open-{number}").begin()
    probe = Committer(client)
    return cost(target, lambda _: probe.transaction())


def with_groups(client: Client, target: Target, count: int) -> dict[str, float]:
    create(client, "t", 100)
    client.ask(FindCoordinatorRequest(key="g0"), 10, 2)  # creates the topic of the offsets

    def send(number: int, partitions: int = 10) -> int:
        answer = client.ask(commit(f"g{(number * 7919) % count}", number, partitions), 8, 7)
        return max(int(row.error_code) for row in answer.topics[0].partitions)

    deadline = time.perf_counter() + PATIENCE_S
    for number in range(count):
        while send(number, 100):  # a coordinator that is still on its way
            if time.perf_counter() > deadline:
                raise RuntimeError(f"the offsets of group {number} were not taken")
            time.sleep(0.02)

    def probe(number: int) -> None:
        if code := send(number):
            raise RuntimeError(f"a commit was answered with error {code}")

    return cost(target, probe)


CURVES: dict[str, tuple[Measure, tuple[int, ...]]] = {
    "partitions, a produce request": (with_partitions, PARTITIONS),
    "open transactions, a transaction": (with_open_transactions, OPEN),
    "groups of 100 offsets, a commit of 10": (with_groups, GROUPS),
}


def run(report: Report, *, sizes: tuple[int, ...] | None = None, with_oracle: bool = True) -> None:
    names = [TWOFOLD, KAFKA] if with_oracle else [TWOFOLD]
    for title, (measure, default) in CURVES.items():
        table = Table(title=title)
        for column in ("size", *(f"{name}: {what}" for name in names for what in ("p50 us", "cpu us", "MB"))):
            table.add_column(column, justify="right")
        for size in progress(sizes or default, title.split(",")[0]):
            rows = {}
            for name in names:
                with contender(name) as (target, client):
                    rows[name] = measure(client, target, size)
            report.add(f"against kafka: {title}", str(size), rows)
            shown = [f"{row[key]:,.0f}" for row in rows.values() for key in ("p50_us", "cpu_us", "memory_mb")]
            table.add_row(f"{size:,}", *shown)
        report.show(table)
