"""Two brokers that replicate, as processes: kill -9 and pauses of the leader and of the follower, under load."""

import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop.test_kill_nine import Load
from kits.cluster.processes import SESSION_MS, Member, TwofoldCluster

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "load"
PARTITIONS = 3
SETTLED_S = 60


def until(condition: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Scene:
    """A topic with two replicas of each partition, and a producer that never stops."""

    def __init__(self, cluster: TwofoldCluster) -> None:
        self.cluster = cluster
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        self.admin.create_topics([NewTopic(TOPIC, PARTITIONS, 2)])[TOPIC].result()
        # A broker that stands still is left after this time, not after a minute.
        self.load = Load(cluster.bootstrap_servers, TOPIC, socket_timeout_ms=3000, request_timeout_ms=3000)
        self.load.start()

    def leader_and_follower(self) -> tuple[Member, Member]:
        """Of partition 0."""
        state = self.states()[0]
        assert state.leader in (1, 2)
        return self.cluster.broker(state.leader), self.cluster.broker(3 - state.leader)

    def states(self) -> dict[int, Any]:
        return self.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions

    def in_sync(self) -> bool:
        try:
            return all(sorted(state.isrs) == [1, 2] and state.leader > 0 for state in self.states().values())
        except KafkaException:  # neither broker answers
            return False

    def progress(self) -> None:
        """Some more records are acknowledged."""
        wanted = len(self.load.acknowledged) + 50
        until(lambda: len(self.load.acknowledged) >= wanted, SETTLED_S, "the producer got nothing acknowledged")

    def settle(self) -> None:
        until(self.in_sync, SETTLED_S, f"not all replicas came back in sync: {self.states()}")
        self.progress()


def read_all(address: str) -> dict[int, list[tuple[int, int]]]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "x", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(TOPIC, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
    rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    at_end: set[int] = set()
    while len(at_end) < PARTITIONS:
        for message in consumer.consume(10_000, 1.0):
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None
            if message.error() is not None:
                at_end.add(partition)
            else:
                rows[partition].append((offset, int(message.value() or b"")))
    consumer.close()
    return rows


def test_nothing_acknowledged_is_lost_and_both_logs_are_the_same(tmp_path: Path) -> None:
    chance = random.Random(24)
    with TwofoldCluster(tmp_path, brokers=2) as cluster:
        scene = Scene(cluster)
        for fault in ("kill leader", "pause leader", "kill follower", "pause follower", "short pause of the leader"):
            scene.settle()
            leader, follower = scene.leader_and_follower()
            victim = leader if "leader" in fault else follower
            time.sleep(chance.uniform(0.05, 0.4))
            if fault.startswith("kill"):
                victim.kill()
                scene.progress()
                victim.start()
            else:
                victim.pause()
                time.sleep(0.5 if fault.startswith("short") else SESSION_MS / 1000 + 2)
                if not fault.startswith("short"):
                    scene.progress()
                victim.resume()
        scene.settle()
        load = scene.load
        load.stopping.set()
        load.join(90)
        assert not load.is_alive()
        rows = read_all(cluster.bootstrap_servers)
        until(lambda: logs_are_same(cluster), 30, "the logs differ")
        for broker in cluster.brokers:
            assert broker.stop() == 0
        assert logs_are_same(cluster)

    assert load.refused == []
    assert len(load.acknowledged) == load.sent > 250
    for partition in range(PARTITIONS):
        numbers = [number for _, number in rows[partition]]
        assert numbers == list(range(partition, load.sent, PARTITIONS)), "every record once, in order"
        number_by_offset = dict(rows[partition])
        for number, where, offset in load.acknowledged:
            if where == partition:
                assert number_by_offset[offset] == number, "acknowledged at the offset where it is"


def logs_are_same(cluster: TwofoldCluster) -> bool:
    one, other = cluster.brokers
    names = [f"{TOPIC}-{index}" for index in range(PARTITIONS)]
    return all(one.log_bytes(name) == other.log_bytes(name) for name in names)
