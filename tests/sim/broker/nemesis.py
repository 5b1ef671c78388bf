"""Trouble: what a run's faults do to the broker, the network, the disk and the clocks, and how it ends."""

import asyncio
import errno
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Protocol

from sim.broker.plan import BROKER_FAULTS
from sim.broker.world import BROKER, BrokerNode, BrokerSimulation, World
from sim.frame import BrokerPlan

HEALTHY_LINK = {"latency_s": (0.0001, 0.002), "drop": 0.0, "duplicate": 0.0, "split": 0.0}
MAX_JUMP_MS = 3 * 24 * 3600 * 1000


class TimedPlan(BrokerPlan, Protocol):
    @property
    def duration_s(self) -> float: ...

    @property
    def faults(self) -> Sequence[str]: ...


class Troubled(Protocol):
    """A world as far as its nemesis must know it."""

    @property
    def plan(self) -> BrokerPlan: ...

    @property
    def sim(self) -> BrokerSimulation: ...

    @property
    def node(self) -> BrokerNode: ...

    def note(self, text: str) -> None: ...

    async def pause(self, seconds: float) -> None: ...


class TimedWorld(Troubled, Protocol):
    @property
    def plan(self) -> TimedPlan: ...


class BrokerNemesis(ABC):
    """What happens to a broker, its network, its disk and its clock."""

    broker_pause_s = 1.5
    """Between two faults of the broker, on average."""
    other_pause_s = 0.8

    def __init__(self, world: Troubled) -> None:
        self._world = world
        self._sim = world.sim
        self._random = Random(f"{world.plan.seed}/nemesis")
        self._skew_ms: dict[str, int] = {}
        self._calm_blocking_s = world.sim.blocking_delay_s

    def _actions(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return {
            "kill": lambda: self._crash(power_cut=False),
            "power": lambda: self._crash(power_cut=True),
            "restart": self._restart,
            "sync": self._fail_syncs,
            "full": self._fill_disk,
            "reset": self._reset,
            "partition": self._partition,
            "loss": lambda: self._disturb(drop=0.02, split=0.2),
            "duplicate": lambda: self._disturb(duplicate=0.05),
            "delay": lambda: self._disturb(latency_s=(0.001, self._random.choice((0.05, 0.5)))),
            "slow disk": self._slow_disk,
            "clock": self._jump,
        }

    async def _trouble(self, actions: list[Callable[[], Awaitable[None]]], until: float, pause_s: float) -> None:
        while self._sim.now_s < until:
            await self._world.pause(self._random.uniform(0, 2 * pause_s))
            if actions and self._sim.now_s < until:
                await self._random.choice(actions)()

    def heal(self) -> None:
        self._sim.network.heal()
        self._sim.network.set_default_link(**HEALTHY_LINK)
        self._sim.disk(BROKER).clear_faults()
        self._sim.blocking_delay_s = self._calm_blocking_s
        self._world.note("healed")

    # The broker

    async def _crash(self, *, power_cut: bool) -> None:
        """Now, or in the middle of a disk operation; often again before it is up."""
        for _ in range(self._random.choice((1, 1, 2, 3))):
            if self._random.random() < 0.4:
                self._sim.crash(BROKER, power_cut=power_cut)
            else:
                self._sim.crash_after(BROKER, self._random.choice((0, 3, 20, 100)), power_cut=power_cut)
            await self._world.pause(self._random.uniform(0, 1.5))

    async def _restart(self) -> None:
        self._world.node.stop()
        await self._world.pause(self._random.uniform(0, 1))

    async def _fail_syncs(self) -> None:
        """The disk refuses to sync for a while; the broker is restarted, for it does not trust such a log again."""
        match = self._random.choice(("", ".log", "cluster_metadata", "checkpoint", "topic0"))
        self._sim.disk(BROKER).fail_syncs(self._random.choice((1, 1, 5)), match=match)
        await self._world.pause(self._random.uniform(0.1, 2))
        await self._end_disk_trouble()

    async def _fill_disk(self) -> None:
        if self._random.random() < 0.5:
            self._sim.disk(BROKER).set_free_bytes(self._random.choice((0, 100, 5000)))
        else:
            error = self._random.choice((errno.EIO, errno.ENOSPC))
            self._sim.disk(BROKER).fail_writes(self._random.choice((1, 4)), error=error)
        await self._world.pause(self._random.uniform(0.1, 2))
        await self._end_disk_trouble()

    async def _end_disk_trouble(self) -> None:
        self._sim.disk(BROKER).clear_faults()
        if self._random.random() < 0.5:
            self._world.node.stop()
        else:
            self._sim.crash(BROKER, power_cut=False)
        await self._world.pause(0.01)

    async def _slow_disk(self) -> None:
        self._sim.blocking_delay_s = (0.001, self._random.choice((0.1, 1.0)))
        await self._world.pause(self._random.uniform(0.2, 2))
        self._sim.blocking_delay_s = self._calm_blocking_s

    # The network

    @abstractmethod
    def _victim(self) -> str:
        """The node of a client."""

    async def _reset(self) -> None:
        self._sim.network.reset(BROKER, self._random.choice((None, self._victim())))

    async def _partition(self) -> None:
        one_way = self._random.random() < 0.5
        source, target = self._random.choice(((BROKER, None), (BROKER, self._victim()), (self._victim(), BROKER)))
        cut = self._sim.network.partition(source, target, one_way=one_way)
        await self._world.pause(self._random.choice((self._random.uniform(0, 1), self._random.uniform(0, 8))))
        cut.heal()

    async def _disturb(self, **link: object) -> None:
        self._sim.network.set_default_link(**link)
        await self._world.pause(self._random.uniform(0.2, 3))
        self._sim.network.set_default_link(**HEALTHY_LINK)

    # Clocks and clients

    async def _jump(self) -> None:
        node = self._random.choice((BROKER, self._victim()))
        limit_ms = self._random.choice((2000, MAX_JUMP_MS))
        target_ms = self._random.randint(-limit_ms, limit_ms)
        self._sim.jump_clock(node, target_ms - self._skew_ms.get(node, 0))
        self._skew_ms[node] = target_ms


class TimedNemesis(BrokerNemesis):
    """Trouble for as long as the plan says. How a client is killed each world says for itself."""

    _world: TimedWorld

    def __init__(self, world: TimedWorld) -> None:
        super().__init__(world)

    async def run(self) -> None:
        """As long as the plan says; then everything is healed."""
        self._sim.network.stall_timeout_s = 6.0
        self._sim.network.connect_timeout_s = 5.0
        until = self._sim.now_s + self._world.plan.duration_s
        actions = self._actions()
        faults = self._world.plan.faults
        of_broker = [actions[fault] for fault in faults if fault in BROKER_FAULTS]
        others = [actions[fault] for fault in faults if fault not in BROKER_FAULTS]
        await asyncio.gather(
            self._trouble(of_broker, until, self.broker_pause_s), self._trouble(others, until, self.other_pause_s)
        )
        self.heal()

    def _actions(self) -> dict[str, Callable[[], Awaitable[None]]]:
        return super()._actions() | {"client kill": self._kill_client}

    @abstractmethod
    async def _kill_client(self) -> None: ...


class Nemesis(TimedNemesis):
    """With producers and consumers for clients."""

    _world: World

    def _victim(self) -> str:
        plan = self._world.plan
        return self._random.choice([p.node for p in plan.producers] + [c.node for c in plan.consumers])

    async def _kill_client(self) -> None:
        plan = self._random.choice(self._world.plan.producers)
        self._world.kill_producer(plan.node)
        await self._world.pause(self._random.uniform(0, 0.5))
        self._world.start_producer(plan)
