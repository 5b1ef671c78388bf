"""The listener that Spark calls, the thread that asks the brokers, and the port where both are told.

1. Nothing that goes wrong here reaches a query: Spark's call returns after a few assignments, everything else is on a
   thread of its own, and an error is logged once and counted.
2. The port is on loopback unless another address is named.
"""

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from twofold.client.loop_thread import LoopThread
from twofold.extras import require
from twofold.runtime.api import Runtime
from twofold.runtime.real import real_runtime
from twofold.spark.metrics.plan import plan_of
from twofold.spark.metrics.reports import Receiver, Report
from twofold.spark.metrics.table import QueryTable

DEFAULT_ADDRESS = "127.0.0.1:9465"
START_TIMEOUT_S = 30.0

log = logging.getLogger(__name__)


class MetricsListener(StreamingQueryListener):
    """Metrics of all queries of a session, at `http://HOST:PORT/metrics`; `close` ends it. OSError where the port is
    taken. With port 0 one is chosen: `address` has it."""

    def __init__(self, listen: str = DEFAULT_ADDRESS, spark: Any = None) -> None:
        require("spark", "MetricsListener")
        require("server", "MetricsListener")
        from twofold.spark.metrics.serving import Serving

        self._lock = threading.Lock()
        self._table = QueryTable()
        self._errors = 0
        self._receiver: Receiver | None = None
        self._receives = False
        self._loop = LoopThread("twofold-metrics")

        async def start() -> tuple[Runtime, Serving, str]:
            runtime = real_runtime()
            serving = Serving(runtime, self._table, self._lock, self._find_plan, lambda: self._errors)
            return runtime, serving, await serving.start(listen)

        try:
            self._runtime, self._serving, self.address = self._loop.run(start(), START_TIMEOUT_S)
        except BaseException:
            self._loop.close()
            raise
        self._session = spark or _active_session()
        self._guarded(self._receive)

    def close(self) -> None:
        """The port is closed, and events are taken no more. `spark.streams.removeListener` comes first."""
        receiver, self._receiver = self._receiver, None
        self._loop.run(self._serving.stop(receiver), START_TIMEOUT_S)
        self._loop.close()
        if receiver is not None:
            receiver.close()

    def queries(self) -> list[dict[str, Any]]:
        """What `/queries` has."""
        found: list[dict[str, Any]] = json.loads(self._serving.queries())
        return found

    # What Spark calls

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Before `start()` returns: as little as can be."""
        self._guarded(lambda: self._started(event))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._guarded(lambda: self._progressed(event))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._guarded(lambda: self._idle(event))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._guarded(lambda: self._ended(event))

    def _guarded(self, take: Callable[[], None]) -> None:
        try:
            take()
        except Exception:
            self._errors += 1
            if self._errors == 1:
                log.exception(
                    "an event of a query could not be taken: its metrics are incomplete, the query goes on. Later "
                    "errors are only counted (twofold_spark_listener_errors_total)"
                )

    def _started(self, event: QueryStartedEvent) -> None:
        self._receive()
        with self._lock:
            self._table.started(str(event.id), str(event.runId), event.name, self._now())

    def _progressed(self, event: QueryProgressEvent) -> None:
        progress = json.loads(event.progress.json)
        with self._lock:
            self._table.progressed(progress, self._now())
        self._serving.has_plan(progress["id"], progress["runId"])

    def _idle(self, event: QueryIdleEvent) -> None:
        with self._lock:
            self._table.idle(str(event.id), str(event.runId), self._now())
        self._serving.has_plan(str(event.id), str(event.runId))

    def _ended(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            self._table.ended(str(event.id), str(event.runId), event.exception, self._now())

    # What the sink sends

    def _receive(self) -> None:
        """Once there is a JVM, whose process id leads the sink's processes here."""
        session = self._session or self.spark or _active_session()
        if self._receives or session is None:
            return
        self._receives = True  # tried once: where it fails, rows and bytes that were written are not known
        self._session = session
        jvm = int(session._jvm.java.lang.ProcessHandle.current().pid())
        receiver = self._receiver = Receiver(jvm, self._reported)
        self._loop.run(self._serving.receive_from(receiver), START_TIMEOUT_S)

    def _reported(self, report: Report) -> None:
        with self._lock:
            self._table.reported(report, self._now())

    def _find_plan(self, query_id: str) -> Any:
        return plan_of(self._session or self.spark, query_id)

    def _now(self) -> float:
        return self._runtime.clock.monotonic()


def _active_session() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
