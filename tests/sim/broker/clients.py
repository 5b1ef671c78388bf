"""The clients of a simulated broker, and their histories: what they were told and what they saw."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Protocol
from uuid import UUID

from sim.broker.plan import LONG_MAX, ConsumerPlan, ProducerPlan, topic_configs
from sim.broker.watch import LogModel, Watch, require
from twofold.client import Admin, ConfigChange, ConfigResource, Consumer, Delivery, NewTopic, Producer, ResourceType
from twofold.controller.image import MetadataImage
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, TopicAlreadyExists, UnknownTopicOrPartition


class Scene(Protocol):
    """What clients may ask of the simulation that they are in."""

    watch: Watch
    draining: bool

    def note(self, text: str) -> None: ...


@dataclass(slots=True)
class Sent:
    """A record that was given to a producer, and its fate."""

    writer: str
    number: int
    topic_partition: TopicPartition
    value: bytes
    offset: int | None = None
    error: KafkaError | None = None

    @property
    def acknowledged(self) -> bool:
        return self.offset is not None


def value_of(writer: str, number: int, size: int) -> bytes:
    return f"{writer} {number} ".encode().ljust(size, b".")


def writer_of(value: bytes) -> tuple[str, int]:
    writer, number, _ = value.split(b" ", 2)
    return writer.decode(), int(number)


class ProducerApp:
    """Sends numbered records until it is told to stop, then waits for the fate of the last."""

    def __init__(
        self,
        scene: Scene,
        runtime: Runtime,
        plan: ProducerPlan,
        writer: str,
        targets: Callable[[], list[TopicPartition]],
    ) -> None:
        self.plan = plan
        self.writer = writer
        self.history: list[Sent] = []
        self._scene = scene
        self._targets = targets
        self._runtime = runtime
        self._undecided: asyncio.Queue[tuple[Sent, Delivery]] = asyncio.Queue()

    async def run(self) -> None:
        random = self._runtime.random
        async with Producer(runtime=self._runtime, **self.plan.options) as producer:
            collector = self._runtime.spawn(self._collect(), name=f"{self.writer} collects")
            while not self._scene.draining:
                await self._runtime.timers.sleep(random.uniform(0, 2 * self.plan.pause_s))
                for _ in range(random.randint(1, self.plan.burst)):
                    if targets := self._targets():
                        await self.send(producer, random.choice(targets))
            await producer.flush()
            await self._undecided.join()
            collector.cancel()

    async def send(self, producer: Producer, target: TopicPartition) -> None:
        number = len(self.history)
        sent = Sent(self.writer, number, target, value_of(self.writer, number, self.plan.value_bytes))
        self.history.append(sent)
        try:
            delivery = await producer.send(target.topic, sent.value, partition=target.partition)
        except KafkaError as error:
            self._decide(sent, error=error)
        else:
            self._undecided.put_nowait((sent, delivery))

    async def _collect(self) -> None:
        while True:
            sent, delivery = await self._undecided.get()
            try:
                self._decide(sent, offset=(await delivery).offset)
            except KafkaError as error:
                self._decide(sent, error=error)
            self._undecided.task_done()

    def _decide(self, sent: Sent, *, offset: int | None = None, error: KafkaError | None = None) -> None:
        sent.offset, sent.error = offset, error
        self._scene.note(f"told {sent.writer} {sent.number} {sent.topic_partition} {offset} {error}")


@dataclass(slots=True)
class Reading:
    """How far a consumer is in one partition."""

    next_offset: int | None = None
    cuts: int = 0
    high_watermark: int = -1


class ConsumerApp:
    """Reads its partitions all the time; what it gets is checked at once."""

    def __init__(
        self, scene: Scene, runtime: Runtime, plan: ConsumerPlan, partitions: list[TopicPartition], durable: set[str]
    ) -> None:
        self.plan = plan
        self.seen: list[tuple[TopicPartition, int, bytes]] = []
        self.readings = {tp: Reading() for tp in partitions}
        self._consumer: Consumer | None = None
        self._scene = scene
        self._runtime = runtime
        self._durable = durable

    async def run(self) -> None:
        async with Consumer(runtime=self._runtime, **self.plan.options) as consumer:
            self._consumer = consumer
            consumer.assign(self.readings)
            while True:
                try:
                    records = await consumer.poll(self.plan.poll_ms)
                except KafkaError as error:
                    self._scene.note(f"error {self.plan.node} {error}")
                    continue
                for tp, reading in self.readings.items():
                    self._check_high_watermark(tp, reading, consumer._fetcher.assigned[tp].high_watermark)
                for record in records:
                    self._take(TopicPartition(record.topic, record.partition), record.offset, record.value or b"")

    def _model(self, tp: TopicPartition) -> LogModel | None:
        return next(self._scene.watch.of(tp), None)

    def _take(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        self._scene.note(f"read {self.plan.node} {tp} {offset} {value[:30]!r}")
        self.seen.append((tp, offset, value))
        model, reading = self._model(tp), self.readings[tp]
        require(model is not None, f"{tp}: read from a log that nobody wrote")
        assert model is not None
        expected = model.values.get(offset)
        require(
            expected == value or (offset, value) in model.lost,
            f"{self.plan.node} read {value[:30]!r} at {tp}@{offset}, where {expected and expected[:30]!r} is",
        )
        if not model.cuts:
            require(offset < reading.high_watermark, f"{self.plan.node}: {tp}@{offset} is beyond the high watermark")
        if reading.next_offset is not None and reading.cuts == model.cuts:
            require(offset == reading.next_offset, f"{self.plan.node}: {tp}@{offset} follows {reading.next_offset - 1}")
        reading.next_offset, reading.cuts = offset + 1, model.cuts

    def _check_high_watermark(self, tp: TopicPartition, reading: Reading, offset: int) -> None:
        if offset == reading.high_watermark:
            return
        model = self._model(tp)
        may_move_back = model is not None and model.cuts and tp.topic not in self._durable
        require(
            offset > reading.high_watermark or may_move_back,
            f"{self.plan.node}: the high watermark of {tp} went from {reading.high_watermark} back to {offset}",
        )
        reading.high_watermark = offset

    def behind(self, ends: dict[TopicPartition, int]) -> list[str]:
        """The partitions that it has not read to their end."""
        if self._consumer is None:
            return [f"{self.plan.node} has not begun"]
        positions = {tp: self._consumer._fetcher.assigned[tp].position for tp in self.readings}
        return [
            f"{self.plan.node} is at {position} of {tp}, which ends at {ends[tp]}"
            for tp, position in positions.items()
            if position != ends[tp]
        ]


@dataclass(slots=True)
class SideTopic:
    """What an administrator was told about a topic."""

    exists: bool = False
    partitions: int = 0
    topic_id: UUID | None = None
    configs: dict[str, str] = field(default_factory=dict)


class AdminApp:
    """Creates, changes and deletes other topics, one call after the other, and remembers what was confirmed."""

    def __init__(self, scene: Scene, runtime: Runtime, options: dict[str, object], random: Random) -> None:
        self.topics: dict[str, SideTopic] = {}
        self.confirmed = 0
        self._scene = scene
        self._runtime = runtime
        self._options = options
        self._random = random
        self._names = (f"side.{number}" for number in count())

    async def run(self) -> None:
        random = self._random
        async with Admin(runtime=self._runtime, **self._options) as admin:  # type: ignore[arg-type]
            while not self._scene.draining:
                await self._runtime.timers.sleep(random.uniform(0.05, 0.5))
                if len(self.topics) < 3:
                    self.topics[next(self._names)] = SideTopic()
                name = random.choice(list(self.topics))
                # Out of the book while it is under way: a call without an answer leaves it open what there is.
                topic = self.topics.pop(name)
                action = random.choice((self._delete, self._grow, self._alter)) if topic.exists else self._create
                try:
                    await action(admin, name, topic)
                except KafkaError as error:
                    self._scene.note(f"admin {name} {error}")
                else:
                    self.topics[name] = topic
                    self.confirmed += 1
                    self._scene.note(f"admin {name} {topic}")

    async def _create(self, admin: Admin, name: str, topic: SideTopic) -> None:
        configs = topic_configs(self._random) | {"message.timestamp.after.max.ms": str(LONG_MAX)}
        partitions = self._random.randint(1, 3)
        results = await admin.create_topics([NewTopic(name=name, num_partitions=partitions, configs=configs)])
        # A first attempt may have succeeded without an answer.
        if isinstance(results.errors.get(name), TopicAlreadyExists):
            topic_id = (await admin.describe_topics([name])).get()[name].topic_id
        else:
            topic_id = results.get()[name].topic_id
        topic.exists, topic.partitions, topic.topic_id, topic.configs = True, partitions, topic_id, configs

    async def _delete(self, admin: Admin, name: str, topic: SideTopic) -> None:
        results = await admin.delete_topics([name])
        if not isinstance(results.errors.get(name), UnknownTopicOrPartition):
            results.get()
        topic.exists, topic.topic_id = False, None

    async def _grow(self, admin: Admin, name: str, topic: SideTopic) -> None:
        results = await admin.create_partitions({name: topic.partitions + 1})
        described = (await admin.describe_topics([name])).get()[name]
        if len(described.partitions) == topic.partitions:
            results.get()
        topic.partitions += 1

    async def _alter(self, admin: Admin, name: str, topic: SideTopic) -> None:
        configs = topic_configs(self._random)
        changes = [ConfigChange(key, value) for key, value in configs.items()]
        (await admin.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, name): changes})).get()
        topic.configs |= configs

    def partitions(self) -> list[TopicPartition]:
        """Of the topics that there are."""
        existing = [(name, topic) for name, topic in self.topics.items() if topic.exists]
        return [TopicPartition(name, index) for name, topic in existing for index in range(topic.partitions)]

    def check(self, image: MetadataImage) -> None:
        """What was confirmed is in the image, however the broker died since."""
        for name, topic in self.topics.items():
            found = image.topic(name)
            require((found is not None) == topic.exists, f"{name}: exists={found is not None}, told was {topic}")
            if found is not None:
                require(found.topic_id == topic.topic_id, f"{name}: id {found.topic_id}, told was {topic.topic_id}")
                require(len(found.partitions) == topic.partitions, f"{name}: {len(found.partitions)} partitions")
                require(dict(image.topic_configs(name)) == topic.configs, f"{name}: other configs than confirmed")
