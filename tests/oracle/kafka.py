"""Apache Kafka 4.3.1 as a fixture: the jars from Maven Central, one node on free ports, and the tools in the jars.

The jars are kept in `.cache/oracle` inside the checkout (or TWOFOLD_ORACLE_DIR) and shared by parallel runs behind a
lock. A machine without Maven or a JDK, or without a way to Maven Central, skips the tests that need the oracle.
"""

import base64
import fcntl
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from oracle.class_archive import CHECKOUT, JAVA_FLAGS, java_flags
from oracle.driver import Connection, WireClosed
from oracle.java_programs import program
from oracle.processes import free_port, spawn, stop, wait_until

VERSION = "4.3.1"
JAVA_NEEDED = 17

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>org.twofold.tests</groupId><artifactId>oracle</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>%s</dependencies>
</project>
"""
DEPENDENCY = "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>"

SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


Done = subprocess.CompletedProcess[str]


# What the oracle and Twofold have in common in a comparison. Test batches carry old timestamps, and retention must not
# take them away while a suite runs, nor the cleanup of groups, which ten minutes after the start takes away whatever
# group is empty at that moment. A group waits for nobody at first and is full soon, and a session may be so short that
# it can be seen to expire.
COMMON_SETTINGS = {
    "node.id": "1",
    "log.retention.ms": "-1",
    "offsets.retention.check.interval.ms": "86400000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.max.size": "6",
    # Groups of the consumer protocol: an assignment is computed at once, and sessions can be seen to end.
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.max.size": "4",
}


# What a comparison needs beyond that: a request that finds a transaction being ended is told so at once instead of
# after some tries by the server, and transactions that take too long are found soon. One thread reads and one handles
# requests, so that requests on two connections are handled in the order in which the server read them.
EXACT_SETTINGS = {
    "num.network.threads": "1",
    "num.io.threads": "1",
    "add.partitions.to.txn.retry.backoff.max.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


class Oracle:
    """One running node of Apache Kafka, and the programs that ship with it."""

    name = "oracle"

    def __init__(
        self, jars: Path, directory: Path, settings: Mapping[str, str] = {}, flags: Sequence[str] | None = None
    ) -> None:
        self.jars = jars
        self.flags = oracle_flags(jars) if flags is None else flags
        self.more_jars: tuple[Path, ...] = ()
        self.format_args: tuple[str, ...] = ()
        self.directory = directory
        self.settings = dict(settings)
        self.host = "127.0.0.1"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def start(self) -> None:
        """Format the directory when it is fresh, start the node and wait until it serves produce requests."""
        fresh = self.port == 0
        if fresh:
            self.port, controller_port = free_port(), free_port()
            self._write_properties(controller_port)
            self._format()
        self._spawn()

    def start_on_existing_data(self) -> None:
        """Start on a folder that somebody else made: its one node is the only voter."""
        self.port, controller_port = free_port(), free_port()
        self.settings["controller.quorum.voters"] = f"1@127.0.0.1:{controller_port}"
        self._write_properties(controller_port)
        self._spawn()

    def _spawn(self) -> None:
        output = self.directory / "output.log"
        command = [*self._java("-Xms256M", "-Xmx512M"), "kafka.Kafka", str(self._properties)]
        self._process = spawn(command, output=output)
        wait_until(lambda: is_ready(self.host, self.port), self._process, patience_s=60, output=output)

    def set(self, key: str, value: str) -> None:
        """A setting of a node that was started before, from its next start on."""
        self.settings[key] = value
        with self._properties.open("a") as properties:  # the last line of a key counts
            properties.write(f"{key}={value}\n")

    def stop(self, *, clean: bool = False) -> None:
        """End the node; clean lets it write its shutdown markers first."""
        if self._process is not None:
            stop(self._process, how=signal.SIGTERM if clean else signal.SIGKILL, patience_s=30)
            self._process = None

    def tool(self, main_class: str, args: Sequence[str] = (), **options: object) -> Done:
        """Run a class of the jars, e.g. `org.apache.kafka.tools.DumpLogSegments`; the result is not checked."""
        return self._run([*self._java(), main_class, *args], **options)

    def java_program(self, source: Path, args: Sequence[str] = (), **options: object) -> Done:
        """Run a Java program of one file with the jars on its class path."""
        start = [java_or_fail(), *self.flags, *program(source, self.jars, *self.more_jars)]
        return self._run([*start, *args], **options)

    def _run(self, command: list[str], **options: object) -> Done:
        defaults: dict[str, object] = {"capture_output": True, "text": True, "timeout": 60, "check": False}
        return subprocess.run(command, **(defaults | options))  # type: ignore[call-overload, no-any-return]

    def _java(self, *flags: str) -> list[str]:
        return [
            java_or_fail(),
            *self.flags,
            *flags,
            "-cp",
            os.pathsep.join(f"{jars}/*" for jars in (self.jars, *self.more_jars)),
        ]

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _write_properties(self, controller_port: int) -> None:
        settings = (
            SETTINGS
            | COMMON_SETTINGS
            | {
                "listeners": f"PLAINTEXT://{self.host}:{self.port},CONTROLLER://{self.host}:{controller_port}",
                "advertised.listeners": f"PLAINTEXT://{self.host}:{self.port}",
                "controller.quorum.bootstrap.servers": f"{self.host}:{controller_port}",
                "log.dirs": str(self.data),
            }
        )
        settings |= self.settings
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(b"\x00" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        args = ["format", "-t", cluster_id, "-c", str(self._properties), "--standalone"]
        # KIP-966 would store min.insync.replicas as a cluster-wide config; Twofold has no eligible leader replicas.
        args += ["--feature", "eligible.leader.replicas.version=0", *self.format_args]
        done = self.tool("kafka.tools.StorageTool", args)
        if done.returncode != 0:
            raise RuntimeError(f"StorageTool could not format {self.data}:\n{done.stdout}\n{done.stderr}")


def java_or_fail() -> str:
    java = shutil.which("java")
    assert java is not None, "the fixture checks for java"
    return java


@functools.cache
def oracle_flags(jars: Path) -> list[str]:
    """For the node and for its tools: they share most of their classes."""

    def run_a_node(flags: list[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="twofold-oracle-", ignore_cleanup_errors=True) as directory:
            node = Oracle(jars, Path(directory), flags=JAVA_FLAGS)
            node.port = free_port()
            node._write_properties(free_port())
            node._format()
            node.flags = flags
            node._spawn()
            node.stop(clean=True)

    return java_flags(jars, run_a_node)


def is_ready(host: str, port: int) -> bool:
    """A node is ready when it is listed as a broker and hands out producer ids."""
    try:
        with Connection(host, port) as connection:
            brokers = connection.ask("Metadata", 1, topics=[])["brokers"]
            body = {"transactional_id": None, "transaction_timeout": 60000}
            return bool(brokers) and connection.ask("InitProducerId", 0, **body)["error_code"] == 0
    except (OSError, WireClosed):
        return False


@contextmanager
def running_oracle(settings: Mapping[str, str] = {}) -> Iterator[Oracle]:
    """A fresh node in a temporary directory; skips the test where Apache Kafka cannot be had."""
    jars = jars_or_skip()
    with tempfile.TemporaryDirectory(prefix="twofold-oracle-", ignore_cleanup_errors=True) as directory:
        oracle = Oracle(jars, Path(directory), settings)
        try:
            oracle.start()
            yield oracle
        finally:
            oracle.stop()


def jars_or_skip() -> Path:
    """The directory of the jars, downloaded once; otherwise a skip that names what to install."""
    return fetched_or_skip(f"kafka-{VERSION}", _of_kafka("kafka_2.13", "kafka-tools"))


def shell_jars_or_skip() -> Path:
    """What `kafka-metadata-shell` needs beside those jars."""
    return fetched_or_skip(f"kafka-shell-{VERSION}", _of_kafka("kafka-shell"), "-DincludeArtifactIds=kafka-shell,jline")


def _of_kafka(*artifacts: str) -> list[str]:
    return [f"org.apache.kafka:{artifact}:{VERSION}" for artifact in artifacts]


def fetched_or_skip(name: str, artifacts: Sequence[str], *options: str) -> Path:
    """The directory of jars `name`, with what `group:artifact:version` of each needs."""
    java = shutil.which("java")
    if java is None or java_version(java) < JAVA_NEEDED:
        pytest.skip(f"the oracle needs Java {JAVA_NEEDED} or newer: install openjdk-{JAVA_NEEDED}-jdk-headless")
    home = Path(os.environ.get("TWOFOLD_ORACLE_DIR") or CHECKOUT / ".cache" / "oracle")
    jars = home / name
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            _download(home, jars, POM % "".join(DEPENDENCY % tuple(text.split(":")) for text in artifacts), options)
    return jars


def _download(home: Path, jars: Path, pom: str, options: Sequence[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"Maven has to fetch {jars.name}: install maven, or set TWOFOLD_ORACLE_DIR")
    with tempfile.TemporaryDirectory(prefix="download-", dir=home) as directory:
        (Path(directory) / "pom.xml").write_text(pom)
        command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars", *options]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            reason = next((line for line in done.stdout.splitlines() if line.startswith("[ERROR]")), "no reason given")
            pytest.skip(f"Maven could not fetch {jars.name} (check the network): {reason}")
        (Path(directory) / "jars").rename(jars)


def java_version(java: str) -> int:
    """The feature release of a JVM, e.g. 17; 8 and older report 1.x and count as 1."""
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(match.group(1)) if match else 0
