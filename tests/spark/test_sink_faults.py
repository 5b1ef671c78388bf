"""What happens to Spark pipelines beside clean crashes, on real Spark with two-phase commit: stages that run again,
other numbers of tasks, workers that were away, two drivers at once, queries with state, several sinks; and the offsets
of a consumer group, which follow the output."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from connector import LONG
from host_kit import Host, Pipe, restarted, wait_for
from sink_kit import PATIENCE_S, SETTINGS, Broker

from kits.processes.server import TwofoldServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
rest = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs all of them")

TASKS = 4
INTERVAL_MS = 500
# Several batches of rows for each task, so that it can be stopped between them.
CONF = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10"}
WINDOW_MS, PER_WINDOW, START_MS = 10_000, 50, 1_700_000_000_000

MakePipe = Callable[..., Pipe]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    directory = tmp_path_factory.mktemp("host")
    host = Host(directory, conf=CONF | {"spark.local.dir": str(directory / "local")})
    yield host
    host.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("server"), SETTINGS) as running:
        yield running


@pytest.fixture
def make(host: Host, server: TwofoldServer, tmp_path: Path) -> MakePipe:
    host.orders.clear()

    def pipe(name: str = "first", **settings: Any) -> Pipe:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        made = Pipe(settings.pop("host", host), Broker(server.bootstrap_servers), directory, **settings)
        made.write["kafka.transaction.heartbeat.interval.ms"] = str(INTERVAL_MS)
        return made

    return pipe


@pytest.fixture
def pipe(make: MakePipe) -> Pipe:
    """Two batches of four tasks each, not written yet."""
    pipe = make()
    pipe.send(200)
    return pipe


def wait_for_step(pipe: Pipe) -> None:
    wait_for(lambda: pipe.orders.left == [], "the step is reached", PATIENCE_S, lambda: pipe.host.text)


# Tasks and stages that run again


def test_tasks_that_fail_at_every_step_are_run_again(pipe: Pipe) -> None:
    pipe.orders.give("task: opened", "die@0")
    pipe.orders.give("task: written", "raise@1")
    pipe.orders.give("task: prepared", "die@2")
    pipe.orders.give("task: prepared", "raise@2")
    pipe.orders.give("task: written", "die@3")
    assert pipe.run().well
    pipe.check()


def test_stage_that_lost_its_shuffle_files_is_run_again(make: MakePipe) -> None:
    """Two tasks have prepared when the files go: the two others cannot read theirs, and the stage before runs again."""
    pipe = make(shape="shuffled")
    pipe.send(100)
    held = [pipe.orders.give("task: prepared", f"wait@{task}") for task in (0, 1)]
    query = pipe.run_to_step()
    files = shuffle_files(pipe)
    assert files
    for path in files:
        path.unlink()
    committing = pipe.orders.give("commit", "wait")
    for number in held:
        pipe.orders.go(number)
    wait_for_step(pipe)
    # Named after the tasks that wrote them.
    again = shuffle_files(pipe)
    assert again and not set(again) & set(files), "nothing was run again"
    pipe.orders.go(committing)
    assert pipe.host.ended(query).well
    pipe.check()


def shuffle_files(pipe: Pipe) -> list[Path]:
    local = pipe.host.directory / "local"
    return sorted(path for path in local.rglob("shuffle_*") if path.suffix in (".data", ".index"))


# Other numbers of tasks


@pytest.mark.parametrize("step", ["commit: checked", pytest.param("commit: decided", marks=rest)])
def test_number_of_tasks_changes_between_a_crash_and_the_replay(make: MakePipe, step: str) -> None:
    """Spark puts small partitions together, and then not: six tasks after one."""
    pipe = make(shape="by key")
    pipe.send(200)
    pipe.conf = {"spark.sql.shuffle.partitions": "6", "spark.sql.adaptive.coalescePartitions.enabled": "true"}
    pipe.orders.give(step, "raise")
    pipe.orders.give("abort", "raise")
    assert not pipe.run().well
    few = len(pipe.open)
    pipe.conf["spark.sql.adaptive.coalescePartitions.enabled"] = "false"
    pipe.orders.give("commit: checked", "raise")
    pipe.orders.give("abort", "raise")
    assert not pipe.run().well
    assert few == 1
    assert len(pipe.open) > few
    pipe.run_to_end()
    pipe.check()


@rest
def test_plan_without_its_shuffle_replays_the_batch(make: MakePipe) -> None:
    pipe = make(shape="shuffled")
    pipe.send(200)
    pipe.orders.give("commit: decided", "kill-driver")
    assert pipe.run().died
    pipe.shape = "plain"
    pipe.run_to_end()
    pipe.check()


# Workers that were away


@pytest.mark.parametrize("step", ["task: opened", pytest.param("task: written", marks=rest)])
def test_worker_that_was_stopped_past_its_heartbeats_writes_nothing_when_it_goes_on(pipe: Pipe, step: str) -> None:
    """Its transaction is gone meanwhile: what it writes late is refused, and the task is run again."""
    pipe.orders.give(step, "stop-writing@1" if step == "task: opened" else "stop@1")
    query = pipe.run_to_step()
    pid = int(pipe.orders.done[-1][2])
    wait_for(lambda: is_stopped(pid), "the worker is stopped")
    time.sleep(4 * INTERVAL_MS / 1000)
    # The core that is left has written the other tasks, and those are prepared and stay.
    pipe.wait_until_open(TASKS - 1)
    before = len(pipe.host.log.read_text())
    os.kill(pid, signal.SIGCONT)
    assert pipe.host.ended(query).well
    said = pipe.host.log.read_text()[before:]
    # By a batch, by the coordinator, or by the next heartbeat: whichever was answered first.
    refusals = ("INVALID_PRODUCER_EPOCH", "has ended the transaction", "missed heartbeats")
    assert any(words in said for words in refusals), said[-3000:]
    pipe.check()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


# Two drivers


@pytest.fixture
def second_host(tmp_path: Path) -> Iterator[Host]:
    directory = tmp_path / "second-host"
    directory.mkdir()
    host = Host(directory, conf=CONF)
    host.get_ready()  # not while somebody is held up
    yield host
    host.kill()


# In `make test` two drivers meet in test_a_copy_of_a_checkpoint_beside_the_original_is_fenced_with_a_message.
@rest
@pytest.mark.parametrize("step", ["task: prepared", "commit: checked", "commit: decided", "commit: ended"])
def test_two_drivers_with_one_checkpoint(make: MakePipe, second_host: Host, step: str) -> None:
    """The first is held up, the second writes everything; the first finds out, says so, and has done no harm."""
    first = make()
    first.send(200)
    number = first.orders.give(step, "wait")
    held = first.run_to_step()
    second = make(host=second_host)
    second.source, second.target, second.sent = first.source, first.target, first.sent
    assert second.run().well
    second.check()
    first.orders.go(number)
    ended = first.host.ended(held)
    assert ended.error is not None
    assert "has taken over what is written under transactionalIdPrefix" in ended.error
    second.check()
    second.send(100)
    second.run_to_end()
    second.check()


@rest
def test_two_drivers_that_both_go_on_end_with_one(make: MakePipe, second_host: Host) -> None:
    """Both begin the first batch at the same moment: whoever loses fails, at the latest when Spark writes its own log,
    and harms nothing."""
    first = make()
    first.send(1000)
    second = make(host=second_host)
    second.source, second.target, second.sent = first.source, first.target, first.sent
    queries = []
    for one in (first, second):
        one.orders.give("start", "wait")
        queries.append(one.run_to_step())
    for one in (first, second):
        one.orders.go()
    outcomes = [one.host.ended(query) for one, query in zip((first, second), queries, strict=True)]
    assert any(not outcome.well for outcome in outcomes)
    first.run_to_end()
    first.check()


# Queries with state, several sinks


@pytest.fixture
def windowed(make: MakePipe) -> Pipe:
    """A window's numbers in each batch; two tasks that have state."""
    pipe = make(shape="windowed", per_batch=PER_WINDOW)
    pipe.source = pipe.broker.topic(1)
    return pipe


def send_windows(pipe: Pipe, first: int, count: int) -> None:
    numbers = range(first * PER_WINDOW, (first + count) * PER_WINDOW)
    pipe.broker.send(pipe.source, numbers, timestamp_ms=lambda n: START_MS + n * WINDOW_MS // PER_WINDOW)


def check_windows(pipe: Pipe, count: int) -> None:
    """Of `count` windows all but the last, which is not over, each once and with all of its numbers."""
    assert pipe.orders.left == []
    pipe.wait_until_open(0)
    found = Counter((key, int(value)) for _, key, value in pipe.broker.read(pipe.target))
    assert set(found.values()) == {1}, found
    assert {number for _, number in found} == {PER_WINDOW}, found
    assert len(found) == count - 1


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("task: prepared", marks=rest),
        pytest.param("commit: checked", marks=rest),
        pytest.param("commit: decided", marks=rest),
        pytest.param("commit: one ended", marks=rest),
        pytest.param("commit: done", marks=rest),
    ],
)
def test_stateful_query_whose_driver_is_killed(windowed: Pipe, step: str) -> None:
    send_windows(windowed, 0, 4)
    windowed.orders.give(step, "sleep-0")
    windowed.orders.give(step, "kill-driver")
    assert windowed.run().died
    windowed.run_to_end()
    send_windows(windowed, 4, 2)
    windowed.run_to_end()
    check_windows(windowed, 6)


@rest
@pytest.mark.parametrize("step", ["task: prepared", "journal: commit", "commit: decided"])
def test_stateful_query_whose_broker_is_killed(windowed: Pipe, server: TwofoldServer, step: str) -> None:
    send_windows(windowed, 0, 4)
    windowed.orders.give(step, "broker-0")
    with restarted(server, windowed.orders):
        windowed.run_to_end()
    check_windows(windowed, 4)


@rest
@pytest.mark.parametrize("step", ["task: prepared", "commit: checked", "commit: decided", "commit: one ended"])
def test_two_sinks_from_one_source_whose_driver_is_killed(make: MakePipe, step: str) -> None:
    first = make("first")
    second = make("second", per_batch=70)
    second.source = first.source
    first.send(300)
    second.sent = first.sent
    for _ in range(3):
        first.orders.give(step, "sleep-0")
    first.orders.give(step, "kill-driver")
    query, _ = [one.start() for one in (first, second)]
    assert first.host.ended(query).died
    again = [(one, one.start()) for one in (first, second)]
    for one, query in again:
        if first.host.ended(query).was_too_slow:
            one.run_to_end()
    first.check()
    second.check()


# Offsets of a consumer group


def committed(pipe: Pipe, group: str) -> int:
    """How many records of the input the group has behind it."""
    asked = pipe.broker.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(30)
    return sum(max(0, row.offset) for row in found.topic_partitions if row.topic == pipe.source)


@pytest.mark.parametrize("step", ["commit: decided", pytest.param("commit: ended", marks=rest)])
def test_offsets_of_the_group_are_never_ahead_of_the_output(pipe: Pipe, step: str) -> None:
    pipe.write["consumerGroup"] = "follower"
    pipe.orders.give(step, "sleep-0")
    pipe.orders.give(step, "kill-driver")
    assert pipe.run().died
    first = end_of_batch(pipe, 0)
    assert committed(pipe, "follower") == first
    assert 0 < first < 200
    assert len(pipe.visible) == (first if step == "commit: decided" else 200)
    number = pipe.orders.give("journal: done", "wait")
    query = pipe.run_to_step()
    # All is committed by now, and not yet done.
    assert committed(pipe, "follower") == first
    assert len(pipe.visible) == 200
    pipe.orders.go(number)
    assert pipe.host.ended(query).well
    assert committed(pipe, "follower") == 200
    pipe.check()


def end_of_batch(pipe: Pipe, batch_id: int) -> int:
    lines = (pipe.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    return sum(json.loads(lines[2])[pipe.source].values())


def test_offsets_of_the_group_move_with_batches_that_write_nothing(windowed: Pipe) -> None:
    """The first window is not over, so that nothing is written and nothing decided; it was read all the same."""
    windowed.write["consumerGroup"] = "reader"
    send_windows(windowed, 0, 1)
    windowed.run_to_end()
    assert windowed.visible == Counter()
    assert committed(windowed, "reader") == PER_WINDOW


def test_offsets_of_the_group_are_refused_for_a_source_that_has_none(
    spark: Any, make: MakePipe, tmp_path: Path
) -> None:
    pipe = make()
    frame = spark.readStream.format("rate").option("rowsPerSecond", "1").load()
    query = (
        frame.selectExpr("cast(value as string) value")
        .writeStream.format("twofold")
        .option("kafka.bootstrap.servers", pipe.broker.bootstrap_servers)
        .option("topic", pipe.target)
        .option("consumerGroup", "nobody")
        .option("checkpointLocation", str(tmp_path / "rate"))
        .start()
    )
    with pytest.raises(Exception, match="consumerGroup is for queries that read topics"):
        query.awaitTermination(60)
    assert pipe.broker.read(pipe.target, committed=False) == []


def test_offsets_of_the_group_are_refused_without_a_checkpoint_and_for_batches(spark: Any, make: MakePipe) -> None:
    pipe = make()
    options = {
        "kafka.bootstrap.servers": pipe.broker.bootstrap_servers,
        "topic": pipe.target,
        "consumerGroup": "nobody",
        "transactionalIdPrefix": "nobody",
    }
    source = {"kafka.bootstrap.servers": pipe.broker.bootstrap_servers, "subscribe": pipe.source}
    frame = spark.readStream.format("twofold").options(**source).load()
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(pipe.directory / "of-session"))
    try:
        query = frame.select("value").writeStream.format("twofold").options(**options).start()
        with pytest.raises(Exception, match="set the option checkpointLocation"):
            query.awaitTermination(60)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    rows = spark.range(3).selectExpr("cast(id as string) value")
    with pytest.raises(Exception, match="consumerGroup is for streams"):
        rows.write.format("twofold").options(**options).mode("append").save()
