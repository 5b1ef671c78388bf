"""Groups under seeded kills, pauses, idle members and broker restarts, in virtual time.

1. No partition is read in two generations at once: a record that is handed out in a generation is never followed by one
   of an earlier generation.
2. A committed offset never moves back, and nothing below it is unread.
3. When the faults are over, every partition has one owner and everything is read.
"""

import os
from random import Random

import pytest

from kits.client.groups import COOPERATIVE, EAGER, PARTITIONS_OF_T, SESSION_MS, App, GroupWorld, play
from kits.client.transactions import BROKER
from twofold.types import TopicPartition

SEEDS = range(100 if os.environ.get("TWOFOLD_LONG") else 2)
STRATEGIES = [EAGER, COOPERATIVE, "range,cooperative-sticky"]
STEPS = 25
MAX_POLL_MS = 40_000


class Watched(App):
    """Checks rule 1 with every record."""

    read_in: dict[TopicPartition, tuple[int, str]]  # the latest generation in which a partition was read, and by which
    done: set[tuple[TopicPartition, int]]

    async def poll(self, timeout_ms: float = 0) -> None:
        seen = len(self.seen)
        await super().poll(timeout_ms)
        generation = self.membership.generation
        for row in self.seen[seen:]:
            latest, node = self.read_in.get(row[0], (0, ""))
            assert generation >= latest or node == self.node, (
                f"{self.node} reads {row[0]} in generation {generation}, and {node} has read it in {latest}"
            )
            if generation >= latest:
                self.read_in[row[0]] = (generation, self.node)
            self.done.add(row)


class Chaos:
    def __init__(self, world: GroupWorld, seed: int, strategy: str) -> None:
        self.world = world
        self.random = Random(seed)
        self.strategy = strategy
        self.read_in: dict[TopicPartition, tuple[int, str]] = {}
        self.done: set[tuple[TopicPartition, int]] = set()
        self.highest: dict[TopicPartition, int] = {}
        self.count = 0

    def add(self) -> None:
        self.count += 1
        committing = self.random.choice(["sync", "auto"])
        app = Watched(
            self.world,
            f"m{self.count}",
            committing,
            partition_assignment_strategy=self.strategy,
            max_poll_records=self.random.choice([1, 1, 5]),
            max_poll_interval_ms=MAX_POLL_MS,
            **{"auto_commit_interval_ms": 1_000} if committing == "auto" else {},
        )
        app.read_in, app.done = self.read_in, self.done
        app.pace_s = self.random.choice([0.1, 0.5])  # slow enough that there are always records that wait
        self.world.apps.append(app)
        app.start()

    async def step(self) -> None:
        world, random = self.world, self.random
        app = random.choice(world.apps)
        action = random.choice(["pause", "pause", "kill", "leave", "idle", "rebalance", "join", "restart", "broker"])
        if action == "pause":
            world.sim.pause(app.node)
            await world.sleep(random.uniform(0, 2.5 * SESSION_MS / 1000))
            world.sim.resume(app.node)
        elif action == "kill" and len(world.apps) > 1:
            world.kill(app)
            self.add()
        elif action == "leave" and len(world.apps) > 1:
            await app.stop()
        elif action == "idle":
            app.hold = True
            await world.sleep(random.uniform(0, 2 * MAX_POLL_MS / 1000))
            app.hold = False
        elif action == "rebalance":
            app.consumer.enforce_rebalance()
        elif action == "join" and len(world.apps) < 5:
            self.add()
        elif action == "restart":
            await world.world.restart()
        elif action == "broker":
            world.sim.pause(BROKER)
            await world.sleep(random.uniform(0, 1.5 * SESSION_MS / 1000))
            world.sim.resume(BROKER)
        await world.write(random.randrange(30))
        await world.sleep(random.choice([0.0, 0.3, 5.0, 20.0]))
        await self.check_committed()

    async def check_committed(self) -> None:
        for tp in PARTITIONS_OF_T:
            committed = await self.world.committed(tp) or 0
            assert committed >= self.highest.get(tp, 0), f"{tp} was at {self.highest[tp]} and is at {committed}"
            self.highest[tp] = committed
            assert all((tp, offset) in self.done for offset in range(committed)), f"{tp}: {committed} is committed"

    async def end(self) -> None:
        for app in self.world.apps:
            app.pace_s = 0.0
        await self.world.write(5)
        await self.world.settle()
        ends = self.world.written
        await self.world.until(lambda: all((tp, end - 1) in self.done for tp, end in ends.items()), "all is read")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 0)) for seed in SEEDS])
def test_a_partition_is_never_read_in_two_generations_at_once(seed: int, strategy: str) -> None:
    async def story(world: GroupWorld) -> None:
        chaos = Chaos(world, seed, strategy)
        for _ in range(3):
            chaos.add()
        await world.write(20)
        for _ in range(STEPS):
            await chaos.step()
        await chaos.end()
        errors = {type(error).__name__ for app in world.apps for error in app.errors}
        assert errors <= {"CommitFailed", "RebalanceInProgress", "GaveUp"}, errors

    play(story)
