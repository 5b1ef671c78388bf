"""Three brokers, a controller and their clients in a simulation: started, troubled, healed, and brought to an end.

The brokers are the real ones, members of a cluster whose controller is the tests' node over the real controller. So are
the clients. Only their Runtime is simulated.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from kits.cluster.controller_node import ControllerNode
from kits.metadata.controller import create, topic
from sim.broker.clients import ProducerApp, Sent
from sim.broker.plan import ProducerPlan
from sim.broker.watch import Violation, check_derived_state, require, stored_batches
from sim.cluster.plan import BOOTSTRAP, BROKERS, ClusterPlan
from sim.cluster.watch import ClusterWatch
from twofold.broker.broker import Broker
from twofold.client import Consumer
from twofold.config.settings import Settings
from twofold.controller.features import initial_levels
from twofold.controller.records import FeatureLevel
from twofold.log.log import PartitionLog
from twofold.quorum.upkeep import UpkeepOptions
from twofold.runtime.api import Runtime
from twofold.runtime.sim import Simulation
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

CONTROLLER = "c1"
DATA = "/data"
PROGRESS_S = 90.0
"""After everything has healed nothing may need longer than this."""
LOOK_S = 0.5
"""Between two looks at all replicas beside each other."""


class ClusterSimulation(Simulation):
    """Tells the keeper of a node when it dies, whatever kills it."""

    def __init__(self, plan: ClusterPlan) -> None:
        from sim.broker.world import BrokerSimulation

        super().__init__(plan.seed, cut_mode=plan.cut_mode)
        BrokerSimulation.latest = self  # type: ignore[assignment]
        self.died: dict[str, asyncio.Event] = {}

    def crash(self, node: str, *, power_cut: bool = True) -> None:
        if node in self.died:
            self.died[node].set()
        super().crash(node, power_cut=power_cut)


class Keeper:
    """Starts a node again whenever it ended."""

    def __init__(self, sim: ClusterSimulation, node: str, random: Random) -> None:
        self.node = node
        self.up = asyncio.Event()
        self.downtime_s = (0.01, 4.0)
        self.runs = 0
        self.before_start: Callable[[], None] | None = None
        self._sim = sim
        self._random = random
        self._stop: asyncio.Event | None = None
        sim.died[node] = asyncio.Event()

    async def supervise(self) -> None:
        while True:
            if self.before_start is not None:
                self.before_start()
                self.before_start = None
            runtime = self._sim.runtime(self.node)
            process = runtime.spawn(self._run(runtime), name=self.node)
            died = self._sim.died[self.node]
            died.clear()
            death = asyncio.get_running_loop().create_task(died.wait())
            await asyncio.wait([process, death], return_when=asyncio.FIRST_COMPLETED)
            self.up.clear()
            self.runs += 1
            self._stop = None
            self.ended()
            if not death.done():
                death.cancel()
                self._on_exit(process)
            await asyncio.sleep(self._random.uniform(*self.downtime_s))

    def _on_exit(self, process: "asyncio.Task[None]") -> None:
        self._sim.crash(self.node, power_cut=False)
        error = process.exception()
        if error is not None:
            self._sim.note(f"{self.node} failed {error!r}")
            if not isinstance(error, KafkaError | OSError):
                raise error

    async def _run(self, runtime: Runtime) -> None:
        stop = self._stop = asyncio.Event()
        await self.start(runtime, stop)
        self.up.set()
        await stop.wait()
        await self.stop()

    def ask_to_stop(self) -> None:
        if self._stop is not None:
            self._stop.set()

    async def start(self, runtime: Runtime, stop: asyncio.Event) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    def ended(self) -> None:
        raise NotImplementedError


class BrokerKeeper(Keeper):
    def __init__(self, sim: ClusterSimulation, number: int, plan: ClusterPlan) -> None:
        super().__init__(sim, f"b{number}", Random(f"{plan.seed}/b{number}"))
        self.number = number
        self.broker: Broker | None = None
        self._settings = {
            **plan.settings,
            "node.id": str(number),
            "controller.quorum.bootstrap.servers": f"{CONTROLLER}:9093",
            "listeners": f"PLAINTEXT://b{number}:9092",
        }

    async def start(self, runtime: Runtime, stop: asyncio.Event) -> None:
        broker = Broker(runtime, Settings.from_mapping(self._settings), DATA, hostname=self.node)
        self.broker = broker
        await broker.start(lambda error: stop.set())

    async def stop(self) -> None:
        assert self.broker is not None
        await self.broker.stop()

    def ended(self) -> None:
        self.broker = None


class ControllerKeeper(Keeper):
    def __init__(self, sim: ClusterSimulation, plan: ClusterPlan, watch: ClusterWatch) -> None:
        super().__init__(sim, CONTROLLER, Random(f"{plan.seed}/c1"))
        self.controller: ControllerNode | None = None
        self._plan = plan
        self._watch = watch

    async def start(self, runtime: Runtime, stop: asyncio.Event) -> None:
        levels = initial_levels()
        if self._plan.eligible_leaders:
            levels = [*levels, FeatureLevel("eligible.leader.replicas.version", 1)]
        settings: dict[str, Any] = {key.replace(".", "_"): v for key, v in self._plan.controller_settings.items()}
        upkeep = UpkeepOptions(session_timeout_s=3.0, balance_s=5.0, elect_unclean_s=2.0)
        node = ControllerNode(runtime, host=CONTROLLER, bootstrap=[*levels], upkeep=upkeep, **settings)
        await node.start()
        node.controller.subscribe(self._watch.metadata_changed)
        self.controller = node

    async def stop(self) -> None:
        assert self.controller is not None
        await self.controller.stop()

    def ended(self) -> None:
        self.controller = None


def _unless(up: asyncio.Event) -> list[str]:
    return [] if up.is_set() else ["down"]


class Writer(ProducerApp):
    """What it is told to be written is committed, at that moment."""

    def __init__(self, world: "World", runtime: Runtime, plan: ProducerPlan) -> None:
        scene: Any = world  # a producer notes there, and asks whether it is to stop
        super().__init__(scene, runtime, plan, plan.node, lambda: world.partitions)
        self._watch = world.watch

    def _decide(self, sent: Sent, *, offset: int | None = None, error: KafkaError | None = None) -> None:
        super()._decide(sent, offset=offset, error=error)
        if offset is not None and offset >= 0:
            model = self._watch.of(sent.topic_partition)
            require(model is not None, f"{sent}: acknowledged in a log that no broker leads")
            assert model is not None
            require(
                model.values.get(offset) == sent.value or (offset, sent.value) in model.lost,
                f"{sent.writer} {sent.number}: acknowledged at {sent.topic_partition}@{offset}, where "
                f"{model.values.get(offset)!r} is committed",
            )


class Reader:
    """Reads everything all the time; what it gets is committed."""

    def __init__(self, world: "World", runtime: Runtime) -> None:
        self.seen = 0
        self._world = world
        self._runtime = runtime

    async def run(self) -> None:
        options: dict[str, Any] = {
            "bootstrap_servers": BOOTSTRAP,
            "auto_offset_reset": "earliest",
            "request_timeout_ms": 1500,
        }
        async with Consumer(runtime=self._runtime, **options) as consumer:
            consumer.assign(self._world.partitions)
            while True:
                try:
                    records = await consumer.poll(300)
                except KafkaError as error:
                    self._world.note(f"reader {error}")
                    continue
                for record in records:
                    self._take(TopicPartition(record.topic, record.partition), record.offset, record.value or b"")

    def _take(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        self.seen += 1
        model = self._world.watch.of(tp)
        found = None if model is None else model.values.get(offset)
        require(
            found == value or (model is not None and (offset, value) in model.lost),
            f"a reader got {value[:30]!r} at {tp}@{offset}, where {found and found[:30]!r} is committed",
        )


class World:
    """Everything of one run."""

    def __init__(self, plan: ClusterPlan, watch: ClusterWatch, sim: ClusterSimulation) -> None:
        self.plan = plan
        self.watch = watch
        self.sim = sim
        self.draining = False
        self.controller = ControllerKeeper(sim, plan, watch)
        self.brokers = {number: BrokerKeeper(sim, number, plan) for number in BROKERS}
        self.partitions = [TopicPartition(t.name, index) for t in plan.topics for index in range(t.partitions)]
        self.writers: list[Writer] = []
        self.readers: list[Reader] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def note(self, text: str) -> None:
        self.sim.note(text)

    @property
    def history(self) -> list[Sent]:
        return [sent for writer in self.writers for sent in writer.history]

    # The beginning

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for keeper in (self.controller, *self.brokers.values()):
            self._tasks[keeper.node] = loop.create_task(keeper.supervise(), name=f"keeper of {keeper.node}")
            await self.within_bound(f"the start of {keeper.node}", partial(_unless, keeper.up))
        await self.create_topics()
        for plan in self.plan.producers:
            runtime = self.sim.runtime(plan.node)
            writer = Writer(self, runtime, plan)
            self.writers.append(writer)
            self._tasks[plan.node] = runtime.spawn(writer.run(), name=plan.node)
        for number in range(self.plan.readers):
            runtime = self.sim.runtime(f"reader{number}")
            self.readers.append(Reader(self, runtime))
            self._tasks[f"reader{number}"] = runtime.spawn(self.readers[-1].run(), name="reader")

    async def create_topics(self) -> None:
        node = self.controller.controller
        assert node is not None
        for one in self.plan.topics:
            configs: dict[str, Any] = {name.replace(".", "_"): value for name, value in one.configs.items()}
            request = create(topic(one.name, one.partitions, len(BROKERS), **configs))
            answer = await node.controller.create_topics(request)
            assert [row.error_code for row in answer.topics] == [0], answer

    # The middle

    async def pause(self, seconds: float) -> None:
        """Let time pass, look at all replicas now and then, and stop at once when something is wrong."""
        until = self.sim.now_s + seconds
        while (left := until - self.sim.now_s) > 0:
            await asyncio.sleep(min(left, LOOK_S))
            self.look()
            self.raise_if_wrong()

    def logs(self) -> dict[int, dict[TopicPartition, PartitionLog]]:
        return {
            number: {log.topic_partition: log for log in keeper.broker.logs.logs()}
            for number, keeper in self.brokers.items()
            if keeper.broker is not None
        }

    def look(self) -> None:
        self.watch.compare({number: self.sim.disk(f"b{number}") for number in BROKERS}, self.logs())

    def raise_if_wrong(self) -> None:
        if self.watch.violations:
            raise self.watch.violations[0]
        for task in self._tasks.values():
            if task.done() and not task.cancelled():
                task.result()
        if self.sim.failures:
            raise self.sim.failures.pop(0)

    # The end

    async def finish(self) -> None:
        """Everything has healed: writers come to their end, all replicas are in sync and the same."""
        self.draining = True
        writers = [plan.node for plan in self.plan.producers]
        await self.within_bound("the last records", lambda: [node for node in writers if not self._tasks[node].done()])
        await self.within_bound("all replicas in sync", self._out_of_sync)
        self.look()
        self._check_replicas()
        self._check_acknowledged()

    async def within_bound(self, what: str, unfinished: Callable[[], list[str]]) -> None:
        started = self.sim.now_s
        while waiting := unfinished():
            await self.pause(0.1)
            require(
                self.sim.now_s - started < PROGRESS_S,
                f"{what}: not done {PROGRESS_S:.0f} s after everything healed: {waiting}",
            )
        self.note(f"done: {what}")

    def _out_of_sync(self) -> list[str]:
        down = [keeper.node for keeper in (self.controller, *self.brokers.values()) if not keeper.up.is_set()]
        if down:
            return down
        waiting = []
        logs = self.logs()
        for tp in self.partitions:
            model = self.watch.of(tp)
            state = None if model is None else model.state
            if state is None or len(state.isr) < len(state.replicas) or state.adding_replicas:
                waiting.append(f"{tp}: {state}")
                continue
            found = {number: logs[number].get(tp) for number in state.replicas}
            ends = {n: None if log is None else (log.high_watermark, log.log_end_offset) for n, log in found.items()}
            if len({end for pair in ends.values() for end in (pair or (-1, -2))}) > 1:
                waiting.append(f"{tp}: high watermarks and ends are {ends}")
        return waiting

    def _check_replicas(self) -> None:
        for number, held in self.logs().items():
            disk = self.sim.disk(f"b{number}")
            for tp in self.partitions:
                model = self.watch.of(tp)
                assert model is not None and model.state is not None
                if number in model.state.replicas:
                    batches = stored_batches(disk, held[tp].directory)
                    require(batches == model.batches, f"{tp}: broker {number} has another log than what is committed")
                    check_derived_state(held[tp], batches)

    def _check_acknowledged(self) -> None:
        for sent in self.history:
            model = self.watch.of(sent.topic_partition)
            assert model is not None
            if sent.offset is not None and sent.offset >= 0:
                require(
                    model.values.get(sent.offset) == sent.value or (sent.offset, sent.value) in model.lost,
                    f"{sent} was acknowledged and is not there",
                )
            elif sent.offset is not None:
                require(
                    sent.value in model.values.values() or any(value == sent.value for _, value in model.lost),
                    f"{sent} was acknowledged and is not there",
                )

    async def ask_controller(self, ask: Callable[[Any], Awaitable[Any]]) -> None:
        """An administrator's request; where there is no controller, it is lost."""
        node = self.controller.controller
        if node is None:
            return
        with suppress(KafkaError):
            await asyncio.wait_for(ask(node.controller), 2.0)


__all__ = ["Violation", "World"]
