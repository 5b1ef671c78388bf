"""The exactly-once sink on a simulated broker: planned, troubled, healed, and looked at, one run for each seed.

In the end every number is in the output once, those of a key in their order; each batch was decided once; nothing is
left open that a sweep, or three heartbeat intervals, should have ended. Without two-phase commit the only other end is
that the sink says which part of a batch is lost (DecidedDataLost), and then nothing else is missing or there twice.
"""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from sim.broker.nemesis import BrokerNemesis
from sim.broker.watch import require
from sim.broker.world import BROKER, BrokerNode, BrokerSimulation, ErrorLog
from sim.frame import MAX_VIRTUAL_S, repeatable
from sim.sink.plan import RESTORE, SinkPlan, make_sink_plan
from sim.sink.spark import GROUP, INPUT, PREFIX, QUERY, TOPIC, Checkpoint, Jvm, Process
from twofold.client import Admin, Consumer, NewTopic
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ClientConfig
from twofold.connections.errors import NoAnswer
from twofold.coordinator.transaction.records import NEVER_MS
from twofold.coordinator.transaction.states import State
from twofold.runtime.api import Runtime
from twofold.runtime.sim.loop import current_life
from twofold.sink import names
from twofold.sink.errors import DecidedDataLost
from twofold.sink.register import Mode
from twofold.types import TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import KafkaError

PROGRESS_S = 40.0
"""After everything has healed nobody may need longer than this."""
TAIL = 60
LATE_APIS = ("InitProducerId", "EndTxn", "TxnHeartbeat")
LATEST_S = 5.0
OPEN = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE)
DAY_MS = 86_400_000


class NobodyWatches:
    """What a BrokerNode tells those who look inside the broker: here what comes out of it is enough."""

    def crash(self, power_cut: bool) -> None: ...

    def stopped_cleanly(self) -> None: ...


class SinkWorld:
    """See `sim_sink_spark.Stage`, which this is for the drivers."""

    def __init__(self, plan: SinkPlan, sim: BrokerSimulation, directory: Path) -> None:
        self.plan = plan
        self.sim = sim
        self.directory = directory
        self.checkpoint = Checkpoint.of(plan)
        self.random = Random(f"{plan.seed}/world")
        self.draining = False
        self.lost: DecidedDataLost | None = None
        self.may_lose = plan.mode is Mode.RESUME
        self.node = BrokerNode(sim, NobodyWatches(), plan)
        self.node.downtime_s = (0.01, 0.3)
        self.processes: list[Process] = []
        self.jvms: dict[Jvm, asyncio.Task[None]] = {}
        self.at_step: Callable[[str, str], None] | None = None
        """Called with each step that a process reaches, and the process."""
        self.steps: Counter[str] = Counter()
        self.late = self.deaths = self.drivers = self.failures = 0
        self.output: dict[int, list[bytes]] = {}
        self.decisions: list[dict[str, Any]] = []
        self.group_offset: int | None = None
        self._numbers: Counter[str] = Counter()
        self._supervisor: asyncio.Task[None] | None = None

    def note(self, text: str) -> None:
        self.sim.note(text)

    def next_number(self, what: str) -> int:
        self._numbers[what] += 1
        return self._numbers[what]

    def on_process(self, process: Process) -> None:
        (self.directory / f"host{process.host}").mkdir(exist_ok=True)
        self.processes.append(process)

    def on_decided(self, owner: str, batch_id: int) -> None:
        self.note(f"{owner}: batch {batch_id} is noted")

    def reached(self, step: str) -> None:
        life = current_life()
        if life is None or not life.alive:
            return
        self.steps[step] += 1
        self.note(f"{life.node} is at {step!r}")
        if self.at_step is not None:
            self.at_step(step, life.node)

    def kill(self, node: str) -> None:
        for process in self.processes:
            if process.node == node and process.is_alive:
                self.deaths += 1
                process.die()

    # The beginning

    async def start(self) -> None:
        self._supervisor = asyncio.get_running_loop().create_task(self.node.supervise(), name="supervisor")
        await self.node.up.wait()
        await self.run_on("setup", self._set_up)
        self.start_driver()

    async def _set_up(self, runtime: Runtime) -> None:
        async with Admin(runtime=runtime, bootstrap_servers="broker:9092") as admin:
            configs = dict(self.plan.topic_configs)
            topic = NewTopic(name=TOPIC, num_partitions=self.plan.partitions, configs=configs)
            (await admin.create_topics([topic])).get()

    def start_driver(self) -> None:
        jvm = Jvm(self)
        self.drivers += 1
        self.note(f"{jvm.name} starts")
        self.jvms[jvm] = asyncio.get_running_loop().create_task(jvm.run(), name=jvm.name)

    def kill_driver(self, jvm: Jvm) -> None:
        self.jvms.pop(jvm).cancel()
        jvm.die()

    async def run_on(self, node: str, work: Callable[[Runtime], Awaitable[None]]) -> None:
        runtime = self.sim.runtime(node)

        async def run() -> None:
            await work(runtime)

        await runtime.spawn(run(), name=node)

    # The middle

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.raise_if_wrong()

    def raise_if_wrong(self) -> None:
        for task in [self._supervisor, *self.jvms.values()]:
            if task is not None and task.done() and not task.cancelled():
                task.result()
        if self.sim.failures:
            raise self.sim.failures.pop(0)
        if self.lost is not None and not self.may_lose:
            raise AssertionError(f"lost: {self.lost}") from self.lost

    @property
    def is_over(self) -> bool:
        return self.lost is not None or self.checkpoint.next_batch() is None

    # The end

    async def finish(self) -> None:
        """One driver finishes the query. Whoever is late comes to an end, and one who comes then finds nothing open."""
        self.draining = True
        self.at_step = None
        while len(self.jvms) > 1:
            self.kill_driver(next(iter(self.jvms)))
        if not self.jvms:
            self.start_driver()
        await self.within_bound("the last batches", lambda: self.is_over or self._unnoted())
        await asyncio.sleep(LATEST_S)
        await self.close()

    async def close(self) -> None:
        """Everybody is dead, and the broker has been started again."""
        for process in self.processes:
            process.die()
        await self._restart()
        if self.lost is None:
            # What has not vowed lives by heartbeats or has a timeout: nobody has to come for that.
            silence_s = 3 * self.plan.heartbeat_interval_ms / 1000 or self.plan.timeout_ms / 1000
            await asyncio.sleep(silence_s + 1.0)
            require(not (left := self._open(vowed=False)), f"left open although nobody lives: {left}")
            await self._sweep()
            await self.within_bound("the last sweep", lambda: not self._open() or self._open())
        await asyncio.wait_for(self.run_on("reader", self._read), PROGRESS_S)
        await self._stop()

    def _unnoted(self) -> list[str]:
        return [f"batch {self.checkpoint.next_batch()} is not noted"]

    def _open(self, *, vowed: bool = True) -> list[str]:
        broker = self.node.broker
        assert broker is not None
        found = []
        for shard in broker.transactions.led():
            for name, entry in shard.state.entries.items():
                if entry.state in OPEN and names.is_task_id(PREFIX, name) and (vowed or entry.timeout_ms != NEVER_MS):
                    found.append(f"{name} is {entry.state.name}, {entry}")
        return found

    async def within_bound(self, what: str, unfinished: Callable[[], Any]) -> None:
        started = self.sim.now_s
        while (waiting := unfinished()) is not True:
            await self.pause(0.1)
            require(
                self.sim.now_s - started < PROGRESS_S,
                f"stuck: {what}: not done {PROGRESS_S:.0f} s after everything healed: {waiting}",
            )
        self.note(f"done: {what}")

    async def _restart(self) -> None:
        way = self.random.choice(["stop", "kill", *(["power"] if self.plan.has_power_cuts else [])])
        self.note(f"the last restart: {way}")
        runs = self.node.runs
        if way == "stop":
            self.node.stop()
        else:
            self.sim.crash(BROKER, power_cut=way == "power")
        await self.within_bound("the restart", lambda: self.node.runs > runs and self.node.up.is_set())

    async def _sweep(self) -> None:
        last = Process(self, "last")
        await last.call(lambda: last.driver.start("the last one"))
        last.die()

    async def _read(self, runtime: Runtime) -> None:
        self.output = await _read_all(runtime, TOPIC, self.plan.partitions)
        journal = await _read_all(runtime, names.decision_topic(PREFIX), 1)
        self.decisions = [json.loads(value) for value in journal[0]]
        async with Admin(runtime=runtime, bootstrap_servers="broker:9092") as admin:
            committed = (await admin.list_group_offsets([GROUP])).values.get(GROUP)
            row = None if committed is None else committed.values.get(INPUT)
            self.group_offset = None if row is None else row.offset

    async def _stop(self) -> None:
        assert self._supervisor is not None
        self.node.downtime_s = (60.0, 60.0)
        self.node.stop()
        await self.within_bound("the last stop", lambda: not self.node.up.is_set())
        self._supervisor.cancel()
        for task in self.jvms.values():
            task.cancel()
        self.raise_if_wrong()


async def _read_all(runtime: Runtime, topic: str, partitions: int) -> dict[int, list[bytes]]:
    tps = [TopicPartition(topic, n) for n in range(partitions)]
    found: dict[int, list[bytes]] = {n: [] for n in range(partitions)}
    async with Consumer(
        runtime=runtime,
        bootstrap_servers="broker:9092",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        fetch_max_wait_ms=10,
    ) as consumer:
        consumer.assign(tps)
        ends = {tp: (await consumer.end_offsets([tp]))[tp] for tp in tps}
        while any([await consumer.position(tp) < ends[tp] for tp in tps]):
            for record in await consumer.poll(50):
                found[record.partition].append(record.value or b"")
    return found


class LateRequests:
    """A request that nobody answers in time, because it comes later: when its sender has given it up, or is dead.

    Each is carried out at most once, as on a real connection, by somebody who sends it again from elsewhere.
    """

    def __init__(self, world: SinkWorld) -> None:
        self._world = world
        self._ask = Cluster.ask
        self._random = Random(f"{world.plan.seed}/late")
        runtime = self._runtime = world.sim.runtime("ghost")
        config = ClientConfig(bootstrap_servers="broker:9092", request_timeout_ms=1000, default_api_timeout_ms=3000)
        self._cluster = Cluster(runtime, config)

    def __enter__(self) -> None:
        late = self

        async def ask(self: Cluster, connection: Any, message: Any, api: str, deadline: Any, **options: Any) -> Any:
            if late.takes(self, api):
                version = options.get("version") or connection.version(KEYS[api])
                late.send_later(message, api, version)
                await self.runtime.timers.sleep(self.config.request_timeout_ms / 1000)
                raise NoAnswer(f"{api} was not answered in time")
            return await late._ask(self, connection, message, api, deadline, **options)

        Cluster.ask = ask  # type: ignore[method-assign]

    def __exit__(self, *error: object) -> None:
        Cluster.ask = self._ask  # type: ignore[method-assign]

    def takes(self, cluster: Cluster, api: str) -> bool:
        world = self._world
        return (
            cluster is not self._cluster
            and api in LATE_APIS
            and not world.draining
            and self._random.random() < world.plan.late
        )

    def send_later(self, message: Any, api: str, version: int) -> None:
        self._world.late += 1
        delay_s = self._random.choice((0.1, 1.0, LATEST_S)) * self._random.random()
        self._world.note(f"late by {delay_s:.3f}: {message}")
        life = current_life()
        if life is not None and self._random.random() < 0.3:
            self._world.kill(life.node)

        async def send() -> None:
            await self._runtime.timers.sleep(delay_s)
            with suppress(KafkaError):
                answer = await self._cluster.request(None, message, api, self._cluster.deadline(), version=version)
                self._world.note(f"late: {message} is answered {answer}")

        self._runtime.spawn(send(), name="late")


class SinkNemesis(BrokerNemesis):
    _world: SinkWorld
    other_pause_s = 0.12

    def __init__(self, world: SinkWorld) -> None:
        super().__init__(world)

    async def run(self) -> None:
        """Until the query is done, or for long enough."""
        self._sim.network.stall_timeout_s = 6.0
        self._sim.network.connect_timeout_s = 5.0
        actions = self._actions()
        faults = [actions[fault] for fault in self._world.plan.faults if fault in actions]
        until = self._sim.now_s + 8.0
        while not self._world.is_over and self._sim.now_s < until:
            await self._world.pause(self._random.uniform(0, 2 * self.other_pause_s))
            if faults and not self._world.is_over:
                await self._random.choice(faults)()
        self.heal()
        for node, skew_ms in self._skew_ms.items():
            self._sim.jump_clock(node, -skew_ms)

    def _actions(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return super()._actions() | {
            "pause": self._stall,
            "process kill": self._kill_process,
            "step kill": self._kill_at_step,
            "step crash": self._crash_at_step,
            "step pause": self._pause_at_step,
            "driver kill": self._kill_driver,
            "second driver": self._start_second,
            RESTORE: self._restore,
        }

    def _living(self) -> list[Process]:
        return [process for process in self._world.processes if process.is_alive]

    def _victim(self) -> str:
        living = self._living()
        return self._random.choice(living).node if living else "nobody"

    async def _crash(self, *, power_cut: bool) -> None:
        if self._random.random() < 0.4:
            self._sim.crash(BROKER, power_cut=power_cut)
        else:
            self._sim.crash_after(BROKER, self._random.choice((0, 3, 20, 60)), power_cut=power_cut)
        await self._world.pause(self._random.uniform(0, 0.5))

    async def _stall(self) -> None:
        """The broker, or a process, stands still, and then finds everything at once."""
        node = self._random.choice((BROKER, self._victim(), self._victim()))
        self._sim.pause(node)
        await self._world.pause(self._random.uniform(0.1, 2))
        self._sim.resume(node)

    async def _kill_process(self) -> None:
        self._world.kill(self._victim())

    def _aim(self, act: Callable[[str], None]) -> None:
        """At one of the next steps of the protocol; those of a commit, more often than not."""
        wanted = self._random.choice(("", "start", "task", "commit", "commit", "journal", "abort"))
        left = self._random.choice((0, 0, 1, 3))

        def at_step(step: str, node: str) -> None:
            nonlocal left
            if step.startswith(wanted):
                left -= 1
                if left < 0:
                    self._world.at_step = None
                    self._world.note(f"trouble at {step!r}")
                    act(node)

        self._world.at_step = at_step

    async def _kill_at_step(self) -> None:
        self._aim(self._world.kill)
        await self._world.pause(0.2)

    async def _crash_at_step(self) -> None:
        writes = self._random.choice((0, 1, 2, 3, 5, 8, 13))
        power_cut = self._random.random() < 0.7
        self._aim(lambda node: self._sim.crash_after(BROKER, writes, power_cut=power_cut))
        await self._world.pause(0.2)

    async def _pause_at_step(self) -> None:
        """Whoever gets there stands still, and goes on when others may have its work."""
        seconds = self._random.choice((0.2, 0.5, 2.0))

        def pause(node: str) -> None:
            # Not in the node's own context, which stands still as well.
            self._sim.loop.call_later(seconds, self._sim.resume, node, context=Context())
            self._sim.pause(node)

        self._aim(pause)
        await self._world.pause(0.2)

    async def _kill_driver(self) -> None:
        jvms = list(self._world.jvms)
        if jvms:
            self._world.kill_driver(self._random.choice(jvms))
        await self._world.pause(self._random.choice((0.01, 0.3)))
        if not self._world.jvms:
            self._world.start_driver()

    async def _restore(self) -> None:
        """The query is down; an older copy of its checkpoint is put in place, and it is started. Once."""
        checkpoint = self._world.checkpoint
        if checkpoint.restores or not checkpoint.committed:
            return
        while self._world.jvms:
            self._world.kill_driver(next(iter(self._world.jvms)))
        checkpoint.restore(self._random.randrange(len(checkpoint.committed) + 1))
        self._world.start_driver()

    async def _start_second(self) -> None:
        if len(self._world.jvms) < 2:
            self._world.start_driver()
        await self._world.pause(0.1)

    async def _jump(self) -> None:
        node = self._random.choice((BROKER, BROKER, self._victim()))
        limit_ms = self._random.choice((2000, 10 * DAY_MS))
        target_ms = self._random.randint(-limit_ms, limit_ms)
        self._sim.jump_clock(node, target_ms - self._skew_ms.get(node, 0))
        self._skew_ms[node] = target_ms


# The verdict


def check(world: SinkWorld) -> None:
    found = Counter(value for values in world.output.values() for value in values)
    doubled = sorted(value for value, count in found.items() if count > 1)
    require(not doubled, f"doubled: {doubled}")
    batch_of = {b"%d" % number: n for n, rows in enumerate(world.checkpoint.batches) for _, number in rows}
    require(not (strange := found.keys() - batch_of.keys()), f"nobody sent {strange}")
    missing = {value: n for value, n in batch_of.items() if value not in found}
    if world.lost is None:
        require(not missing, f"missing (with their batches): {missing}")
    else:
        after = [n for n in missing.values() if n not in world.checkpoint.committed]
        require(len(after) == len(missing), f"a part of one batch was lost, and noted were more: {missing}")
    for partition, values in world.output.items():
        order: dict[int, list[int]] = {}
        keys = {number: key for rows in world.checkpoint.batches for key, number in rows}
        for value in values:
            order.setdefault(keys[int(value)], []).append(int(value))
        for key, numbers in order.items():
            require(key % world.plan.partitions == partition, f"key {key} is in partition {partition}")
            require(numbers == sorted(numbers), f"key {key} is out of order: {numbers}")
    check_decisions(world)
    check_group(world)


def check_group(world: SinkWorld) -> None:
    """The input's offset is that of the last batch that is done, and of none that has rows to come."""
    noted = [n for n in world.checkpoint.committed if world.checkpoint.batches[n]]
    if not world.plan.group or not noted:
        return
    last = max(noted)
    reached = world.group_offset or 0
    if world.lost is None:
        require(reached == world.checkpoint.end_of(last), f"the group is at {reached} after batch {last}")
    else:
        require(reached <= world.checkpoint.end_of(last), f"the group is at {reached}, beyond batch {last}")


def check_decisions(world: SinkWorld) -> None:
    """One for each batch, and not another before it is done or taken back."""
    decided: dict[int, int] = {}
    pending: int | None = None
    for body in world.decisions:
        if "part" in body:
            continue
        kind = body["t"]
        if kind == "commit":
            require(pending is None, f"batch {body['batchId']} was decided while {pending} was not done")
            pending = body["batchId"]
            decided[pending] = decided.get(pending, 0) + 1
            require(body["queryId"] == QUERY, f"query {body['queryId']}")
        elif kind == "revoke":
            require(world.plan.mode is Mode.RESUME, f"batch {pending} was taken back")
            require(pending is not None, "nothing was there to be taken back")
            decided[pending or 0] -= 1
            pending = None
        elif kind == "done":
            pending = None
    doubled = {n: count for n, count in decided.items() if count > 1}
    require(not doubled, f"decided more than once: {doubled}")


@dataclass(frozen=True)
class SinkOutcome:
    seed: int
    digest: str
    virtual_s: float
    brokers: int
    drivers: int
    processes: int
    deaths: int
    late: int
    decided: int
    failures: int
    """Of runs of the query, each followed by another."""
    revoked: int
    restored: int
    """How often the checkpoint was, and how often of that the sink refused to go on with it."""
    refused: int
    lost: bool
    steps: tuple[tuple[str, int], ...]


def simulate_sink(
    seed: int,
    plan: SinkPlan | None = None,
    mode: Mode = Mode.TWO_PHASE,
    prepare: Callable[[SinkWorld], None] = lambda world: None,
) -> SinkOutcome:
    """Raises what went wrong, with the way to see it again. `prepare` is for those who want more than the plan says."""
    plan = plan or make_sink_plan(seed, mode)
    with tempfile.TemporaryDirectory() as directory, ErrorLog(plan) as errors:
        sim = BrokerSimulation(plan, NobodyWatches())
        test = "sink_seed" if plan.mode is Mode.TWO_PHASE else "resume_seed"
        with repeatable(sim, seed, plan, test, told):
            return _simulate(plan, sim, errors, Path(directory), prepare)


def told(sim: BrokerSimulation) -> list[str]:
    """Without what the disk and the wire did."""
    noise = ("send ", "arrive ", "disk ", "connect", "accept", "close")
    return [line for line in sim.trace if not line.split(" ", 1)[1].startswith(noise)][-TAIL:]


def _simulate(
    plan: SinkPlan,
    sim: BrokerSimulation,
    errors: ErrorLog,
    directory: Path,
    prepare: Callable[[SinkWorld], None],
) -> SinkOutcome:
    world: SinkWorld

    async def story() -> None:
        nonlocal world
        world = SinkWorld(plan, sim, directory)
        prepare(world)
        with LateRequests(world):
            await world.start()
            await SinkNemesis(world).run()
            await world.finish()

    sim.run(story(), timeout_s=MAX_VIRTUAL_S)
    if errors.unexpected:
        raise errors.unexpected[0]
    check(world)
    kinds = Counter(body.get("t") for body in world.decisions)
    return SinkOutcome(
        seed=plan.seed,
        digest=sim.digest(),
        virtual_s=sim.now_s,
        brokers=world.node.runs,
        drivers=world.drivers,
        processes=len(world.processes),
        deaths=world.deaths,
        late=world.late,
        decided=kinds["commit"],
        failures=world.failures,
        revoked=kinds["revoke"],
        restored=world.checkpoint.restores,
        refused=world.checkpoint.restores if world.checkpoint.kept is None else 0,
        lost=world.lost is not None,
        steps=tuple(sorted(world.steps.items())),
    )
