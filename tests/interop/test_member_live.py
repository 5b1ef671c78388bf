"""A Twofold broker in a cluster of Apache Kafka: three controllers and two brokers, real processes."""

import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from kits.cluster.apache import ApacheCluster, Done, eventually
from kits.processes import commands
from kits.processes.server import TwofoldServer
from oracle.driver import Connection
from oracle.kafka import jars_or_skip

pytestmark = [pytest.mark.interop, pytest.mark.oracle, pytest.mark.slow]

SESSION_MS = 4000
QUICK = {"broker.session.timeout.ms": str(SESSION_MS), "broker.heartbeat.interval.ms": "500"}
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    running = ApacheCluster(jars_or_skip(), tmp_path_factory.mktemp("apache"), settings=QUICK)
    try:
        yield running.start()
    finally:
        running.stop()


class Member(TwofoldServer):
    def __init__(self, cluster: ApacheCluster, directory: Path, node_id: int = 9, **settings: str) -> None:
        super().__init__(directory, {"node.id": str(node_id), **QUICK, **settings})
        self.cluster = cluster
        self.node_id = node_id
        self.flags = ["--join", cluster.bootstrap_controllers, "--coordinators-only"]

    def is_unfenced(self) -> bool:
        """As a broker of Apache Kafka sees it."""
        with Connection("127.0.0.1", self.cluster.brokers[0].port) as connection:
            brokers = connection.ask("Metadata", 1, topics=[])["brokers"]
        return self.node_id in {row["node_id"] for row in brokers}

    def topics(self, *args: str) -> Done:
        """kafka-topics.sh through this broker."""
        return self.cluster.tool(TOPICS, ["--bootstrap-server", self.bootstrap_servers, *args])

    def refusal(self) -> str:
        """Why it does not start."""
        self.start(wait=False)
        assert self._process is not None
        self._process.wait(60)
        self._process = None
        return self.log_text().splitlines()[-1]


@pytest.fixture(scope="module")
def member(cluster: ApacheCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with Member(cluster, tmp_path_factory.mktemp("member")) as running:
        yield running


def leader_of(member: Member, topic: str) -> int:
    """As the member sees it."""
    with Connection(member.host, member.port) as connection:
        found = connection.ask("Metadata", 4, topics=[{"name": topic}], allow_auto_topic_creation=False)
    return int(found["topics"][0]["partitions"][0]["leader_id"]) if found["topics"][0]["partitions"] else -1


def make_topic(member: Member, name: str, *brokers: int) -> None:
    done = member.topics("--create", "--topic", name, "--replica-assignment", ":".join(map(str, brokers)))
    assert done.returncode == 0, done.stdout + done.stderr


# --- joining


def test_a_member_is_unfenced_within_five_seconds(cluster: ApacheCluster, tmp_path: Path) -> None:
    with Member(cluster, tmp_path, 19) as member:
        eventually(member.is_unfenced, within_s=5, what="unfenced")
        # From the first word of a controller on: how long an interpreter takes to start depends on the machine.
        times = [_logged_at(line) for line in member.log_text().splitlines() if "leads the metadata" in line]
        unfenced = [_logged_at(line) for line in member.log_text().splitlines() if "is unfenced" in line]
        assert (unfenced[0] - times[0]).total_seconds() < 3


def _logged_at(line: str) -> datetime:
    return datetime.fromisoformat(" ".join(line.split()[:2]))


def test_the_quorum_shows_a_member_without_lag(cluster: ApacheCluster, member: Member) -> None:
    def row() -> list[str]:
        rows = [line.split() for line in cluster.quorum("--replication").splitlines()]
        return next((found for found in rows if found and found[0] == "9"), [])

    eventually(lambda: row()[3:4] == ["0"], within_s=15, what="no lag")
    assert row()[-1] == "Observer"


def test_kafkas_topic_tool_works_through_a_member(member: Member) -> None:
    done = member.topics("--create", "--topic", "tool", "--partitions", "3", "--replication-factor", "2")
    assert done.stdout.strip().endswith("Created topic tool."), done.stdout + done.stderr
    shown = member.topics("--describe", "--topic", "tool").stdout
    assert "PartitionCount: 3\tReplicationFactor: 2" in shown
    assert all(f"Replicas: {row}" in shown for row in ("1,2", "2,1"))  # none is placed on the member
    assert member.topics("--alter", "--topic", "tool", "--partitions", "4").returncode == 0
    assert "PartitionCount: 4" in member.topics("--describe", "--topic", "tool").stdout
    assert member.topics("--delete", "--topic", "tool").returncode == 0
    assert "tool" not in member.topics("--list").stdout.split()


def test_kafkas_other_tools_work_through_a_member(cluster: ApacheCluster, member: Member, tmp_path: Path) -> None:
    server = ["--bootstrap-server", member.bootstrap_servers]
    make_topic(member, "tools", 1, 2)
    altered = cluster.tool(CONFIGS, [*server, "--alter", "--topic", "tools", "--add-config", "retention.ms=12345"])
    assert altered.returncode == 0, altered.stdout + altered.stderr
    assert "retention.ms=12345" in cluster.tool(CONFIGS, [*server, "--describe", "--topic", "tools"]).stdout
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "tools", "partition": 0, "replicas": [2, 1]}]}))
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    moved = cluster.tool(tool, [*server, "--execute", "--reassignment-json-file", str(plan)])
    assert moved.returncode == 0, moved.stdout + moved.stderr
    elected = cluster.tool(
        "org.apache.kafka.tools.LeaderElectionCommand",
        [*server, "--election-type", "preferred", "--topic", "tools", "--partition", "0"],
    )
    assert elected.returncode == 0, elected.stdout + elected.stderr
    eventually(lambda: leader_of(member, "tools") == 2, within_s=10, what="the preferred leader")
    features = cluster.tool("org.apache.kafka.tools.FeatureCommand", [*server, "describe"])
    assert "metadata.version" in features.stdout and features.returncode == 0
    quorum = cluster.tool("org.apache.kafka.tools.MetadataQuorumCommand", [*server, "describe", "--status"])
    assert cluster.cluster_id in quorum.stdout, quorum.stdout + quorum.stderr


def test_clients_find_the_whole_cluster_through_a_member(member: Member) -> None:
    make_topic(member, "theirs", 1, 2)
    make_topic(member, "ours", 9)
    producer = Producer({"bootstrap.servers": member.bootstrap_servers, "acks": "all"})
    for topic in ("theirs", "ours"):
        for number in range(20):
            producer.produce(topic, f"{topic}-{number}".encode())
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": member.bootstrap_servers, "group.id": "through", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["theirs", "ours"])
    found: set[bytes] = set()

    def read() -> bool:
        message: Any = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.add(message.value())
        return len(found) == 40

    eventually(read, within_s=60, what="all records read")
    consumer.close()


# --- faults


def test_a_member_survives_the_loss_of_the_active_controller(cluster: ApacheCluster, member: Member) -> None:
    active = cluster.active_controller()
    active.kill()
    try:
        make_topic(member, "after-failover", 1, 2)
        assert leader_of(member, "after-failover") == 1
        time.sleep(2 * SESSION_MS / 1000)  # its heartbeats reach the new one, or it would be fenced by now
        assert member.is_unfenced()
    finally:
        active.start()
        active.await_ready()


def test_a_member_that_was_killed_leads_again(cluster: ApacheCluster, member: Member) -> None:
    make_topic(member, "killed", 9)
    producer = Producer({"bootstrap.servers": member.bootstrap_servers})
    producer.produce("killed", b"before")
    assert producer.flush(30) == 0
    member.kill()
    member.start()
    eventually(lambda: leader_of(member, "killed") == 9, within_s=15, what="it leads")
    consumer = Consumer(
        {"bootstrap.servers": member.bootstrap_servers, "group.id": "killed", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["killed"])
    found: list[bytes] = []

    def read() -> bool:
        message: Any = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value())
        return bool(found)

    eventually(read, within_s=30, what="the record is there")
    consumer.close()
    assert found == [b"before"]


def test_a_member_that_stood_still_past_its_session_is_fenced_and_comes_back(
    cluster: ApacheCluster, member: Member
) -> None:
    os.kill(member.pid, signal.SIGSTOP)
    try:
        eventually(lambda: not member.is_unfenced(), within_s=3 * SESSION_MS / 1000, what="fenced")
    finally:
        os.kill(member.pid, signal.SIGCONT)
    eventually(member.is_unfenced, within_s=5, what="unfenced")
    assert member.running


def test_a_member_that_is_stopped_tells_the_controller_first(cluster: ApacheCluster, tmp_path: Path) -> None:
    member = Member(cluster, tmp_path, 29)
    member.start()
    make_topic(member, "leaves", 29)
    assert member.stop() == 0
    assert "broker 29 may stop: it leads nothing any more" in member.log_text()
    assert not member.is_unfenced()
    note = json.loads((member.data / ".kafka_cleanshutdown").read_text())
    assert note["brokerEpoch"] > 0
    member.start()
    eventually(member.is_unfenced, within_s=5, what="unfenced")
    member.kill()


# --- bad input


def test_a_node_id_in_use_is_named(cluster: ApacheCluster, tmp_path: Path) -> None:
    said = Member(cluster, tmp_path, 1, **{"initial.broker.registration.timeout.ms": "1500"}).refusal()
    assert "another broker with this node.id is alive" in said


def test_a_broker_that_is_taken_for_a_controller_is_named(cluster: ApacheCluster, tmp_path: Path) -> None:
    member = Member(cluster, tmp_path, 39)
    member.flags = ["--join", cluster.brokers[0].address, "--coordinators-only"]
    said = member.refusal()
    assert f"{cluster.brokers[0].address} is a broker and no controller: name its controllers, " in said
    assert all(node.address in said for node in cluster.controllers)


def test_apache_kafkas_default_levels_are_refused_with_the_command_that_lowers_them(tmp_path: Path) -> None:
    cluster = ApacheCluster(jars_or_skip(), tmp_path / "apache", controllers=1, brokers=1, features=(), settings=QUICK)
    try:
        cluster.start()
        member = Member(cluster, tmp_path / "member")
        said = member.refusal()
        assert "share.version at 1, streams.version at 1" in said
        command = said.split("`")[1].split()
        assert command[0] == "kafka-features.sh"
        done = cluster.tool("org.apache.kafka.tools.FeatureCommand", command[1:])
        assert done.returncode == 0, done.stdout + done.stderr
        with member:
            eventually(member.is_unfenced, within_s=5, what="unfenced")
    finally:
        cluster.stop()


# --- the command line


def test_the_cluster_is_described_through_a_member(cluster: ApacheCluster, member: Member) -> None:
    def twofold(*words: str) -> Any:
        done = commands.run("cluster", *words, "--format", "json", server=member.bootstrap_servers)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert twofold("describe")["cluster_id"] == cluster.cluster_id
    brokers = {row["broker_id"]: row for row in twofold("brokers")}
    assert {1, 2, 9} <= set(brokers)
    assert not brokers[9]["fenced"]
    quorum = twofold("quorum", "describe")
    assert {row["node_id"] for row in quorum["voters"]} == {3000, 3001, 3002}
    assert {1, 2, 9} <= {row["node_id"] for row in quorum["observers"]}
    assert quorum["leader_id"] == cluster.active_controller().node_id


# --- the guide

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide" / "cluster.md"
KAFKA_TOOLS = {"kafka-cluster.sh": "org.apache.kafka.tools.ClusterTool"}
SHOWN_ELSEWHERE = "kafka-features.sh"  # test_apache_kafkas_default_levels_... runs the command of the message


def shown_commands() -> list[list[str]]:
    section = GUIDE.read_text().split("## A broker in a cluster of Apache Kafka", 1)[1]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    return [shlex.split(line) for line in lines if not line.startswith(SHOWN_ELSEWHERE)]


def test_the_guide_is_followed_from_joining_to_replacing_a_broker(cluster: ApacheCluster, tmp_path: Path) -> None:
    places = {"controller-1:9093": cluster.bootstrap_controllers, "broker-1:9092": cluster.bootstrap_brokers}
    node_id = 59  # the 9 of the guide
    running: Member | None = None
    seen: list[str] = []
    for words in shown_commands():
        told = [places.get(word, word.replace("node.id=9", f"node.id={node_id}")) for word in words]
        seen.append(" ".join(words[:3]))
        if words[:2] == ["twofold", "serve"]:
            assert words[2:4] == ["--join", "controller-1:9093"] and "--coordinators-only" in words
            directory = words[words.index("--data") + 1].removeprefix("./")
            running = Member(cluster, tmp_path / directory, node_id)
            running.start()
            eventually(running.is_unfenced, within_s=10, what="unfenced")
        elif words[0] == "twofold":
            done = commands.run(*told[1 : told.index("--bootstrap-server")], server=cluster.brokers[0].address)
            assert done.returncode == 0 and f" {node_id} " in done.stdout, done.stdout + done.stderr
        else:
            assert running is not None and running.stop() == 0  # as the guide says before it
            told[told.index("--id") + 1] = str(node_id)
            forgotten = cluster.tool(KAFKA_TOOLS[words[0]], told[1:])
            assert forgotten.returncode == 0, forgotten.stdout + forgotten.stderr
    assert seen == [
        "twofold serve --join", "twofold cluster brokers", "twofold cluster quorum", "kafka-cluster.sh unregister --id",
        "twofold serve --join",
    ]  # fmt: skip
    assert running is not None
    running.kill()
