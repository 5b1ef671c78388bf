"""Compaction by a real broker process, at a bounded rate, killed in the middle again and again: a stock client reads
the newest value of every key, nothing that was aborted, and no key that was deleted."""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kits.processes.server import TwofoldServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KEYS = 400
ROUNDS = 12 if os.environ.get("TWOFOLD_LONG") else 3
SLOWLY = 6 << 20  # bytes a second, so that there is time to die in
TOPIC = TopicPartition("c", 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TwofoldServer]:
    settings = {"log.cleaner.backoff.ms": "100", "log.cleaner.io.max.bytes.per.second": str(SLOWLY)}
    made = TwofoldServer(tmp_path / "broker", settings)
    made.start()
    try:
        yield made
    finally:
        made.kill()


def eventually(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Story:
    """What was written, and what has to be read."""

    def __init__(self, server: TwofoldServer) -> None:
        self.server = server
        self.random = random.Random(1)
        self.newest: dict[bytes, bytes | None] = {}
        self.number = 0
        self.producer = self.client(transactional_id=None)
        self.writer = self.client(transactional_id="w")
        self.writer.init_transactions(30)

    def client(self, transactional_id: str | None) -> Producer:
        settings = {
            "bootstrap.servers": self.server.bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 2,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "log_level": 0,
        }
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        return Producer(settings)

    def pair(self) -> tuple[bytes, bytes | None]:
        self.number += 1
        key = b"k%d" % self.random.randrange(KEYS)
        if self.random.random() < 0.05:
            return key, None
        return key, b"%d " % self.number + self.random.randbytes(3000)

    def write(self, count: int) -> None:
        for _ in range(count):
            key, value = self.pair()
            self.newest[key] = value
            self._send(self.producer, key, value)
        assert self.producer.flush(60) == 0

    def write_transaction(self, commit: bool) -> None:
        self.writer.begin_transaction()
        for _ in range(20):
            key, value = self.pair()
            value = value if commit or value is None else b"aborted " + value
            self._send(self.writer, key, value)
            if commit:
                self.newest[key] = value
        assert self.writer.flush(60) == 0
        if commit:
            self.writer.commit_transaction(30)
        else:
            self.writer.abort_transaction(30)

    def _send(self, producer: Producer, key: bytes, value: bytes | None) -> None:
        def delivered(error: object, _: object) -> None:
            assert error is None, error

        while True:
            try:
                producer.produce(TOPIC.topic, value, key, partition=0, on_delivery=delivered)
                producer.poll(0)
                return
            except BufferError:
                producer.poll(0.05)

    def read(self) -> dict[bytes, bytes | None]:
        """The last value of each key, as a client that starts today finds it."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.server.bootstrap_servers,
                "group.id": "g",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(TOPIC.topic, 0, OFFSET_BEGINNING)])
        found: dict[bytes, bytes | None] = {}
        last = -1
        at_end = False
        while not at_end:
            for message in consumer.consume(500, 1.0):
                if message.error() is not None:
                    at_end = True
                    continue
                offset, key = message.offset(), message.key()
                assert offset is not None and key is not None
                assert offset > last, "offsets never change their order"
                last = offset
                assert not (message.value() or b"").startswith(b"aborted")
                found[key] = message.value()
        consumer.close()
        return found


def directory(server: TwofoldServer) -> Path:
    return server.data / "c-0"


def is_being_compacted(server: TwofoldServer) -> bool:
    return any(name.endswith((".cleaned", ".swap")) for name in os.listdir(directory(server)))


def size(server: TwofoldServer) -> int:
    total = 0
    for path in directory(server).glob("*.log"):
        with suppress(FileNotFoundError):  # the cleaner has replaced it meanwhile
            total += path.stat().st_size
    return total


def test_compaction_that_is_killed_again_and_again_loses_no_key(server: TwofoldServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, "log_level": 0})
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(1 << 20),
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "100",
    }
    for created in admin.create_topics([NewTopic(TOPIC.topic, 1, 1, config=config)]).values():
        created.result(10)
    story = Story(server)
    for number in range(ROUNDS):
        story.write_transaction(commit=False)
        story.write(1500)
        story.write_transaction(commit=bool(number % 2))
        eventually(lambda: is_being_compacted(server), "compaction has begun")
        time.sleep(story.random.random() * 0.4)
        server.kill()
        server.start()
    written = size(server)
    resource = ConfigResource(ResourceType.BROKER, "1")
    resource.add_incremental_config(
        ConfigEntry("log.cleaner.io.max.bytes.per.second", "1e12", incremental_operation=AlterConfigOpType.SET)
    )
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(10)  # from now on as fast as it can, without a restart
    story.write(400)
    eventually(lambda: size(server) < 0.7 * KEYS * ROUNDS * 3000 and not is_being_compacted(server), "it shrinks")
    assert size(server) < written
    found = story.read()
    alive = {key: value for key, value in story.newest.items() if value is not None}
    assert {key: value for key, value in found.items() if value is not None} == alive
    server.kill()
    server.start()
    assert {key: value for key, value in story.read().items() if value is not None} == alive
    text = server.output.read_text()
    assert "compacted [" in text
    assert "Traceback" not in text
    assert "cannot be compacted" not in text
