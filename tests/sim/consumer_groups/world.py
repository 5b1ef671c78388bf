"""A group of members of the new protocol, of the classic one, and of both, on a simulated broker: one run a seed."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from sim.broker.world import BROKER, BrokerSimulation, ErrorLog
from sim.consumer_groups.beliefs import Belief
from sim.consumer_groups.check import ConsumerGroupWatch, ConsumerHistory
from sim.consumer_groups.member import ClassicSeat, ModernSeat, beliefs
from sim.consumer_groups.plan import CLASSIC, MODERN, ConsumerGroupPlan, SeatPlan, make_consumer_group_plan
from sim.frame import play, repeatable
from sim.groups.check import GROUP
from sim.groups.member import GroupMember, MemberPlan
from sim.groups.world import BOOTSTRAP, GroupNemesis, GroupWorld
from twofold.client import Admin
from twofold.coordinator.group.consumer.state import ConsumerGroup, ConsumerGroupState
from twofold.runtime.api import Runtime


class ConsumerGroupWorld(GroupWorld):
    watch: ConsumerGroupWatch

    def __init__(self, plan: ConsumerGroupPlan, watch: ConsumerGroupWatch, sim: BrokerSimulation) -> None:
        super().__init__(plan, watch, sim)
        history = ConsumerHistory(self.history.partitions)
        self.history = self.consumer_history = history
        watch.history = history
        watch.beliefs = self.beliefs
        history.look = watch.look
        self._is_durable = plan.is_durable
        self.topic_ids: dict[str, UUID] = {}
        self.protocols: dict[str, str] = {}
        self.goal = ""
        """Once somebody has set out to bring all clients to one protocol, they speak it when they start."""

    def beliefs(self) -> list[Belief]:
        return beliefs(self.members.values())

    async def _set_up(self, runtime: Runtime) -> None:
        assert self.node.broker is not None
        await super()._set_up(runtime)
        if self._is_durable:
            async with Admin(runtime=runtime, bootstrap_servers=BOOTSTRAP) as admin:  # now that this is synced
                (await admin.alter_group_offsets(GROUP, dict.fromkeys(self.history.partitions, 0))).get()
        for name in self.plan.topics:
            topic = self.node.broker.image.topic(name)
            assert topic is not None
            self.topic_ids[name] = topic.topic_id
            self.watch.topic_names[topic.topic_id] = name

    # Members

    def start_member(self, plan: MemberPlan) -> None:
        assert isinstance(plan, SeatPlan)
        before = self.protocols.get(plan.node)
        if self.goal:
            self.protocols[plan.node] = self.goal
        elif before is None:
            self.protocols[plan.node] = plan.protocol
        elif plan.switches and self.sim.runtime("world").random.random() < 0.5:
            self.protocols[plan.node] = CLASSIC if before == MODERN else MODERN
        super().start_member(plan)

    def _member(self, runtime: Runtime, plan: MemberPlan, name: str) -> GroupMember:
        assert isinstance(plan, SeatPlan)
        if self.protocols[plan.node] == CLASSIC:
            return ClassicSeat(runtime, plan, self.consumer_history, name, BOOTSTRAP)
        return ModernSeat(runtime, plan, self.consumer_history, name, BOOTSTRAP, self.topic_ids)

    # The end

    def settled(self) -> str:
        return super().settled() or self._reached_target()

    def _reached_target(self) -> str:
        """What a member lacks of its target, or has besides, as the coordinator has it."""
        if self.node.broker is None:
            return "the broker is away"
        groups = [shard.state.consumers.get(GROUP) for shard in self.node.broker.groups.led()]
        group = next((group for group in groups if group is not None), None)
        if group is None:
            speakers = [node for node in self.members if self.protocols[node] == MODERN]
            return f"{speakers} are in a group of the classic protocol" if speakers else ""
        if group.state is not ConsumerGroupState.STABLE:
            return f"the group is {group.state.value}"
        places = {place.member_id: place for member in self.members.values() if (place := member.place) is not None}
        if set(places) != set(group.members):
            return f"the members are {sorted(group.members)}, and {sorted(places)} believe it"
        for member_id, member in group.members.items():
            target = {(topic, index) for topic, indexes in group.target(member_id).items() for index in indexes}
            held = self.watch.held_by(member)
            if set(member.holds()) != target or held != set(places[member_id].owned):
                return f"{member_id} has {sorted(held)}, for {places[member_id]} and the target {target}"
        return _load(group, held_by=lambda member_id: len(places[member_id].owned))


def _load(group: ConsumerGroup, held_by: Callable[[str], int]) -> str:
    """Where all want the same and no member asks for `range`, none has more than one partition more."""
    is_uniform = all(member.subscription.assignor != "range" for member in group.members.values())
    loads = [held_by(member_id) for member_id in group.members]
    if group.is_homogeneous and is_uniform and max(loads) - min(loads) > 1:
        return f"the members have {sorted(loads)} partitions"
    return ""


class ConsumerGroupNemesis(GroupNemesis):
    """That of a group; besides, nodes stand still, and static members leave for a while."""

    _world: ConsumerGroupWorld

    def _actions(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return super()._actions() | {"pause": self._stall, "migrate": self._migrate}

    async def _migrate(self) -> None:
        """One client after the other starts again with the other protocol, and sooner or later back."""
        world = self._world
        world.goal = (
            CLASSIC if world.goal == MODERN else MODERN if world.goal else self._random.choice((CLASSIC, MODERN))
        )
        for plan in world.plan.members:
            member = world.members.get(plan.node)
            if member is not None and self._random.random() < 0.6:
                member.leaving = True
                await world.pause(self._random.uniform(0.1, 0.6))
            if plan.node in world.members:
                world.kill_member(plan.node)
            world.start_member(plan)
            await world.pause(self._random.uniform(0, 0.3))

    async def _stall(self) -> None:
        """The broker, or a member, stands still for a while, and then finds everything at once."""
        node = self._random.choice((BROKER, self._victim()))
        self._sim.pause(node)
        await self._world.pause(self._random.choice((self._random.uniform(0.1, 1), self._random.uniform(1, 5))))
        self._sim.resume(node)

    async def _kill_client(self) -> None:
        world = self._world
        leaving = [m for m in world.members.values() if m.plan.instance_id is not None]
        if leaving and self._random.random() < 0.3:
            member = self._random.choice(leaving)
            member.leaving = True
            await world.pause(self._random.uniform(0.2, 2))
            if world.members.get(member.plan.node) is member:
                world.kill_member(member.plan.node)
            await world.pause(self._random.choice((0.01, 0.5, 4.0)) * self._random.random())
            if member.plan.node not in world.members:
                world.start_member(member.plan)
            return
        await super()._kill_client()


@dataclass(frozen=True)
class ConsumerGroupOutcome:
    seed: int
    digest: str
    virtual_s: float
    loads: int
    looks: int
    grants: int
    ended: int
    """Deadlines of members."""
    upgrades: int
    downgrades: int
    acknowledged: int
    refused: int
    settled_in_s: float


def simulate_consumer_group(seed: int, plan: ConsumerGroupPlan | None = None) -> ConsumerGroupOutcome:
    """Raises what went wrong, with the way to see it again."""
    plan = plan or make_consumer_group_plan(seed)
    with ConsumerGroupWatch(is_durable=plan.is_durable) as watch, ErrorLog(plan) as errors:
        sim = BrokerSimulation(plan, watch)
        with repeatable(sim, seed, plan, "consumer_group_seed"):
            return _simulate(plan, watch, sim, errors)


def _simulate(
    plan: ConsumerGroupPlan, watch: ConsumerGroupWatch, sim: BrokerSimulation, errors: ErrorLog
) -> ConsumerGroupOutcome:
    world = play(sim, errors, lambda: ConsumerGroupWorld(plan, watch, sim), ConsumerGroupNemesis)
    return ConsumerGroupOutcome(
        seed=plan.seed,
        digest=sim.digest(),
        virtual_s=sim.now_s,
        loads=watch.loads,
        looks=watch.looks,
        grants=world.consumer_history.newest,
        ended=watch.ended,
        upgrades=watch.upgrades,
        downgrades=watch.downgrades,
        acknowledged=world.history.acknowledged,
        refused=world.history.refused,
        settled_in_s=world.settled_in_s,
    )
