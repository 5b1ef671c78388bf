"""One broker and its clients in a simulation: started, troubled, healed, and brought to an end.

The broker is the real one: server, dispatch, APIs, controller and logs. So are the clients. Only their Runtime is
simulated.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

from sim.broker.clients import AdminApp, ConsumerApp, ProducerApp, Sent, value_of
from sim.broker.plan import Plan, ProducerPlan
from sim.broker.watch import Watch, check_derived_state, require
from sim.frame import BrokerPlan, Faulty, Watcher
from twofold.broker.broker import Broker
from twofold.client import Admin, Consumer, NewTopic, Producer
from twofold.config.settings import Settings
from twofold.runtime.api import Runtime
from twofold.runtime.sim import Simulation
from twofold.runtime.sim.loop import current_life
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, KafkaStorageError

BROKER = "broker"
DATA = "/data"
PROGRESS_S = 60.0
"""After everything has healed no client may need longer than this to be done."""


class BrokerSimulation(Simulation):
    """Tells those concerned when the broker dies, whatever kills it."""

    latest: "BrokerSimulation"
    """For whoever wants to read the trace of a run that failed."""

    def __init__(self, plan: BrokerPlan, watch: Watcher) -> None:
        super().__init__(plan.seed, cut_mode=plan.cut_mode)
        BrokerSimulation.latest = self
        self.broker_died = asyncio.Event()
        self._watch = watch

    def crash(self, node: str, *, power_cut: bool = True) -> None:
        if node == BROKER:
            self._watch.crash(power_cut)
            self.broker_died.set()
        super().crash(node, power_cut=power_cut)


class BrokerNode:
    """The machine that the broker runs on, with somebody who starts it again whenever it ended."""

    def __init__(self, sim: BrokerSimulation, watch: Watcher, plan: BrokerPlan) -> None:
        self.broker: Broker | None = None
        self.up = asyncio.Event()
        self.downtime_s = (0.01, 1.0)
        self.runs = 0
        self._sim = sim
        self._watch = watch
        self._plan = plan
        self._random = Random(f"{plan.seed}/broker")
        self._stop: asyncio.Event | None = None

    async def supervise(self) -> None:
        while True:
            runtime = self._sim.runtime(BROKER)
            process = runtime.spawn(self._run(runtime), name="broker")
            self._sim.broker_died.clear()
            death = asyncio.get_running_loop().create_task(self._sim.broker_died.wait())
            await asyncio.wait([process, death], return_when=asyncio.FIRST_COMPLETED)
            self.up.clear()
            self.runs += 1
            self.broker = self._stop = None
            if not death.done():
                death.cancel()
                self._on_exit(process)
            await asyncio.sleep(self._random.uniform(*self.downtime_s))

    async def _run(self, runtime: Runtime) -> None:
        stop = self._stop = asyncio.Event()
        broker = Broker(runtime, Settings.from_mapping(self._plan.settings), DATA, hostname=BROKER)
        await broker.start(lambda error: stop.set())
        self.broker = broker
        self.up.set()
        await stop.wait()
        await broker.stop()
        if not self._plan.has_disk_errors:
            self._watch.stopped_cleanly()

    def _on_exit(self, process: "asyncio.Task[None]") -> None:
        """It ended by itself: nothing of it goes on, and where it failed, the disk must have failed first."""
        self._sim.crash(BROKER, power_cut=False)
        error = process.exception()
        if error is None:
            return
        self._sim.note(f"broker failed {error!r}")
        if not (self._plan.has_disk_errors and isinstance(error, OSError | KafkaError)):
            raise error

    def stop(self) -> None:
        if self._stop is not None:
            self._stop.set()


class ErrorLog(logging.Handler):
    """What the broker and the clients log as an error with an exception: that was not expected."""

    def __init__(self, plan: Faulty) -> None:
        super().__init__(logging.ERROR)
        self.unexpected: list[BaseException] = []
        self._plan = plan

    def emit(self, record: logging.LogRecord) -> None:
        life = current_life()
        error = record.exc_info[1] if record.exc_info else None
        if error is None or (life is not None and not life.alive):
            return
        if not (self._plan.has_disk_errors and isinstance(error, OSError | KafkaStorageError)):
            error.add_note(record.getMessage())
            self.unexpected.append(error)

    def __enter__(self) -> "ErrorLog":
        self._logger = logging.getLogger("twofold")
        self._level, self._propagate = self._logger.level, self._logger.propagate
        self._logger.setLevel(logging.ERROR)
        self._logger.propagate = False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        self._logger.propagate = self._propagate


class World:
    """Everything of one run."""

    def __init__(self, plan: Plan, watch: Watch, sim: BrokerSimulation, node: BrokerNode | None = None) -> None:
        """`node`: a broker that somebody else starts, for others as well."""
        self.plan = plan
        self.watch = watch
        self.sim = sim
        self.random = Random(f"{plan.seed}/world")
        self.others: set[str] = set()
        """Topics of other users of the broker, who look at them in their own ways."""
        self.draining = False
        self.node = node or BrokerNode(sim, watch, plan)
        self.partitions = [TopicPartition(t.name, n) for t in plan.topics for n in range(t.partitions)]
        watch.kept = self.partitions
        self.durable = {topic.name for topic in plan.topics if topic.durable}
        self.producers: dict[str, ProducerApp] = {}
        self.consumers: list[ConsumerApp] = []
        self.admin: AdminApp | None = None
        self.side_producer: ProducerApp | None = None
        self.history: list[Sent] = []
        """Of all producers, also those that were killed."""
        self.final: dict[TopicPartition, list[bytes]] = {tp: [] for tp in self.partitions}
        """What a reader that comes last finds."""
        self._incarnations: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._supervisor: asyncio.Task[None] | None = None

    def note(self, text: str) -> None:
        self.sim.note(text)

    # The beginning

    async def start(self) -> None:
        self._supervisor = asyncio.get_running_loop().create_task(self.node.supervise(), name="supervisor")
        await self.node.up.wait()
        await self.start_clients()

    async def start_clients(self) -> None:
        await self.run_on("setup", self._create_topics)
        for plan in self.plan.producers:
            self.start_producer(plan)
        for consumer in self.plan.consumers:
            runtime = self.sim.runtime(consumer.node)
            app = ConsumerApp(self, runtime, consumer, self.partitions, self.durable)
            self.consumers.append(app)
            self._spawn(consumer.node, app.run())
        if self.plan.side_topics:
            options = {"bootstrap_servers": "broker:9092", "request_timeout_ms": 1500, "default_api_timeout_ms": 6000}
            self.admin = AdminApp(self, self.sim.runtime("admin"), options, Random(f"{self.plan.seed}/admin"))
            self.watch.on_started = self.admin.check
            self._spawn("admin", self.admin.run())
            self.side_producer = ProducerApp(
                self, self.sim.runtime("side"), self.plan.side_producer, "side/1", self.admin.partitions
            )
            self._spawn("side", self.side_producer.run())

    async def _create_topics(self, runtime: Runtime) -> None:
        async with Admin(runtime=runtime, bootstrap_servers="broker:9092") as admin:
            topics = [NewTopic(name=t.name, num_partitions=t.partitions, configs=t.configs) for t in self.plan.topics]
            (await admin.create_topics(topics)).get()

    def start_producer(self, plan: ProducerPlan) -> None:
        incarnation = self._incarnations[plan.node] = self._incarnations.get(plan.node, 0) + 1
        runtime = self.sim.runtime(plan.node)
        app = ProducerApp(self, runtime, plan, f"{plan.node}/{incarnation}", lambda: self.partitions)
        self.producers[plan.node] = app
        self._spawn(plan.node, app.run())

    def kill_producer(self, node: str) -> None:
        self.sim.crash(node, power_cut=False)
        self.history += self.producers.pop(node).history

    def _spawn(self, node: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[node] = self.sim.runtime(node).spawn(work, name=node)

    async def run_on(self, node: str, work: Callable[[Runtime], Awaitable[None]]) -> None:
        """Run something on a node of its own, and wait for it."""
        runtime = self.sim.runtime(node)

        async def run() -> None:
            await work(runtime)

        await runtime.spawn(run(), name=node)

    # The middle

    async def pause(self, seconds: float) -> None:
        """Let time pass, and stop at once when something is wrong."""
        await asyncio.sleep(seconds)
        self.raise_if_wrong()

    def raise_if_wrong(self) -> None:
        if self.watch.violations:
            raise self.watch.violations[0]
        for task in [self._supervisor, *self._tasks.values()]:
            if task is not None and task.done() and not task.cancelled():
                task.result()
        if self.sim.failures:
            raise self.sim.failures.pop(0)

    # The end

    async def finish(self) -> None:
        """Everything has healed: all clients come to their end, and a last restart changes nothing."""
        self.draining = True
        if self.plan.has_disk_errors:
            self.node.stop()  # a log that failed takes nothing before it was opened again
        await self.end_writing()
        runs = self.node.runs
        self._restart()
        await self.within_bound("the stop", lambda: [] if self.node.runs > runs else ["broker"])
        await self.within_bound("the start", lambda: [] if self.node.up.is_set() else ["broker"])
        await self.look()
        await self._stop_clients()

    async def end_writing(self) -> None:
        self.draining = True
        writers = [*self.producers, *(["admin", "side"] if self.admin is not None else [])]
        await self.within_bound("the last records", lambda: [n for n in writers if not self._tasks[n].done()])

    async def look(self) -> None:
        """After the last restart: everything is there, and everybody comes to see it."""
        await asyncio.wait_for(self.run_on("last", self._write_last), PROGRESS_S)
        for app in self.producers.values():
            self.history += app.history
        ends = self.ends()
        await self.within_bound("reading", lambda: [text for app in self.consumers for text in app.behind(ends)])
        await asyncio.wait_for(self.run_on("reader", self._read_all), PROGRESS_S)
        self._check_logs()

    async def within_bound(self, what: str, unfinished: Callable[[], list[str]]) -> None:
        started = self.sim.now_s
        while waiting := unfinished():
            await self.pause(0.1)
            require(
                self.sim.now_s - started < PROGRESS_S,
                f"{what}: not done {PROGRESS_S:.0f} s after everything healed: {waiting}",
            )
        self.note(f"done: {what}")

    def _restart(self) -> None:
        ways = ["stop", "kill", *(["power"] if self.plan.has_power_cuts else [])]
        way = self.random.choice(ways)
        self.note(f"the last restart: {way}")
        if way == "stop":
            self.node.stop()
        else:
            self.sim.crash(BROKER, power_cut=way == "power")

    async def _write_last(self, runtime: Runtime) -> None:
        """Whatever happened before, every partition takes records."""
        async with Producer(runtime=runtime, bootstrap_servers="broker:9092") as producer:
            for number, tp in enumerate(self.partitions):
                sent = Sent("last/1", number, tp, value_of("last/1", number, 20))
                self.history.append(sent)
                sent.offset = (await (await producer.send(tp.topic, sent.value, partition=tp.partition))).offset

    def ends(self) -> dict[TopicPartition, int]:
        return {tp: next((model.end for model in self.watch.of(tp)), 0) for tp in self.partitions}

    async def _read_all(self, runtime: Runtime) -> None:
        """What the log holds, as a new consumer sees it."""
        ends = self.ends()
        async with Consumer(runtime=runtime, bootstrap_servers="broker:9092", auto_offset_reset="earliest") as consumer:
            consumer.assign(self.partitions)
            while any(len(self.final[tp]) < ends[tp] for tp in ends):
                for record in await consumer.poll(1000):
                    found = self.final[TopicPartition(record.topic, record.partition)]
                    require(record.offset == len(found), f"{record.topic}: {record.offset} follows {len(found) - 1}")
                    found.append(record.value or b"")

    def _check_logs(self) -> None:
        """What the running broker knows of its logs is what their batches say."""
        assert self.node.broker is not None
        image = self.node.broker.image
        for log in self.node.broker.logs.logs():
            topic = image.topic(log.topic_partition.topic)
            if log.topic_partition.topic in self.others:
                continue
            if topic is not None and log.topic_id in (None, topic.topic_id):
                log.topic_id = topic.topic_id
                check_derived_state(log, self.watch.adopt(log, log._context.environment.disk).batches)
        if self.admin is not None:
            self.admin.check(image)

    async def cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.wait(self._tasks.values())

    async def _stop_clients(self) -> None:
        await self.cancel()
        assert self._supervisor is not None
        self.node.downtime_s = (PROGRESS_S, PROGRESS_S)
        self.node.stop()
        await self.within_bound("the last stop", lambda: ["broker"] if self.node.up.is_set() else [])
        self._supervisor.cancel()
        self.raise_if_wrong()
