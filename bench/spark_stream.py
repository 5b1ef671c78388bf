"""From topic to topic by a Spark stream: rows per second from start to end, processor time, and how long a row takes
from its producer to a consumer that reads `read_committed`.

One session with Spark's defaults, one broker, one run; the contenders take turns and the medians are compared:

- "twofold", source and sink, exactly once with two-phase commit, with no option but the broker's address and topics;
- "own", Spark's own connector on both sides, at least once;
- "own, 10 ms", the same told not to wait for more at the end of a log (`kafka.fetch.max.wait.ms=10`).
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.processor import cpu_seconds
from bench.report import Report, progress
from bench.spark_source import OURS, OWN, OWN_QUICK, QUICK, SIZES, create, fill, session
from kits.processes.server import TwofoldServer

PARTITIONS = 2
RATE_GOAL, CPU_GOAL, LATENCY_GOAL = 1.5, 1.0, 1.0
LATENCY_ROWS = 25
WARM_UP_ROWS = 10
PATIENCE_S = 600
SETTINGS = {"transaction.two.phase.commit.enable": "true", "transaction.heartbeat.enable": "true"}
CASES: dict[str, tuple[str, dict[str, str]]] = {OURS: ("twofold", {}), OWN_QUICK: ("kafka", QUICK), OWN: ("kafka", {})}


def start(spark: Any, case: str, address: str, topics: tuple[str, str], checkpoint: Path, **trigger: Any) -> Any:
    form, options = CASES[case]
    servers = {"kafka.bootstrap.servers": address}
    reading = servers | {"subscribe": topics[0], "startingOffsets": "earliest"} | options
    frame = spark.readStream.format(form).options(**reading).load().select("key", "value")
    writer = frame.writeStream.format(form).options(**servers, topic=topics[1])
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


# Rows per second and processor time


class ProcessorTime:
    """Of a process and of all below it, also of those that end meanwhile, as they were last seen."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[int, float] = {}
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._look()
        self._before = sum(self._seen.values())
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        self._over.set()
        self._thread.join()
        self._look()
        return sum(self._seen.values()) - self._before

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            self._look()

    def _look(self) -> None:
        with self._lock:
            for pid in family(self._root):
                try:
                    self._seen[pid] = cpu_seconds(pid)
                except OSError:
                    continue  # it has just ended


def family(root: int) -> Iterator[int]:
    yield root
    try:
        children = [int(pid) for task in Path(f"/proc/{root}/task").iterdir() for pid in _children(task)]
    except OSError:
        return
    for child in children:
        yield from family(child)


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


def copy_all(spark: Any, case: str, address: str, topics: tuple[str, str], checkpoint: Path) -> tuple[float, float]:
    """Wall and processor seconds of a query that copies what is there and ends."""
    processor = ProcessorTime(jvm_of(spark))
    started = time.perf_counter()
    query = start(spark, case, address, topics, checkpoint, availableNow=True)
    if not query.awaitTermination(PATIENCE_S):
        raise RuntimeError(f"{case} copies for more than {PATIENCE_S} s")
    return time.perf_counter() - started, processor.seconds()


def jvm_of(spark: Any) -> int:
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())


def run_rates(report: Report, spark: Any, address: str, directory: Path, rounds: int, sizes: tuple[int, ...]) -> None:
    names = "rows", "", "rows/s", "times Spark's own", "CPU s / million rows", "of Spark's own"
    table = Table(*names, title="topic to topic, start to end")
    for value_bytes, count in zip(SIZES, sizes, strict=True):
        label = "1 KB" if value_bytes == 1024 else f"{value_bytes} B"
        source = f"in-{value_bytes}"
        fill(address, source, count, value_bytes)
        found: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
        for turn in progress(range(-1, rounds), f"stream {label}"):
            for number, case in enumerate(CASES):
                sink = f"out-{value_bytes}-{turn + 1}-{number}"
                create(address, sink, PARTITIONS)
                measured = copy_all(spark, case, address, (source, sink), directory / sink)
                delete(address, sink)
                if turn >= 0:  # the first warms up
                    found[case].append(measured)
        show_rates(report, table, label, count, found)
    table.caption = f"goals: {RATE_GOAL} times the rows per second of Spark's own, {CPU_GOAL} times its processor time"
    report.show(table)


def show_rates(
    report: Report, table: Table, label: str, count: int, found: Mapping[str, list[tuple[float, float]]]
) -> None:
    rates = {case: count / statistics.median(wall for wall, _ in runs) for case, runs in found.items()}
    costs = {case: statistics.median(cpu for _, cpu in runs) / count * 1e6 for case, runs in found.items()}
    for case in found:
        values = {
            "rows_s": rates[case], "of_own": rates[case] / rates[OWN],
            "cpu_s_million": costs[case], "cpu_of_own": costs[case] / costs[OWN],
        }  # fmt: skip
        report.add("spark_stream", f"{label}, {case}", values)
        table.add_row(
            label, case, f"{rates[case]:,.0f}", f"{values['of_own']:.2f}", f"{costs[case]:.2f}",
            f"{values['cpu_of_own']:.2f}",
        )  # fmt: skip


def delete(address: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.delete_topics([topic])[topic].result()


# From a producer to a consumer


@contextmanager
def watching(address: str, topic: str) -> Iterator[Any]:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": address, "group.id": topic, "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 500})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    try:
        yield consumer
    finally:
        consumer.close()


def latencies_ms(spark: Any, case: str, address: str, directory: Path) -> tuple[list[float], list[dict[str, int]]]:
    """One row after the other, each sent when the one before was seen; and the durations of the batches in Spark."""
    from confluent_kafka import Producer

    topics = f"in-{directory.name}", f"out-{directory.name}"
    for topic in topics:
        create(address, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    found = []
    with watching(address, topics[1]) as consumer:
        query = start(spark, case, address, topics, directory, processingTime="0 seconds")
        try:
            for number in range(WARM_UP_ROWS + LATENCY_ROWS):
                started = time.perf_counter()
                producer.produce(topics[0], b"row", partition=number % PARTITIONS)
                producer.poll(0)
                message = consumer.poll(PATIENCE_S)
                if message is None or message.error():
                    raise RuntimeError(f"{case} shows no row: {query.exception()}")
                found.append((time.perf_counter() - started) * 1000)
                time.sleep(0.25 + 0.001 * (number * 37 % 50))  # the query goes back to waiting, each time another while
            batches = [dict(row["durationMs"]) for row in query.recentProgress if row["numInputRows"]]
        finally:
            query.stop()
    return found[WARM_UP_ROWS:], batches[WARM_UP_ROWS:]


def run_latency(report: Report, spark: Any, address: str, directory: Path, rounds: int) -> None:
    found: dict[str, list[float]] = {case: [] for case in CASES}
    phases: dict[str, list[dict[str, int]]] = {case: [] for case in CASES}
    for turn in progress(range(rounds + 1), "stream latency"):
        for number, case in enumerate(CASES):
            measured, batches = latencies_ms(spark, case, address, directory / f"latency-{turn}-{number}")
            if turn > 0:  # the first warms up
                found[case] += measured
                phases[case] += batches
    medians = {case: statistics.median(values) for case, values in found.items()}
    table = Table("", "median", "p90", "of own, 10 ms", *PHASES, title="a row from its producer to a consumer, ms")
    for case, values in found.items():
        p90 = statistics.quantiles(values, n=10)[-1]
        ratio = medians[case] / medians[OWN_QUICK]
        spent = {name: statistics.median(batch.get(name, 0) for batch in phases[case]) for name in PHASES}
        report.add(
            "spark_stream", f"latency, {case}", {"median_ms": medians[case], "p90_ms": p90, "of_quick": ratio, **spent}
        )
        durations = [f"{spent[name]:.0f}" for name in PHASES]
        table.add_row(case, f"{medians[case]:.0f}", f"{p90:.0f}", f"{ratio:.2f}", *durations)
    table.caption = f"goal: {LATENCY_GOAL} of Spark's own connector told not to wait. The rest: Spark's phases"
    report.show(table)


PHASES = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")


def run(report: Report, *, rounds: int = 3, sizes: tuple[int, ...] = tuple(SIZES.values())) -> None:
    """`sizes`: how many rows of 100 B, and of 1 KB."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="twofold-bench-")))
        server = stack.enter_context(TwofoldServer(directory / "twofold", SETTINGS))
        spark = stack.enter_context(session(unix_sockets=False))
        run_latency(report, spark, server.bootstrap_servers, directory, rounds)
        run_rates(report, spark, server.bootstrap_servers, directory, rounds, sizes)
