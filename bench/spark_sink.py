"""The Spark sink: rows per second, what a micro-batch costs more than with a sink that does nothing, and what grows.

One session, one broker, one run; the contenders take turns and medians are compared:

- a sink without a broker, which reads its Arrow batches and drops them: what Spark gives to Python at most;
- Spark's own connector, which writes at least once;
- ours, exactly once with two-phase commit, and without transactions (`exactlyOnce=off`).
"""

import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.report import Report, progress
from bench.spark_source import create, session
from kits.wire.transactional_ids import transactional_ids

ROWS = {100: 2_000_000, 1024: 500_000}
PARTITIONS = 4
TASKS = 4
NOOP, OWN, EXACTLY, OFF = "no-op sink", "spark's own", "twofold, exactly once", "twofold, off"
NOOP_GOAL, OWN_GOAL, LATENCY_GOAL_MS = 0.7, 1.5, 60
SMALL_BATCHES = 60
MANY_BATCHES = 1_000
SETTINGS = {"transaction.two.phase.commit.enable": "true", "transaction.heartbeat.enable": "true"}


def dropping() -> type:
    """A sink that only reads. A class in a function, so that Spark's workers need not find this module."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        WriterCommitMessage,
    )

    def drop(rows: Iterator[Any]) -> WriterCommitMessage:
        for _ in rows:
            pass
        return WriterCommitMessage()

    class BatchDropper(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return drop(iterator)

    class StreamDropper(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return drop(iterator)

    class Dropping(DataSource):
        @classmethod
        def name(cls) -> str:
            return "dropping"

        def writer(self, schema: Any, overwrite: bool) -> BatchDropper:
            return BatchDropper()

        def streamWriter(self, schema: Any, overwrite: bool) -> StreamDropper:  # noqa: N802
            return StreamDropper()

    return Dropping


def options_of(contender: str, address: str) -> tuple[str, dict[str, str]]:
    """Format and options."""
    if contender == NOOP:
        return "dropping", {}
    options = {"kafka.bootstrap.servers": address, "topic": f"t{uuid.uuid4().hex[:8]}"}
    create(address, options["topic"], PARTITIONS)
    if contender == OWN:
        return "kafka", options
    return "twofold", options | {"exactlyOnce": "off" if contender == OFF else "2pc"}


# Rows per second


def rate(spark: Any, contender: str, address: str, value_bytes: int) -> float:
    count = ROWS[value_bytes]
    rows = spark.range(0, count, 1, TASKS).selectExpr(
        "concat('key-', lpad(cast(id as string), 12, '0')) key",
        f"rpad(cast(id as string), {value_bytes}, 'x') value",
    )
    form, options = options_of(contender, address)
    if contender == EXACTLY:
        options["transactionalIdPrefix"] = "bench"
    writer = rows.write.format(form).mode("append")
    for name, value in options.items():
        writer = writer.option(name, value)
    started = time.perf_counter()
    writer.save()
    return count / (time.perf_counter() - started)


def run_rates(spark: Any, address: str, report: Report, rounds: int) -> None:
    table = Table("rows", "sink", "rows/s", "of the no-op sink", "times Spark's own", title="Spark sink")
    for value_bytes in ROWS:
        found: dict[str, list[float]] = {name: [] for name in (NOOP, OWN, OFF, EXACTLY)}
        for number in progress(range(rounds + 1), f"sink, {value_bytes} B"):
            for contender, rates in found.items():
                measured = rate(spark, contender, address, value_bytes)
                if number:  # the first round warms up
                    rates.append(measured)
        medians = {name: statistics.median(rates) for name, rates in found.items()}
        for name, median in medians.items():
            values = {"rows_s": median, "of_noop": median / medians[NOOP], "of_own": median / medians[OWN]}
            report.add("spark_sink", f"{value_bytes} B, {name}", values)
            table.add_row(
                f"{value_bytes} B", name, f"{median:,.0f}", f"{values['of_noop']:.2f}", f"{values['of_own']:.2f}"
            )
    table.caption = f"goals for exactly once: {NOOP_GOAL} of the no-op sink, {OWN_GOAL} times Spark's own"
    report.show(table)


# Micro-batches


def small_batches(spark: Any, contender: str, address: str, count: int) -> list[dict[str, int]]:
    """Durations of micro-batches of few rows in TASKS tasks."""
    form, options = options_of(contender, address)
    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", TASKS * 2)
        .option("numPartitions", TASKS)
        .load()
        .selectExpr("cast(value as string) value")
    )
    with tempfile.TemporaryDirectory() as directory:
        writer = rows.writeStream.format(form).option("checkpointLocation", directory)
        for name, value in options.items():
            writer = writer.option(name, value)
        query = writer.trigger(processingTime="0 seconds").start()
        found: dict[int, dict[str, int]] = {}
        while len(found) < count:
            time.sleep(0.2)
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
            for row in query.recentProgress:
                found[row["batchId"]] = dict(row["durationMs"])
        query.stop()
    return [found[batch] for batch in sorted(found)]


def median_ms(batches: list[dict[str, int]], name: str = "addBatch") -> float:
    return statistics.median(batch[name] for batch in batches)


def run_latency(spark: Any, address: str, report: Report, rounds: int) -> None:
    found: dict[str, list[float]] = {name: [] for name in (NOOP, OWN, OFF, EXACTLY)}
    for _ in progress(range(rounds), "micro-batches"):
        for contender, medians in found.items():
            medians.append(median_ms(small_batches(spark, contender, address, SMALL_BATCHES)[SMALL_BATCHES // 3 :]))
    base = statistics.median(found[NOOP])
    table = Table("sink", "addBatch, ms", "more than the no-op sink", title=f"micro-batches of {TASKS} tasks")
    for name, medians in found.items():
        median = statistics.median(medians)
        report.add("spark_sink", f"micro-batch, {name}", {"add_batch_ms": median, "added_ms": median - base})
        table.add_row(name, f"{median:.0f}", f"{median - base:+.0f}")
    table.caption = f"goal for exactly once: {LATENCY_GOAL_MS} ms more, with {TASKS} transactions"
    report.show(table)


# What grows


def run_growth(spark: Any, address: str, report: Report, count: int) -> None:
    """Micro-batch after micro-batch: their cost, and how many transactional ids there are at the end."""
    before = len(transactional_ids(address))
    batches = small_batches(spark, EXACTLY, address, count)
    quarter = max(1, len(batches) // 4)
    early, late = median_ms(batches[quarter // 2 : quarter]), median_ms(batches[-quarter:])
    made = len(transactional_ids(address)) - before
    report.add("spark_sink", f"{count} batches", {"early_ms": early, "late_ms": late, "ids": made})
    table = Table("micro-batches", "early, ms", "late, ms", "transactional ids made", title="Spark sink: growth")
    table.add_row(f"{len(batches):,}", f"{early:.0f}", f"{late:.0f}", str(made))
    report.show(table)


def run(report: Report, rounds: int = 3, sizes: tuple[int, ...] = (MANY_BATCHES,)) -> None:
    from kits.processes.server import TwofoldServer

    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(TwofoldServer(Path(directory), SETTINGS))
        spark = stack.enter_context(session())
        spark.dataSource.register(dropping())
        run_rates(spark, server.bootstrap_servers, report, rounds)
        run_latency(spark, server.bootstrap_servers, report, max(1, rounds // 2))
        for count in sizes:
            run_growth(spark, server.bootstrap_servers, report, count)
