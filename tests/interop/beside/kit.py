"""Tools that people run beside a broker: how each is fetched, its processes, and what went in and came out.

1. A tool is what its makers publish, unmodified. Its version is pinned here, and docs/guide/tools.md shows it.
2. What a tool claims is what is tested: exactly once with kill -9 of the tool and of the broker, and with a pause after
   which another process has taken over.
3. All of it runs when there is time for it (TWOFOLD_LONG=1, `make interop`).
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kits.processes.server import TwofoldServer
from oracle.class_archive import CHECKOUT
from oracle.kafka import VERSION, fetched_or_skip
from oracle.processes import spawn, stop, tail

KAFKA = VERSION
FLINK, FLINK_CONNECTOR = "2.2.0", "5.0.0-2.2"
QUIX, FASTSTREAM = "3.28.1", "0.7.8"
PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_S = 180
MOST_ENDS = 20
# As short as a broker allows by default: the partitions of a tool that was killed are soon another one's.
SESSION_MS = 6_000

long = pytest.mark.skipif(os.environ.get("TWOFOLD_LONG") != "1", reason="TWOFOLD_LONG=1 runs other people's tools")
LOGGER = "org.slf4j:slf4j-simple:1.7.36"
JARS = {
    "streams": [f"org.apache.kafka:kafka-streams:{KAFKA}", LOGGER],
    "connect": [*(f"org.apache.kafka:connect-{part}:{KAFKA}" for part in ("runtime", "file", "mirror")), LOGGER],
    "flink": [
        f"org.apache.flink:flink-streaming-java:{FLINK}",
        f"org.apache.flink:flink-clients:{FLINK}",
        f"org.apache.flink:flink-connector-base:{FLINK}",
        f"org.apache.flink:flink-connector-kafka:{FLINK_CONNECTOR}",
        LOGGER,
    ],
}
# What Flink and Connect look into, which Java 17 closes by default.
OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.util",
        "java.util.concurrent",
        "java.util.concurrent.atomic",
        "java.net",
        "java.io",
    )
]


# How a tool is fetched


def java_of(name: str, *arguments: str) -> list[str]:
    """A command for a class of the jars, or for a program of one file."""
    version = FLINK if name == "flink" else KAFKA
    jars = fetched_or_skip(f"{name}-{version}", JARS[name])
    return [
        "java",
        "-Xmx512M",
        "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        *OPENED,
        "-cp",
        f"{jars}/*",
        *arguments,
    ]


def python_of(requirement: str) -> str:
    """The interpreter of an environment that has this package and nothing of ours."""
    home = Path(os.environ.get("TWOFOLD_BESIDE_DIR") or CHECKOUT / ".cache" / "beside")
    place = home / requirement.replace("[", "-").replace("]", "")
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_dir():
            _install(requirement, place)
    return str(place / "bin" / "python")


def _install(requirement: str, place: Path) -> None:
    making = place.with_name(place.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(making)], check=True, timeout=120)
    install = [str(making / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*install, requirement], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        shutil.rmtree(making)
        pytest.skip(f"pip could not fetch {requirement} (check the network): {done.stderr.splitlines()[-1:]}")
    making.rename(place)


# Its processes


class Tool:
    """A command that runs until it is killed, and is started again when it ends by itself, as a supervisor does: some
    tools end when they were fenced or lost their broker. `command` is asked each time, because a restart may have to
    name what the run before left."""

    def __init__(self, directory: Path, command: Callable[[], list[str]], name: str = "tool") -> None:
        self.output = directory / f"{name}.log"
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self.ended = 0
        """How often it ended by itself."""

    def start(self) -> None:
        self._process = spawn(self._command(), output=self.output, cwd=self.output.parent)

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "it was not started"
        return self._process

    def look_after(self) -> None:
        if self.process.poll() is not None:
            self.ended += 1
            assert self.ended <= MOST_ENDS, f"it does not stay:\n{tail(self.output, 60)}"
            self.start()

    def kill(self) -> None:
        stop(self.process)

    def pause(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()


def wait_for(done: Callable[[], bool], tool: Tool, what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not done():
        tool.look_after()
        assert time.monotonic() < deadline, f"{what} did not happen:\n{tail(tool.output, 60)}"
        time.sleep(0.2)


# What goes in and comes out

Row = tuple[str, str]


def create(server: str, *names: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": server})
    for created in admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
        created.result(30)


def send(server: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": server, "enable.idempotence": True, "linger.ms": 5, "log_level": 0})
    for number in numbers:
        producer.produce(topic, key=f"k{number % 7}", value=str(number))
    assert producer.flush(60) == 0


def committed(server: str, topic: str) -> list[Row]:
    """Keys and values that a stock client reads at read_committed, each partition in its order. None of a topic that is
    not there yet."""
    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "reckoning",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found: list[Row] = []
    try:
        metadata = consumer.list_topics(topic, timeout=30).topics[topic]
        waiting = set(metadata.partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in waiting])
        deadline = time.monotonic() + 60
        while waiting:
            assert time.monotonic() < deadline, f"{topic} was not read to its end"
            for message in consumer.consume(1000, timeout=0.5):
                if message.error() is not None:
                    waiting.discard(message.partition())
                else:
                    found.append(((message.key() or b"").decode(), (message.value() or b"").decode()))
    finally:
        consumer.close()
    return found


def kill_and_start(server: TwofoldServer) -> None:
    server.kill()
    server.start()


def crashes(tool: Tool, server: TwofoldServer) -> Sequence[tuple[str, Callable[[], None]]]:
    """What happens to a tool that claims exactly once, one after the other."""

    def kill_tool() -> None:
        tool.kill()
        tool.start()

    def pause_tool() -> None:
        tool.pause()
        time.sleep(SESSION_MS / 1000 + 2)
        tool.wake()

    return (
        ("the tool killed", kill_tool),
        ("the broker killed", lambda: kill_and_start(server)),
        ("the tool paused for longer than its session", pause_tool),
        ("the tool killed again", kill_tool),
    )


def _is_more(out: Callable[[], int], before: int) -> bool:
    return out() > before


def go_through(
    tool: Tool, server: TwofoldServer, feed: Callable[[range], None], out: Callable[[], int], per_crash: int = 2_000
) -> int:
    """Feed, and crash while it works: before each crash something new has come out, and not all of it is out. How many
    were fed."""
    fed = 0
    for what, crash in crashes(tool, server):
        before = out()
        feed(range(fed, fed + per_crash))
        fed += per_crash
        wait_for(partial(_is_more, out, before), tool, f"anything new before {what}")
        feed(range(fed, fed + per_crash))
        fed += per_crash
        crash()
    wait_for(lambda: out() >= fed, tool, "the rest")
    return fed
