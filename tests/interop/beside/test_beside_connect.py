"""Kafka Connect with exactly-once sources: lines of a file into a topic; MirrorMaker 2 from Apache Kafka to Twofold."""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from interop.beside.kit import SESSION_MS, Tool, committed, create, go_through, java_of, long, send, wait_for
from kits.processes.server import TwofoldServer
from oracle.kafka import running_oracle
from oracle.processes import free_port

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1200), long]

ONE_COPY = {f"{topic}.storage.replication.factor": "1" for topic in ("offset", "config", "status")}
SOON = {
    "session.timeout.ms": str(SESSION_MS),
    "heartbeat.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "0",
    "offset.flush.interval.ms": "500",
}
EXACTLY_ONCE = {"exactly.once.source.support": "enabled"}


def properties(path: Path, settings: dict[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


class Worker(Tool):
    """One worker in distributed mode, and its REST interface."""

    def __init__(self, directory: Path, server: str) -> None:
        self.port = free_port()
        settings = ONE_COPY | SOON | EXACTLY_ONCE
        settings |= {
            "bootstrap.servers": server,
            "group.id": "connect",
            "listeners": f"http://127.0.0.1:{self.port}",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.topic": "connect-offsets",
            "offset.storage.partitions": "1",
            "config.storage.topic": "connect-configs",
            "status.storage.topic": "connect-status",
            "status.storage.partitions": "1",
        }
        file = properties(directory / "worker.properties", settings)
        command = java_of("connect", "org.apache.kafka.connect.cli.ConnectDistributed", str(file))
        super().__init__(directory, lambda: command, "connect")

    def put(self, connector: str, config: dict[str, str]) -> bool:
        """Whether the worker took it: one that is starting, or not the leader yet, does not."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/connectors/{connector}/config",
            data=json.dumps(config).encode(),
            headers={"Content-Type": "application/json"},
            method="PUT",
        )
        try:
            with urllib.request.urlopen(request, timeout=30):
                return True
        except (urllib.error.URLError, OSError):
            return False


def test_an_exactly_once_source_of_connect_writes_every_line_once(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.touch()

    def feed(numbers: range) -> None:
        """Some lines at a time, so that they are more than one transaction."""
        with lines.open("a", buffering=1) as file:
            for number in numbers:
                file.write(f"{number}\n")
                if number % 50 == 0:
                    time.sleep(0.01)

    with TwofoldServer(tmp_path / "broker") as server:
        address = server.bootstrap_servers
        create(address, "lines", partitions=1)
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "file": str(lines),
            "topic": "lines",
            # It keeps what is beyond a full batch until the file grows again: there is no full batch.
            "batch.size": "1000000",
            "tasks.max": "1",
            "exactly.once.support": "required",
        }
        with Worker(tmp_path, address) as worker:
            wait_for(lambda: worker.put("lines", config), worker, "the connector")
            fed = go_through(worker, server, feed, lambda: len(committed(address, "lines")))
        assert [int(value) for _, value in committed(address, "lines")] == list(range(fed))


def test_mirror_maker_copies_apache_kafka_to_twofold_with_every_record_once(tmp_path: Path) -> None:
    with running_oracle() as kafka, TwofoldServer(tmp_path / "broker") as server:
        create(kafka.bootstrap_servers, "orders")
        settings = ONE_COPY | {f"twofold.{name}": value for name, value in (SOON | EXACTLY_ONCE).items()}
        settings |= {
            "clusters": "kafka, twofold",
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "twofold.bootstrap.servers": server.bootstrap_servers,
            "kafka.consumer.isolation.level": "read_committed",  # else it does not claim exactly once
            "kafka->twofold.enabled": "true",
            "kafka->twofold.topics": "orders",
            "kafka->twofold.emit.heartbeats.enabled": "false",
            "twofold->kafka.enabled": "false",
            "twofold->kafka.emit.heartbeats.enabled": "false",
            "replication.factor": "1",
            "checkpoints.topic.replication.factor": "1",
            "heartbeats.topic.replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "refresh.topics.interval.seconds": "2",
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": f"http://127.0.0.1:{free_port()}",
            "tasks.max": "2",
        }
        file = properties(tmp_path / "mirror.properties", settings)
        command = java_of("connect", "org.apache.kafka.connect.mirror.MirrorMaker", str(file))
        target = "kafka.orders"

        def mirrored() -> list[tuple[str, str]]:
            return committed(server.bootstrap_servers, target)

        with Tool(tmp_path, lambda: command, "mirror") as tool:
            fed = go_through(
                tool,
                server,
                lambda numbers: send(kafka.bootstrap_servers, "orders", numbers),
                lambda: len(mirrored()),
            )
        assert sorted(mirrored()) == sorted((f"k{number % 7}", str(number)) for number in range(fed))
