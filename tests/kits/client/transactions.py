"""Transactional producers and the real broker on simulated machines: virtual time, faults where a test wants them."""

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from twofold.broker.broker import Broker
from twofold.broker.network.context import CloseConnection
from twofold.client import Admin, Consumer, FeatureUpdate, NewTopic, Producer, TopicPartition, UpgradeType
from twofold.client.transactions.states import ManagerState
from twofold.config.settings import Settings
from twofold.runtime.api import Runtime
from twofold.runtime.sim import Simulation
from twofold.wire.apis import KEYS
from twofold.wire.errors import KafkaError

BROKER = "broker"
ADDRESS = f"{BROKER}:9092"
TOPIC = "t"
PARTITIONS = 3
SETTINGS = {
    "listeners": f"PLAINTEXT://{ADDRESS}",
    "transaction.two.phase.commit.enable": "true",
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
}

Step = Callable[[Callable[[], Any], Any], Any]
"""A scripted answer: gets what the broker would do, and the request."""


class World:
    def __init__(self, sim: Simulation, settings: dict[str, str]) -> None:
        self.sim = sim
        self.settings = SETTINGS | settings
        self.broker: Broker = None  # type: ignore[assignment]
        self.requests: list[tuple[str, int, Any]] = []
        self._steps: dict[str, deque[Step]] = {}
        self._producers: list[tuple[str, Producer]] = []

    # The broker

    async def start(self) -> None:
        runtime = self.sim.runtime(BROKER)
        self.broker = Broker(runtime, Settings.from_mapping(self.settings), "/data", hostname=BROKER)
        await runtime.spawn(self.broker.start(), name="start")
        for api in WATCHED:
            self._watch(api)

    async def restart(self) -> None:
        """kill -9, and a new process."""
        self.sim.crash(BROKER, power_cut=False)
        await self.start()

    def _watch(self, api: str) -> None:
        dispatcher = self.broker.server.dispatcher
        if KEYS[api] not in dispatcher._served:
            return
        handler = dispatcher._load(KEYS[api])
        usual = handler.handle

        def handle(services: Any, context: Any, request: Any) -> Any:
            self.requests.append((api, context.version, request))
            steps = self._steps.get(api)
            if not steps:
                return usual(services, context, request)
            return steps.popleft()(lambda: usual(services, context, request), request)

        handler.handle = handle

    def script(self, api: str, *steps: Step) -> None:
        """What happens to the next requests of an API."""
        self._steps.setdefault(api, deque()).extend(steps)

    def versions(self, api: str) -> list[int]:
        return [version for name, version, _ in self.requests if name == api]

    def count(self, api: str) -> int:
        return len(self.versions(api))

    async def set_level(self, level: int) -> None:
        """The cluster's transaction.version."""
        async with self.admin() as admin:
            down = UpgradeType.UNSAFE_DOWNGRADE if level < 2 else UpgradeType.UPGRADE
            await admin.update_features({"transaction.version": FeatureUpdate(level, down)})

    # Its clients

    def runtime(self, node: str = "client") -> Runtime:
        return self.sim.runtime(node)

    def admin(self) -> Admin:
        return Admin(bootstrap_servers=ADDRESS, runtime=self.runtime("admin"))

    def producer(self, node: str = "client", **options: Any) -> Producer:
        settings: dict[str, Any] = {"bootstrap_servers": ADDRESS, "transactional_id": "id", "linger_ms": 0} | options
        producer = Producer(runtime=self.runtime(node), **settings)
        self._producers.append((node, producer))
        return producer

    async def ready(self, node: str = "client", **options: Any) -> Producer:
        producer = self.producer(node, **options)
        await producer.init_transactions()
        return producer

    def kill(self, node: str = "client") -> None:
        """kill -9 of a client."""
        self.sim.crash(node, power_cut=False)
        self._producers = [entry for entry in self._producers if entry[0] != node]

    async def close(self) -> None:
        for _, producer in self._producers:
            await producer.close(flush=False)

    async def sleep(self, seconds: float) -> None:
        await self.runtime().timers.sleep(seconds)

    async def age(self, seconds: float) -> None:
        """That much later by the broker's clock, and time enough for it to notice."""
        self.sim.jump_clock(BROKER, int(seconds * 1000))
        await self.sleep(2 * 3600)

    async def read(self, isolation_level: str = "read_committed", topic: str = TOPIC) -> list[bytes]:
        """Every value that a reader gets now, partition after partition."""
        async with Consumer(
            bootstrap_servers=ADDRESS,
            runtime=self.runtime("reader"),
            isolation_level=isolation_level,
            auto_offset_reset="earliest",
        ) as consumer:
            partitions = [TopicPartition(topic, index) for index in await consumer.partitions_for(topic)]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            found: dict[TopicPartition, list[bytes]] = {tp: [] for tp in partitions}
            while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
                for record in await consumer.poll(1_000):
                    found[TopicPartition(record.topic, record.partition)].append(record.value or b"")
            return [value for tp in partitions for value in found[tp]]

    async def committed_offset(self, group: str, tp: TopicPartition) -> int | None:
        async with self.admin() as admin:
            offsets = (await admin.list_group_offsets([group])).get()[group].get()
            return offsets[tp].offset if tp in offsets else None


WATCHED = (
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "Produce",
    "EndTxn",
    "TxnHeartbeat",
    "FindCoordinator",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "LeaveGroup",
    "OffsetCommit",
    "OffsetFetch",
)


Story = Callable[[World], Awaitable[None]]


def play(story: Story, *, level: int = 2, seed: int = 1, **settings: Any) -> None:
    """Run a story; `settings` are the broker's, with underscores for dots."""
    dotted = {name.replace("_", "."): str(value) for name, value in settings.items()}
    with Simulation(seed) as sim:

        async def main() -> None:
            world = World(sim, dotted)
            await world.start()
            async with world.admin() as admin:
                (await admin.create_topics([NewTopic(name=TOPIC, num_partitions=PARTITIONS)])).get()
            if level != 2:
                await world.set_level(level)
            await story(world)
            await world.close()
            await world.broker.stop()

        sim.run(main(), timeout_s=10 * 365 * 86_400)


# Steps


def refuse(error: type[KafkaError], message: str = "scripted") -> Step:
    """The broker does nothing and answers with this."""

    def step(_: Callable[[], Any], __: Any) -> Any:
        raise error(message)

    return step


def hang_up(_: Callable[[], Any], __: Any) -> Any:
    raise CloseConnection("scripted")


def act_then_hang_up(act: Callable[[], Any], _: Any) -> Any:
    """It happened, and nobody says so."""

    async def later() -> Any:
        result = act()
        if inspect.isawaitable(result):
            await result
        raise CloseConnection("scripted")

    return later()


def state_of(producer: Producer) -> ManagerState:
    return producer._transactions.state


def identity_of(producer: Producer) -> tuple[int, int]:
    identity = producer._transactions.identity
    assert identity is not None
    return identity.producer_id, identity.epoch
