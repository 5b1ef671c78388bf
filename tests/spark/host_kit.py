"""Pipelines in a Spark session that outlives them, and that is started again when it was killed: the start of a JVM is
what costs time in these tests."""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sink_kit import CONF, HERE, PATIENCE_S, Broker, Orders, check_exactly_once

from kits.processes.server import TwofoldServer
from kits.processes.spark import spark_environment
from twofold.sink import names

KEYS = 16
ATTEMPTS = 3


@dataclass
class Ended:
    """How a query ended; `died` with its JVM."""

    error: str | None = None
    batches: list[int] = field(default_factory=list)
    died: bool = False

    @property
    def well(self) -> bool:
        return not self.died and self.error is None

    @property
    def was_too_slow(self) -> bool:
        return self.error is not None and "Python worker failed to connect back" in self.error


class Host:
    """A Spark session in a process of its own."""

    def __init__(self, directory: Path, master: str = "local[2,4]", conf: Mapping[str, str] = {}) -> None:
        if shutil.which("java") is None:
            pytest.skip("Spark needs a JDK: install openjdk-17-jdk-headless")
        self.directory = directory
        self.orders = Orders(directory / "orders")
        self._wanted = json.dumps({"master": master, "conf": CONF | dict(conf)})
        self._process: subprocess.Popen[str] | None = None
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._ended: dict[str, Ended] = {}
        self.starts = 0

    def get_ready(self) -> None:
        if self._process is None:
            self._start()

    def ask(self, **what: Any) -> None:
        self.get_ready()
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _start(self) -> None:
        self.starts += 1
        env = os.environ | self.orders.env | spark_environment()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "host_app.py"), self._wanted],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=env,
                cwd=self.directory,
                start_new_session=True,
            )
        self._said = queue.Queue()
        threading.Thread(target=self._listen, args=(self._process, self._said), daemon=True).start()
        assert self._hear(PATIENCE_S) == {"ready": True}, f"no session: {self.text}"

    def _listen(self, process: "subprocess.Popen[str]", said: "queue.Queue[dict[str, Any] | None]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("@"):
                said.put(json.loads(line[1:]))
        said.put(None)

    def _hear(self, patience_s: float) -> dict[str, Any] | None:
        try:
            return self._said.get(timeout=patience_s)
        except queue.Empty:
            raise AssertionError(f"nothing was heard for {patience_s} s:\n{self.text}") from None

    def ended(self, name: str, patience_s: float = PATIENCE_S) -> Ended:
        while name not in self._ended:
            said = self._hear(patience_s)
            if said is None:
                self.kill()
                return Ended(died=True)
            self._note(said)
        return self._ended.pop(name)

    def has_ended(self, name: str) -> bool:
        """Without waiting."""
        while name not in self._ended and not self._said.empty():
            said = self._said.get()
            if said is None:
                self._said.put(None)
                return True
            self._note(said)
        return name in self._ended

    def _note(self, said: dict[str, Any]) -> None:
        if "ended" in said:
            self._ended[said["ended"]] = Ended(said["error"], said["batches"])

    @property
    def log(self) -> Path:
        return self.directory / "host.log"

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """Python, JVM and workers."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass
class Pipe:
    """A pipeline from a topic whose partitions are a task's each, to one of two."""

    host: Host
    broker: Broker
    directory: Path
    per_batch: int = 100
    read: dict[str, str] = field(default_factory=dict)
    write: dict[str, str] = field(default_factory=dict)
    shape: str = "plain"
    conf: dict[str, str] = field(default_factory=dict)
    """Of the session, from this query on."""
    sent: list[int] = field(default_factory=list)
    partitions: int = 4

    def __post_init__(self) -> None:
        self.source = self.broker.topic(self.partitions)
        self.target = self.broker.topic(2)
        self.checkpoint = self.directory / "checkpoint"
        self._prefixes: set[str] = set()

    @property
    def query_id(self) -> str | None:
        """None before the query was started."""
        metadata = self.checkpoint / "metadata"
        return str(json.loads(metadata.read_text())["id"]) if metadata.exists() else None

    @property
    def prefix(self) -> str:
        assert self.query_id is not None
        return names.prefix_of_query(self.query_id)

    @property
    def orders(self) -> Orders:
        return self.host.orders

    def send(self, count: int) -> None:
        numbers = range(len(self.sent), len(self.sent) + count)
        self.broker.send(self.source, numbers, keys=KEYS)
        self.sent += numbers

    def start(self, **trigger: Any) -> str:
        """A trigger of Spark, availableNow=True unless given."""
        name = uuid.uuid4().hex
        servers = {"kafka.bootstrap.servers": self.broker.bootstrap_servers}
        limit = {"maxOffsetsPerTrigger": str(self.per_batch), "subscribe": self.source, "startingOffsets": "earliest"}
        options = servers | {"topic": self.target, "checkpointLocation": str(self.checkpoint)} | self.write
        self.host.ask(
            do="start",
            name=name,
            read=servers | limit | self.read,
            sink={"shape": self.shape, "options": options},
            conf=self.conf,
            trigger=trigger or {"availableNow": True},
        )
        return name

    def run(self) -> Ended:
        """Once more where Spark was too slow to start a Python process: it gives those ten seconds."""
        for _ in range(ATTEMPTS):
            ended = self.host.ended(self.start())
            if not ended.was_too_slow:
                break
        return ended

    def run_to_step(self) -> str:
        """Until the orders are carried out; the query goes on, or waits."""
        for _ in range(ATTEMPTS):
            query = self.start()
            over = lambda query=query: not self.orders.left or self.host.has_ended(query)  # noqa: E731
            wait_for(over, "the step is reached", PATIENCE_S, lambda: self.host.text)
            if not self.orders.left:
                return query
            ended = self.host.ended(query)
            assert ended.was_too_slow, ended
        raise AssertionError("Spark could not start its Python processes")

    def run_to_end(self, attempts: int = 4) -> None:
        """Until a run ends by itself: what a user does, or systemd."""
        for _ in range(attempts):
            ended = self.run()
            if ended.well:
                return
        raise AssertionError(f"no run of {attempts} ended well: {ended}\n{self.host.text}")

    @property
    def open(self) -> list[str]:
        """Of this query, and of those that had the checkpoint before."""
        if self.query_id is not None:
            self._prefixes.add(self.prefix)
        return [name for prefix in self._prefixes for name in self.broker.open_transactions(prefix)]

    def wait_until_open(self, count: int, patience_s: float = 30) -> None:
        wait_for(lambda: len(self.open) == count, f"{count} open transactions", patience_s, lambda: self.open)

    @property
    def visible(self) -> Counter[int]:
        return Counter(int(value) for _, _, value in self.broker.read(self.target))

    def check(self) -> None:
        """Every order was carried out, every number is there once and in order, and nothing is open."""
        assert self.orders.left == []
        self.wait_until_open(0)
        check_exactly_once(self.broker, self.target, self.sent, keys=KEYS)


def wait_for(
    condition: Callable[[], bool], what: str, patience_s: float = 60, found: Callable[[], Any] = lambda: ""
) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what} {found()}"
        time.sleep(0.05)


# A server ends with the thread that started it (its parent, for the kernel): this one stays.
STARTER = ThreadPoolExecutor(1)


@contextmanager
def restarted(server: TwofoldServer, orders: Orders, down_s: float = 0.3) -> Iterator[None]:
    """Whoever kills the broker: it comes back after a while. Orders name it `broker-<ms>`."""
    over = threading.Event()
    failures: list[BaseException] = []

    def watch() -> None:
        while not over.wait(0.02):
            if not server.running:
                server.kill()
                over.wait(down_s)
                try:
                    STARTER.submit(server.start).result()
                    name(server, orders)
                except BaseException as error:
                    failures.append(error)
                    return

    name(server, orders)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)
        if not server.running:
            server.start()
        assert not failures, failures


def name(server: TwofoldServer, orders: Orders) -> None:
    orders.directory.mkdir(exist_ok=True)
    temporary = orders.directory / "broker.new"
    temporary.write_text(str(server.pid))
    temporary.rename(orders.directory / "broker")
