"""The crash table of the sink with two-phase commit, each row with real Spark and a real broker: whatever dies, and
wherever, what read_committed shows is the input, once and in order, and nothing is left open."""

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from connector import LONG
from host_kit import Host, Pipe, restarted, wait_for
from sink_kit import SETTINGS, Broker

from kits.processes.server import TwofoldServer
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ProducerConfig
from twofold.runtime.real import real_runtime, run
from twofold.sink.driver import Driver, SinkSettings

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
rest = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs all crash points")

TASKS = 4
INTERVAL_MS = 500
# A Python worker of a task that was given up lives on: that is how late losers come about.
CONF = {"spark.python.task.killTimeout": "100s"}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("host"), conf=CONF)
    yield host
    host.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("server"), SETTINGS) as running:
        yield running


@pytest.fixture
def pipe(host: Host, server: TwofoldServer, tmp_path: Path) -> Pipe:
    """Two batches of four tasks each, not written yet."""
    host.orders.clear()
    heartbeat = {"kafka.transaction.heartbeat.interval.ms": str(INTERVAL_MS)}
    pipe = Pipe(host, Broker(server.bootstrap_servers), tmp_path, write=heartbeat)
    pipe.send(200)
    return pipe


def strike(pipe: Pipe, step: str, action: str, passing: int = 0) -> None:
    """Let `passing` others by first."""
    for _ in range(passing):
        pipe.orders.give(step, "sleep-0")
    pipe.orders.give(step, action)


def fail_with_prepared(pipe: Pipe) -> None:
    """The first batch's transactions are all prepared, nothing is decided, and nobody sweeps."""
    strike(pipe, "commit", "raise")
    strike(pipe, "abort", "raise")
    assert not pipe.run().well
    assert len(pipe.open) == TASKS


def fail_with_decision(pipe: Pipe, step: str = "commit: decided") -> None:
    """The first batch is decided, and nobody carries it out."""
    strike(pipe, step, "raise")
    strike(pipe, "abort", "raise")
    assert not pipe.run().well
    if step == "commit: decided":
        assert len(pipe.open) == TASKS


async def take_over(pipe: Pipe) -> None:
    """What an operator does."""
    config = ProducerConfig(bootstrap_servers=pipe.broker.bootstrap_servers)
    cluster = Cluster(real_runtime(), config)
    driver = Driver(cluster.runtime, cluster, config, SinkSettings(pipe.prefix))
    try:
        await driver.take_over("", cluster.deadline())
    finally:
        await driver.close()
        await cluster.close()


# The start of a batch


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("start", marks=rest),
        pytest.param("start: fenced", marks=rest),
        pytest.param("commit: one ended", marks=rest),
        pytest.param("journal: done", marks=rest),
        pytest.param("start: settled", marks=rest),
        pytest.param("journal: owner", marks=rest),
    ],
)
def test_driver_killed_while_it_carries_out_what_was_decided_before(pipe: Pipe, step: str) -> None:
    fail_with_decision(pipe)
    if step == "journal: owner":
        pipe.host.kill()  # an owner is written by a driver that is another than the last
    strike(pipe, step, "kill-driver")
    assert pipe.run().died
    pipe.run_to_end()
    pipe.check()


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("start: fenced", marks=rest),
        "commit: one ended",
        pytest.param("journal: done", marks=rest),
        pytest.param("start: settled", marks=rest),
    ],
)
def test_start_of_a_batch_fails_while_a_decision_is_not_carried_out(pipe: Pipe, step: str) -> None:
    fail_with_decision(pipe)
    strike(pipe, step, "raise")
    assert not pipe.run().well
    pipe.run_to_end()
    pipe.check()


# Tasks


# In `make test` one batch has them all: test_tasks_that_fail_at_every_step_are_run_again.
@rest
@pytest.mark.parametrize("action", ["die", "raise"])
@pytest.mark.parametrize("step", ["task: opened", "task: written", "task: prepared"])
def test_task_that_fails_is_run_again(pipe: Pipe, step: str, action: str) -> None:
    strike(pipe, step, f"{action}@1")
    assert pipe.run().well
    pipe.check()


@pytest.mark.parametrize("step", [pytest.param("task: written", marks=rest), "task: prepared"])
def test_batch_whose_task_failed_too_often_is_aborted_and_written_by_the_next_start(pipe: Pipe, step: str) -> None:
    for _ in range(4):
        strike(pipe, step, "raise@1")
    ended = pipe.run()
    assert ended.error is not None and "ordered to fail" in ended.error
    pipe.wait_until_open(0)
    pipe.run_to_end()
    pipe.check()


def test_dead_task_is_gone_within_three_heartbeats_and_prepared_ones_stay(pipe: Pipe) -> None:
    for _ in range(4):
        strike(pipe, "task: written", "die@3")
    strike(pipe, "abort", "raise")
    assert not pipe.run().well
    pipe.wait_until_open(TASKS - 1, patience_s=3 * INTERVAL_MS / 1000 + 3)
    prepared = set(pipe.open)
    time.sleep(4 * INTERVAL_MS / 1000)
    assert set(pipe.open) == prepared
    pipe.run_to_end()
    pipe.check()


def leave_loser(pipe: Pipe, then: str) -> None:
    """The batch is given up while a task of it has not begun; then it is written by others, and the task goes on until
    it has prepared its transaction."""
    number = pipe.orders.give("task", "wait@1")
    name = pipe.start()
    wait_for(lambda: pipe.orders.left == [] and len(pipe.open) == TASKS - 1, "the other tasks are prepared")
    pipe.host.ask(do="stop", name=name)
    pipe.host.ended(name)
    pipe.run_to_end()
    pipe.check()
    pipe.orders.give("task: prepared", then)
    pipe.orders.go(number)
    wait_for(lambda: pipe.orders.left == [], "the loser has prepared")


def test_loser_that_prepares_after_its_batch_is_done_aborts_itself(pipe: Pipe) -> None:
    leave_loser(pipe, "sleep-0")
    pipe.check()


@rest
def test_loser_that_dies_prepared_is_swept_by_the_next_batch(pipe: Pipe) -> None:
    leave_loser(pipe, "die")
    pipe.wait_until_open(1)
    pipe.send(100)
    assert pipe.run().well
    pipe.check()


# The driver is killed


@pytest.mark.parametrize(
    ("step", "passing"),
    [
        pytest.param("task: prepared", 2, marks=rest),
        pytest.param("commit", 1, marks=rest),
        pytest.param("commit: checked", 1, marks=rest),
        ("journal: commit", 1),
        pytest.param("commit: decided", 1, marks=rest),
        pytest.param("commit: one ended", TASKS + 1, marks=rest),
        pytest.param("commit: ended", 1, marks=rest),
        pytest.param("journal: done", 1, marks=rest),
        pytest.param("commit: done", 1, marks=rest),
    ],
)
def test_driver_killed(pipe: Pipe, step: str, passing: int) -> None:
    pipe.send(100)
    strike(pipe, step, "kill-driver", passing)
    assert pipe.run().died
    pipe.run_to_end()
    pipe.check()


@rest
@pytest.mark.parametrize("step", ["abort", "journal: abort"])
@pytest.mark.parametrize("failed_at", [pytest.param("commit: checked", marks=rest), "commit: decided"])
def test_driver_killed_while_it_gives_up_a_batch(pipe: Pipe, failed_at: str, step: str) -> None:
    strike(pipe, failed_at, "raise")
    strike(pipe, step, "kill-driver")
    assert pipe.run().died
    pipe.run_to_end()
    pipe.check()


# commit() fails, or the query is stopped in it


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("commit", marks=rest),
        "commit: checked",
        pytest.param("journal: commit", marks=rest),
        pytest.param("commit: decided", marks=rest),
        "commit: one ended",
        pytest.param("commit: ended", marks=rest),
        pytest.param("journal: done", marks=rest),
        "commit: done",
    ],
)
def test_commit_raises(pipe: Pipe, step: str) -> None:
    """abort() follows, with the messages of all tasks; it completes what was decided."""
    strike(pipe, step, "raise")
    ended = pipe.run()
    assert ended.error is not None and "ordered to fail" in ended.error
    pipe.wait_until_open(0)
    pipe.run_to_end()
    pipe.check()


@pytest.mark.parametrize("step", [pytest.param("commit: checked", marks=rest), "commit: decided"])
def test_query_stopped_during_commit(pipe: Pipe, step: str) -> None:
    number = pipe.orders.give(step, "wait")
    name = pipe.start()
    wait_for(lambda: pipe.orders.left == [], "commit waits")
    pipe.host.ask(do="stop", name=name)
    time.sleep(1)
    pipe.orders.go(number)
    pipe.host.ended(name)
    pipe.run_to_end()
    pipe.check()


# The broker is killed


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("start", marks=rest),
        pytest.param("start: fenced", marks=rest),
        pytest.param("start: settled", marks=rest),
        pytest.param("task: opened", marks=rest),
        pytest.param("task: written", marks=rest),
        "task: prepared",
        pytest.param("commit", marks=rest),
        pytest.param("commit: checked", marks=rest),
        pytest.param("journal: commit", marks=rest),
        "commit: decided",
        pytest.param("commit: one ended", marks=rest),
        pytest.param("commit: ended", marks=rest),
        pytest.param("journal: done", marks=rest),
        pytest.param("commit: done", marks=rest),
    ],
)
def test_broker_killed_and_started_again(pipe: Pipe, server: TwofoldServer, step: str) -> None:
    strike(pipe, step, "broker-0")
    with restarted(server, pipe.orders):
        pipe.run_to_end()
    pipe.check()


@rest
def test_broker_killed_at_any_moment_of_many_commits(pipe: Pipe, server: TwofoldServer) -> None:
    """From the check of the votes on, a little later in each batch: all of it takes some 20 ms."""
    pipe.send(1000)
    for index in range(12):
        strike(pipe, "commit: checked", f"broker-{1 + 3 * index}")
    with restarted(server, pipe.orders):
        pipe.run_to_end(attempts=12)
    pipe.check()


@rest
def test_broker_that_stays_away_decides_nothing(pipe: Pipe, server: TwofoldServer) -> None:
    """commit() gives up in the end, nothing is visible of the batch, and the next start writes it."""
    pipe.write |= {"kafka.delivery.timeout.ms": "3000", "kafka.request.timeout.ms": "1000", "kafka.linger.ms": "0"}
    strike(pipe, "commit: checked", f"kill-{server.pid}")
    assert not pipe.run().well
    server.kill()
    server.start()
    assert pipe.visible == Counter()
    pipe.run_to_end()
    pipe.check()


# What people do to checkpoints and queries


def test_checkpoint_deleted_asks_for_all_again_and_loses_nothing_that_was_decided(pipe: Pipe) -> None:
    fail_with_decision(pipe)
    old = pipe.query_id
    shutil.rmtree(pipe.checkpoint)
    pipe.run_to_end()
    assert pipe.query_id != old
    pipe.wait_until_open(0)
    twice = [number for number, count in pipe.visible.items() if count == 2]
    assert set(pipe.visible) == set(pipe.sent) and len(twice) == 100


def test_checkpoint_rolled_back_skips_what_was_decided(pipe: Pipe) -> None:
    pipe.send(100)
    pipe.run_to_end()
    _roll_back(pipe.checkpoint, 1)
    pipe.run_to_end()
    pipe.check()
    pipe.send(100)
    pipe.run_to_end()
    pipe.check()


def _roll_back(checkpoint: Path, batch_id: int) -> None:
    """As if this batch was begun and none after it."""
    for name, first in (("commits", batch_id), ("offsets", batch_id + 1)):
        for path in (checkpoint / name).iterdir():
            number = path.name.strip(".").removesuffix(".crc")
            if number.isdigit() and int(number) >= first:
                path.unlink()


def test_abandoned_query_holds_back_readers_until_it_is_taken_over(pipe: Pipe) -> None:
    fail_with_prepared(pipe)
    time.sleep(4 * INTERVAL_MS / 1000)
    assert len(pipe.open) == TASKS
    later = list(range(1000, 1010))
    pipe.broker.send(pipe.target, later)
    assert pipe.visible == Counter()
    run(take_over(pipe))
    pipe.wait_until_open(0)
    assert pipe.visible == Counter(later)


def test_abandoned_query_that_had_decided_is_completed_by_the_query_that_takes_over(pipe: Pipe) -> None:
    fail_with_decision(pipe)
    run(take_over(pipe))
    pipe.wait_until_open(0)
    assert len(pipe.visible) == 100
    pipe.run_to_end()
    pipe.check()
