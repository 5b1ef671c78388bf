"""Transactions on a simulated broker: planned, troubled, healed, and looked at, one run for each seed."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from kits.wire.driver import TxnDriver
from kits.wire.requests import GROUP_KEY, TRANSACTION_KEY, Wire
from sim.broker.nemesis import TimedNemesis
from sim.broker.watch import require
from sim.broker.world import BROKER, DATA, BrokerNode, BrokerSimulation, ErrorLog
from sim.frame import play, repeatable
from sim.transactions.check import (
    check_logs,
    copied_once,
    offsets_follow,
    reached_the_end,
    readers_see_committed,
)
from sim.transactions.clients import BOOTSTRAP, Actor, Bookkeeper, Copier, Ghost, Past, ReaderApp, Writer, ledger
from sim.transactions.cycles import no_cycles
from sim.transactions.history import History, Outcome, Value, Write
from sim.transactions.log import LogTruth
from sim.transactions.plan import (
    LEFT,
    MAX_HOPS,
    RIGHT,
    WRITTEN,
    ActorPlan,
    CopierPlan,
    ReaderPlan,
    TxnPlan,
    WorldPlan,
    WriterPlan,
    make_txn_plan,
)
from sim.transactions.watch import PREPARED, TxnWatch, batches_on_disk
from twofold.client import Admin, ConfigChange, ConfigResource, FeatureUpdate, NewTopic, ResourceType, UpgradeType
from twofold.config.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from twofold.coordinator.transaction.coordinator import Decision
from twofold.coordinator.transaction.states import State
from twofold.runtime.api import Runtime
from twofold.types import ProducerEpoch, TopicPartition
from twofold.wire.errors import KafkaError

PROGRESS_S = 40.0
"""After everything has healed nobody may need longer than this."""


class TxnWorld:
    def __init__(self, plan: WorldPlan, watch: TxnWatch, sim: BrokerSimulation) -> None:
        self.plan = plan
        self.watch = watch
        self.sim = sim
        self.node = BrokerNode(sim, watch, plan)
        self.history = History()
        self.draining = False
        self.past: deque[Past] = deque(maxlen=200)
        self.partitions = [TopicPartition(name, n) for name, count in plan.topics.items() for n in range(count)]
        self.actors: dict[str, Actor] = {}
        self.readers: list[ReaderApp] = []
        self.ghost: Ghost | None = None
        self.settled_in_s = 0.0
        self.doomed: set[str] = set()
        """Who is to die while it waits to hear that its transaction is committed."""
        self.aim: Callable[[], None] | None = None
        """What is to happen at the next commit."""
        self._random = Random(f"{plan.seed}/world")
        self._numbers: dict[str, int] = {}
        self._incarnations: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def now_s(self) -> float:
        return self.sim.now_s

    def note(self, text: str) -> None:
        self.sim.note(text)

    def next_number(self, group: str) -> int:
        self._numbers[group] = self._numbers.get(group, 0) + 1
        return self._numbers[group]

    def of(self, *topics: str) -> list[TopicPartition]:
        return [tp for tp in self.partitions if tp.topic in topics]

    def targets(self) -> list[TopicPartition]:
        """Where writers write; the first is also what they commit offsets of."""
        return self.of(WRITTEN, LEFT)

    # The beginning

    async def start(self) -> None:
        self._supervisor = asyncio.get_running_loop().create_task(self.node.supervise(), name="supervisor")
        await self.node.up.wait()
        await self.run_on("setup", self._set_up)
        if self.plan.first_epoch:
            for transactional_id in dict.fromkeys(plan.transactional_id for plan in self.owners()):
                await self.run_on("setup", partial(self._age, transactional_id=transactional_id))
        for plan in self.owners():
            self.start_actor(plan)
        for reader in self.plan.readers:
            self._start_reader(reader)
        self._spawn("bookkeeper", Bookkeeper(self, self.sim.runtime("bookkeeper"), self.groups()).run())
        if self.plan.ghosts:
            self.ghost = Ghost(self, self.sim.runtime("ghost"), self.plan.ghosts)
            self._spawn("ghost", self.ghost.run())

    def owners(self) -> list[ActorPlan]:
        return [*self.plan.writers, *self.plan.copiers]

    def groups(self) -> dict[str, list[TopicPartition]]:
        found = {ledger(plan.transactional_id): self.partitions[:1] for plan in self.plan.writers if plan.offsets}
        return found | {plan.group: self.of(plan.source) for plan in self.plan.copiers} or {"none": self.partitions}

    async def _set_up(self, runtime: Runtime) -> None:
        async with Admin(runtime=runtime, bootstrap_servers=BOOTSTRAP) as admin:
            topics = [
                NewTopic(name=name, num_partitions=count, configs=self.plan.topic_configs)
                for name, count in self.plan.topics.items()
            ]
            (await admin.create_topics(topics)).get()
            await self._create_internal(runtime)
            changes = [ConfigChange(key, value) for key, value in self.plan.internal_configs.items()]
            for topic in (TRANSACTION_STATE, CONSUMER_OFFSETS):
                (await admin.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, topic): changes})).get()

    async def _create_internal(self, runtime: Runtime) -> None:
        """They come with the first who looks for a coordinator."""
        wire = Wire(runtime, BOOTSTRAP)
        for kind in (TRANSACTION_KEY, GROUP_KEY):
            while (await wire.find("any", kind)).coordinators[0].error_code:
                await runtime.timers.sleep(0.05)
        await wire.close()

    async def _age(self, runtime: Runtime, transactional_id: str) -> None:
        """Give an id an epoch that it would take very many transactions to reach."""
        driver = TxnDriver(runtime, BOOTSTRAP, transactional_id)
        await driver.init()
        await driver.close()
        assert self.node.broker is not None
        decided = self.node.broker.transactions.shard(transactional_id).decide(
            transactional_id,
            lambda entry, now_ms, pending: Decision(
                entry and entry._replace(producer_epoch=ProducerEpoch(self.plan.first_epoch))
            ),
        )
        await decided

    def start_actor(self, plan: ActorPlan) -> None:
        incarnation = self._incarnations[plan.node] = self._incarnations.get(plan.node, 0) + 1
        runtime = self.sim.runtime(plan.node)
        instance = f"{plan.node}/{incarnation}"
        actor: Actor
        if isinstance(plan, WriterPlan):
            actor = Writer(self, runtime, plan, instance, self.targets())
        else:
            assert isinstance(plan, CopierPlan)
            actor = Copier(self, runtime, plan, instance, self.of(plan.source), self.of(plan.target))
        self.actors[plan.node] = actor
        self._spawn(plan.node, actor.run())

    def on_commit(self, actor: Actor) -> None:
        node = actor.plan.node
        if self.aim is not None:
            self.aim()
            self.aim = None
        if node in self.doomed:
            self.doomed.discard(node)
            asyncio.get_running_loop().call_later(self._random.uniform(0, 0.003), self._kill_if_there, node, actor)

    def _kill_if_there(self, node: str, actor: Actor) -> None:
        if self.actors.get(node) is actor:
            self.kill_actor(node)

    def kill_actor(self, node: str) -> None:
        self.sim.crash(node, power_cut=False)
        del self.actors[node], self._tasks[node]

    def _start_reader(self, plan: ReaderPlan) -> ReaderApp:
        app = ReaderApp(self, self.sim.runtime(plan.node), plan, self.partitions)
        self.readers.append(app)
        self._spawn(plan.node, app.run())
        return app

    def _spawn(self, node: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[node] = self.sim.runtime(node).spawn(work, name=node)

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
        if self.watch.violations:
            raise self.watch.violations[0]
        for task in [self._supervisor, *self._tasks.values()]:
            if task is not None and task.done() and not task.cancelled():
                task.result()
        if self.sim.failures:
            raise self.sim.failures.pop(0)

    # The end

    async def finish(self) -> None:
        """Everybody comes to an end, each id makes one more transaction, and a last restart changes nothing."""
        healed_s = self.now_s
        await self._drain()
        self.settled_in_s = self.now_s - healed_s
        await self._restart()
        await self._look()
        await self._stop()

    async def _drain(self) -> None:
        if self.plan.has_disk_errors:
            self.node.stop()  # a log that failed takes nothing before it was opened again
        self.draining = True
        self.doomed.clear()
        self.aim = None
        for plan in self.plan.copiers:
            if plan.node not in self.actors:
                self.start_actor(plan)
        writers = [plan.node for plan in self.plan.writers if plan.node in self.actors]
        await self.within_bound("the last transactions", lambda: [n for n in writers if not self._tasks[n].done()])
        await self._close_ids()
        await self.within_bound("copying", self._uncopied)
        for actor in self.actors.values():
            if isinstance(actor, Copier):
                actor.stopping = True
        await self.within_bound("the copiers", lambda: [n for n in self.actors if not self._tasks[n].done()])
        await self.within_bound("the ids", self._unsettled)

    async def _close_ids(self) -> None:
        """Whoever had an id is gone: somebody new takes it over and commits to every partition."""
        plans_of: dict[str, list[WriterPlan]] = {}
        for plan in self.plan.writers:
            if isinstance(plan, WriterPlan):
                plans_of.setdefault(plan.transactional_id, []).append(plan)
        for transactional_id, plans in plans_of.items():
            node = f"closer-{transactional_id}"
            plan = self._random.choice(plans)
            runtime = self.sim.runtime(node)
            closer = Closer(self, runtime, plan, f"{node}/1", self.targets())
            self.actors[node] = closer
            self._spawn(node, closer.run())
            await self.within_bound(f"the last transaction of {transactional_id}", partial(self._running, node))

    def _running(self, node: str) -> list[str]:
        return [] if self._tasks[node].done() else [node]

    def _uncopied(self) -> list[str]:
        found = []
        for source in dict.fromkeys(plan.source for plan in self.plan.copiers):
            for tp in self.of(source):
                log = self.watch.truth(tp)
                done = max(
                    actor.positions[tp]
                    for actor in self.actors.values()
                    if isinstance(actor, Copier) and actor.plan.source == source
                )
                if log.open_blocks or done < log.end:
                    found.append(f"{tp} is copied up to {done} of {log.end}")
        return found

    def _unsettled(self) -> list[str]:
        """Ids whose transaction is open or decided, and partitions that hold readers back."""
        assert self.node.broker is not None or not self.node.up.is_set()
        found = [
            f"{name} is {known.value.state.name}"
            for name, known in self.watch.known.items()
            if known.value is not None and (known.value.state in PREPARED or known.value.state is State.ONGOING)
        ]
        ends = {tp: self.watch.truth(tp).end for tp in self.partitions}
        return found + [text for reader in self.readers for text in reader.behind(ends)]

    async def within_bound(self, what: str, unfinished: Callable[[], list[str]]) -> None:
        started = self.now_s
        while waiting := unfinished():
            await self.pause(0.1)
            require(
                self.now_s - started < PROGRESS_S,
                f"stuck: {what}: not done {PROGRESS_S:.0f} s after everything healed: {waiting}",
            )
        self.note(f"done: {what}")

    async def _restart(self) -> None:
        way = self._random.choice(["stop", "kill", *(["power"] if self.plan.has_power_cuts else [])])
        self.note(f"the last restart: {way}")
        runs = self.node.runs
        if way == "stop":
            self.node.stop()
        else:
            self.sim.crash(BROKER, power_cut=way == "power")
        await self.within_bound("the stop", lambda: [] if self.node.runs > runs else ["broker"])
        await self.within_bound("the start", lambda: [] if self.node.up.is_set() else ["broker"])

    async def _look(self) -> None:
        """What those see who come last."""
        for committed in (True, False):
            plan = ReaderPlan(f"last-reader-{committed}", committed, 0.001, 1 << 20, 1500)
            self._start_reader(plan)
        ends = {tp: self.watch.truth(tp).end for tp in self.partitions}
        await self.within_bound("reading", lambda: [text for app in self.readers for text in app.behind(ends)])
        await asyncio.wait_for(self.run_on("last-bookkeeper", self._ask_groups), PROGRESS_S)

    async def _ask_groups(self, runtime: Runtime) -> None:
        groups = self.groups()
        keeper = Bookkeeper(self, runtime, groups)
        for group, partitions in groups.items():
            while True:
                seen = len(self.history.offset_reads)
                try:
                    await keeper.ask(group, stable=True)
                except KafkaError:
                    await runtime.timers.sleep(0.1)
                if len(self.history.offset_reads) >= seen + len(partitions):
                    break

    def logs(self) -> dict[TopicPartition, LogTruth]:
        disk = self.sim.disk(BROKER)
        return {tp: LogTruth(tp, batches_on_disk(disk, f"{DATA}/{tp}")) for tp in self.partitions}

    async def _stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.wait(self._tasks.values())
        assert self._supervisor is not None
        self.node.downtime_s = (60.0, 60.0)
        self.node.stop()
        await self.within_bound("the last stop", lambda: ["broker"] if self.node.up.is_set() else [])
        self._supervisor.cancel()
        self.raise_if_wrong()


class Closer(Writer):
    """One committed transaction over all partitions, whatever it takes."""

    def is_done(self) -> bool:
        return self.committed > 0

    async def work(self) -> None:
        while not self.is_done():
            txn = self.begin()
            await self.transaction(txn, partial(self._everywhere, txn), commit=True)

    async def _everywhere(self, txn: Any) -> None:
        await self._send(txn, [Write(tp, Value(txn.label, number).encode()) for number, tp in enumerate(self._targets)])


class TxnNemesis(TimedNemesis):
    """The broker's, with writers and copiers for clients."""

    _world: TxnWorld
    broker_pause_s = 0.6
    other_pause_s = 0.4

    def _actions(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return super()._actions() | {"pause": self._stall, "features": self._switch}

    async def _switch(self) -> None:
        """transaction.version goes down, or up again; the requests of clients are what they are."""
        level = self._random.choice((1, 2))
        update = FeatureUpdate(level, UpgradeType.SAFE_DOWNGRADE if level == 1 else UpgradeType.UPGRADE)

        async def switch(runtime: Runtime) -> None:
            async with Admin(
                runtime=runtime, bootstrap_servers=BOOTSTRAP, request_timeout_ms=700, default_api_timeout_ms=1500
            ) as admin:
                with suppress(KafkaError):
                    await admin.update_features({"transaction.version": update})

        await self._world.run_on("operator", switch)

    async def _crash(self, *, power_cut: bool) -> None:
        """Often while a transaction is being ended: in one of the next writes."""
        if self._random.random() < 0.5:
            await super()._crash(power_cut=power_cut)
            return
        writes = self._random.randint(0, 8)
        self._world.aim = lambda: self._sim.crash_after(BROKER, writes, power_cut=power_cut)
        await self._world.pause(self._random.uniform(0.2, 1))

    async def _stall(self) -> None:
        """The broker, or a client, stands still for a while, and then finds everything at once."""
        node = self._random.choice((BROKER, self._victim()))
        self._sim.pause(node)
        await self._world.pause(self._random.uniform(0.2, 3))
        self._sim.resume(node)

    def _victim(self) -> str:
        return self._random.choice(self._world.plan.clients)

    async def _kill_client(self) -> None:
        world = self._world
        plan = self._random.choice(world.owners())
        if self._random.random() < 0.6:
            world.doomed.add(plan.node)
            await world.pause(0.8)
            world.doomed.discard(plan.node)
        elif plan.node in world.actors:
            world.kill_actor(plan.node)
        await world.pause(self._random.choice((0.01, 0.5, 2.0)) * self._random.random())
        if plan.node not in world.actors:
            world.start_actor(plan)


@dataclass(frozen=True)
class TxnOutcome:
    seed: int
    digest: str
    virtual_s: float
    starts: int
    loads: int
    committed: int
    aborted: int
    unknown: int
    read: int
    copied: int
    repeated: int
    fenced: int
    offset_reads: int
    settled_in_s: float


def simulate_txn(seed: int, plan: TxnPlan | None = None, *, blind: bool = False) -> TxnOutcome:
    """Raises what went wrong, with the way to see it again."""
    plan = plan or make_txn_plan(seed)
    with TxnWatch(compacted=plan.compacted, blind=blind) as watch, ErrorLog(plan) as errors:
        sim = BrokerSimulation(plan, watch)
        with repeatable(sim, seed, plan, "txn_seed"):
            return _simulate(plan, watch, sim, errors)


def _simulate(plan: TxnPlan, watch: TxnWatch, sim: BrokerSimulation, errors: ErrorLog) -> TxnOutcome:
    world = play(sim, errors, lambda: TxnWorld(plan, watch, sim), TxnNemesis)
    check(world)
    history = world.history
    outcomes = [txn.outcome for txn in history.txns]
    return TxnOutcome(
        seed=plan.seed,
        digest=sim.digest(),
        virtual_s=sim.now_s,
        starts=watch.starts,
        loads=watch.loads,
        committed=outcomes.count(Outcome.COMMITTED),
        aborted=outcomes.count(Outcome.ABORTED),
        unknown=outcomes.count(Outcome.UNKNOWN),
        read=sum(len(reading.polled) for reading in history.readings),
        copied=sum(len(txn.reads) for txn in history.txns if txn.outcome is Outcome.COMMITTED),
        repeated=world.ghost.repeated if world.ghost is not None else 0,
        fenced=sum(1 for txn in history.txns if txn.told is None),
        offset_reads=len(history.offset_reads),
        settled_in_s=world.settled_in_s,
    )


def check(world: TxnWorld) -> None:
    history, logs = world.history, world.logs()
    check_logs(history, logs)
    readers_see_committed(history, logs)
    for reading in history.readings:
        reached_the_end(reading, logs)
    offsets_follow(history, logs)
    inputs = {plan.source: plan.target for plan in world.plan.copiers}
    assert set(inputs) <= {LEFT, RIGHT}
    copied_once(logs, inputs, MAX_HOPS)
    no_cycles(history, logs)
