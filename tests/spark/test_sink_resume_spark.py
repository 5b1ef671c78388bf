"""The resume path with real Spark and Apache Kafka, which has no two-phase commit: drivers killed after the decision,
and outages that are longer than the transaction's timeout."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from connector import LONG
from host_kit import Host, Pipe
from sink_kit import Broker

from oracle.kafka import Oracle
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.coordinators import Coordinators
from twofold.client.config import ClientConfig
from twofold.client.producer.sequences import ProducerIdentity
from twofold.client.transactions.calls import TransactionCalls
from twofold.runtime.real import real_runtime, run
from twofold.sink.names import decision_topic

pytestmark = [pytest.mark.spark, pytest.mark.oracle, pytest.mark.timeout(600)]
rest = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs all of them")
TASKS = 4
SHORT_MS = 10_000


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.kill()


@pytest.fixture
def pipe(host: Host, oracle: Oracle, tmp_path: Path) -> Pipe:
    """Two batches of four tasks each, not written yet; the way to exactly once is found by asking."""
    host.orders.clear()
    pipe = Pipe(host, Broker(oracle.bootstrap_servers), tmp_path)
    pipe.send(200)
    return pipe


def kill_driver_at(pipe: Pipe, step: str, passing: int = 0) -> None:
    for _ in range(passing):
        pipe.orders.give(step, "sleep-0")
    pipe.orders.give(step, "kill-driver")
    assert pipe.run().died


@pytest.mark.parametrize(
    ("step", "passing"),
    [
        pytest.param("task: prepared", 3, marks=rest),
        pytest.param("commit: checked", 0, marks=rest),
        pytest.param("commit: decided", 0, marks=rest),
        pytest.param("commit: one ended", 1, marks=rest),
        pytest.param("commit: ended", 0, marks=rest),
        pytest.param("commit: done", 0, marks=rest),
    ],
)
def test_driver_killed_on_apache_kafka(pipe: Pipe, step: str, passing: int) -> None:
    kill_driver_at(pipe, step, passing)
    pipe.run_to_end()
    pipe.check()
    assert "exactlyOnce=auto takes the resume path" in pipe.host.log.read_text()


@rest
def test_decision_that_timed_out_before_the_driver_came_back_is_taken_back(pipe: Pipe) -> None:
    pipe.write["transactionTimeoutMs"] = str(SHORT_MS)
    kill_driver_at(pipe, "commit: decided")
    assert len(pipe.open) == TASKS
    pipe.wait_until_open(0)
    assert not pipe.visible
    pipe.write["transactionTimeoutMs"] = "60000"
    pipe.run_to_end()
    pipe.check()


@rest
def test_decision_that_timed_out_in_part_stops_the_query_until_the_loss_is_accepted(pipe: Pipe) -> None:
    pipe.write["transactionTimeoutMs"] = str(SHORT_MS)
    kill_driver_at(pipe, "commit: decided")
    run(commit_one(pipe))
    pipe.wait_until_open(0)
    kept = pipe.visible
    assert 0 < len(kept) < 100
    pipe.write["transactionTimeoutMs"] = "60000"
    for _ in range(2):
        ended = pipe.run()
        assert ended.error is not None and "recover --accept-loss" in ended.error
        assert pipe.visible == kept
    recover = ["pipeline", "recover", "--yes", "--accept-loss", "--prefix", pipe.prefix]
    command = [sys.executable, "-m", "twofold", *recover, "--bootstrap-server", pipe.broker.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pipe.run_to_end()
    assert pipe.open == []
    found = pipe.visible
    assert set(found.values()) == {1}
    assert len(found) == len(kept) + 100  # of the batch that was lost in part, and the next


async def commit_one(pipe: Pipe) -> None:
    """What a driver does that dies in the middle: the first transaction of the decision is committed."""
    decision = json.loads(pipe.broker.read(decision_topic(pipe.prefix))[-1][2])
    name, _, _, producer_id, epoch, _, version = decision["tx"][0]
    cluster = Cluster(real_runtime(), ClientConfig(bootstrap_servers=pipe.broker.bootstrap_servers))
    try:
        calls = TransactionCalls(cluster, Coordinators(cluster))
        identity = ProducerIdentity(producer_id, epoch)
        await calls.end(name, identity, cluster.deadline(), commit=True, v2=version == 2)
    finally:
        await cluster.close()
