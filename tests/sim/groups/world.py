"""A consumer group on a simulated broker: planned, troubled, healed, and looked at, one run for each seed."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from sim.broker.nemesis import TimedNemesis
from sim.broker.watch import require
from sim.broker.world import BROKER, BrokerNode, BrokerSimulation, ErrorLog
from sim.frame import play, repeatable
from sim.groups.check import GROUP, GroupHistory, GroupWatch
from sim.groups.member import GroupMember, MemberPlan, Place
from twofold.client import Admin, ConfigChange, ConfigResource, NewTopic, ResourceType
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.runtime.api import Runtime
from twofold.runtime.sim.disk import CutMode
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, RequestTimedOut

BOOTSTRAP = "broker:9092"
SLACK_S = 12.0
FAULTS = ("reset", "partition", "loss", "duplicate", "delay", "slow disk", "clock", "client kill")


@dataclass(frozen=True)
class GroupPlan:
    seed: int
    duration_s: float
    faults: tuple[str, ...]
    settings: dict[str, str]
    offsets_configs: dict[str, str]
    topics: dict[str, int]
    members: tuple[MemberPlan, ...]
    late: int
    """How many of the members join only later."""
    cut_mode: CutMode = CutMode.ORDERED
    has_disk_errors: bool = False
    has_power_cuts: bool = False

    @property
    def patience_s(self) -> float:
        """A member that was forgotten, or given an id that nobody uses, may lead once before it is found out."""
        sessions = max(member.session_timeout_ms for member in self.members)
        rebalances = max(member.rebalance_timeout_ms for member in self.members)
        return 2 * (sessions + rebalances) / 1000 + SLACK_S


def make_group_plan(seed: int) -> GroupPlan:
    random = Random(f"{seed}/group plan")
    faults = ["kill"] * (random.random() < 0.7) + ["restart"] * (random.random() < 0.3)
    faults += [fault for fault in FAULTS if random.random() < 0.4]
    count = random.randint(2, 6)
    session_ms, rebalance_ms = random.choice((1500, 3000)), random.choice((1000, 3000))
    return GroupPlan(
        seed=seed,
        duration_s=random.uniform(5, 12),
        faults=tuple(faults),
        settings={
            "node.id": "1",
            "listeners": "PLAINTEXT://broker:9092",
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": str(random.choice((1, 3))),
            "offsets.retention.check.interval.ms": str(random.choice((1000, 600_000))),
            "offsets.load.buffer.size": str(random.choice((500, 5_242_880))),
            "group.min.session.timeout.ms": "100",
            "group.initial.rebalance.delay.ms": str(random.choice((0, 300))),
            "log.cleaner.backoff.ms": str(random.choice((300, 2000))),
            "log.cleaner.dedupe.buffer.size": "1048576",
            "connections.max.idle.ms": str(random.choice((1500, 600_000))),
        },
        offsets_configs={
            "internal.segment.bytes": str(random.choice((1500, 20_000, 1 << 20))),
            "min.cleanable.dirty.ratio": random.choice(("0.01", "0.5")),
        },
        topics={"a": random.randint(1, 5), "b": random.randint(1, 4)},
        members=tuple(_member(random, n, session_ms, rebalance_ms) for n in range(count)),
        late=random.randint(0, count - 1),
    )


def _member(random: Random, number: int, session_ms: int, rebalance_ms: int) -> MemberPlan:
    return MemberPlan(
        node=f"member{number}",
        instance_id=f"static{number}" if random.random() < 0.35 else None,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        request_timeout_ms=random.choice((500, 1500)),
        join_version=random.choice((9, 9, 9, 7, 5)),
        commit_pause_s=random.choice((0.1, 0.3)),
        rejoins_when_cut_off=random.random() < 0.4,
    )


class GroupWorld:
    def __init__(
        self, plan: GroupPlan, watch: GroupWatch, sim: BrokerSimulation, node: BrokerNode | None = None
    ) -> None:
        """`node`: a broker that somebody else starts, for others as well."""
        self.plan = plan
        self.watch = watch
        self.sim = sim
        self.node = node or BrokerNode(sim, watch, plan)
        self.history = GroupHistory(
            TopicPartition(name, n) for name, count in plan.topics.items() for n in range(count)
        )
        watch.history = self.history
        watch.now_s = lambda: sim.now_s
        self.members: dict[str, GroupMember] = {}
        self.reads = 0
        self.settled_in_s = 0.0
        self._incarnations: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._supervisor: asyncio.Task[None] | None = None

    def note(self, text: str) -> None:
        self.sim.note(text)

    async def start(self) -> None:
        self._supervisor = asyncio.get_running_loop().create_task(self.node.supervise(), name="supervisor")
        await self.node.up.wait()
        await self.start_clients()

    async def start_clients(self) -> None:
        await self.run_on("setup", self._set_up)
        for member in self.plan.members[: len(self.plan.members) - self.plan.late]:
            self.start_member(member)
        self._tasks["reader"] = self.sim.runtime("group-reader").spawn(self._read_often(), name="reader")

    async def run_on(self, node: str, work: Callable[[Runtime], Awaitable[None]]) -> None:
        runtime = self.sim.runtime(node)

        async def run() -> None:
            await work(runtime)

        await runtime.spawn(run(), name=node)

    async def _set_up(self, runtime: Runtime) -> None:
        async with Admin(runtime=runtime, bootstrap_servers=BOOTSTRAP) as admin:
            topics = [NewTopic(name=name, num_partitions=count) for name, count in self.plan.topics.items()]
            (await admin.create_topics(topics)).get()
            (await admin.alter_group_offsets(GROUP, dict.fromkeys(self.history.partitions, 0))).get()
            changes = [ConfigChange(key, value) for key, value in self.plan.offsets_configs.items()]
            (
                await admin.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, CONSUMER_OFFSETS): changes})
            ).get()

    # Members

    def start_member(self, plan: MemberPlan) -> None:
        incarnation = self._incarnations[plan.node] = self._incarnations.get(plan.node, 0) + 1
        runtime = self.sim.runtime(plan.node)
        member = self._member(runtime, plan, f"{plan.node}/{incarnation}")
        self.members[plan.node] = member
        self._tasks[plan.node] = runtime.spawn(member.run(), name=plan.node)

    def _member(self, runtime: Runtime, plan: MemberPlan, name: str) -> GroupMember:
        return GroupMember(runtime, plan, self.history, name, BOOTSTRAP)

    def kill_member(self, node: str) -> None:
        self.sim.crash(node, power_cut=False)
        del self.members[node], self._tasks[node]

    def start_missing(self) -> None:
        for plan in self.plan.members:
            if plan.node not in self.members or self._tasks[plan.node].done():
                self.start_member(plan)

    # Reading

    async def _read_often(self) -> None:
        runtime = self.sim.runtime("group-reader")
        async with Admin(
            runtime=runtime, bootstrap_servers=BOOTSTRAP, request_timeout_ms=700, default_api_timeout_ms=1500
        ) as admin:
            while True:
                await runtime.timers.sleep(runtime.random.uniform(0, 0.8))
                try:
                    await self.read(admin)
                except KafkaError as error:
                    if not (error.retriable or isinstance(error, RequestTimedOut)):  # it may be away for longer
                        raise

    async def read(self, admin: Admin) -> None:
        least = self.history.least()
        offsets = (await admin.list_group_offsets([GROUP], require_stable=True)).get()[GROUP].get()
        self.history.fetched("the reader", {tp: row.offset for tp, row in offsets.items()}, least)
        missing = [tp for tp in self.history.partitions if tp not in offsets]
        require(not missing, f"nothing is committed for {missing}")
        self.reads += 1

    # Trouble

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

    def settled(self) -> str:
        """What keeps the group from being whole, if anything does."""
        places = {node: member.place for node, member in self.members.items()}
        absent = sorted(node for node, place in places.items() if place is None)
        if absent:
            return f"{absent} are not in the group"
        found = [place for place in places.values() if place is not None]
        if len({(place.generation, place.leader) for place in found}) > 1:
            return f"not of one generation: {places}"
        owned = sorted(tp for place in found for tp in place.owned)
        if owned != sorted(self.history.partitions):
            return f"what is owned is {owned}"
        return ""

    async def settle(self) -> list[Place]:
        """Within the bound the group is whole, and stays so for longer than any session lasts."""
        since = self.sim.now_s
        calm_s = 2 * max(member.session_timeout_ms for member in self.plan.members) / 1000
        calm_since = None
        places: list[Place | None] = []
        while calm_since is None or self.sim.now_s - calm_since < calm_s:
            await self.pause(0.1)
            problem = self.settled()
            now = [member.place for member in self.members.values()]
            if problem or calm_since is None or now != places:
                calm_since, places = (None if problem else self.sim.now_s), now
            require(
                self.sim.now_s - since < self.plan.patience_s + calm_s,
                f"not stable {self.plan.patience_s:.0f} s after everything healed: {problem or places}",
            )
        assert calm_since is not None
        self.settled_in_s = max(self.settled_in_s, calm_since - since)
        self.note(f"settled {places}")
        return [place for place in places if place is not None]

    async def finish(self) -> None:
        self.start_missing()
        before = await self.come_together()
        if self.sim.runtime("world").random.random() < 0.5:
            self.node.stop()
        else:
            self.sim.crash(BROKER, power_cut=False)
        runs = self.node.runs
        await self.pause(0.001)
        while self.node.runs <= runs and self.node.broker is not None:
            await self.pause(0.01)
        await asyncio.wait_for(self.node.up.wait(), 60)
        after = await self.come_together()
        require(after[0].generation >= before[0].generation, f"{before} was followed by {after}")
        await self._stop()

    async def come_together(self) -> list[Place]:
        """The group is whole, and those who describe it and read its log say the same."""
        places = await self.settle()
        await self.run_on("last-member", self._agree)
        self._check_replay()
        return places

    def _check_replay(self) -> None:
        assert self.node.broker is not None
        for shard in self.node.broker.groups.led():
            if GROUP in shard.state.groups:
                self.watch.check_replay(shard)

    async def _agree(self, runtime: Runtime) -> None:
        """DescribeGroups says what the members believe."""
        async with Admin(runtime=runtime, bootstrap_servers=BOOTSTRAP) as admin:
            group = (await admin.describe_groups([GROUP])).get()[GROUP]
            await self.read(admin)
        require(group.state == "Stable", f"the group is {group.state}")
        told = sorted(
            (m.member_id, m.group_instance_id or "", m.client_id, tuple(sorted(m.assignment or ())))
            for m in group.members
        )
        believed = sorted(
            (m.place.member_id, m.plan.instance_id or "", node, tuple(sorted(m.place.owned)))
            for node, m in self.members.items()
            if m.place is not None
        )
        require(told == believed, f"described is {told}, and the members believe {believed}")

    async def cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.wait(self._tasks.values())

    async def _stop(self) -> None:
        await self.cancel()
        self.node.downtime_s = (60.0, 60.0)
        self.node.stop()
        while self.node.up.is_set():
            await self.pause(0.1)
        assert self._supervisor is not None
        self._supervisor.cancel()
        self.raise_if_wrong()


class GroupNemesis(TimedNemesis):
    """The broker's, with members for clients: they crash and come back, leave, or come for the first time."""

    _world: GroupWorld

    def _victim(self) -> str:
        return self._random.choice([member.node for member in self._world.plan.members])

    async def _kill_client(self) -> None:
        world = self._world
        missing = [plan for plan in world.plan.members if plan.node not in world.members]
        if missing and self._random.random() < 0.5:
            world.start_member(self._random.choice(missing))
            return
        if not world.members:
            return
        node = self._random.choice(list(world.members))
        member = world.members[node]
        if member.plan.instance_id is None and self._random.random() < 0.4:
            member.leaving = True
            await world.pause(self._random.uniform(0, 2))
        if node in world.members:
            world.kill_member(node)
        await world.pause(self._random.choice((0.01, 0.5, 4.0)) * self._random.random())
        if self._random.random() < 0.7:
            world.start_member(member.plan)


@dataclass(frozen=True)
class GroupOutcome:
    seed: int
    digest: str
    virtual_s: float
    loads: int
    generations: int
    expired: int
    acknowledged: int
    refused: int
    reads: int
    settled_in_s: float
    doubts: int


def simulate_group(seed: int, plan: GroupPlan | None = None) -> GroupOutcome:
    """Raises what went wrong, with the way to see it again."""
    plan = plan or make_group_plan(seed)
    with GroupWatch() as watch, ErrorLog(plan) as errors:
        sim = BrokerSimulation(plan, watch)
        with repeatable(sim, seed, plan, "group_seed"):
            return _simulate(plan, watch, sim, errors)


def _simulate(plan: GroupPlan, watch: GroupWatch, sim: BrokerSimulation, errors: ErrorLog) -> GroupOutcome:
    world = play(sim, errors, lambda: GroupWorld(plan, watch, sim), GroupNemesis)
    return GroupOutcome(
        seed=plan.seed,
        digest=sim.digest(),
        virtual_s=sim.now_s,
        loads=watch.loads,
        generations=len(world.history.generations),
        expired=watch.expired,
        acknowledged=world.history.acknowledged,
        refused=world.history.refused,
        reads=world.reads,
        settled_in_s=world.settled_in_s,
        doubts=watch.restored_doubts,
    )
