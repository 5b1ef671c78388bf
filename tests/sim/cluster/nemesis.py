"""What a run's faults do to brokers, the controller and the network between them."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from sim.broker.nemesis import HEALTHY_LINK
from sim.cluster.plan import BROKER_FAULTS, BROKERS
from sim.cluster.world import CONTROLLER, DATA, BrokerKeeper, World
from twofold.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from twofold.wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

PREFERRED = 0


class ClusterNemesis:
    def __init__(self, world: World) -> None:
        self._world = world
        self._sim = world.sim
        self._random = Random(f"{world.plan.seed}/nemesis")
        self._busy = False

    async def run(self) -> None:
        actions = self._actions()
        faults = self._world.plan.faults
        until = self._sim.now_s + self._world.plan.duration_s
        of_brokers = [actions[fault] for fault in faults if fault in BROKER_FAULTS]
        others = [actions[fault] for fault in faults if fault not in BROKER_FAULTS]
        await self._world.pause(self._random.uniform(0, 2))
        await asyncio.gather(self._trouble(of_brokers, until, 2.0), self._trouble(others, until, 1.0))
        self._heal()

    def _actions(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "kill": lambda: self._crash(power_cut=False),
            "power": lambda: self._crash(power_cut=True),
            "pause": self._pause,
            "stop": self._stop,
            "lost disk": self._lose_disk,
            "between brokers": self._between_brokers,
            "from the controller": self._from_controller,
            "one way": self._one_way,
            "controller": self._kill_controller,
            "reset": self._reset,
            "delay": self._delay,
            "moves": self._move,
            "elections": self._elect,
        }

    async def _trouble(self, actions: list[Callable[[], Awaitable[None]]], until: float, pause_s: float) -> None:
        while self._sim.now_s < until:
            await self._world.pause(self._random.uniform(0, 2 * pause_s))
            if actions and self._sim.now_s < until:
                await self._random.choice(actions)()

    def _heal(self) -> None:
        self._sim.network.heal()
        self._sim.network.set_default_link(**HEALTHY_LINK)
        for number in BROKERS:
            self._sim.resume(f"b{number}")
        self._world.note("healed")

    def _broker(self) -> BrokerKeeper:
        return self._world.brokers[self._random.choice(BROKERS)]

    # Brokers

    async def _crash(self, *, power_cut: bool) -> None:
        keeper = self._broker()
        if self._random.random() < 0.5:
            self._sim.crash(keeper.node, power_cut=power_cut)
        else:
            self._sim.crash_after(keeper.node, self._random.choice((0, 3, 20, 100)), power_cut=power_cut)
        await self._world.pause(self._random.uniform(0, 4))

    async def _pause(self) -> None:
        node = self._broker().node
        self._sim.pause(node)
        await self._world.pause(self._random.choice((0.3, 2.0, 5.0, 8.0)))
        self._sim.resume(node)

    async def _stop(self) -> None:
        self._broker().ask_to_stop()
        await self._world.pause(self._random.uniform(0, 3))

    async def _lose_disk(self) -> None:
        """A broker comes back with an empty directory. Not while another replica is behind: where all that are in sync
        lose their disks, records are gone, and the partition rightly waits for an operator."""
        states = [None if (model := self._world.watch.of(tp)) is None else model.state for tp in self._world.partitions]
        if any(state is None or len(state.isr) < len(state.replicas) for state in states):
            return
        if not all(keeper.up.is_set() for keeper in self._world.brokers.values()):
            return  # one that died may be in the ISRs until its session is over
        keeper = self._broker()
        disk = self._sim.disk(keeper.node)

        def wipe() -> None:
            if disk.is_dir(DATA):
                disk.remove_tree(DATA)
                disk.sync_dir("/")

        keeper.before_start = wipe
        self._sim.crash(keeper.node, power_cut=False)
        await self._world.pause(self._random.uniform(2, 6))

    # The network

    async def _cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        cut = self._sim.network.partition(one, other, one_way=one_way)
        await self._world.pause(self._random.choice((0.5, 2.0, 4.0, 8.0)))
        cut.heal()

    async def _between_brokers(self) -> None:
        one, other = self._random.sample(BROKERS, 2)
        await self._cut(f"b{one}", f"b{other}")

    async def _from_controller(self) -> None:
        await self._cut(self._broker().node, CONTROLLER)

    async def _one_way(self) -> None:
        one, other = self._random.sample([*(f"b{number}" for number in BROKERS), CONTROLLER], 2)
        await self._cut(one, other, one_way=True)

    async def _reset(self) -> None:
        self._sim.network.reset(self._broker().node)

    async def _delay(self) -> None:
        self._sim.network.set_default_link(latency_s=(0.001, self._random.choice((0.05, 0.5))))
        await self._world.pause(self._random.uniform(0.5, 3))
        self._sim.network.set_default_link(**HEALTHY_LINK)

    # The controller

    async def _kill_controller(self) -> None:
        self._sim.crash(CONTROLLER, power_cut=self._random.random() < 0.5)
        await self._world.pause(self._random.uniform(0, 3))

    async def _move(self) -> None:
        """Other replicas, or another order of them; sometimes back to before."""
        tp = self._random.choice(self._world.partitions)
        count = self._random.choice((2, 3, 3))
        wanted = None if self._random.random() < 0.2 else tuple(self._random.sample(BROKERS, count))
        row = ReassignablePartition(partition_index=tp.partition, replicas=wanted)
        request = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name=tp.topic, partitions=(row,)),))
        await self._world.ask_controller(lambda controller: controller.alter_partition_reassignments(request))

    async def _elect(self) -> None:
        tp = self._random.choice(self._world.partitions)
        rows = (TopicPartitions(topic=tp.topic, partitions=(tp.partition,)),)
        request = ElectLeadersRequest(topic_partitions=rows, timeout_ms=1000, election_type=PREFERRED)
        await self._world.ask_controller(lambda controller: controller.elect_leaders(request))
