"""A pipeline at work: its queries started, watched, and stopped so that nothing is left open.

1. A stop that was asked for (Ctrl-C, SIGTERM, a terminal that was closed) lets a commit finish and aborts the rest.
2. When the queries have ended, what they may have left open under their names is ended too, before the command returns.
3. A failure is one message; Spark's own words are in the log file that it names.
"""

import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

from twofold.pipeline.config import PipelineConfig, PipelineSink
from twofold.pipeline.loading import Transformation
from twofold.pipeline.session import as_options, log_error, rotate
from twofold.pipeline.words import failure
from twofold.sink.names import prefix_of_query

FORMAT = "twofold"
LOOK_S = 0.25
STOP_PATIENCE_S = 60
BATCHES_REMEMBERED = 100


class Activity(StrEnum):
    STARTING = "starting"
    """Spark has not looked for rows yet."""
    RUNNING = "running"
    """The last look found rows."""
    IDLE = "idle"
    """The last look found none."""


@dataclass
class SinkProgress:
    """Of one sink. `batch_id` is the last batch that is done, of this run or of one before; -1 where there is none.
    `rows` are those of this run."""

    name: str
    batch_id: int = -1
    rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    activity: Activity = Activity.STARTING
    seen: dict[int, int] = field(default_factory=dict)
    looked_at: tuple[int, str] | None = None
    """The newest row of Spark that was taken."""

    def take(self, row: Any) -> None:
        """The same row may come often, and before a batch one that only says that there is nothing to do."""
        batch_id, rows = row["batchId"], row["numInputRows"]
        if batch_id in self.seen:
            return
        if rows == 0 and "addBatch" not in row["durationMs"]:
            self._found_nothing(batch_id - 1, row["sources"])
            return
        self.seen[batch_id] = rows
        if len(self.seen) > BATCHES_REMEMBERED:
            del self.seen[min(self.seen)]
        self.rows += rows
        self.batch_id = max(self.batch_id, batch_id)
        self.rows_per_s = float(row.get("processedRowsPerSecond") or 0)
        self.lag = lag_of(row["sources"])
        self.activity = Activity.RUNNING

    def _found_nothing(self, last_batch_id: int, sources: Any) -> None:
        """Spark numbers such a row as the batch that would come next."""
        self.batch_id = max(self.batch_id, last_batch_id)
        self.rows_per_s = 0.0
        lag = lag_of(sources)
        self.lag = 0 if lag is None else lag  # a source that is not asked how far it goes had nothing to read
        self.activity = Activity.IDLE


def lag_of(sources: Any) -> int | None:
    """Offsets that are there and were not read yet."""
    total = 0
    for source in sources:
        try:
            latest, end = json.loads(source["latestOffset"]), json.loads(source["endOffset"])
            for topic, partitions in latest.items():
                read = end.get(topic, {})
                total += sum(offset - read.get(partition, 0) for partition, offset in partitions.items())
        except (AttributeError, KeyError, TypeError, ValueError):
            return None  # not told, as for a batch that found nothing new
    return total


class Stop:
    """Whether the user asked to stop. Asked a second time, the pipeline does not wait for the batch."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # under nohup
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def listen(self) -> None:
        """Again: a SparkContext takes Ctrl-C for itself when it is made, and would cancel its jobs."""
        signal.signal(signal.SIGINT, self._on_signal)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked.set()


def frames_of(spark: Any, config: PipelineConfig, transformation: Transformation) -> dict[str, Any]:
    """What goes to each sink."""
    transformation.prepare(spark)
    frames = {
        source.name: as_options(spark.readStream.format(FORMAT), config.options_of(source)).load()
        for source in config.sources
    }
    return transformation.apply(frames, config.sinks)


def start(config: PipelineConfig, made: Mapping[str, Any], log: Path) -> dict[str, Any]:
    """A query for each sink."""
    queries: dict[str, Any] = {}
    try:
        for sink in config.sinks:
            writer = made[sink.name].writeStream.format(FORMAT).queryName(f"{config.name}.{sink.name}")
            writer = as_options(writer.outputMode(sink.mode), config.options_of(sink))
            queries[sink.name] = writer.trigger(**config.trigger_options).start()
    except BaseException:
        end(queries, log)
        raise
    return queries


def watch(
    queries: dict[str, Any], stop: Stop, show: Callable[[list[SinkProgress]], None], file: Path, log: Path
) -> None:
    """Until all have ended, one has failed, or the user asks to stop."""
    found = {name: SinkProgress(name) for name in queries}
    while True:
        over = not any(query.isActive for query in queries.values())
        for name, query in queries.items():
            _take_new(query, found[name])
        show(list(found.values()))
        rotate(log)
        for name, query in queries.items():
            if (error := query.exception()) is not None:
                whose = f"sink {name}: " if len(queries) > 1 else ""
                raise failure(str(error), file, whose) from error
        if over or stop.asked.is_set():
            return
        stop.asked.wait(LOOK_S)


def _take_new(query: Any, progress: SinkProgress) -> None:
    last = query.lastProgress
    if last is None or (last["batchId"], last["timestamp"]) == progress.looked_at:
        return
    progress.looked_at = (last["batchId"], last["timestamp"])
    for row in query.recentProgress:
        progress.take(row)


def end(queries: dict[str, Any], log: Path) -> None:
    """Wait for those that run; what a query failed of was told by `watch`, and is in the log file."""
    deadline = time.monotonic() + STOP_PATIENCE_S
    for query in queries.values():
        try:
            query.stop()
        except Exception as error:
            log_error(log, error)
    for query in queries.values():
        try:
            query.awaitTermination(max(1, int(deadline - time.monotonic())))
        except Exception as error:
            log_error(log, error)


def prefix_of(config: PipelineConfig, sink: PipelineSink) -> str | None:
    """Under which name a sink has its transactions; None where it has none, or none yet."""
    options = {name.lower(): value for name, value in config.options_of(sink).items()}
    if options.get("exactlyonce", "auto").lower() == "off":
        return None
    if (chosen := options.get("transactionalidprefix")) is not None:
        return chosen
    from twofold.spark.checkpoints.checkpoint import query_at

    query_id = query_at(options["checkpointlocation"])
    return None if query_id is None else prefix_of_query(query_id)


def decision_topic_of(sink: PipelineSink) -> str | None:
    return {name.lower(): value for name, value in sink.options.items()}.get("decisiontopic")


def servers_of(config: PipelineConfig, sink: PipelineSink) -> str:
    options = {name.lower(): value for name, value in config.options_of(sink).items()}
    return options["kafka.bootstrap.servers"]
