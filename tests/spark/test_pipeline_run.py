"""`twofold pipeline run` as people use it: started, stopped, killed, and given the wrong things."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from connector import LONG
from sink_kit import SETTINGS, Broker, check_exactly_once

from support.server import TwofoldServer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a JDK"),
]
rest = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs all of them")

COPY = "def transform(df):\n    return df.select('key', 'value')\n"
PATIENCE_S = 180


@dataclass
class Command:
    """`twofold pipeline run` in a directory of its own, with a group of processes that can be killed."""

    broker: Broker
    directory: Path
    source: str
    target: str
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    def start(self, *more: str, text: str = COPY, **env: str) -> "subprocess.Popen[str]":
        (self.directory / "pipe.py").write_text(text)
        flags = ["--source", f"in={self.source}", "--sink", f"out={self.target}", "--checkpoint", "checkpoint"]
        flags += ["--option", "in.startingOffsets=earliest", "-b", self.broker.bootstrap_servers]
        flags += ["--conf", "spark.driver.memory=600m", "--master", "local[2]"]
        process = subprocess.Popen(
            [sys.executable, "-m", "twofold", "pipeline", "run", "pipe.py", *flags, *more],
            cwd=self.directory,
            env=os.environ | {"XDG_CACHE_HOME": str(self.directory / "cache"), "SPARK_LOCAL_IP": "127.0.0.1"} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def run(self, *more: str, text: str = COPY, **env: str) -> tuple[int, str]:
        process = self.start(*more, text=text, **env)
        output, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, output

    def wait_for_rows(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(self.broker.read(self.target)) < count:
            assert time.monotonic() < deadline, "the rows did not come"
            time.sleep(0.3)

    def left_running(self) -> list[str]:
        """Processes of the groups that were started here, when those that are ending have ended."""
        deadline = time.monotonic() + 10
        while (found := self._running()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _running(self) -> list[str]:
        groups = {process.pid for process in self.processes}
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(path.name)) in groups:
                    found.append((path / "cmdline").read_text().replace("\0", " ")[:100])
            except (OSError, ProcessLookupError):
                continue
        return [line for line in found if line]  # what is dead and only waits for its parent has no command line


@pytest.fixture
def running(tmp_path: Path) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path / "server", SETTINGS) as server:
        yield server


@pytest.fixture
def command(running: TwofoldServer, tmp_path: Path) -> Iterator[Command]:
    broker = Broker(running.bootstrap_servers)
    made = Command(broker, tmp_path, broker.topic(), broker.topic())
    yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_it_reads_what_there_is_and_ends_and_goes_on_the_next_time(command: Command):
    command.broker.send(command.source, range(100))
    code, output = command.run("--trigger", "available-now")
    assert code == 0, output
    assert "pipe.out: batch 0, 100 rows" in output
    assert "Traceback" not in output and "\tat " not in output
    check_exactly_once(command.broker, command.target, range(100))
    assert command.broker.open_transactions() == []
    assert command.left_running() == []


@rest
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_stopped_it_leaves_nothing_open_and_nothing_running(command: Command, number: int):
    command.broker.send(command.source, range(200))
    process = command.start("--trigger", "100 milliseconds")
    command.wait_for_rows(200)
    command.broker.send(command.source, range(200, 5_000))
    time.sleep(random.Random(7).random())
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert command.broker.open_transactions() == []
    assert command.left_running() == []
    assert command.run("--trigger", "available-now")[0] == 0
    check_exactly_once(command.broker, command.target, range(5_000))


@rest
@pytest.mark.parametrize("after_s", [0.5, 3, 6, 9, 12, 16])
def test_stopped_in_any_phase_of_its_start(command: Command, after_s: float):
    command.broker.send(command.source, range(500))
    process = command.start("--trigger", "100 milliseconds")
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (130, -signal.SIGINT), output
    assert "Traceback" not in output
    assert command.broker.open_transactions() == []
    assert command.left_running() == []


@rest
def test_killed_again_and_again_it_writes_every_row_once(command: Command):
    """kill -9 of everything at random moments; each run finds what the one before left."""
    moments = random.Random(11)
    sent = 0
    for _ in range(20):
        command.broker.send(command.source, range(sent, sent + 300))
        sent += 300
        process = command.start("--trigger", "100 milliseconds", "--option", "in.maxOffsetsPerTrigger=100")
        time.sleep(8 + 12 * moments.random())
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    code, output = command.run("--trigger", "available-now")
    assert code == 0, output
    check_exactly_once(command.broker, command.target, range(sent))
    command.broker.wait_until_none_open()


@rest
@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("def transform(df):\n    return df.select('nope')\n", (), "`nope` cannot be resolved"),
        ("def transform(df):\n    return df.select('key')\n", (), "no column 'value' to write"),
        (COPY, ("--option", "in.subscribe=not-there"), "not-there"),
        (COPY, ("--option", "out.exactlyOnces=2pc"), "did you mean 'exactlyOnce'"),
    ],
    ids=["column", "no value", "topic", "option"],
)
def test_what_is_wrong_is_told_in_one_message_that_names_the_log(
    command: Command, text: str, flags: tuple, message: str
):
    command.broker.send(command.source, range(10))
    code, output = command.run("--trigger", "available-now", *flags, text=text)
    assert code == 1, output
    assert message in output
    assert "Traceback" not in output and "\tat " not in output
    log = Path(output.rsplit("Spark's own words are in ", 1)[1].strip().splitlines()[0])
    assert log.exists() and log.stat().st_size > 0
    assert command.left_running() == []


def test_without_a_jdk_it_says_so(command: Command, tmp_path: Path):
    empty = tmp_path / "bin"
    empty.mkdir()
    code, output = command.run("--trigger", "available-now", PATH=str(empty), JAVA_HOME=str(empty))
    assert code == 1
    assert "set it to a JDK" in output and "Traceback" not in output
