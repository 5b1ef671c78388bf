"""Stock clients behind one small interface, so that a test runs the same story with each of them."""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import pytest

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


T = TypeVar("T")


class Seen(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes


class Confluent:
    """librdkafka through confluent-kafka."""

    name = "confluent-kafka"

    def __init__(self, address: str) -> None:
        self.address = address

    def create_topic(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()

    def produce(
        self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes, int]], codec: str, idempotent: bool
    ) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self.address, "compression.type": codec, "enable.idempotence": idempotent}
        )
        failures = []
        for key, value, timestamp in records:
            producer.produce(
                topic, value, key, partition, timestamp=timestamp,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )  # fmt: skip
        assert producer.flush(30) == 0
        assert failures == []

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Seen]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "x", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, partition, offset)])
        seen: list[Seen] = []
        deadline = time.monotonic() + 30
        while len(seen) < count and time.monotonic() < deadline:
            for message in consumer.consume(count, 0.5):
                assert message.error() is None, message.error()
                at, value = message.offset(), message.value()
                assert at is not None
                assert value is not None
                seen.append(Seen(at, message.timestamp()[1], message.key(), value))
        consumer.close()
        return seen

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "x"})
        (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, timestamp)], timeout=10)
        consumer.close()
        return int(found.offset)

    def configs(self, topic: str) -> dict[str, str]:
        from confluent_kafka.admin import AdminClient, ConfigResource

        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        admin = AdminClient({"bootstrap.servers": self.address})
        entries = admin.describe_configs([resource])[resource].result()
        return {name: entry.value for name, entry in entries.items()}


class KafkaPython:
    name = "kafka-python"

    def __init__(self, address: str) -> None:
        self.address = address

    def create_topic(self, topic: str, partitions: int) -> None:
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=self.address)
        admin.create_topics([NewTopic(name=topic, num_partitions=partitions, replication_factor=1)])
        admin.close()

    def produce(
        self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes, int]], codec: str, idempotent: bool
    ) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.address, compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent, acks="all",
        )  # fmt: skip
        futures = [
            producer.send(topic, key=key, value=value, partition=partition, timestamp_ms=timestamp)
            for key, value, timestamp in records
        ]
        producer.flush(30)
        for future in futures:
            future.get(30)
        producer.close()

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Seen]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=self.address, enable_auto_commit=False, group_id=None)
        where = TopicPartition(topic, partition)
        consumer.assign([where])
        consumer.seek(where, offset)
        seen: list[Seen] = []
        deadline = time.monotonic() + 30
        while len(seen) < count and time.monotonic() < deadline:
            for batch in consumer.poll(timeout_ms=500).values():
                seen += [Seen(r.offset, r.timestamp, r.key, r.value) for r in batch]
        consumer.close()
        return seen

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=self.address, group_id=None)
        where = TopicPartition(topic, partition)
        consumer.assign([where])
        found = consumer.offsets_for_times({where: timestamp})[where]
        consumer.close()
        return int(found.offset)

    def configs(self, topic: str) -> dict[str, str]:
        from kafka.admin import ConfigResource, KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=self.address)
        answer = admin.describe_configs([ConfigResource("topic", topic)], config_filter="all")
        admin.close()
        return {name: entry["value"] for name, entry in answer["topic"][topic].items()}


class AioKafka:
    name = "aiokafka"

    def __init__(self, address: str) -> None:
        self.address = address

    def _run(self, story: Callable[[], Awaitable[T]]) -> T:
        async def bounded() -> T:
            return await asyncio.wait_for(story(), 40)

        return asyncio.run(bounded())

    def create_topic(self, topic: str, partitions: int) -> None:
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        async def story() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                await admin.create_topics([NewTopic(topic, partitions, 1)])
            finally:
                await admin.close()

        self._run(story)

    def produce(
        self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes, int]], codec: str, idempotent: bool
    ) -> None:
        from aiokafka import AIOKafkaProducer

        async def story() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.address, compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent, acks="all",
            )  # fmt: skip
            await producer.start()
            try:
                futures = [
                    await producer.send(topic, value, key, partition, timestamp_ms=timestamp)
                    for key, value, timestamp in records
                ]
                await asyncio.gather(*futures)
            finally:
                await producer.stop()

        self._run(story)

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Seen]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def story() -> list[Seen]:
            consumer = AIOKafkaConsumer(bootstrap_servers=self.address, enable_auto_commit=False, group_id=None)
            await consumer.start()
            try:
                where = TopicPartition(topic, partition)
                consumer.assign([where])
                consumer.seek(where, offset)
                seen: list[Seen] = []
                while len(seen) < count:
                    for batch in (await consumer.getmany(timeout_ms=500)).values():
                        seen += [Seen(r.offset, r.timestamp, r.key, r.value) for r in batch]
                return seen
            finally:
                await consumer.stop()

        return self._run(story)

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def story() -> int:
            consumer = AIOKafkaConsumer(bootstrap_servers=self.address, group_id=None)
            await consumer.start()
            try:
                where = TopicPartition(topic, partition)
                return int((await consumer.offsets_for_times({where: timestamp}))[where].offset)
            finally:
                await consumer.stop()

        return self._run(story)

    def configs(self, topic: str) -> dict[str, str]:
        from aiokafka.admin import AIOKafkaAdminClient
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        async def story() -> dict[str, str]:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await admin.start()
            try:
                (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
                return {entry[0]: entry[1] for entry in answer.resources[0][4]}
            finally:
                await admin.close()

        return self._run(story)


class Kcat:
    """Debian's kcat. It creates a topic by writing to it and cannot read configs."""

    name = "kcat"

    def __init__(self, address: str) -> None:
        self.address = address
        if shutil.which("kcat") is None:
            pytest.skip("kcat is not installed (Debian: apt-get install kcat)")

    def _run(self, *arguments: str, data: str = "") -> str:
        command = ["kcat", "-b", self.address, *arguments]
        done = subprocess.run(command, input=data, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def create_topic(self, topic: str, partitions: int) -> None:
        """By auto-creation, so with the broker's default number of partitions."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = json.loads(self._run("-L", "-J", "-t", topic))["topics"]
            if found and found[0]["partitions"]:
                return
            time.sleep(0.05)
        raise AssertionError(f"{topic} was not created")

    def produce(
        self, topic: str, partition: int, records: Sequence[tuple[bytes, bytes, int]], codec: str, idempotent: bool
    ) -> None:
        lines = "".join(f"{key.decode()}:{value.decode()}\n" for key, value, _ in records)
        options = ["-X", f"enable.idempotence={str(idempotent).lower()}", "-X", f"compression.codec={codec}"]
        self._run("-P", "-t", topic, "-p", str(partition), "-K", ":", *options, data=lines)

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Seen]:
        options = ["-C", "-t", topic, "-p", str(partition), "-o", str(offset), "-c", str(count), "-e", "-q"]
        lines = self._run(*options, "-f", "%o %T %k %s\n").splitlines()
        parts = [line.split(" ", 3) for line in lines]
        return [Seen(int(o), int(t), k.encode(), v.encode()) for o, t, k, v in parts]

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int:
        text = self._run("-Q", "-t", f"{topic}:{partition}:{timestamp}")
        return int(text.split("offset")[-1])


CLIENTS = (Confluent, KafkaPython, AioKafka, Kcat)
