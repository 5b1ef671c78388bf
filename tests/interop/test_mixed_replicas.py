"""One replica on Twofold, one on Apache Kafka: each leads the other, through kills, stops and elections.

Apache Kafka is the judge: its follower takes what a Twofold leader sends, its controller what the leader says of the
replicas in sync, and its tools find both logs alike.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from kits.cluster.apache import ApacheCluster, eventually
from kits.cluster.processes import Member
from oracle.driver import Connection
from oracle.kafka import jars_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.oracle, pytest.mark.slow, pytest.mark.timeout(600)]

APACHE, TWOFOLD = 1, 9
TOPICS = "org.apache.kafka.tools.TopicCommand"
QUICK = {
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
}
PATIENCE_S = 60


class State(NamedTuple):
    leader: int
    isr: list[int]
    epoch: int


class Scene:
    def __init__(self, cluster: ApacheCluster, member: Member, topic: str, *replicas: int) -> None:
        self.cluster = cluster
        self.member = member
        self.topic = topic
        self.sent = 0
        created = self.tool(
            TOPICS, "--create", "--topic", topic, "--replica-assignment", ":".join(map(str, replicas)),
            "--config", "min.insync.replicas=1",
        )  # fmt: skip
        assert "Created topic" in created
        addresses = f"{cluster.bootstrap_brokers},{member.bootstrap_servers}"
        self.producer = Producer(
            {"bootstrap.servers": addresses, "enable.idempotence": True, "linger.ms": 1, "socket.timeout.ms": 3000}
        )
        self.addresses = addresses

    def tool(self, name: str, *args: str) -> str:
        done = self.cluster.tool(name, ["--bootstrap-server", self.cluster.bootstrap_brokers, *args])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def state(self) -> State:
        """As the broker of Apache Kafka sees it, or the member where that one is down."""
        apache = self.cluster.brokers[0]
        for host, port in (("127.0.0.1", apache.port), (self.member.host, self.member.port)):
            try:
                with Connection(host, port) as connection:
                    asked = [{"name": self.topic}]
                    found = connection.ask("Metadata", 7, topics=asked, allow_auto_topic_creation=False)
            except OSError:
                continue
            (row,) = found["topics"][0]["partitions"]
            return State(row["leader_id"], sorted(row["isr_nodes"]), row["leader_epoch"])
        raise AssertionError("no broker answers")

    def until(self, leader: int | None, *isr: int) -> None:
        def is_so() -> bool:
            state = self.state()
            return (leader is None or state.leader == leader) and state.isr == sorted(isr)

        try:
            eventually(is_so, within_s=PATIENCE_S, what=f"leader {leader}, in sync {isr}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.state()}\n{self.member.log_text()[-3000:]}") from None

    def write(self, count: int = 200) -> None:
        """Acknowledged by all that are in sync."""
        failed: list[object] = []

        def told(error: object, _: object) -> None:
            if error is not None:
                failed.append(error)

        for _ in range(count):
            self.producer.produce(self.topic, str(self.sent).encode(), on_delivery=told)
            self.sent += 1
        assert self.producer.flush(PATIENCE_S) == 0
        assert failed == []

    def read(self) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.addresses, "group.id": "x", "enable.partition.eof": True})
        consumer.assign([TopicPartition(self.topic, 0, OFFSET_BEGINNING)])
        values: list[int] = []
        while True:
            for message in consumer.consume(1000, 1.0):
                if message.error() is not None:
                    consumer.close()
                    return values
                values.append(int(message.value() or b""))

    def logs(self) -> tuple[bytes, bytes]:
        """The records of both replicas."""
        name = f"{self.topic}-0"
        apache = self.cluster.brokers[0].directory / "data" / name
        theirs = b"".join(path.read_bytes() for path in sorted(apache.glob("*.log")))
        return self.member.log_bytes(name), theirs

    def settle(self) -> None:
        """Everything is on both, once, in order."""
        self.until(None, APACHE, TWOFOLD)
        eventually(lambda: self.logs()[0] == self.logs()[1], within_s=PATIENCE_S, what="both logs are the same")
        assert self.read() == list(range(self.sent))

    def prefer(self, leader: int) -> None:
        self.tool(
            "org.apache.kafka.tools.LeaderElectionCommand",
            "--election-type", "preferred", "--topic", self.topic, "--partition", "0",
        )  # fmt: skip
        self.until(leader, APACHE, TWOFOLD)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    folder = tmp_path_factory.mktemp("apache")
    running = ApacheCluster(jars_or_skip(), folder, controllers=1, brokers=1, settings=QUICK)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def member(cluster: ApacheCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    settings = {**QUICK, "auto.create.topics.enable": "false"}
    with Member(tmp_path_factory.mktemp("member"), TWOFOLD, cluster.bootstrap_controllers, settings) as running:
        yield running


def test_a_follower_of_apache_kafka_under_a_leader_of_twofold(cluster: ApacheCluster, member: Member) -> None:
    scene = Scene(cluster, member, "led", TWOFOLD, APACHE)
    scene.until(TWOFOLD, APACHE, TWOFOLD)
    scene.write()
    scene.settle()

    follower = cluster.brokers[0]
    follower.kill()
    scene.until(TWOFOLD, TWOFOLD)
    scene.write()
    follower.start()
    follower.await_ready()
    scene.settle()

    follower.pause()  # within its session, and longer than replica.lag.time.max.ms: only the leader can notice
    began = time.monotonic()
    scene.write(1)
    assert time.monotonic() - began > 1
    follower.resume()
    scene.settle()

    member.kill()
    scene.until(APACHE, APACHE)
    scene.write()
    member.start()
    scene.settle()
    scene.prefer(TWOFOLD)
    scene.write()
    scene.settle()


def test_a_follower_of_twofold_under_a_leader_of_apache_kafka(cluster: ApacheCluster, member: Member) -> None:
    scene = Scene(cluster, member, "followed", APACHE, TWOFOLD)
    scene.until(APACHE, APACHE, TWOFOLD)
    scene.write()
    scene.settle()

    assert member.stop() == 0
    scene.until(APACHE, APACHE)
    scene.write()
    member.start()
    scene.settle()

    cluster.brokers[0].kill()
    scene.until(TWOFOLD, TWOFOLD)
    scene.write()
    cluster.brokers[0].start()
    cluster.brokers[0].await_ready()
    scene.settle()
    scene.prefer(APACHE)
    scene.write()
    scene.settle()
