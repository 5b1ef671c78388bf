"""Everything at once on one simulated broker: plain producers, a group, transactions, two-phase transactions, topics
that are trimmed, compacted, altered and deleted meanwhile; planned, troubled, healed and looked at, one run a seed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from sim.broker.check import check as check_plain
from sim.broker.check import failures
from sim.broker.nemesis import Nemesis
from sim.broker.watch import require
from sim.broker.world import BROKER, DATA, BrokerSimulation, ErrorLog, World
from sim.frame import play, repeatable
from sim.groups.world import BOOTSTRAP, GroupNemesis, GroupWorld
from sim.mixed.check import check_deleted, check_trimmed
from sim.mixed.member import TxnMember
from sim.mixed.plan import MORTAL, SHORT, TOPIC_CHANGES, TRIMMED_CONFIGS, MixedPlan, make_mixed_plan
from sim.mixed.watch import MixedWatch
from sim.transactions.check import check_logs, copied_once, offsets_follow, reached_the_end, readers_see_committed
from sim.transactions.clients import Writer
from sim.transactions.cycles import no_cycles
from sim.transactions.history import TABLE, Outcome, Txn, Value
from sim.transactions.log import LogTruth
from sim.transactions.plan import MAX_HOPS, ActorPlan, CopierPlan, WriterPlan
from sim.transactions.watch import batches_on_disk
from sim.transactions.world import TxnNemesis, TxnWorld
from sim.two_phase.plan import AppPlan
from sim.two_phase.world import TwoPhaseWorld
from twofold.client import Admin, ConfigChange, ConfigResource, NewTopic, ResourceType
from twofold.config.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

MORTALS = [TopicPartition(MORTAL, 0), TopicPartition(MORTAL, 1)]
TRIMMED = [TopicPartition(SHORT, 0), TopicPartition(TABLE, 0)]


class MixedGroup(GroupWorld):
    """Its members may use transactions."""

    is_transactional: Callable[[], bool]

    def _member(self, runtime: Runtime, plan: Any, name: str) -> Any:
        return TxnMember(runtime, plan, self.history, name, BOOTSTRAP, self.is_transactional)


class Wanderer(Writer):
    """A writer whose transactions also reach a topic that may be gone in the middle of them."""

    _scene: "MixedWorld"

    async def _steps(self, txn: Txn) -> None:
        await super()._steps(txn)
        if self._random.random() < 0.5 and not self._scene.draining:
            number = sum(len(writes) for writes in (txn.writes, self._scene.wandered.get(txn.label, [])))
            value = Value(txn.label, number).encode()
            self._scene.wandered.setdefault(txn.label, []).append(value)
            await self._driver.send({self._random.choice(MORTALS): [value]})
            self._scene.reached += 1


class MixedWorld(TwoPhaseWorld):
    plan: MixedPlan
    watch: MixedWatch

    def __init__(self, plan: MixedPlan, watch: MixedWatch, sim: BrokerSimulation) -> None:
        super().__init__(plan, watch, sim)
        self.plain = World(plan.plain, watch, sim, self.node)
        self.plain.others = {
            *plan.topics,
            SHORT,
            TABLE,
            MORTAL,
            *plan.group.topics,
            TRANSACTION_STATE,
            CONSUMER_OFFSETS,
        }
        self.group = MixedGroup(plan.group, watch.groups, sim, self.node)
        self.group.is_transactional = lambda: plan.transactional_members and not self.draining
        self.wandered: dict[str, list[bytes]] = {}
        """What the transactions wrote to the topic that is deleted now and then."""
        self.reached = self.deleted = self.altered = 0
        watch.mortal = {MORTAL}
        self._admin_random = Random(f"{plan.seed}/administrators")

    def of(self, *topics: str) -> list[TopicPartition]:
        return super().of(*topics) + [tp for tp in TRIMMED if tp.topic in topics]

    def targets(self) -> list[TopicPartition]:
        return super().targets() + self.of(SHORT, TABLE)

    # The beginning

    async def _set_up(self, runtime: Runtime) -> None:
        await super()._set_up(runtime)
        async with Admin(runtime=runtime, bootstrap_servers=BOOTSTRAP) as admin:
            topics = [
                NewTopic(name=name, num_partitions=1, configs=self.plan.topic_configs | configs)
                for name, configs in TRIMMED_CONFIGS.items()
            ]
            (await admin.create_topics([*topics, NewTopic(name=MORTAL, num_partitions=len(MORTALS))])).get()

    async def start(self) -> None:
        await super().start()
        await self.plain.start_clients()
        await self.group.start_clients()
        if self.plan.deletes:
            self._spawn("executioner", self._delete_often())
        if self.plan.alters:
            self._spawn("operator", self._alter_often())

    def start_actor(self, plan: ActorPlan) -> None:
        if isinstance(plan, AppPlan):
            super().start_actor(plan)
        elif isinstance(plan, CopierPlan):
            TxnWorld.start_actor(self, plan)
        else:
            assert isinstance(plan, WriterPlan)
            incarnation = self._incarnations[plan.node] = self._incarnations.get(plan.node, 0) + 1
            runtime = self.sim.runtime(plan.node)
            actor = Wanderer(self, runtime, plan, f"{plan.node}/{incarnation}", self.targets())
            self.actors[plan.node] = actor
            self._spawn(plan.node, actor.run())

    # Administrators

    async def _administer(self, node: str, pause_s: float, act: Callable[[Admin], Any]) -> None:
        runtime = self.sim.runtime(node)
        async with Admin(
            runtime=runtime, bootstrap_servers=BOOTSTRAP, request_timeout_ms=700, default_api_timeout_ms=3000
        ) as admin:
            while not self.draining:
                await runtime.timers.sleep(self._admin_random.uniform(0, 2 * pause_s))
                try:
                    await act(admin)
                except KafkaError as error:
                    self.note(f"{node}: {error}")

    async def _delete_often(self) -> None:
        await self._administer("executioner", self.plan.deletes, self._replace_mortal)

    async def _replace_mortal(self, admin: Admin) -> None:
        await admin.delete_topics([MORTAL])
        self.note(f"deleted {MORTAL}")
        self.deleted += 1
        if self._admin_random.random() < 0.3:
            await asyncio.sleep(self._admin_random.uniform(0, 0.3))
        await admin.create_topics([NewTopic(name=MORTAL, num_partitions=len(MORTALS))])

    async def _alter_often(self) -> None:
        await self._administer("operator", 0.2, self._alter)

    async def _alter(self, admin: Admin) -> None:
        topic = self._admin_random.choice([*self.plan.topics, SHORT, TABLE])
        change = self._admin_random.choice(TOPIC_CHANGES)
        changes = [ConfigChange(key, value) for key, value in change.items()]
        await admin.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, topic): changes})
        self.altered += 1

    # The end

    def raise_if_wrong(self) -> None:
        super().raise_if_wrong()
        self.plain.raise_if_wrong()
        self.group.raise_if_wrong()

    async def _drain(self) -> None:
        self.plain.draining = True
        self.group.start_missing()
        await super()._drain()
        await self.plain.end_writing()
        before = await self.group.come_together()
        self._generation = before[0].generation

    async def _close_ids(self) -> None:
        await TxnWorld._close_ids(self)
        await super()._close_ids()

    async def _look(self) -> None:
        await super()._look()
        await self.plain.look()
        after = await self.group.come_together()
        require(after[0].generation >= self._generation, f"generation {self._generation} was followed by {after}")

    async def _stop(self) -> None:
        await self.plain.cancel()
        await self.group.cancel()
        await super()._stop()

    def trimmed_logs(self) -> dict[TopicPartition, LogTruth]:
        """As if nothing had ever been taken away."""
        return {tp: LogTruth(tp, self.watch.appended.get(tp, [])) for tp in TRIMMED}

    def mortal_logs(self) -> dict[TopicPartition, LogTruth]:
        return {tp: LogTruth(tp, batches_on_disk(self.sim.disk(BROKER), f"{DATA}/{tp}")) for tp in MORTALS}


class MixedNemesis(TxnNemesis):
    """Kills any of the clients, each in the way that is its own."""

    _world: MixedWorld

    def __init__(self, world: MixedWorld) -> None:
        super().__init__(world)
        self._of_group = GroupNemesis(world.group)
        self._of_plain = Nemesis(world.plain)

    async def _kill_client(self) -> None:
        plan = self._world.plan
        ways = [self._of_group._kill_client] if plan.group.members else []
        ways += [self._of_plain._kill_client] if plan.plain.producers else []
        ways += [super()._kill_client] * 2 if plan.writers or plan.copiers else []
        if ways:
            await self._random.choice(ways)()


@dataclass(frozen=True)
class MixedOutcome:
    seed: int
    digest: str
    virtual_s: float
    starts: int
    committed: int
    aborted: int
    unknown: int
    prepared: int
    read: int
    copied: int
    acknowledged: int
    failed: int
    group_commits: int
    group_refused: int
    generations: int
    deleted: int
    reached: int
    expired: int
    altered: int
    trimmed: int
    """Records that retention or the cleaner took."""


def simulate_mixed(seed: int, plan: MixedPlan | None = None) -> MixedOutcome:
    """Raises what went wrong, with the way to see it again."""
    plan = plan or make_mixed_plan(seed)
    trimmed = {tp.topic for tp in TRIMMED}
    with (
        MixedWatch(outside_ids=plan.outside_ids, trimmed=trimmed, has_disk_errors=plan.has_disk_errors) as watch,
        ErrorLog(plan) as errors,
    ):
        sim = BrokerSimulation(plan, watch)
        with repeatable(sim, seed, plan, "mixed_seed"):
            return _simulate(plan, watch, sim, errors)


def _simulate(plan: MixedPlan, watch: MixedWatch, sim: BrokerSimulation, errors: ErrorLog) -> MixedOutcome:
    world = play(sim, errors, lambda: MixedWorld(plan, watch, sim), MixedNemesis)
    world.settle_history()
    gone = check(world)
    history = world.history
    outcomes = [txn.outcome for txn in history.txns]
    return MixedOutcome(
        seed=plan.seed,
        digest=sim.digest(),
        virtual_s=sim.now_s,
        starts=watch.starts,
        committed=outcomes.count(Outcome.COMMITTED),
        aborted=outcomes.count(Outcome.ABORTED),
        unknown=outcomes.count(Outcome.UNKNOWN),
        prepared=world.prepared,
        read=sum(len(reading.polled) for reading in history.readings),
        copied=sum(len(txn.reads) for txn in history.txns if txn.outcome is Outcome.COMMITTED),
        acknowledged=sum(sent.acknowledged for sent in world.plain.history),
        failed=sum(failures(world.plain.history).values()),
        group_commits=world.group.history.acknowledged,
        group_refused=world.group.history.refused,
        generations=len(world.group.history.generations),
        deleted=world.deleted,
        reached=world.reached,
        expired=watch.transitions.get("removed", 0),
        altered=world.altered,
        trimmed=gone,
    )


def check(world: MixedWorld) -> int:
    """How many records are gone that were allowed to go."""
    history, logs = world.history, world.logs()
    trimmed = world.trimmed_logs()
    everything = logs | trimmed
    check_logs(history, everything)
    readers_see_committed(history, logs)
    for reading in history.readings:
        reached_the_end(reading, logs)
    offsets_follow(history, everything)
    copied_once(logs, {plan.source: plan.target for plan in world.plan.copiers}, MAX_HOPS)
    no_cycles(history, everything)
    check_plain(world.plain)
    check_deleted(history, world.mortal_logs(), world.wandered)
    disk = world.sim.disk(BROKER)
    return sum(check_trimmed(truth, batches_on_disk(disk, f"{DATA}/{tp}")) for tp, truth in trimmed.items())
