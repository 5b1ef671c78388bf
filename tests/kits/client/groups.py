"""Consumers of ours in groups, and the real broker, on simulated machines: virtual time, pauses, kills, faults.

An `App` polls in a task of its own node and writes down what it is told and what it reads. It fails when it gets a
record of a partition that its listener was not given, or was told to be gone.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from kits.client.transactions import ADDRESS, PARTITIONS, TOPIC, World
from kits.client.transactions import play as play_world
from twofold.client import Consumer, NewTopic, Producer, RebalanceListener, TopicPartition
from twofold.client.consumer.group.states import MembershipState

GROUP = "g"
PARTITIONS_OF_T = tuple(TopicPartition(TOPIC, index) for index in range(PARTITIONS))
COOPERATIVE, EAGER = "cooperative-sticky", "range"
SESSION_MS, HEARTBEAT_MS = 10_000, 1_000
STEP_S = 0.05
PATIENCE_S = 600.0

Story = Callable[["GroupWorld"], Awaitable[None]]
Event = tuple[str, tuple[TopicPartition, ...]]


class App(RebalanceListener):
    """`committing`: "auto", "sync" after each poll, or "never"."""

    def __init__(self, world: "GroupWorld", node: str, committing: str = "never", **options: Any) -> None:
        settings: dict[str, Any] = {
            "bootstrap_servers": ADDRESS,
            "group_id": GROUP,
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": committing == "auto",
        }
        self.node = node
        self.world = world
        self.committing = committing
        self.events: list[Event] = []
        self.owned: set[TopicPartition] = set()
        self.seen: list[tuple[TopicPartition, int]] = []
        self.errors: list[Exception] = []
        self.hold = False  # it works on its records for ever
        self.is_idle = False
        self.stopping = False
        self.polls = 0
        self.pace_s = 0.0  # how long it works on what a poll has returned
        self.consumer = Consumer(runtime=world.runtime(node), **settings | options)
        self.task: Any = None

    def start(self, *topics: str, pattern: str | None = None) -> "App":
        self.consumer.subscribe(() if pattern else topics or (TOPIC,), pattern=pattern, listener=self)
        self.task = self.world.runtime(self.node).spawn(self._run(), name=f"app {self.node}")
        return self

    async def _run(self) -> None:
        sleep = self.world.runtime(self.node).timers.sleep
        while not self.stopping:
            try:
                await self.poll(500)
                if self.committing == "sync" and self.owned:
                    await self.consumer.commit()
            except AssertionError:
                raise
            except Exception as error:
                self.errors.append(error)
                await sleep(0.1)
            await sleep(self.pace_s)
            while self.hold and not self.stopping:
                self.is_idle = True
                await sleep(STEP_S)
            self.is_idle = False
        await self.consumer.close()

    async def poll(self, timeout_ms: float = 0) -> None:
        for record in await self.consumer.poll(timeout_ms):
            tp = TopicPartition(record.topic, record.partition)
            assert tp in self.owned, f"{self.node} got a record of {tp}, which its listener knows nothing of"
            self.seen.append((tp, record.offset))
        self.polls += 1

    async def stop(self) -> None:
        self.stopping = True
        await self.task
        self.world.apps.remove(self)

    # What the listener hears

    def on_partitions_revoked(self, partitions: tuple[TopicPartition, ...]) -> Any:
        self.events.append(("revoked", partitions))
        assert set(partitions) <= self.owned
        self.owned -= set(partitions)

    def on_partitions_assigned(self, partitions: tuple[TopicPartition, ...]) -> Any:
        self.events.append(("assigned", partitions))
        assert not set(partitions) & self.owned
        self.owned |= set(partitions)

    def on_partitions_lost(self, partitions: tuple[TopicPartition, ...]) -> Any:
        self.events.append(("lost", partitions))
        assert set(partitions) <= self.owned
        self.owned -= set(partitions)

    def told(self, kind: str) -> list[tuple[TopicPartition, ...]]:
        return [partitions for name, partitions in self.events if name == kind]

    @property
    def membership(self) -> Any:
        assert self.consumer._group is not None
        return self.consumer._group.membership

    @property
    def is_settled(self) -> bool:
        return self.membership.state is MembershipState.STABLE and not self.membership.rejoin_reason


class GroupWorld:
    """What `kits.client.transactions.World` has, and the apps of groups."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sim = world.sim
        self.runtime = world.runtime
        self.script = world.script
        self.count = world.count
        self.apps: list[App] = []
        self.written: dict[TopicPartition, int] = {}

    def app(self, node: str, committing: str = "never", **options: Any) -> App:
        app = App(self, node, committing, **options)
        self.apps.append(app)
        return app

    async def sleep(self, seconds: float) -> None:
        await self.world.sleep(seconds)

    async def until(self, condition: Callable[[], Any], what: str = "") -> None:
        end = self.sim.now_s + PATIENCE_S
        while not condition():
            assert self.sim.now_s < end, f"it did not come to be: {what or condition}"
            await self.sleep(STEP_S)

    async def until_polled(self, consumer: Consumer, condition: Callable[[], Any]) -> None:
        end = self.sim.now_s + PATIENCE_S
        while not condition():
            assert self.sim.now_s < end
            await consumer.poll(100)

    async def stop_polling(self, app: App) -> None:
        """Until `hold` is taken back. Returns when its last poll is over."""
        app.hold = True
        await self.until(lambda: app.is_idle)

    def is_settled(self, partitions: tuple[TopicPartition, ...] = PARTITIONS_OF_T) -> bool:
        """Every partition has one owner, and nobody wants another round."""
        owned = sorted(tp for app in self.apps for tp in app.owned)
        generations = {app.membership.generation for app in self.apps}
        return owned == sorted(partitions) and len(generations) == 1 and all(app.is_settled for app in self.apps)

    async def settle(self, partitions: tuple[TopicPartition, ...] = PARTITIONS_OF_T) -> None:
        await self.until(lambda: self.is_settled(partitions), "a settled group")

    async def write(self, count: int = 10, partitions: tuple[TopicPartition, ...] = PARTITIONS_OF_T) -> None:
        """Records whose values are their offsets."""
        async with Producer(bootstrap_servers=ADDRESS, runtime=self.runtime("writer"), linger_ms=0) as producer:
            for tp in partitions:
                for _ in range(count):
                    number = self.written.get(tp, 0)
                    await producer.send(tp.topic, b"%d" % number, partition=tp.partition)
                    self.written[tp] = number + 1

    async def until_read(self) -> None:
        """All that was written, by somebody."""

        def is_read() -> bool:
            seen = {row for app in self.apps for row in app.seen}
            return all((tp, offset) in seen for tp, end in self.written.items() for offset in range(end))

        await self.until(is_read, "everything is read")

    async def committed(self, tp: TopicPartition = PARTITIONS_OF_T[0], group: str = GROUP) -> int | None:
        return await self.world.committed_offset(group, tp)

    async def create(self, name: str, partitions: int) -> None:
        async with self.world.admin() as admin:
            (await admin.create_topics([NewTopic(name, partitions)])).get()

    def kill(self, app: App) -> None:
        """kill -9."""
        self.world.kill(app.node)
        self.apps.remove(app)

    async def close(self) -> None:
        for app in list(self.apps):
            if app.task is not None:
                await app.stop()
            else:
                await app.consumer.close()


def play(story: Story, **settings: Any) -> None:
    async def main(world: World) -> None:
        group = GroupWorld(world)
        await story(group)
        await group.close()

    play_world(main, group_initial_rebalance_delay_ms=0, **settings)
