"""What runs on the listener's own thread: the port, the looks at the brokers, the socket of the sink's reports.

`/metrics` is for Prometheus, `/queries` the same as JSON for `twofold pipeline status`, `/healthz` for orchestrators.
"""

import asyncio
import json
import logging
import threading
from collections.abc import Callable

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import Metric

from twofold.broker.metrics.http import MetricsServer
from twofold.config.listeners import parse_host_port
from twofold.runtime.api import Runtime
from twofold.spark.metrics import page
from twofold.spark.metrics.plan import QueryPlan, Reach
from twofold.spark.metrics.reports import Receiver
from twofold.spark.metrics.table import QueryTable
from twofold.spark.metrics.watch import BrokerWatch, SinkQuestion, SourceQuestion

LOOK_EVERY_S = 2.0
PLAN_TIMEOUT_S = 2.0
MAX_PLANS = 200
QUERIES_PATH = "/queries"
HEALTH_PATH = "/healthz"
SETTING = "metrics"
DEFAULT_HOST = "127.0.0.1"
"""Of a port alone: what a query reads and writes is for this machine only, unless the user says otherwise."""

log = logging.getLogger(__name__)


class Serving:
    """Everything that it shares with Spark's threads is the table, under its lock."""

    def __init__(
        self,
        runtime: Runtime,
        table: QueryTable,
        lock: threading.Lock,
        find_plan: Callable[[str], QueryPlan],
        errors: Callable[[], int],
    ) -> None:
        self._runtime = runtime
        self._table = table
        self._lock = lock
        self._find_plan = find_plan
        self._errors = errors
        self._plans: dict[str, tuple[str, QueryPlan | None]] = {}
        """By query id: its run, and the plan when it is known."""
        self._asked: dict[str, asyncio.Future[QueryPlan]] = {}
        self._watch = BrokerWatch(runtime)
        self._watch_failures = 0
        self._server: MetricsServer | None = None
        self._looking: asyncio.Task[None] | None = None
        self._process = ProcessCollector(registry=None)

    async def start(self, listen: str) -> str:
        """The address where it listens."""
        address = parse_host_port(f"{DEFAULT_HOST}:{listen}" if listen.isdecimal() else listen, SETTING)
        probes = {QUERIES_PATH: lambda: (True, self.queries()), HEALTH_PATH: lambda: (True, "ok\n")}
        self._server = MetricsServer(self._runtime, self._page, probes)
        try:
            listener = await self._server.listen(address.host, address.port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OSError(f"{SETTING}={listen}: metrics cannot be served there: {reason}; choose another") from error
        self._looking = self._runtime.spawn(self._look_again_and_again(), name="metrics of queries")
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"{host}:{listener.port}"

    async def stop(self, receiver: Receiver | None) -> None:
        if receiver is not None:
            asyncio.get_running_loop().remove_reader(receiver.socket)
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._server is not None:
            self._server.stop()
        await self._watch.close()

    async def receive_from(self, receiver: Receiver) -> None:
        asyncio.get_running_loop().add_reader(receiver.socket, receiver.read)

    def has_plan(self, query_id: str, run_id: str) -> None:
        """Spark knows the plan of a query when the query has made progress. Called on any thread."""
        if self._plans.get(query_id, ("",))[0] != run_id:
            self._plans[query_id] = (run_id, None)
            while len(self._plans) > MAX_PLANS:
                self._plans.pop(next(iter(self._plans)), None)

    # What is told

    async def _page(self) -> bytes:
        return self.page()

    def page(self) -> bytes:
        with self._lock:
            found = list(
                page.metrics(
                    self._table,
                    self._runtime.clock.monotonic(),
                    watch_failures=self._watch_failures,
                    listener_errors=self._errors(),
                )
            )
        return generate_latest(_Registry(found)) + generate_latest(_Registry(list(self._process.collect())))

    def queries(self) -> str:
        with self._lock:
            found = page.queries_json(self._table, self._runtime.clock.monotonic())
        return json.dumps(found) + "\n"

    # Looks

    async def _look_again_and_again(self) -> None:
        while True:
            try:
                await self._learn_plans()
                await self._look()
            except Exception:
                self._watch_failures += 1
                if self._watch_failures == 1:
                    log.exception("the brokers could not be asked for the metrics of queries; later errors are counted")
            await self._runtime.timers.sleep(LOOK_EVERY_S)

    async def _learn_plans(self) -> None:
        """One question at a time for each run: a JVM that stands still answers none."""
        for query_id, (run_id, known) in list(self._plans.items()):
            if known is not None:
                continue
            asked = self._asked.get(run_id)
            if asked is None:
                asked = self._asked[run_id] = asyncio.ensure_future(asyncio.to_thread(self._find_plan, query_id))
            done, _ = await asyncio.wait([asked], timeout=PLAN_TIMEOUT_S)
            if not done:
                continue
            del self._asked[run_id]
            found = asked.result()
            self._plans[query_id] = (run_id, found)
            names = {index: source.name for index, source in found.sources.items()}
            with self._lock:
                self._table.described(query_id, names, "" if found.sink is None else found.sink.name)

    async def _look(self) -> None:
        """All at once: a topic that is gone, or brokers that are away, delay no other answer."""
        answered = await asyncio.gather(
            *(self._look_at_source(question) for question in self._source_questions()),
            *(self._look_at_sink(question) for question in self._sink_questions()),
        )
        reached = {reach for reach, found in answered if found}
        self._watch_failures += sum(not found for _, found in answered)
        await self._watch.keep(reached)

    async def _look_at_source(self, question: SourceQuestion) -> tuple[Reach, bool]:
        latest = await self._watch.ends(question)
        if latest is not None:
            with self._lock:
                self._table.looked_at_source(question.query_id, question.index, latest, self._runtime.clock.monotonic())
        return question.reach, latest is not None

    async def _look_at_sink(self, question: SinkQuestion) -> tuple[Reach, bool]:
        found = await self._watch.transactions(question)
        if found is not None:
            with self._lock:
                self._table.looked_at_transactions(question.query_id, found, self._runtime.clock.monotonic())
        return question.reach, found is not None

    def _source_questions(self) -> list[SourceQuestion]:
        questions = []
        with self._lock:
            for row in self._table.rows():
                _, known = self._plans.get(row.query_id, ("", None))
                for index, source in enumerate(row.sources):
                    planned = None if known is None or row.is_over else known.sources.get(index)
                    if planned is not None and planned.reach is not None and source.end:
                        questions.append(
                            SourceQuestion(row.query_id, index, planned.reach, planned.isolation, tuple(source.end))
                        )
        return questions

    def _sink_questions(self) -> list[SinkQuestion]:
        questions = []
        with self._lock:
            for row in self._table.rows():
                _, known = self._plans.get(row.query_id, ("", None))
                sink = None if known is None else known.sink
                if not row.is_over and sink is not None and sink.reach is not None and sink.prefix is not None:
                    questions.append(SinkQuestion(row.query_id, sink.reach, sink.prefix))
        return questions


class _Registry:
    """What the text form is asked from."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        return self._found
