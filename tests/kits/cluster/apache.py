"""A cluster of Apache Kafka for tests: controllers and brokers as processes with small heaps, and the tools.

    cluster = ApacheCluster(jars, directory).start()
    broker settings: controller.quorum.bootstrap.servers = cluster.bootstrap_controllers

Stop the brokers before the controllers (`stop` does): a broker waits for a controller that lets it go.
"""

import base64
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from oracle.driver import Connection, WireClosed
from oracle.kafka import oracle_flags
from oracle.processes import spawn, stop, tail, wait_until

HOST = "127.0.0.1"
SMALL = ("-Xss512k", "-XX:MaxMetaspaceSize=160m", "-XX:ReservedCodeCacheSize=48m")
CONTROLLER_HEAP = ("-Xms32m", "-Xmx96m", *SMALL)
BROKER_HEAP = ("-Xms32m", "-Xmx128m", *SMALL)
TOOL_HEAP = ("-Xmx96m",)
# Levels of a fresh cluster that Twofold does not serve.
WITHOUT = ("streams.version=0", "share.version=0")
SMALL_BROKER = {
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.io.buffer.size": "65536",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}

Done = subprocess.CompletedProcess[str]
_taken: set[int] = set()


def low_port() -> int:
    """Below those that the kernel gives away by itself: a node that was stopped finds its port free."""
    while True:
        port = random.randrange(12000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        if port not in _taken:
            _taken.add(port)
            return port


class ApacheNode:
    """One process, controller or broker."""

    def __init__(self, cluster: "ApacheCluster", node_id: int, *, is_controller: bool) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.is_controller = is_controller
        self.port = low_port()
        self.directory_id = _random_id()
        self.directory = cluster.directory / f"node-{node_id}"
        self.directory.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def output(self) -> Path:
        return self.directory / "output.log"

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    def write_properties(self) -> None:
        name = "CONTROLLER" if self.is_controller else "PLAINTEXT"
        settings = {
            "process.roles": "controller" if self.is_controller else "broker",
            "node.id": str(self.node_id),
            "listeners": f"{name}://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.bootstrap.servers": self.cluster.bootstrap_controllers,
            "log.dirs": str(self.directory / "data"),
            **({} if self.is_controller else SMALL_BROKER),
            **self.cluster.settings,
            **({} if self.is_controller else self.cluster.broker_settings),
        }
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def format(self) -> None:
        args = ["format", "-t", self.cluster.cluster_id, "-c", str(self.properties)]
        if self.is_controller:
            voters = [f"{one.node_id}@{one.address}:{one.directory_id}" for one in self.cluster.controllers]
            args += ["--initial-controllers", ",".join(voters)]
            for feature in self.cluster.features:
                args += ["--feature", feature]
        done = self.cluster.tool("kafka.tools.StorageTool", args)
        if done.returncode != 0:
            raise RuntimeError(f"node {self.node_id} cannot be formatted:\n{done.stdout}\n{done.stderr}")

    def start(self) -> None:
        heap = CONTROLLER_HEAP if self.is_controller else BROKER_HEAP
        command = [*self.cluster.java(*heap), "kafka.Kafka", str(self.properties)]
        self._process = spawn(command, output=self.output)

    def await_ready(self) -> None:
        assert self._process is not None
        ready = _listens if self.is_controller else _serves
        wait_until(lambda: ready(self.port), self._process, patience_s=90, output=self.output)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: int) -> None:
        if self._process is not None:
            stop(self._process, how=how, patience_s=30)
            self._process = None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)


class ApacheCluster:
    def __init__(
        self,
        jars: Path,
        directory: Path,
        *,
        controllers: int = 3,
        brokers: int = 2,
        features: Iterable[str] = WITHOUT,
        settings: Mapping[str, str] = {},
        broker_settings: Mapping[str, str] = {},
    ) -> None:
        """Controllers have the ids from 3000 on, brokers those from 1 on."""
        self.jars = jars
        self.directory = directory
        self.features = tuple(features)
        self.settings = dict(settings)
        self.broker_settings = dict(broker_settings)
        self.cluster_id = _random_id()
        self._flags = oracle_flags(jars)
        self.controllers = [ApacheNode(self, 3000 + index, is_controller=True) for index in range(controllers)]
        self.brokers = [ApacheNode(self, 1 + index, is_controller=False) for index in range(brokers)]

    @property
    def nodes(self) -> list[ApacheNode]:
        return [*self.controllers, *self.brokers]

    @property
    def bootstrap_controllers(self) -> str:
        return ",".join(node.address for node in self.controllers)

    @property
    def bootstrap_brokers(self) -> str:
        return ",".join(node.address for node in self.brokers)

    def start(self) -> "ApacheCluster":
        for node in self.nodes:
            node.write_properties()
            node.format()
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.await_ready()
        return self

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.kill()

    def java(self, *flags: str) -> list[str]:
        java = shutil.which("java")
        assert java is not None, "the fixture checks for java"
        return [java, *self._flags, *flags, "-cp", f"{self.jars}/*"]

    def tool(self, main_class: str, args: Sequence[str] = (), *, timeout_s: float = 60) -> Done:
        """Run a class of the jars, e.g. `org.apache.kafka.tools.TopicCommand`; the result is not checked."""
        command = [*self.java(*TOOL_HEAP), main_class, *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)

    def quorum(self, *args: str) -> str:
        """What `kafka-metadata-quorum.sh describe` says."""
        done = self.tool(
            "org.apache.kafka.tools.MetadataQuorumCommand",
            ["--bootstrap-controller", self.bootstrap_controllers, "describe", *args],
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def active_controller(self) -> ApacheNode:
        found = re.search(r"LeaderId:\s*(\d+)", self.quorum("--status"))
        assert found is not None
        return next(node for node in self.controllers if node.node_id == int(found[1]))

    def last_words(self) -> str:
        return "\n".join(f"--- node {node.node_id}\n{tail(node.output)}" for node in self.nodes)


def eventually(condition: Callable[[], object], *, within_s: float, what: str) -> float:
    """How long it took, in seconds, until the condition held."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, f"{what}: not within {within_s} s"
        time.sleep(0.02)
    return time.monotonic() - began


def _random_id() -> str:
    return base64.urlsafe_b64encode(b"\x00" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _serves(port: int) -> bool:
    try:
        with Connection(HOST, port) as connection:
            return bool(connection.ask("Metadata", 1, topics=[])["brokers"])
    except (OSError, WireClosed):
        return False
