"""The sink on a Spark cluster of two hosts: losers of speculation, executors that die or are cut off and come back."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from connector import LONG
from host_kit import Host, Pipe, wait_for
from sink_kit import SETTINGS, Broker, Orders
from standalone_kit import CORES, Standalone
from steps_hook import java_above

from kits.processes.server import TwofoldServer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 starts a cluster"),
]

TASKS = 4
INTERVAL_MS = 500
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "300ms",
    # Whoever lost is left alone, so that it can come late.
    "spark.python.task.killTimeout": "300s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def host(cluster: Standalone, tmp_path: Path) -> Iterator[Host]:
    conf = SPECULATION | {
        "spark.executor.memory": "500m",
        "spark.executor.cores": str(CORES),
        "spark.pyspark.python": sys.executable,
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    }
    orders = Orders(tmp_path / "orders").env
    conf |= {f"spark.executorEnv.{name}": value for name, value in orders.items()}
    host = Host(tmp_path, master=cluster.master, conf=conf)
    yield host
    host.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("server"), SETTINGS) as running:
        yield running


@pytest.fixture
def pipe(host: Host, server: TwofoldServer, tmp_path: Path) -> Pipe:
    pipe = Pipe(host, Broker(server.bootstrap_servers), tmp_path)
    pipe.write["kafka.transaction.heartbeat.interval.ms"] = str(INTERVAL_MS)
    pipe.send(200)
    return pipe


def reached(pipe: Pipe) -> int:
    """The process that carried out the last order."""
    wait_for(lambda: pipe.orders.left == [], "the step is reached", 120, lambda: pipe.host.text)
    return int(pipe.orders.done[-1][2])


@pytest.mark.parametrize("step", ["task", "task: written", "task: prepared"])
def test_loser_of_speculation_that_comes_late_changes_nothing(pipe: Pipe, step: str) -> None:
    number = pipe.orders.give(step, "wait@1")
    query = pipe.start()
    loser = reached(pipe)
    ended = pipe.host.ended(query)
    assert ended.well, ended
    assert Path(f"/proc/{loser}").exists()
    pipe.orders.go(number)
    pipe.check()
    pipe.send(100)
    pipe.run_to_end()
    pipe.check()


def test_executor_that_was_cut_off_and_comes_back_writes_nothing(pipe: Pipe, cluster: Standalone) -> None:
    pipe.orders.give("task: opened", "stop-writing@1")
    query = pipe.start()
    worker = reached(pipe)
    wait_for(lambda: Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it is stopped")
    executor = java_above(worker)
    os.kill(executor, signal.SIGSTOP)
    try:
        ended = pipe.host.ended(query)
        assert ended.well, ended
        pipe.check()
    finally:
        os.kill(worker, signal.SIGCONT)
        os.kill(executor, signal.SIGCONT)
    wait_for(lambda: "EPOCH" in cluster.executor_logs(), "the late write is refused", 30)
    pipe.check()
    pipe.send(100)
    pipe.run_to_end()
    pipe.check()


@pytest.mark.parametrize("step", ["task: opened", "task: written", "task: prepared"])
def test_executor_that_is_killed_takes_nothing_along(pipe: Pipe, step: str) -> None:
    number = pipe.orders.give(step, "wait@1")
    query = pipe.start()
    os.kill(java_above(reached(pipe)), signal.SIGKILL)
    pipe.orders.go(number)
    ended = pipe.host.ended(query)
    assert ended.well, ended
    pipe.check()
