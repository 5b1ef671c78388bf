"""kill -9 in a loop under idempotent load: nothing acknowledged is lost, nothing doubled, order kept."""

import os
import random
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kits.processes.server import TwofoldServer

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS = 3
ROUNDS = 100 if os.environ.get("TWOFOLD_LONG") else 12


class Load(threading.Thread):
    """One idempotent producer that never stops sending numbered records, round robin over the partitions."""

    def __init__(self, address: str, topic: str, **settings: object) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.acknowledged: list[tuple[int, int, int]] = []
        self.refused: list[str] = []
        self.sent = 0
        self.stopping = threading.Event()
        self.producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 10,
                "log_level": 0,
                **{name.replace("_", "."): value for name, value in settings.items()},
            },
        )

    def run(self) -> None:
        while not self.stopping.is_set():
            number = self.sent
            try:
                self.producer.produce(
                    self.topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._on_delivery
                )
                self.sent += 1
            except BufferError:
                self.producer.poll(0.01)
            if self.sent % 50 == 0:
                self.producer.poll(0.002)
        assert self.producer.flush(60) == 0

    def _on_delivery(self, error, message) -> None:
        if error is not None:
            self.refused.append(str(error))
        else:
            self.acknowledged.append((int(message.value()), message.partition(), message.offset()))


def read_all(address: str, topic: str) -> dict[int, list[tuple[int, int]]]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "x", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    at_end: set[int] = set()
    while len(at_end) < PARTITIONS:
        for message in consumer.consume(10_000, 1.0):
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            if message.error() is not None:
                at_end.add(partition)
            else:
                assert offset is not None
                rows[partition].append((offset, int(message.value() or b"")))
    consumer.close()
    return rows


def test_kill_nine_loses_and_doubles_nothing(tmp_path: Path):
    chance = random.Random(98)
    server = TwofoldServer(tmp_path / "server")
    server.start()
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        admin.create_topics([NewTopic("load", PARTITIONS, 1)])["load"].result()
        load = Load(server.bootstrap_servers, "load")
        load.start()
        killed_under_load = 0
        for _ in range(ROUNDS):
            before = len(load.acknowledged)
            deadline = time.monotonic() + 30
            while len(load.acknowledged) == before:
                assert time.monotonic() < deadline, "the producer got nothing acknowledged after a restart"
                time.sleep(0.01)
            time.sleep(chance.uniform(0.02, 0.3))
            killed_under_load += len(load.acknowledged) > before
            server.kill()
            server.start()
        load.stopping.set()
        load.join(90)
        assert not load.is_alive()

        rows = read_all(server.bootstrap_servers, "load")
    finally:
        server.kill()

    assert killed_under_load == ROUNDS
    assert load.refused == []
    assert len(load.acknowledged) == load.sent > ROUNDS
    for partition, number_by_offset in ((p, dict(rows[p])) for p in range(PARTITIONS)):
        numbers = [number for _, number in rows[partition]]
        assert numbers == list(range(partition, load.sent, PARTITIONS)), "every record once, in order"
        for number, where, offset in load.acknowledged:
            if where == partition:
                assert number_by_offset[offset] == number, "acknowledged at the offset where it is"
