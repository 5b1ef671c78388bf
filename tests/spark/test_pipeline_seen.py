"""`twofold pipeline status` beside a pipeline that runs, stands still, and dies."""

import json
import os
import re
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pipeline_kit import PATIENCE_S, Command
from sink_kit import SETTINGS, Broker

from kits.processes import commands
from kits.processes.server import TwofoldServer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a JDK"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("server"), SETTINGS) as running:
        yield running


@pytest.fixture
def command(server: TwofoldServer, tmp_path: Path) -> Iterator[Command]:
    broker = Broker(server.bootstrap_servers)
    made = Command(broker, tmp_path, broker.topic(), broker.topic())
    yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def status(command: Command, *more: str) -> str:
    environment = {"XDG_CACHE_HOME": command.env["XDG_CACHE_HOME"]}
    done = commands.run(
        "pipeline", "status", "pipe", *more, server=command.broker.bootstrap_servers, timeout=90, env=environment
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def progress(command: Command) -> dict[str, Any]:
    (found,) = json.loads(status(command, "--format", "json"))
    return dict(found["progress"])


def wait_for(command: Command, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while not holds(found := progress(command)):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def jvm_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (jvm,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text().strip() == "java"]
    return jvm


def test_status_of_a_pipeline_that_runs_that_is_paused_that_goes_on_and_that_is_killed(command: Command) -> None:
    command.broker.send(command.source, range(200))
    process = command.start("--trigger", "100 milliseconds", "--metrics", "0", "--option", "in.maxOffsetsPerTrigger=50")
    assert process.stdout is not None
    address = ""
    while not address:
        line = next(process.stdout)
        address = "".join(re.findall(r"^pipe: metrics are at http://(127\.0\.0\.1:\d+)/metrics$", line))
    command.wait_for_rows(200)

    found = wait_for(command, lambda row: bool(row["process"]["live"]) and row["process"]["query"]["batches"] >= 4)
    assert found["behind"]["offsetsBehindLatest"] == 0 and found["offsets_per_s"] > 0
    live = found["process"]
    assert (live["pid"], live["address"], live["answers"]) == (process.pid, address, True)
    assert live["query"]["name"] == "pipe.out" and live["query"]["rows_written_per_s"] > 0
    assert live["query"]["bytes_written_per_s"] > 0 and live["query"]["last_commit_s"] > 0
    shown = status(command)
    assert f"process      {process.pid} at {address}, " in shown and " rows/s, " in shown
    lines = [line for line in shown.splitlines() if not line.startswith("checkpoint")]  # as long as its path
    assert max(map(len, lines)) <= 80
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        assert b'twofold_spark_rows_written_total{query="pipe.out"} 200.0' in answer.read()

    jvm = jvm_of(process.pid)
    os.kill(jvm, signal.SIGSTOP)
    command.broker.send(command.source, range(200, 300))
    found = wait_for(command, lambda row: row["process"]["query"]["sources"][0]["offsetsBehindLatest"] == 100)
    assert found["process"]["query"]["last_batch"] == live["query"]["last_batch"], "and the process answers"
    os.kill(jvm, signal.SIGCONT)
    command.wait_for_rows(300)
    wait_for(command, lambda row: row["behind"]["offsetsBehindLatest"] == 0)

    os.killpg(process.pid, signal.SIGSTOP)
    command.broker.send(command.source, range(300, 500))
    paused = progress(command)
    assert (paused["process"]["answers"], paused["process"]["live"], paused["process"]["query"]) == (False, False, None)
    assert paused["behind"]["offsetsBehindLatest"] == 200, "asked of the brokers"
    shown = status(command)
    assert "does not answer: it is paused, or too busy" in shown and " rows/s" not in shown

    os.killpg(process.pid, signal.SIGCONT)
    command.wait_for_rows(500)
    wait_for(command, lambda row: bool(row["process"]["live"]) and row["behind"]["offsetsBehindLatest"] == 0)

    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    dead = progress(command)["process"]
    assert (dead["is_gone"], dead["live"], dead["query"]) == (True, False, None)
    shown = status(command)
    assert f"process      {process.pid} was killed" in shown and " rows/s" not in shown
    command.broker.send(command.source, range(500, 600))
    assert progress(command)["behind"]["offsetsBehindLatest"] == 100

    again = command.start("--trigger", "available-now", "--metrics", address)
    code, output = command.ended(again)
    assert code == 0, output
    ended = progress(command)
    assert ended["process"] is None and ended["behind"]["offsetsBehindLatest"] == 0


def test_an_address_that_is_taken_is_refused_before_a_jvm_is_started(command: Command, server: TwofoldServer) -> None:
    code, output = command.refused("--metrics", server.bootstrap_servers)
    assert code == 1 and f"metrics={server.bootstrap_servers}: cannot listen on" in output, output
    code, output = command.refused("--metrics", "localhost")
    assert code == 2 and "metrics=localhost is not HOST:PORT" in output
