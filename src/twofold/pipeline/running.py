"""A pipeline at work: its queries started, watched, and stopped so that nothing is left open.

1. A stop that was asked for (Ctrl-C, SIGTERM) lets a commit finish and aborts everything else.
2. When the queries have ended, what they may have left open under their names is ended too, before this returns.
3. A failure is one message; Spark's own words are in the log file that it names.
"""

import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from twofold.pipeline.config import PipelineConfig, Sink
from twofold.pipeline.loading import Transformation
from twofold.pipeline.session import as_options
from twofold.sink.names import prefix_of_checkpoint

FORMAT = "twofold"
LOOK_S = 0.25
STOP_PATIENCE_S = 60
_TRACE = "Traceback (most recent call last)"
_RAISED = re.compile(r"^(?:\w+\.)*\w+: (.+)$")


class PipelineFailed(Exception):
    """What went wrong, for people; the log file has the rest."""


@dataclass
class Progress:
    """Of one sink."""

    name: str
    batch_id: int = -1
    rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    waiting: bool = True
    seen: set[int] = field(default_factory=set)

    def take(self, row: Any) -> None:
        if row["batchId"] in self.seen and row["numInputRows"] == 0:
            return
        if row["batchId"] not in self.seen:
            self.seen = {row["batchId"]} | {number for number in self.seen if number > row["batchId"] - 10}
            self.rows += row["numInputRows"]
        self.batch_id = max(self.batch_id, row["batchId"])
        self.rows_per_s = float(row.get("processedRowsPerSecond") or 0)
        self.lag = _lag(row["sources"])
        self.waiting = False


def _lag(sources: Any) -> int | None:
    """Offsets that are there and were not read yet."""
    import json

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
    """Whether somebody asked to stop; a second time is for those who do not want to wait."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked.is_set():
            raise KeyboardInterrupt
        self.asked.set()


def start(spark: Any, config: PipelineConfig, transformation: Transformation) -> dict[str, Any]:
    """A query for each sink."""
    if transformation.configure is not None:
        transformation.configure(spark)
    servers = {"kafka.bootstrap.servers": config.bootstrap_servers}
    frames = {
        source.name: as_options(spark.readStream.format(FORMAT), servers | dict(source.options)).load()
        for source in config.sources
    }
    made = transformation.apply(frames, config.sinks)
    queries: dict[str, Any] = {}
    try:
        for sink in config.sinks:
            writer = made[sink.name].writeStream.format(FORMAT).queryName(f"{config.name}.{sink.name}")
            options = servers | {"checkpointLocation": config.checkpoint_of(sink)} | dict(sink.options)
            writer = as_options(writer.outputMode(sink.mode), options)
            queries[sink.name] = writer.trigger(**config.trigger_options).start()
    except BaseException:
        for query in queries.values():
            query.stop()
        raise
    return queries


def watch(queries: dict[str, Any], stop: Stop, show: Callable[[list[Progress]], None]) -> None:
    """Until all have ended, one has failed, or somebody asks to stop."""
    found = {name: Progress(name) for name in queries}
    while True:
        for name, query in queries.items():
            for row in query.recentProgress:
                found[name].take(row)
        show(list(found.values()))
        failed = [query for query in queries.values() if query.exception() is not None]
        if failed:
            raise PipelineFailed(explain(str(failed[0].exception())))
        if stop.asked.is_set() or not any(query.isActive for query in queries.values()):
            return
        stop.asked.wait(LOOK_S)


def end(queries: dict[str, Any]) -> None:
    """Wait for those that run; what a query failed of was told by `watch`."""
    deadline = time.monotonic() + STOP_PATIENCE_S
    for query in queries.values():
        with suppress(Exception):
            query.stop()
    for query in queries.values():
        with suppress(Exception):
            query.awaitTermination(max(1, int(deadline - time.monotonic())))


def explain(text: str) -> str:
    """Spark's words about an error of a Python process end with the error itself: only that is for people."""
    found = None
    in_trace = False
    for line in text.splitlines():
        if _TRACE in line:
            in_trace = True
        elif in_trace and line.strip() and not line[0].isspace():
            in_trace = False
            match = _RAISED.match(line)
            found = match.group(1) if match else line
    if found is not None:
        return found.strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


def prefix_of(config: PipelineConfig, sink: Sink) -> str | None:
    """Under which name a sink has its transactions; None where it has none."""
    options = {name.lower(): value for name, value in sink.options.items()}
    if options.get("exactlyonce", "auto").lower() == "off":
        return None
    return options.get("transactionalidprefix") or prefix_of_checkpoint(config.checkpoint_of(sink))


def decision_topic_of(sink: Sink) -> str | None:
    return {name.lower(): value for name, value in sink.options.items()}.get("decisiontopic")


def log_error(log: Path, error: BaseException) -> None:
    import traceback

    with log.open("a") as file:
        file.write("".join(traceback.format_exception(error)))
