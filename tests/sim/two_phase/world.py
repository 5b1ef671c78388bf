"""Applications that write to a database and to the log at once, by the recipe of KIP-939, and die wherever it hurts.

The database is the outside coordinator: what it says of a transaction is the truth, and every transaction that was
prepared ends as it says, whoever is alive by then, whatever the clocks show and however often the broker has died.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kits.wire.driver import NO_IDENTITY, Abortable, Fatal, Fenced, Identity, TimedOut, TransactionError
from kits.wire.two_phase import TwoPhaseDriver, prepared_state
from sim.broker.nemesis import MAX_JUMP_MS
from sim.broker.watch import require
from sim.broker.world import BROKER, BrokerSimulation, ErrorLog
from sim.frame import play, repeatable
from sim.transactions.clients import BOOTSTRAP, Actor, Past, SimDriver, ledger
from sim.transactions.history import Outcome, Txn, Value, Write
from sim.transactions.plan import ActorPlan, WorldPlan
from sim.transactions.world import TxnNemesis, TxnWorld, check
from sim.two_phase.plan import AppPlan, TwoPhasePlan, make_two_phase_plan
from sim.two_phase.watch import TwoPhaseWatch
from twofold.coordinator.transaction.coordinator import Decision
from twofold.runtime.api import Runtime
from twofold.types import ProducerEpoch, TopicPartition
from twofold.wire.errors import InvalidProducerIdMapping

YEAR_MS = 365 * 86_400_000
AGES_MS = (-20 * YEAR_MS, 80 * YEAR_MS)


class Database:
    """One row for each transactional id: what was prepared with the last commit, and who may commit next."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.committed: dict[str, str] = {}
        """Every state that was ever committed, with the transaction that it stands for."""
        self._owners: dict[str, int] = {}

    def take_over(self, transactional_id: str) -> tuple[int, str]:
        """From now on nobody who was here before can commit; what they have committed is seen."""
        owner = self._owners[transactional_id] = self._owners.get(transactional_id, 0) + 1
        return owner, self.states.get(transactional_id, "")

    def commit(self, transactional_id: str, owner: int, state: str, label: str) -> bool:
        """The data of the application, and the state of the log's transaction, in one go."""
        if self._owners[transactional_id] != owner:
            return False
        require(state not in self.committed, f"{state} stands for {self.committed.get(state)} and for {label}")
        self.states[transactional_id] = state
        self.committed[state] = label
        return True


class SimTwoPhaseDriver(SimDriver, TwoPhaseDriver):
    """Ghosts may repeat an initialization as well, unless it is one that ends by force whatever is open."""

    async def ask(self, node_id: int | None, message: Any, api: str, version: int | None = None) -> Any:
        if (
            self.past is not None
            and api == "InitProducerId"
            and (message.keep_prepared_txn or message.producer_id >= 0)
        ):
            self.past.append(Past(message, api, version, self.identity, True))
        return await super().ask(node_id, message, api, version)


class LostIdentity(Exception):
    """Somebody else has the id by now: recover, and see."""


class App(Actor):
    plan: AppPlan
    _scene: "TwoPhaseWorld"
    _driver: SimTwoPhaseDriver

    def __init__(
        self, world: "TwoPhaseWorld", runtime: Runtime, plan: AppPlan, instance: str, targets: list[TopicPartition]
    ) -> None:
        super().__init__(world, runtime, plan, instance)
        self._driver = SimTwoPhaseDriver(
            runtime,
            BOOTSTRAP,
            plan.transactional_id,
            versions=plan.versions,
            timeout_ms=plan.timeout_ms,
            patience_ms=4000,
            request_timeout_ms=plan.request_timeout_ms,
            socket_connection_setup_timeout_ms=1000,
            client_id=instance,
        )
        self._driver.vows = plan.vows
        self._driver.past = world.past
        self._targets = targets
        self._owner = 0
        self.is_last = False
        """It recovers what it finds, makes one more transaction, and is done."""

    async def run(self) -> None:
        try:
            while not self.is_done():
                try:
                    await self._recover()
                    await self.work()
                except (Fenced, LostIdentity) as error:
                    self._scene.note(f"lost {self.instance} {error}")
                await self._sleep(self._random.uniform(0, 0.1))
        finally:
            await self._driver.close()

    def is_done(self) -> bool:
        return self.committed > 0 if self.is_last else self._scene.draining

    async def _maybe_die(self, where: str) -> None:
        """With what it was about to send, or just after it has sent it."""
        if self._random.random() < self.plan.dies and not self._scene.draining:
            self._scene.note(f"{self.instance} dies {where}")
            delay_s = self._random.choice((0.0, 0.0, 0.002, 0.02))
            if delay_s:
                asyncio.get_running_loop().call_later(delay_s, self._scene.die, self.plan.node, self)
            else:
                self._scene.die(self.plan.node, self)
                await self._sleep(3600)

    # The recipe

    async def _recover(self) -> None:
        ongoing = Identity(*await self._insist(self._driver.recover))
        self._given()
        await self._maybe_die("after recovery")
        self._owner, state = self._scene.database.take_over(self.plan.transactional_id)
        if ongoing != NO_IDENTITY:
            self._scene.recovered += 1
            commit = state == prepared_state(ongoing)
            self._scene.note(f"{self.instance} found {ongoing}, the database says {state!r}")
            await self._finish(ongoing, commit)
        if not self.plan.vows:
            await self._begin_anew()

    async def _begin_anew(self) -> None:
        """Where it does not vow: the vow is taken when the next transaction is prepared. It says who it is: an
        initialization that neither keeps nor says so would end by force what another instance has prepared."""
        await self._lost_or(lambda: self._driver.init(self._driver.identity))
        self._given()

    async def work(self) -> None:
        while not self.is_done():
            await self._sleep(self._random.uniform(0, 2 * self.plan.pause_s))
            if self._random.random() < 0.2:
                await self._begin_anew()  # as a client does that wants to go on after an error (KIP-360)
            txn = self.begin()
            try:
                await self._write(txn)
                state = await self._insist(self._driver.prepare)
            except (Abortable, TimedOut) as error:
                self._scene.note(f"aborts {txn.label} {error}")
                await self._abort(txn)
                continue
            if self._driver.identity != txn.identity:
                self._given()
            if not state:
                # It took too long and is gone, and what was kept instead may be somebody else's.
                raise LostIdentity(f"{txn.label} is not there to be prepared")
            await self._decide(txn, state)
            if not self.plan.vows:
                await self._begin_anew()

    async def _write(self, txn: Txn) -> None:
        number = 0
        for _ in range(self._random.randint(1, self.plan.sends)):
            wanted = len(self._targets) if self.is_last else self._random.randint(1, self.plan.partitions)
            writes = []
            for tp in self._random.sample(self._targets, min(len(self._targets), wanted)):
                writes.append(Write(tp, Value(txn.label, number).encode()))
                number += 1
            await self._send(txn, writes)
            await self._maybe_die("while it writes")
        if self.plan.offsets:
            group = ledger(self.plan.transactional_id)
            await self._send_offsets(txn, group, {self._targets[0]: self._scene.next_number(group)})

    async def _decide(self, txn: Txn, state: str) -> None:
        """It is prepared: from here on the database decides."""
        self._scene.prepared += 1
        self._scene.note(f"prepared {txn.label} {state}")
        await self._maybe_die("before the database commits")
        commit = self.is_last or self._random.random() >= self.plan.abort
        if commit:
            if not self._scene.database.commit(self.plan.transactional_id, self._owner, state, txn.label):
                raise LostIdentity(f"{txn.label}: somebody else works with the database")
            txn.commit_sent_s = self._scene.now_s
            self._scene.note(f"decided {txn.label}")
        await self._maybe_die("after the database has decided")
        self._scene.on_commit(self)
        await self._finish(txn.identity, commit)
        txn.ended_s = self._scene.now_s
        self.committed += commit

    async def _abort(self, txn: Txn) -> None:
        self._scene.watch.asked.add((txn.identity, False))
        await self._lost_or(self._driver.abort)
        txn.ended_s = self._scene.now_s
        if self._driver.identity != txn.identity:
            self._given()

    async def _finish(self, identity: tuple[int, int], commit: bool) -> None:
        self._scene.watch.asked.add((identity, commit))
        await self._maybe_die("before it ends it")
        await self._lost_or(lambda: self._driver.finish(commit))
        self._scene.watch.check_told(identity, True, commit)
        self._given()

    async def _lost_or(self, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            await self._insist(call)
        except Fatal as error:
            if not isinstance(error.error, InvalidProducerIdMapping):
                raise AssertionError(f"{self.instance}: {error}") from error
            raise LostIdentity(str(error)) from error

    async def _send(self, txn: Txn, writes: list[Write]) -> None:
        try:
            await super()._send(txn, writes)
        except Fatal as error:
            self._lost(error)

    async def _send_offsets(self, txn: Txn, group: str, offsets: dict[TopicPartition, int]) -> None:
        try:
            await super()._send_offsets(txn, group, offsets)
        except Fatal as error:
            self._lost(error)

    def _lost(self, error: TransactionError) -> None:
        """Another producer id has the transactional id, or the transaction is one that may only be ended."""
        if error.error.code not in (48, 49):
            raise AssertionError(f"{self.instance}: {error}") from error
        raise LostIdentity(str(error)) from error


class TwoPhaseWorld(TxnWorld):
    watch: TwoPhaseWatch

    def __init__(self, plan: WorldPlan, watch: TwoPhaseWatch, sim: BrokerSimulation) -> None:
        super().__init__(plan, watch, sim)
        self.database = Database()
        self.prepared = self.recovered = self.deaths = 0
        watch.is_committed = lambda pair: prepared_state(Identity(*pair)) in self.database.committed

    async def _age(self, runtime: Runtime, transactional_id: str) -> None:
        """As the ids of others, on disk: a power cut must not make it young again."""
        driver = TwoPhaseDriver(runtime, BOOTSTRAP, transactional_id)
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
        assert isinstance(plan, AppPlan)
        self._start_app(plan, plan.node)

    def _start_app(self, plan: AppPlan, node: str) -> App:
        incarnation = self._incarnations[node] = self._incarnations.get(node, 0) + 1
        app = App(self, self.sim.runtime(node), plan, f"{node}/{incarnation}", self.targets())
        self.actors[node] = app
        self._spawn(node, app.run())
        return app

    def die(self, node: str, app: App) -> None:
        """kill -9; somebody starts it again after a while."""
        if self.actors.get(node) is app and not self._tasks[node].done() and not self.draining:
            self.deaths += 1
            self.kill_actor(node)
            delay_s = self._random.choice((0.001, 0.1, 0.5))
            asyncio.get_running_loop().call_later(delay_s, self._revive, app.plan)

    def _revive(self, plan: AppPlan) -> None:
        if plan.node not in self.actors and not self.draining:
            self.start_actor(plan)

    async def _close_ids(self) -> None:
        """For each id somebody new recovers what was left, and commits to every partition."""
        plans = {plan.transactional_id: plan for plan in self.plan.writers if isinstance(plan, AppPlan)}
        for transactional_id, plan in plans.items():
            node = f"closer-{transactional_id}"
            app = self._start_app(plan, node)
            app.is_last = True
            await self.within_bound(f"the last transaction of {transactional_id}", partial(self._running, node))

    def settle_history(self) -> None:
        """What the database says is what became of every transaction."""
        committed = set(self.database.committed.values())
        ids = {plan.transactional_id for plan in self.plan.writers if isinstance(plan, AppPlan)}
        for txn in self.history.txns:
            if txn.transactional_id not in ids:
                continue
            txn.told = Outcome.COMMITTED if txn.label in committed else Outcome.ABORTED
            if txn.told is Outcome.ABORTED:
                txn.commit_sent_s = None


class TwoPhaseNemesis(TxnNemesis):
    """Years pass, in both directions, several times in a run."""

    async def run(self) -> None:
        await asyncio.gather(super().run(), self._let_years_pass())

    async def _let_years_pass(self) -> None:
        until = self._sim.now_s + self._world.plan.duration_s
        while "clock" in self._world.plan.faults and self._sim.now_s < until:
            await self._world.pause(self._random.uniform(0, 0.4))
            await self._jump()

    async def _jump(self) -> None:
        limits = self._random.choice(((-2000, 2000), (-MAX_JUMP_MS, MAX_JUMP_MS), AGES_MS, AGES_MS))
        target_ms = self._random.randint(*limits)
        self._sim.jump_clock(BROKER, target_ms - self._skew_ms.get(BROKER, 0))
        self._skew_ms[BROKER] = target_ms


@dataclass(frozen=True)
class TwoPhaseOutcome:
    seed: int
    digest: str
    starts: int
    committed: int
    aborted: int
    prepared: int
    recovered: int
    decided: int
    keeps: int
    deaths: int
    repeated: int
    rotated: int
    """Producer ids beyond the first of each transactional id."""
    remembered: int
    """Records that say how an earlier two-phase transaction ended, each compared with the database."""


def simulate_two_phase(seed: int, plan: TwoPhasePlan | None = None) -> TwoPhaseOutcome:
    """Raises what went wrong, with the way to see it again."""
    plan = plan or make_two_phase_plan(seed)
    with TwoPhaseWatch(compacted=plan.compacted) as watch, ErrorLog(plan) as errors:
        sim = BrokerSimulation(plan, watch)
        with repeatable(sim, seed, plan, "two_phase_seed"):
            return _simulate(plan, watch, sim, errors)


def _simulate(plan: TwoPhasePlan, watch: TwoPhaseWatch, sim: BrokerSimulation, errors: ErrorLog) -> TwoPhaseOutcome:
    world = play(sim, errors, lambda: TwoPhaseWorld(plan, watch, sim), TwoPhaseNemesis)
    world.settle_history()
    check(world)
    outcomes = [txn.outcome for txn in world.history.txns]
    return TwoPhaseOutcome(
        seed=plan.seed,
        digest=sim.digest(),
        starts=watch.starts,
        committed=outcomes.count(Outcome.COMMITTED),
        aborted=outcomes.count(Outcome.ABORTED),
        prepared=world.prepared,
        recovered=world.recovered,
        decided=watch.decided,
        keeps=watch.keeps,
        deaths=world.deaths,
        repeated=world.ghost.repeated if world.ghost is not None else 0,
        rotated=len(watch.producer_ids) - len({app.transactional_id for app in plan.writers}),
        remembered=watch.remembered,
    )
