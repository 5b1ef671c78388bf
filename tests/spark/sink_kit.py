"""What the tests of the Spark sink have in common: pipelines in processes that can be killed, orders for where they
fail, and what stock clients see of the outcome."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kits.processes.spark import spark_environment
from kits.wire.transactional_ids import transactional_ids

HERE = Path(__file__).parent
PATIENCE_S = 150
SETTINGS = {
    "transaction.two.phase.commit.enable": "true",
    "transaction.heartbeat.enable": "true",
    # Tests send records of years ago, to have windows that are over.
    "log.retention.ms": "-1",
}
CONF = {
    "spark.driver.memory": "600m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass
class Orders:
    """Where the sink's processes are to fail (steps_hook)."""

    directory: Path
    _count: int = 0

    def give(self, step: str, action: str) -> int:
        self.directory.mkdir(exist_ok=True)
        self._count += 1
        (self.directory / f"{self._count:03}~{step.replace(' ', '_')}~{action}").touch()
        return self._count

    def go(self, number: int | None = None) -> None:
        (self.directory / ("go" if number is None else f"go-{number:03}")).touch()

    def clear(self) -> None:
        """For another test."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        self._count = 0

    @property
    def done(self) -> list[list[str]]:
        path = self.directory / "done"
        return [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def left(self) -> list[str]:
        return [path.name for path in self.directory.glob("[0-9]*~*")] if self.directory.exists() else []

    @property
    def env(self) -> dict[str, str]:
        self.directory.mkdir(exist_ok=True)
        return {
            "TWOFOLD_STEP_DIR": str(self.directory),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
        }


@dataclass
class App:
    """A pipeline from one topic to others, in a process of its own."""

    bootstrap_servers: str
    source: str
    target: str
    directory: Path
    orders: Orders
    shape: str = "plain"
    master: str = "local[2]"
    conf: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)
    write: Mapping[str, str] = field(default_factory=dict)
    more_sinks: Sequence[Mapping[str, Any]] = ()
    """Each `{"topic": ..., "shape": ..., "checkpoint": ...}` beside the first."""
    per_batch: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    register: bool = False
    """What is not installed has to be registered."""
    process: "subprocess.Popen[bytes] | None" = None
    runs: int = 0

    def start(self, **trigger: Any) -> None:
        """A trigger of Spark, availableNow=True unless given."""
        sinks = [{"topic": self.target, "shape": self.shape, "checkpoint": "checkpoint"}, *self.more_sinks]
        limit = {"maxOffsetsPerTrigger": str(self.per_batch)} if self.per_batch else {}
        servers = {"kafka.bootstrap.servers": self.bootstrap_servers}
        wanted = {
            "master": self.master,
            "conf": CONF | dict(self.conf),
            "register": self.register,
            "read": servers | {"subscribe": self.source, "startingOffsets": "earliest"} | limit | dict(self.read),
            "sinks": [
                {
                    "shape": sink["shape"],
                    "options": servers
                    | {"topic": sink["topic"], "checkpointLocation": str(self.directory / sink["checkpoint"])}
                    | dict(self.write),
                }
                for sink in sinks
            ],
            "trigger": trigger or {"availableNow": True},
        }
        env = os.environ | self.orders.env | spark_environment()
        first = self.env.get("PYTHONPATH", "")
        env |= dict(self.env) | {"PYTHONPATH": os.pathsep.join(filter(None, [first, env["PYTHONPATH"]]))}
        self.runs += 1
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "pipeline_app.py"), json.dumps(wanted)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=self.directory,
                start_new_session=True,
            )

    @property
    def log(self) -> Path:
        return self.directory / f"run{self.runs}.log"

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        assert self.process is not None
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the pipeline did not end:\n{self.text[-3000:]}") from None

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def run(self, **trigger: Any) -> int:
        self.start(**trigger)
        return self.wait()

    def kill(self) -> None:
        """The driver, its JVM and all of their Python processes."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def run_to_end(self, attempts: int = 3) -> None:
        """Until a run ends by itself: what a user does, or systemd."""
        for _ in range(attempts):
            if self.run() == 0:
                return
        raise AssertionError(f"no run of {attempts} ended well:\n{self.text[-3000:]}")


class Broker:
    """What tests ask of a broker, ours or Apache Kafka's, by stock clients."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def topic(self, partitions: int = 2, name: str | None = None) -> str:
        name = name or f"t{uuid.uuid4().hex[:8]}"
        for future in self.admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(30)
        return name

    def send(
        self, topic: str, numbers: Sequence[int], keys: int = 4, timestamp_ms: Callable[[int], int] | None = None
    ) -> None:
        """Numbers as values under keys that repeat, so that each key has its numbers in their order."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5})
        for number in numbers:
            more: dict[str, Any] = {} if timestamp_ms is None else {"timestamp": timestamp_ms(number)}
            producer.produce(topic, value=b"%d" % number, key=b"k%d" % (number % keys), **more)
        assert producer.flush(60) == 0

    def read(self, topic: str, *, committed: bool = True) -> list[tuple[int, bytes, bytes]]:
        """(partition, key, value) of everything up to the last stable offset, or to the end."""
        found = self.messages(topic, committed=committed)
        return [(message.partition() or 0, message.key() or b"", message.value() or b"") for message in found]

    def messages(self, topic: str, *, committed: bool = True) -> list[Message]:
        level = "read_committed" if committed else "read_uncommitted"
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": uuid.uuid4().hex,
                "isolation.level": level,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            partitions = list(consumer.list_topics(topic, 30).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
            found: list[Message] = []
            ended: set[int | None] = set()
            deadline = time.monotonic() + PATIENCE_S
            while len(ended) < len(partitions):
                assert time.monotonic() < deadline, f"{topic} was not read to its end"
                message = consumer.poll(0.2)
                if message is None:
                    continue
                if message.error() is not None:
                    ended.add(message.partition())  # the end of the partition
                else:
                    found.append(message)
            return found
        finally:
            consumer.close()

    def open_transactions(self, prefix: str = "") -> list[str]:
        return [row for row in open_ids(self.bootstrap_servers) if row.startswith(prefix)]

    def wait_until_none_open(self, patience_s: float = 30) -> None:
        """What heartbeats and sweeps have to end is ended."""
        deadline = time.monotonic() + patience_s
        while found := self.open_transactions():
            assert time.monotonic() < deadline, f"still open: {found}"
            time.sleep(0.2)


class Reader:
    """Reads a topic with read_committed from its beginning, and counts."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap_servers, "group.id": topic, "isolation.level": "read_committed"}
        self._consumer = Consumer(settings | {"enable.auto.commit": False, "log_level": 0})
        partitions = self._consumer.list_topics(topic, 30).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        self._count = 0

    def count(self) -> int:
        """Of the rows that it has got by now."""
        while some := self._consumer.consume(10_000, 0.05):
            self._count += sum(message.error() is None for message in some)
        return self._count

    def close(self) -> None:
        self._consumer.close()


def open_ids(bootstrap_servers: str) -> list[str]:
    """Transactional ids that have an open transaction, whoever they belong to."""
    return transactional_ids(bootstrap_servers, ["Ongoing", "PrepareCommit", "PrepareAbort"])


def check_exactly_once(broker: Broker, target: str, numbers: Sequence[int], keys: int = 4) -> None:
    """Every number once, and the numbers of each key in their order within one partition."""
    found = broker.read(target)
    counted = Counter(int(value) for _, _, value in found)
    lost = [number for number in numbers if number not in counted]
    doubled = [number for number, count in counted.items() if count > 1]
    assert not lost and not doubled and len(counted) == len(numbers), f"lost {lost[:10]}, doubled {doubled[:10]}"
    by_key: dict[bytes, list[tuple[int, int]]] = {}
    for partition, key, value in found:
        by_key.setdefault(key, []).append((partition, int(value)))
    for key, rows in by_key.items():
        assert len({partition for partition, _ in rows}) == 1, f"{key!r} is in several partitions"
        assert [value for _, value in rows] == sorted(value for _, value in rows), f"{key!r} is out of order"
