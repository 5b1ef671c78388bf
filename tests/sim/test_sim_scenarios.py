"""Stories that a seed once told, written down so that they are told every time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from twofold.broker.broker import Broker
from twofold.client import Admin, Delivery, NewTopic, Producer, Results
from twofold.config.settings import Settings
from twofold.log.recovery.checkpoints import read_topic_id
from twofold.runtime.api import Runtime
from twofold.runtime.sim import Simulation
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

SERVERS = "broker:9092"
SETTINGS = {"node.id": "1", "listeners": "PLAINTEXT://broker:9092", "auto.create.topics.enable": "false"}
PARTITION = TopicPartition("orders", 0)


class Stage:
    """A simulated broker that is started and ended by hand."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.client = sim.runtime("client")

    async def start(self) -> Broker:
        runtime = self.sim.runtime("broker")

        async def start() -> Broker:
            broker = Broker(runtime, Settings.from_mapping(SETTINGS), "/data", hostname="broker")
            await broker.start()
            return broker

        return await runtime.spawn(start(), name="start")

    async def create_topic(self, **configs: str) -> None:
        topic = NewTopic(name=PARTITION.topic, num_partitions=1, configs=configs)
        await self._administrate(lambda admin: admin.create_topics([topic]))

    async def delete_topic(self) -> None:
        await self._administrate(lambda admin: admin.delete_topics([PARTITION.topic]))

    async def _administrate(self, call: Callable[[Admin], Awaitable[Results[str, Any]]]) -> None:
        async def administrate() -> None:
            async with Admin(runtime=self.client, bootstrap_servers=SERVERS, default_api_timeout_ms=1000) as admin:
                (await call(admin)).get()

        await self.client.spawn(administrate(), name="administrate")

    async def send_one(self) -> int:
        """The offset of one more record."""

        async def send() -> int:
            async with Producer(runtime=self.client, bootstrap_servers=SERVERS) as producer:
                return (await (await producer.send(PARTITION.topic, b"an order", partition=0))).offset

        return await self.client.spawn(send(), name="send one")


def play(story: Callable[[Stage], Awaitable[None]], seed: int = 0) -> None:
    with Simulation(seed) as sim:

        async def main() -> None:
            await story(Stage(sim))

        sim.run(main(), timeout_s=300)


async def send(runtime: Runtime, deliveries: list[Delivery]) -> Producer:
    producer = Producer(runtime=runtime, bootstrap_servers=SERVERS, request_timeout_ms=1000, linger_ms=0)
    deliveries.append(await producer.send(PARTITION.topic, b"one order", partition=0))
    return producer


@pytest.mark.parametrize("seed", range(5))
def test_what_a_killed_process_left_unsynced_is_synced_before_a_retry_is_acknowledged(seed: int) -> None:
    """With flush.messages=1: killed between write and sync, started again, acknowledged; then the power goes."""

    async def story(stage: Stage) -> None:
        broker = await stage.start()
        await stage.create_topic(**{"flush.messages": "1"})
        stage.sim.blocking_delay_s = (5.0, 5.0)
        deliveries: list[Delivery] = []
        producer = await stage.client.spawn(send(stage.client, deliveries), name="send")
        while not (log := broker.logs.get(PARTITION)) or not log.log_end_offset:
            await asyncio.sleep(0.01)
        assert not deliveries[0].done()
        stage.sim.crash("broker", power_cut=False)
        stage.sim.blocking_delay_s = (0.0, 0.001)
        await stage.start()
        while not deliveries[0].done():
            await asyncio.sleep(0.001)
        assert deliveries[0].result().offset == 0
        stage.sim.crash("broker", power_cut=True)
        broker = await stage.start()
        log = broker.logs.get(PARTITION)
        assert log is not None and log.log_end_offset == 1, "an acknowledged record is gone"
        await stage.client.spawn(producer.close(), name="close")

    play(story, seed)


def test_a_broker_that_cannot_write_its_metadata_ends_instead_of_waiting() -> None:
    async def story(stage: Stage) -> None:
        await stage.start()
        await stage.create_topic()
        stage.sim.crash("broker", power_cut=False)
        stage.sim.disk("broker").fail_writes(1, match="__cluster_metadata-0/0")
        with pytest.raises(KafkaError):
            await asyncio.wait_for(stage.start(), 30)
        stage.sim.crash("broker", power_cut=False)
        broker = await stage.start()
        assert broker.image.topic(PARTITION.topic) is not None

    play(story)


@pytest.mark.parametrize("lost_id", [False, True])
@pytest.mark.parametrize("operations", range(6))
def test_a_topic_never_finds_what_a_deleted_one_of_its_name_left(operations: int, lost_id: bool) -> None:
    """Killed at any point of the deletion, also where the file that names the topic of the log is damaged."""

    async def story(stage: Stage) -> None:
        await stage.start()
        await stage.create_topic()
        assert [await stage.send_one() for _ in range(2)] == [0, 1]
        if lost_id:
            stage.sim.disk("broker").open(f"/data/{PARTITION}/partition.metadata").truncate(0)
        stage.sim.crash_after("broker", operations, power_cut=False)
        with suppress(KafkaError):
            await stage.delete_topic()
        stage.sim.crash("broker", power_cut=False)
        broker = await stage.start()
        if broker.image.topic(PARTITION.topic) is not None:
            assert await stage.send_one() == 2
            await stage.delete_topic()
        await stage.create_topic()
        assert await stage.send_one() == 0

    play(story)


def test_a_directory_whose_creation_failed_is_labelled_when_it_is_used_again() -> None:
    async def story(stage: Stage) -> None:
        await stage.start()
        await stage.create_topic()
        stage.sim.disk("broker").fail_writes(1, match="orders-0/partition.metadata")
        sending = stage.client.spawn(stage.send_one(), name="send")
        await asyncio.sleep(1)
        stage.sim.crash("broker", power_cut=False)
        broker = await stage.start()
        assert await sending == 0
        topic = broker.image.topic(PARTITION.topic)
        assert topic is not None
        assert read_topic_id(stage.sim.disk("broker"), f"/data/{PARTITION}") == topic.topic_id

    play(story)
