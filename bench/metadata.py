"""Topics of very many partitions: what creating them costs, how long other clients wait, and what they cost later.

- creation: CreateTopics, CreatePartitions and DeleteTopics of one topic, by its partitions. Each size on a fresh
  broker; the batches and bytes of the metadata log are counted in its file. Time a partition is the curve.
- meanwhile: clients at a fixed rate while the topic is created and deleted, beside the same clients before it. What
  a client that only asks for ApiVersions waits at most is how long the event loop stalled at most.
- lookup: a request for one small topic, with few and with very many partitions in the cluster.
- start: the broker on a metadata log of that size after kill -9, with and without a snapshot.

Apache Kafka makes at most 9,999 partitions at a time and answers before its broker knows them: times are until
DescribeTopicPartitions shows a leader for the last of them, or that the topic is gone.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.metadata_cluster import KAFKA_PARTITIONS, LARGE, PATIENCE_S, SMALL, SMALL_PARTITIONS, Cluster, cluster
from bench.processor import cpu_seconds
from bench.report import Report, progress
from bench.servers import KAFKA, ROOT, TWOFOLD, TwofoldServer
from bench.wire import Client
from twofold.wire.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from twofold.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
BESIDE_KAFKA = (1_000, 10_000)
KAFKA_REST = 1_000  # it deletes ten times that for a minute
MEANWHILE = (10_000, 100_000)
LOOKUP = (10, 100_000)
START = (10, 10_000, 100_000)  # of Twofold alone: Apache Kafka needs more than a minute with 10,000
WARM_UP_S = 2.0
BEFORE_S = 3.0
CREATIONS = 4  # for percentiles; one of Apache Kafka
REQUESTS = 1000
ROUNDS = 4
SNAPSHOT_BYTES = "metadata.log.max.record.bytes.between.snapshots"
SNAPSHOT_PATIENCE_S = 10
NEVER = 1 << 40
PROBES = ("produce", "fetch", "metadata", "heartbeat", "ping")
PHASES = ("before", "creation", "deletion")
METADATA, DESCRIBE_PARTITIONS = 3, 75


def run(report: Report, *, with_oracle: bool = True) -> None:
    run_creation(report, with_oracle=with_oracle)
    run_meanwhile(report, with_oracle=with_oracle)
    run_lookup(report, with_oracle=with_oracle)
    run_start(report, rounds=2)


# --- creation ---


def creation(name: str, count: int) -> dict[str, float]:
    with cluster(name) as found:
        found.create("first", 1)
        before, log_before = found.resident_bytes, found.log_size()
        created = found.create(LARGE, count)
        after, log_after, peak = found.resident_bytes, found.log_size(), found.peak_bytes()
        rest = {} if name == KAFKA and count > KAFKA_REST else grown_and_deleted(found, count)
        size = log_after.bytes - log_before.bytes
        return {
            "partitions": count,
            "answered_s": created.answered_s,
            "served_s": created.served_s,
            "cpu_s": created.cpu_s,
            "us_a_partition": created.served_s / count * 1e6,
            "cpu_us_a_partition": created.cpu_s / count * 1e6,
            "peak_mb": peak / 1e6,
            "bytes_a_partition": (after - before) / count,
            "batches": log_after.batches - log_before.batches,
            "log_bytes": size,
            "log_bytes_a_partition": size / count,
            **rest,
        }


def grown_and_deleted(found: Cluster, count: int) -> dict[str, float]:
    deleted = found.delete(LARGE)
    found.create(LARGE, 1)
    return {"deleted_s": deleted.served_s, "grown_s": found.grow(LARGE, count).served_s}


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def run_creation(report: Report, *, sizes: Sequence[int] = SIZES, with_oracle: bool = True) -> None:
    times = Table(title="one topic: CreateTopics, CreatePartitions from one, DeleteTopics; seconds until served")
    space = Table(title="what the topic takes: memory of the broker, and its creation in the metadata log")
    for column in ("partitions", "", "create", "us each", "cpu us each", "grow", "delete"):
        times.add_column(column, justify="right", no_wrap=True)
    for column in ("partitions", "", "peak MB", "B each", "batches", "log MB", "B each"):
        space.add_column(column, justify="right", no_wrap=True)
    for size in progress(sizes, "creation"):
        rows = {TWOFOLD: creation(TWOFOLD, size)}
        if with_oracle and size in BESIDE_KAFKA:
            rows[KAFKA] = creation(KAFKA, min(size, KAFKA_PARTITIONS))
        report.add("metadata: creation", str(size), rows)
        for name, row in rows.items():
            count = f"{row['partitions']:,}"
            times.add_row(
                count, name, f"{row['served_s']:.2f}", f"{row['us_a_partition']:.0f}",
                f"{row['cpu_us_a_partition']:.1f}", seconds(row.get("grown_s")), seconds(row.get("deleted_s")),
            )  # fmt: skip
            space.add_row(
                count, name, f"{row['peak_mb']:.0f}", f"{row['bytes_a_partition']:,.0f}", f"{row['batches']:,}",
                f"{row['log_bytes'] / 1e6:.2f}", f"{row['log_bytes_a_partition']:.0f}",
            )  # fmt: skip
    if with_oracle:
        times.caption = "Apache Kafka refuses more than 9,999 partitions in one request (POLICY_VIOLATION)"
    report.show(times)
    report.show(space)


# --- meanwhile ---

Window = tuple[float, float]


@contextmanager
def probing(found: Cluster) -> Iterator[dict[str, list[Window]]]:
    """Clients that ask until the end; then the dictionary has when each request was due and answered."""
    command = [sys.executable, "-m", "bench.metadata_probes", found.server.host, str(found.server.port)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    times: dict[str, list[Window]] = {}
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the clients could not begin")
        yield times
        output, _ = process.communicate(timeout=PATIENCE_S)
        answer = json.loads(output)
        if answer["failures"]:
            raise RuntimeError(answer["failures"][0])
        times.update(answer["times"])
    finally:
        process.kill()
        process.wait()


def meanwhile(name: str, count: int) -> dict[str, Any]:
    spans: dict[str, list[Window]] = {phase: [] for phase in PHASES}
    with cluster(name) as found:
        found.create(SMALL, SMALL_PARTITIONS)
        with probing(found) as times:
            time.sleep(WARM_UP_S)
            spans["before"].append(watched(lambda: time.sleep(BEFORE_S)))
            for _ in range(1 if name == KAFKA else CREATIONS):
                spans["creation"].append(watched(lambda: found.create(LARGE, count)))
                time.sleep(0.3)
                if name != KAFKA:
                    spans["deletion"].append(watched(lambda: found.delete(LARGE)))
                    time.sleep(0.3)
    return {phase: {probe: summary(times[probe], each) for probe in PROBES} for phase, each in spans.items() if each}


def watched(action: Any) -> Window:
    begun = time.monotonic()
    action()
    return begun, time.monotonic()


def summary(times: list[Window], spans: list[Window]) -> dict[str, float]:
    """Of the requests that were under way in one of the spans."""
    waits = sorted(done - due for due, done in times if any(due < until and done > begun for begun, until in spans))
    if not waits:
        raise RuntimeError("no client asked in that time")
    return {
        "p50_ms": statistics.median(waits) * 1e3,
        "p99_ms": waits[int(len(waits) * 0.99)] * 1e3,
        "max_ms": waits[-1] * 1e3,
        "requests": len(waits),
    }


def run_meanwhile(report: Report, *, sizes: Sequence[int] = MEANWHILE, with_oracle: bool = True) -> None:
    table = Table(title="what others wait meanwhile, in ms: p50, p99 and longest")
    for column in ("partitions", "", "request", "before", "creation", "deletion"):
        table.add_column(column, justify="right", no_wrap=True)
    for size in progress(sizes, "meanwhile"):
        rows = {TWOFOLD: (size, meanwhile(TWOFOLD, size))}
        if with_oracle and size in BESIDE_KAFKA:
            count = min(size, KAFKA_PARTITIONS)
            rows[KAFKA] = (count, meanwhile(KAFKA, count))
        report.add("metadata: meanwhile", str(size), {name: row for name, (_, row) in rows.items()})
        for name, (count, row) in rows.items():
            for probe in PROBES:
                table.add_row(
                    f"{count:,}", name, probe, *(shown(row[phase][probe]) if phase in row else "-" for phase in PHASES)
                )
    table.caption = "the longest ping is the longest stall of the event loop; the clients have the same cores"
    report.show(table)


def shown(row: dict[str, float]) -> str:
    return " ".join(f"{row[figure]:.1f}" for figure in ("p50_ms", "p99_ms", "max_ms"))


# --- lookup ---

LOOKUPS: dict[str, tuple[Any, int, int]] = {
    "Metadata": (MetadataRequest(topics=[MetadataRequestTopic(name=SMALL)]), METADATA, 12),
    "DescribeTopicPartitions": (
        DescribeTopicPartitionsRequest(topics=[TopicRequest(name=SMALL)]),
        DESCRIBE_PARTITIONS,
        0,
    ),
}


def ask_often(client: Client, pid: int, request: Any, key: int, version: int) -> tuple[float, list[float]]:
    """Processor time of a request, in microseconds, and how long each took."""
    spent, waits = cpu_seconds(pid), []
    for _ in range(REQUESTS):
        started = time.perf_counter()
        answer = client.ask(request, key, version)
        waits.append((time.perf_counter() - started) * 1e6)
    topic = answer.topics[0]
    if topic.error_code or len(topic.partitions) != SMALL_PARTITIONS:
        raise RuntimeError(f"the small topic was answered with error {topic.error_code}")
    return (cpu_seconds(pid) - spent) / REQUESTS * 1e6, waits


def lookups(found: Sequence[Cluster], rounds: int = ROUNDS) -> list[dict[str, dict[str, float]]]:
    """For each cluster what each request costs; they take turns."""
    rows: list[dict[str, dict[str, float]]] = [{} for _ in found]
    for name, question in LOOKUPS.items():
        costs: list[list[float]] = [[] for _ in found]
        waits: list[list[float]] = [[] for _ in found]
        for _ in range(rounds):
            for place, each in enumerate(found):
                cost, took = ask_often(each.client, each.pid, *question)
                costs[place].append(cost)
                waits[place] += took
        for place, row in enumerate(rows):
            ordered = sorted(waits[place])
            row[name] = {
                "cpu_us": statistics.mean(costs[place]),
                "p50_us": statistics.median(ordered),
                "p99_us": ordered[int(len(ordered) * 0.99)],
            }
    return rows


def run_lookup(report: Report, *, sizes: Sequence[int] = LOOKUP, with_oracle: bool = True) -> None:
    table = Table(title=f"a request for one topic of {SMALL_PARTITIONS} partitions, by the partitions of the cluster")
    for column in ("", "request", "partitions", "cpu us", "vs first", "p50 us", "p99 us"):
        table.add_column(column, justify="right")
    measured = [(TWOFOLD, lookups_of_twofold(sizes))]
    if with_oracle:
        measured.append((KAFKA, lookups_of_kafka(sorted({min(size, KAFKA_PARTITIONS) for size in sizes}))))
    for name, rows in measured:
        first = next(iter(rows.values()))
        for size, row in rows.items():
            report.add(f"metadata: lookup, {name}", str(size), row)
        for request in LOOKUPS:
            for size, row in rows.items():
                cost = row[request]
                table.add_row(
                    name, request, f"{size:,}", f"{cost['cpu_us']:.0f}",
                    f"{cost['cpu_us'] / first[request]['cpu_us']:.2f}", f"{cost['p50_us']:.0f}",
                    f"{cost['p99_us']:.0f}",
                )  # fmt: skip
    report.show(table)


def lookups_of_twofold(sizes: Sequence[int]) -> dict[int, dict[str, dict[str, float]]]:
    with ExitStack() as stack:
        found = [stack.enter_context(cluster(TWOFOLD)) for _ in sizes]
        for size, each in zip(sizes, found, strict=True):
            fill(each, size)
        lookups(found, rounds=1)  # the first fill caches
        return dict(zip(sizes, lookups(found), strict=True))


def lookups_of_kafka(sizes: Sequence[int]) -> dict[int, dict[str, dict[str, float]]]:
    """One node that grows: a JVM that has answered often is not to be compared with one that has not."""
    rows: dict[int, dict[str, dict[str, float]]] = {}
    with cluster(KAFKA) as found:
        for size in sizes:
            if rows:
                found.create(LARGE, size - SMALL_PARTITIONS)
            else:
                fill(found, size)
                lookups([found])
            rows[size] = lookups([found], rounds=2)[0]
    return rows


def fill(found: Cluster, partitions: int) -> None:
    """The small topic, and the rest of the partitions in another."""
    found.create(SMALL, SMALL_PARTITIONS)
    if partitions > SMALL_PARTITIONS:
        found.create(LARGE, partitions - SMALL_PARTITIONS)


# --- start ---


def timed_start(server: TwofoldServer, left: Path) -> dict[str, float]:
    """Of a copy of what was left: a start adds to the log."""
    shutil.rmtree(server.data)
    shutil.copytree(left, server.data)
    started = time.perf_counter()
    server.start()
    seconds = time.perf_counter() - started
    found = Cluster(server)
    row = {
        "seconds": seconds,
        "cpu_s": cpu_seconds(found.pid),
        "memory_mb": found.resident_bytes / 1e6,
        "log_bytes": found.log_size().bytes,
    }
    found.client.close()
    server.kill()
    return row


def start_cost(count: int, *, snapshot: bool, rounds: int) -> dict[str, float] | None:
    """None where no snapshot was written."""
    with tempfile.TemporaryDirectory(prefix="twofold-metadata-") as directory:
        server = TwofoldServer(Path(directory), {SNAPSHOT_BYTES: str(1000 if snapshot else NEVER)})
        try:
            server.start()
            found = Cluster(server)
            fill(found, count)
            log = found.log_size()
            size = wait_for_snapshot(found, log.end_offset) if snapshot else log.bytes
            server.kill()
            if not size:
                return None
            server.settings[SNAPSHOT_BYTES] = str(NEVER)
            left = server.data.rename(server.directory / "left")
            server.data.mkdir()
            rows = [timed_start(server, left) for _ in range(rounds)]
            figures = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            return figures | {"read_bytes": size, "written_bytes": figures["log_bytes"] - log.bytes}
        finally:
            server.kill()


def wait_for_snapshot(found: Cluster, end_offset: int) -> int:
    """The bytes of one that has everything up to there; 0 where none is written."""
    deadline = time.monotonic() + SNAPSHOT_PATIENCE_S
    while time.monotonic() < deadline:
        for path in found.folder.glob("*.checkpoint"):
            if int(path.name.split("-")[0]) >= end_offset:
                return path.stat().st_size
        time.sleep(0.1)
    return 0


def run_start(report: Report, *, sizes: Sequence[int] = START, rounds: int = 3) -> None:
    table = Table(title="start after kill -9 until it serves, by the partitions in the metadata log")
    for column in ("partitions", "from", "seconds", "cpu s", "MB", "read MB", "written MB"):
        table.add_column(column, justify="right")
    for size in progress(sizes, "start"):
        rows = {
            "log": start_cost(size, snapshot=False, rounds=rounds),
            "snapshot": start_cost(size, snapshot=True, rounds=rounds),
        }
        report.add("metadata: start", str(size), rows)
        for name, row in rows.items():
            if row is None:
                table.add_row(f"{size:,}", name, "none written", "-", "-", "-", "-")
            else:
                table.add_row(
                    f"{size:,}", name, f"{row['seconds']:.2f}", f"{row['cpu_s']:.2f}", f"{row['memory_mb']:.0f}",
                    f"{row['read_bytes'] / 1e6:.2f}", f"{row['written_bytes'] / 1e6:.2f}",
                )  # fmt: skip
    report.show(table)
