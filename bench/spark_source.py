"""The Spark source: rows per second into Spark's `noop` sink, and how long a row takes until a stream shows it.

One session, one broker, one run; the contenders take turns and the medians are compared:

- "no-op", a reader without a broker, which yields one Arrow batch that it made before again and again: what Spark takes
  from Python at most, with nothing to fetch and all of it in the processor's cache;
- "drop", a reader that fetches as ours does, and drops what comes: what the broker and the network give at most;
- "own", Spark's own connector, with its defaults and told not to wait for more at the end of a log.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.report import Report, progress

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "spark")]

from connector import connector_jars  # noqa: E402

from kits.processes.server import TwofoldServer  # noqa: E402

PARTITIONS = 2
KEY_BYTES = 16
SIZES = {100: 2_000_000, 1024: 500_000}
BATCH_ROWS = 10_000  # what Spark takes most of, at both sizes
QUICK = {"kafka.fetch.max.wait.ms": "10"}
OURS, NOOP, DROP, OWN, OWN_QUICK = "twofold", "no-op", "drop", "own", "own, 10 ms"
CEILING_GOAL, OWN_GOAL = 0.7, 1.5
LATENCY_ROWS = 25
WARM_UP_ROWS = 10
PATIENCE_S = 60


@contextmanager
def session(*, unix_sockets: bool = True) -> Iterator[Any]:
    """Without `unix_sockets` Spark talks to its Python workers as it does by default."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": "2g",
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.python.unix.domain.socket.enabled": str(unix_sockets).lower(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("twofold bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    try:
        spark.dataSource.register(ready_batches())
        spark.dataSource.register(fetch_and_drop())
        yield spark
    finally:
        spark.stop()


def ready_batches() -> type:
    """A data source that only yields. A class in a function, so that Spark's workers need not find this module."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from twofold.spark.datasource import SCHEMA

    class ReadyReader(DataSourceReader):
        def __init__(self, options: Mapping[str, str]) -> None:
            self.value_bytes, self.rows, self.count = (int(options[name]) for name in ("bytes", "rows", "count"))

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(PARTITIONS)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import numpy as np
            import pyarrow as pa

            from twofold.records.columnar import schema

            def column(size: int) -> Any:
                ends = np.arange(self.rows + 1, dtype=np.int32) * size
                data = np.zeros(self.rows * size, np.uint8)
                return pa.Array.from_buffers(pa.binary(), self.rows, [None, pa.py_buffer(ends), pa.py_buffer(data)])

            numbers = np.arange(self.rows, dtype=np.int64)
            arrays = [
                column(KEY_BYTES),
                column(self.value_bytes),
                pa.repeat(pa.scalar("topic", pa.string()), self.rows),
                pa.repeat(pa.scalar(partition.value, pa.int32()), self.rows),
                pa.array(numbers),
                pa.array(numbers, schema().field("timestamp").type),
                pa.repeat(pa.scalar(0, pa.int32()), self.rows),
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema())
            for _ in range(self.count // PARTITIONS // self.rows):
                yield batch

    class ReadyBatches(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready_batches"

        def schema(self) -> Any:
            return SCHEMA

        def reader(self, schema: Any) -> ReadyReader:
            return ReadyReader(self.options)

    return ReadyBatches


def fetch_and_drop() -> type:
    """Ours without rows: all is fetched, nothing is decoded or given to Spark."""
    from twofold.spark.clients import client_for
    from twofold.spark.datasource import TwofoldDataSource
    from twofold.spark.fetch import RangeReader
    from twofold.spark.options import read_options
    from twofold.spark.source import BatchReader

    class Dropping(BatchReader):
        def read(self, partition: Any) -> Iterator[Any]:
            reader = RangeReader(client_for(self._options.consumer), self._options, partition.range)
            reader.resolve()
            for _ in reader.answers():
                pass
            return iter(())

    class FetchAndDrop(TwofoldDataSource):
        @classmethod
        def name(cls) -> str:
            return "fetch_and_drop"

        def reader(self, schema: Any) -> Dropping:
            return Dropping(read_options(self.options, streaming=False))

    return FetchAndDrop


# Rows per second


def fill(address: str, topic: str, count: int, value_bytes: int) -> None:
    from confluent_kafka import Producer

    create(address, topic, PARTITIONS)
    settings = {"bootstrap.servers": address, "linger.ms": 50, "batch.size": 1_000_000, "acks": "1"}
    producer = Producer(settings | {"queue.buffering.max.messages": 1_000_000})
    padding = os.urandom(value_bytes)
    for number in range(count):
        while True:
            try:
                producer.produce(topic, padding, b"key-%012d" % number, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if left := producer.flush(PATIENCE_S):
        raise RuntimeError(f"{left} records were not sent")


def create(address: str, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()


def rate(frame: Callable[[], Any], count: int) -> float:
    started = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return count / (time.perf_counter() - started)


def contenders(spark: Any, address: str, topic: str, value_bytes: int, count: int) -> dict[str, Callable[[], Any]]:
    def read(form: str, **options: str) -> Any:
        reader = spark.read.format(form).options(subscribe=topic, **options)
        return reader.option("kafka.bootstrap.servers", address).load()

    ready = {"bytes": value_bytes, "rows": BATCH_ROWS, "count": count}
    return {
        NOOP: lambda: spark.read.format("ready_batches").options(**ready).load(),
        DROP: lambda: read("fetch_and_drop"),
        OURS: lambda: read("twofold"),
        OWN: lambda: read("kafka"),
        OWN_QUICK: lambda: read("kafka", **QUICK),
    }


def run_rates(report: Report, spark: Any, address: str, rounds: int, sizes: tuple[int, ...]) -> None:
    table = Table(
        "rows", "reader", "million rows/s", "ours of it", title="source into noop (own: Spark's own connector)"
    )
    for value_bytes, count in zip(SIZES, sizes, strict=True):
        label = "1 KB" if value_bytes == 1024 else f"{value_bytes} B"
        topic = f"source-{value_bytes}"
        fill(address, topic, count, value_bytes)
        frames = contenders(spark, address, topic, value_bytes, count)
        found: dict[str, list[float]] = {name: [] for name in frames}
        for turn in progress(range(-1, rounds), f"source {label}"):
            for name, frame in frames.items():
                measured = rate(frame, count)
                if turn >= 0:  # the first warms up JVM, workers and page cache
                    found[name].append(measured)
        medians = {name: statistics.median(rates) for name, rates in found.items()}
        for name, median in medians.items():
            goal = CEILING_GOAL if name in (NOOP, DROP) else OWN_GOAL
            beside = "" if name == OURS else ratio(medians[OURS] / median, goal)
            table.add_row(label, name, f"{median / 1e6:.2f}", beside)
        report.add("spark_source", label, medians)
    table.caption = f"goals: {CEILING_GOAL} of a reader that fetches and drops, {OWN_GOAL} times Spark's own"
    report.show(table)


def ratio(found: float, goal: float) -> str:
    return f"[{'green' if found >= goal else 'red'}]{found:.2f}"


# Latency


class MemoryStream:
    """A query into Spark's memory sink, whose rows are counted without a job of Spark."""

    def __init__(self, spark: Any, form: str, options: Mapping[str, str], directory: Path) -> None:
        frame = spark.readStream.format(form).options(**options).load()
        writer = frame.writeStream.format("memory").queryName(f"seen_{directory.name}")
        self.query = writer.option("checkpointLocation", str(directory)).start()
        self._sink = self.query._jsq.streamingQuery().sink()

    def rows(self) -> int:
        return int(self._sink.allData().size())

    def wait_for(self, rows: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.rows() < rows:
            if not self.query.isActive or time.monotonic() > deadline:
                raise RuntimeError(f"the stream shows {self.rows()} rows instead of {rows}: {self.query.exception()}")
            time.sleep(0.001)


def latencies_ms(spark: Any, address: str, form: str, options: Mapping[str, str], directory: Path) -> list[float]:
    """One row after the other, each sent when the one before was seen."""
    from confluent_kafka import Producer

    topic = f"latency-{directory.name}"
    create(address, topic, 1)
    chosen = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest", **options}
    stream = MemoryStream(spark, form, chosen, directory)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    found = []
    try:
        for number in range(WARM_UP_ROWS + LATENCY_ROWS):
            started = time.perf_counter()
            producer.produce(topic, b"row", partition=0)
            producer.flush(PATIENCE_S)
            stream.wait_for(number + 1)
            found.append((time.perf_counter() - started) * 1000)
            time.sleep(0.05 + 0.001 * (number * 37 % 50))  # the query goes back to waiting, each time another while
    finally:
        stream.query.stop()
    return found[WARM_UP_ROWS:]


def run_latency(report: Report, spark: Any, address: str, directory: Path, rounds: int) -> None:
    table = Table(title="a row from its producer to a stream's sink, ms")
    for column in ("", "median", "p90"):
        table.add_column(column, justify="right" if column else "left")
    cases = {OURS: ("twofold", {}), OWN_QUICK: ("kafka", QUICK), OWN: ("kafka", {})}
    found: dict[str, list[float]] = {name: [] for name in cases}
    for turn in progress(range(rounds + 1), "latency"):
        for name, (form, options) in cases.items():
            place = directory / f"{form}{len(options)}{turn}"
            measured = latencies_ms(spark, address, form, options, place)
            if turn > 0:  # the first warms up
                found[name] += measured
    medians = {name: statistics.median(values) for name, values in found.items()}
    for name, values in found.items():
        p90 = statistics.quantiles(values, n=10)[-1]
        colour = "" if name != OURS else "[green]" if medians[OURS] <= medians[OWN_QUICK] else "[red]"
        table.add_row(name, f"{colour}{medians[name]:.0f}", f"{p90:.0f}")
        report.add("spark_source", f"latency, {name}", {"median_ms": medians[name], "p90_ms": p90})
    report.show(table)


def run(report: Report, *, rounds: int = 5, sizes: tuple[int, ...] = tuple(SIZES.values())) -> None:
    """`sizes`: how many rows of 100 B, and of 1 KB."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="twofold-bench-")))
        server = stack.enter_context(TwofoldServer(directory / "twofold"))
        spark = stack.enter_context(session())
        run_rates(report, spark, server.bootstrap_servers, rounds, sizes)
        run_latency(report, spark, server.bootstrap_servers, directory, rounds)
