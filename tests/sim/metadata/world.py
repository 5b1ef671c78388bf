"""Controllers under random requests and faults, one run a seed: on one replicated log, or one of them on its own disk.

Administrators create, grow, change and delete topics, brokers register, come and go, all with timeouts and second
tries, while leadership moves, uncommitted batches are lost, standbys are slow, and processes and machines die. What is
checked, at every commit, publication, answer and start, is in `sim_quorum_truth`, `sim_quorum_requests`,
`sim_quorum_log` and `sim_quorum_files`. When everything has healed, everybody is answered, and has the same image.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, NamedTuple

from sim.broker.watch import Violation, require
from sim.broker.world import ErrorLog
from sim.frame import repeatable
from sim.metadata.files import NODE, MetadataSimulation, Node
from sim.metadata.log import Member
from sim.metadata.plan import FILES, AdminPlan, BrokerPlan, MetadataPlan, make_metadata_plan
from sim.metadata.requests import Ask, Moment, Shelf, check_error, random_ask
from sim.metadata.stage import Settled, Stage, small_appends
from sim.metadata.truth import Truth, difference
from twofold.quorum.quorum_controller import QuorumController
from twofold.runtime.api import Runtime
from twofold.runtime.sim import PowerCut
from twofold.wire.errors import KafkaError, error_for

MAX_VIRTUAL_S = 600.0
PROGRESS_S = 30.0
SESSION_S = 0.11
SLOWEST_S = 0.05


class Target(NamedTuple):
    """Whom a client asks."""

    controller: QuorumController
    runtime: Runtime


class MetadataWorld(ABC):
    """What both variants share: the clients, and how it ends."""

    def __init__(
        self, plan: MetadataPlan, sim: MetadataSimulation, truth: Truth, shelf: Shelf, violations: list[Violation]
    ) -> None:
        self.plan = plan
        self.sim = sim
        self.random = Random(f"{plan.seed}/metadata world")
        self.truth = truth
        self.shelf = shelf
        self.violations = violations
        self.draining = False
        self.asked = 0
        self.answered = 0
        self.refused = 0
        self._tasks: list[asyncio.Task[None]] = []

    # -- what a variant has

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def trouble(self) -> None:
        """One fault."""

    @abstractmethod
    async def heal(self) -> None: ...

    @abstractmethod
    async def finish(self) -> None: ...

    @abstractmethod
    def target(self) -> Target | None: ...

    def check(self) -> None:
        if self.violations:
            raise self.violations[0]
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        if self.sim.failures:
            raise self.sim.failures.pop(0)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.append(task)
        return task

    # -- running

    async def run(self) -> None:
        await self.start()
        clients = [self.spawn(self._administer(admin), admin.node) for admin in self.plan.admins]
        clients += [self.spawn(self._be_broker(plan), f"broker{plan.broker_id}") for plan in self.plan.brokers]
        until = self.sim.now_s + self.plan.duration_s
        while self.sim.now_s < until:
            await self.pause(self.random.uniform(0, 0.03))
            if self.plan.faults and self.sim.now_s < until:
                await self.trouble()
        await self.heal()
        self.draining = True
        self.sim.note("healed")
        await self.within_bound("the clients", lambda: all(client.done() for client in clients))
        await self._ask_last()
        await self.finish()
        self.shelf.check_last(self.truth.image)
        for task in self._tasks:
            task.cancel()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.check()

    async def within_bound(self, what: str, is_done: Callable[[], bool]) -> None:
        started = self.sim.now_s
        while not is_done():
            await self.pause(0.01)
            require(self.sim.now_s - started < PROGRESS_S, f"{what}: not done {PROGRESS_S:.0f} s after all healed")

    # -- clients

    async def _serve(self, ask: Ask, target: Target, moment: Moment) -> Settled:
        """What is answered is judged when it is answered, whether anybody still waits for it or not."""
        try:
            response = await ask.call(target.controller)
        except KafkaError as error:
            self.refused += 1
            self._judge(partial(check_error, ask, error))
            return Settled(error=error)
        self.sim.note(f"answer {ask.text}")
        self._judge(lambda: ask.judge(response, moment))
        settled = Settled(response)
        self.answered += not settled.is_refused
        self.refused += settled.is_refused
        return settled

    def _judge(self, judge: Callable[[], None]) -> None:
        try:
            judge()
        except Violation as violation:
            self.violations.append(violation)

    async def insist(self, ask: Ask, timeout_s: float, tries: int, *, cancels: bool = False) -> Settled | None:
        """Until there is an answer that is not "try again"; None when it was given up."""
        self.asked += 1
        self.sim.note(f"ask {ask.text}")
        tried = 0
        while tried < tries or self.draining:
            tried += 1
            target = self.target()
            if target is None:
                await asyncio.sleep(0.005)
                continue
            moment = Moment(self.truth, self.truth.index_at(target.controller.image.offset))
            task = target.runtime.spawn(self._serve(ask, target, moment), name=ask.text)
            await asyncio.wait({task}, timeout=timeout_s)
            if not task.done():
                if cancels:
                    task.cancel()
            elif not task.cancelled() and not isinstance(task.exception(), PowerCut):
                settled = task.result()
                if not is_retriable(settled):
                    return settled
            await asyncio.sleep(0.002)
        return None

    async def _administer(self, plan: AdminPlan) -> None:
        random = Random(f"{self.plan.seed}/{plan.node}")
        while not self.draining:
            await asyncio.sleep(random.uniform(0, 2 * plan.pause_s))
            ask = random_ask(self.shelf, random, plan.largest)
            await self.insist(ask, plan.timeout_s, plan.tries, cancels=plan.cancels)

    async def _be_broker(self, plan: BrokerPlan) -> None:
        """In the end it is there."""
        random = Random(f"{self.plan.seed}/broker{plan.broker_id}")
        incarnation = plan.broker_id * 1_000_000
        while True:
            incarnation += 1
            settled = await self.insist(self.shelf.register(plan.broker_id, incarnation), plan.timeout_s, 5)
            if (
                settled is not None
                and not settled.is_refused
                and await self._serve_as(plan, settled.response.broker_epoch, random)
            ):
                return
            await asyncio.sleep(random.uniform(0, SESSION_S))

    async def _serve_as(self, plan: BrokerPlan, epoch: int, random: Random) -> bool:
        """Whether the broker stays for good, and is there; otherwise it begins anew."""
        shelf, broker_id = self.shelf, plan.broker_id
        while True:
            await asyncio.sleep(random.uniform(0, 2 * plan.pause_s))
            leaves = not self.draining and random.random() < plan.leaves
            if leaves and random.random() < 0.5:
                return False  # it died
            beat = shelf.beat(broker_id, epoch, self.truth.image.offset, leaves=leaves)
            settled = await self.insist(beat, plan.timeout_s, 5)
            if settled is not None and (settled.is_refused or settled.response.should_shut_down):
                return False
            if self.draining and settled is not None and not settled.response.is_fenced:
                return True
            if random.random() < 0.3:
                await self.insist(shelf.ids(broker_id, epoch, f"broker {broker_id}/{epoch}"), plan.timeout_s, 3)

    async def _ask_last(self) -> None:
        """Whatever happened before, everything can be done."""
        shelf = self.shelf
        if not any(broker.is_active for broker in self.truth.image.brokers.values()):
            return
        created = shelf.create([3, 3])
        names = [name for name in shelf.topics if name.startswith(f"r{shelf.numbers}-")]
        asks = (created, shelf.grow(dict.fromkeys(names, 5)), shelf.alter(names), shelf.delete(names[:1]))
        for ask in asks:
            settled = await asyncio.wait_for(self.insist(ask, 5.0, 100), PROGRESS_S)
            rows = () if settled is None else rows_of(settled.response)
            require(rows and not any(row.error_code for row in rows), f"{ask.text} after all healed: {settled}")


def rows_of(response: object) -> Sequence[Any]:
    fields = ("topics", "results", "responses")
    return next(getattr(response, name) for name in fields if hasattr(response, name))


def is_retriable(settled: Settled) -> bool:
    """Somebody is to be asked again."""
    code = getattr(settled.response, "error_code", 0)
    return settled.error is not None or (code != 0 and error_for(code).retriable)


# -- a replicated log


class QuorumWorld(MetadataWorld):
    def __init__(self, plan: MetadataPlan, sim: MetadataSimulation) -> None:
        self.stage = Stage(sim, plan.controllers)
        super().__init__(plan, sim, self.stage.truth, self.stage.shelf, self.stage.violations)
        self.moves = 0
        self.lost = 0

    @property
    def members(self) -> list[Member]:
        return self.stage.members

    async def start(self) -> None:
        self._move(self.members[0])
        self.spawn(self._replicate(), "replication")
        for member in self.members:
            self.spawn(self._load(member.number), f"loader {member.name}")

    def target(self) -> Target | None:
        """Mostly the leader, or one that believes to be."""
        leading = [member for member in self.members if member.controller.is_leader]
        found = self.random.choice(leading if leading and self.random.random() < 0.95 else self.members)
        return Target(found.controller, found.runtime)

    async def _replicate(self) -> None:
        """Batches are committed some time after they were appended, and the leader hears of it still later."""
        random = Random(f"{self.plan.seed}/replication")
        while True:
            await asyncio.sleep(random.uniform(0, 0.002))
            if self.stage.quorum.leader is not None:
                self.stage.quorum.commit(random.choice((0, 1, 1, 2, 100)))
            await asyncio.sleep(random.choice((0, 0, random.uniform(0, 0.002))))
            for member in self.members:
                if member.leads:
                    member.tell(random.choice((None, 1)))

    async def _load(self, number: int) -> None:
        """One controller standing by, until it is elected and knows all."""
        random = Random(f"{self.plan.seed}/loader{number}")
        is_slow = "slow" in self.plan.faults and random.random() < 0.5
        while True:
            await asyncio.sleep(random.uniform(0, SLOWEST_S if is_slow and not self.draining else 0.004))
            member = self.members[number]
            if member.is_deposed and (self.draining or "late" not in self.plan.faults or random.random() < 0.1):
                member.resign()
            if not member.controller.is_leader:
                if "snapshot" in self.plan.faults and random.random() < 0.1:
                    member.load_snapshot(random.randrange(len(self.truth.images)))
                member.load(random.choice((1, 1, 5, 1000)), at_once=random.random() < 0.3)
                member.lead_if_ready()
            if random.random() < 0.5:
                self.stage.follower.load(random.choice((1, 3, 1000)))
            if "snapshot" in self.plan.faults and random.random() < 0.03:
                self.stage.follower.load_snapshot(random.randrange(len(self.truth.images)))

    def _move(self, member: Member) -> None:
        leader = self.stage.quorum.leader
        tail = 0 if leader is None else len(leader.tail)
        keep = self.random.randint(0, tail)
        self.moves += 1
        self.lost += tail - keep
        others = [other for other in self.members if other is not member]
        member.elect(keep, others, told="late" not in self.plan.faults or self.random.random() < 0.5)

    def _other(self) -> Member:
        return self.random.choice([member for member in self.members if not member.leads] or self.members)

    async def trouble(self) -> None:
        fault = self.random.choice(self.plan.faults)
        if fault == "move":
            self._move(self._other())
        elif fault == "move at append":
            self._move_at_append(self.random.randint(1, 12))
        elif fault == "refuse":
            leader = next((member for member in self.members if member.leads), None)
            if leader is not None:
                leader.replica.refuse_in = self.random.randint(1, 8)
        elif fault == "crash":
            await self._crash(self.random.choice(self.members))

    def _move_at_append(self, count: int) -> None:
        """Right after so many more batches, before the leader goes on."""
        leader = next((member for member in self.members if member.leads), None)
        if leader is None:
            return
        loop = asyncio.get_running_loop()
        left = [count]

        def on_append() -> None:
            left[0] -= 1
            if not left[0]:
                leader.replica.on_append = lambda: None
                loop.call_soon(move)

        def move() -> None:
            if leader.leads and not self.draining:
                self._move(self._other())

        leader.replica.on_append = on_append

    async def _crash(self, member: Member) -> None:
        """It begins anew, with nothing but what the others have committed."""
        led = member.leads or member.elected is not None
        self.sim.crash(member.name, power_cut=False)
        self.members[member.number] = self.stage.new_member(member.number)
        if led:
            await self.pause(self.random.uniform(0, 0.02))
            self._move(self.random.choice(self.members))

    async def heal(self) -> None:
        for member in self.members:
            member.replica.refuse_in = 0
        if not any(member.leads or member.elected is not None for member in self.members):
            self._move(self.members[0])

    async def finish(self) -> None:
        stage = self.stage
        await self.within_bound(
            "loading",
            lambda: (
                not (stage.quorum.leader and stage.quorum.leader.tail)
                and all(not member.lag for member in self.members)
            ),
        )
        stage.finish()
        self.check()


# -- one on its own disk


class FilesWorld(MetadataWorld):
    def __init__(self, plan: MetadataPlan, sim: MetadataSimulation) -> None:
        truth = Truth()
        super().__init__(plan, sim, truth, Shelf(truth), [])
        self.node = Node(sim, self.truth, self.violations, plan.settings)
        self.node.disk_fails = plan.has_disk_errors
        self._calm_s = sim.blocking_delay_s

    async def start(self) -> None:
        self.spawn(self.node.supervise(), "supervisor")
        if "slow" in self.plan.faults:
            self.sim.blocking_delay_s = (0.0001, 0.01)

    def target(self) -> Target | None:
        controller, runtime = self.node.controller, self.node.runtime
        return None if controller is None or runtime is None else Target(controller, runtime)

    async def trouble(self) -> None:
        fault = self.random.choice(self.plan.faults)
        disk = self.sim.disk(NODE)
        if fault in ("kill", "power"):
            power_cut = fault == "power"
            for _ in range(self.random.choice((1, 1, 2, 3))):
                self.sim.crash_after(NODE, self.random.choice((0, 1, 3, 10, 30)), power_cut=power_cut)
                await self.pause(self.random.uniform(0, 0.05))
        elif fault == "kill at append":
            self._kill_at_append(self.random.randint(1, 12))
        elif fault == "restart":
            self.node.stop()
        elif fault == "sync":
            disk.fail_syncs(1)
            await self.pause(self.random.uniform(0, 0.05))
            await self._end_disk_trouble()
        elif fault == "write":
            disk.fail_writes(1)
            await self.pause(self.random.uniform(0, 0.05))
            await self._end_disk_trouble()

    async def _end_disk_trouble(self) -> None:
        self.sim.disk(NODE).clear_faults()
        self.sim.crash(NODE, power_cut=False)
        await self.pause(0.005)

    def _kill_at_append(self, count: int) -> None:
        """Right after so many more batches are in the log, whether they are synced or not."""
        controller = self.node.controller
        if controller is not None:
            controller.crash_in = count, "power" in self.plan.faults

    async def heal(self) -> None:
        self.sim.disk(NODE).clear_faults()
        if self.node.controller is not None:
            self.node.controller.crash_in = None
        self.sim.blocking_delay_s = self._calm_s
        if self.plan.has_disk_errors:
            self.sim.crash(NODE, power_cut=False)  # a log that failed takes nothing before it was opened again

    async def finish(self) -> None:
        """One more restart changes nothing."""
        lives = self.node.lives
        before = self.truth.image
        if "power" in self.plan.faults:
            self.sim.crash(NODE, power_cut=True)
        else:
            self.node.stop()
        await self.within_bound("the last start", lambda: self.node.lives > lives and self.node.controller is not None)
        assert self.node.controller is not None
        wrong = difference(before, self.node.controller.image)
        require(not wrong, f"after the last restart the controller {wrong}")
        self.check()


# -- one run


@dataclass(frozen=True)
class MetadataOutcome:
    """What a run was, in numbers."""

    seed: int
    variant: str
    digest: str
    asked: int
    answered: int
    refused: int
    transactions: int
    aborted: int
    failovers: int
    moves: int
    """Elections, or lives."""
    lost: int
    """Batches that were appended and never committed."""


def simulate_metadata(seed: int, plan: MetadataPlan | None = None) -> MetadataOutcome:
    """Raises what went wrong, with the way to see it again."""
    plan = plan or make_metadata_plan(seed)
    with ErrorLog(plan) as errors, small_appends(plan.records):
        sim = MetadataSimulation(seed, plan.cut_mode)
        with repeatable(sim, seed, plan, "metadata_seed"):
            world = (FilesWorld if plan.variant == FILES else QuorumWorld)(plan, sim)
            sim.run(world.run(), timeout_s=MAX_VIRTUAL_S)
            if errors.unexpected:
                raise errors.unexpected[0]
    transactions = world.truth.transactions
    return MetadataOutcome(
        seed=seed,
        variant=plan.variant,
        digest=sim.digest(),
        asked=world.asked,
        answered=world.answered,
        refused=world.refused,
        transactions=len(transactions),
        aborted=sum(one.reason is not None for one in transactions),
        failovers=sum(one.reason == "Controller failover" for one in transactions),
        moves=world.moves if isinstance(world, QuorumWorld) else world.node.lives,
        lost=world.lost if isinstance(world, QuorumWorld) else 0,
    )
