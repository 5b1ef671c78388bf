"""`twofold pipeline run` as people use it: started, stopped in any phase, killed, and started again."""

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from connector import LONG
from pipeline_kit import Command, check_message
from sink_kit import SETTINGS, Broker, check_exactly_once

from kits.processes import commands
from kits.processes.server import TwofoldServer

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a JDK"),
]
rest = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs all of them")
ROUNDS = 20
A_ROUND = 300


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


@rest
def test_it_reads_what_there_is_and_ends_and_goes_on_the_next_time(command: Command) -> None:
    command.broker.send(command.source, range(100))
    code, output = command.run("--trigger", "available-now")
    assert code == 0, output
    check_message(output, "pipe.out: batch 0, 100 rows")
    check_exactly_once(command.broker, command.target, range(100))
    command.broker.send(command.source, range(100, 150))
    code, output = command.run("--trigger", "available-now")
    check_message(output, "pipe.out: batch 1, 50 rows")
    check_exactly_once(command.broker, command.target, range(150))
    assert command.broker.open_transactions() == []
    assert command.left_running() == [], "the JVM has ended before the command"


# Its JVM writes more than a log file may hold.
TALKATIVE = """
def configure(spark):
    spark._jvm.java.lang.System.err.println("x" * 11_000_000)


def transform(df):
    return df.select('key', 'value')
"""


@rest
def test_restarted_without_new_rows_it_is_idle_known_by_its_name_and_rotates_its_log(command: Command) -> None:
    command.broker.send(command.source, range(100))
    assert command.run("--trigger", "available-now")[0] == 0
    process = command.start("--trigger", "100 milliseconds", "--format", "json", text=TALKATIVE)
    assert process.stdout is not None
    seen = [json.loads(next(process.stdout)) for _ in range(2)]
    assert seen[0]["event"] == "message"
    state = {name: seen[1][name] for name in ("event", "pipeline", "sink", "state", "batch_id", "rows", "lag")}
    assert state == {
        "event": "progress",
        "pipeline": "pipe",
        "sink": "out",
        "state": "idle",
        "batch_id": 0,
        "rows": 0,
        "lag": 0,
    }
    done = commands.run("pipeline", "status", "pipe", "--format", "json", server=command.broker.bootstrap_servers)
    (found,) = [row for row in json.loads(done.stdout) if str(command.directory) in row["checkpoint"]]
    assert found["pipeline"] == "pipe.out" and found["last_decided_batch"] == 0
    log = Path(seen[0]["text"].rpartition(" ")[2])
    rotated = log.with_suffix(".1.log")
    deadline = time.monotonic() + 30
    while not rotated.exists() or log.stat().st_size > 1_000_000:
        assert time.monotonic() < deadline, "the log grows"
        time.sleep(0.1)
    assert rotated.stat().st_size > 11_000_000
    command.broker.send(command.source, range(100, 150))
    command.wait_for_rows(150)
    stop_with(process, "int")
    code, output = command.ended(process)
    assert code == 130, output
    assert {"state": "running", "batch_id": 1, "rows": 50} in [
        {name: row.get(name) for name in ("state", "batch_id", "rows")} for row in map(json.loads, output.splitlines())
    ]
    assert log.stat().st_size > 0, "the JVM goes on with the file that was cut"


def stop_with(process: object, how: str) -> None:
    """A terminal's Ctrl-C reaches every process, kill and systemd's first word reach one."""
    pid = process.pid  # type: ignore[attr-defined]
    if how == "ctrl-c":
        os.killpg(pid, signal.SIGINT)
    elif how == "term to all":
        os.killpg(pid, signal.SIGTERM)
    else:
        os.kill(pid, {"int": signal.SIGINT, "term": signal.SIGTERM, "hangup": signal.SIGHUP}[how])


@pytest.mark.parametrize(
    "how", ["ctrl-c", *(pytest.param(how, marks=rest) for how in ("int", "term", "term to all", "hangup"))]
)
def test_stopped_at_work_it_leaves_nothing_open_and_nothing_running(command: Command, how: str) -> None:
    command.broker.send(command.source, range(200))
    process = command.start("--trigger", "100 milliseconds")
    command.wait_for_rows(200)
    command.broker.send(command.source, range(200, 5_000))
    time.sleep(random.Random(how).random())
    stop_with(process, how)
    code, output = command.ended(process)
    assert code == 130, output
    check_message(output, "stopping")
    assert command.broker.open_transactions() == []
    assert command.left_running() == []
    if LONG:
        assert command.run("--trigger", "available-now")[0] == 0
        check_exactly_once(command.broker, command.target, range(5_000))


@rest
@pytest.mark.parametrize(
    ("after_s", "how"),
    [
        (0.6, "ctrl-c"),
        (2, "ctrl-c"),
        (3, "term"),
        (5, "ctrl-c"),
        (7, "ctrl-c"),
        (9, "term"),
        (11, "ctrl-c"),
        (14, "int"),
    ],
)
def test_stopped_in_any_phase_of_its_start(command: Command, after_s: float, how: str) -> None:
    command.broker.send(command.source, range(500))
    process = command.start("--trigger", "100 milliseconds")
    time.sleep(after_s)
    stop_with(process, how)
    code, output = command.ended(process)
    # Before anything is started there is nothing to be polite about: SIGTERM ends it at once.
    assert code in (130, -signal.SIGTERM), output
    assert "Traceback" not in output and "\tat " not in output, output
    assert command.broker.open_transactions() == []
    assert command.left_running() == []


@rest
def test_a_second_ctrl_c_does_not_wait(command: Command) -> None:
    command.broker.send(command.source, range(200))
    process = command.start("--trigger", "100 milliseconds")
    command.wait_for_rows(200)
    command.broker.send(command.source, range(200, 2_000))
    stop_with(process, "int")
    time.sleep(0.2)
    stop_with(process, "int")
    code, output = command.ended(process)
    assert code == 130, output
    assert "Traceback" not in output, output
    assert command.left_running(10) == []
    command.broker.wait_until_none_open()


@rest
@pytest.mark.timeout(2400)
def test_killed_again_and_again_it_writes_every_row_once(command: Command) -> None:
    """kill -9 of everything at random moments; each run finds what the one before left. A third of the moments come
    soon after a run's first row, for how much of a start fits into the others depends on the machine."""
    moments = random.Random(11)
    sent = 0
    found: list[int] = []
    for number in range(ROUNDS):
        command.broker.send(command.source, range(sent, sent + A_ROUND))
        sent += A_ROUND
        process = command.start("--trigger", "100 milliseconds", "--option", "in.maxOffsetsPerTrigger=100")
        if number % 3 == 1:
            command.wait_for_rows(found[-1] + 1)
            time.sleep(3 * moments.random())
        else:
            time.sleep(20 * moments.random())
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        found.append(len(command.broker.read(command.target)))
        print(f"round {number + 1}: {sent} sent, {found[-1]} visible when it was killed", flush=True)
    code, output = command.run("--trigger", "available-now")
    assert code == 0, output
    rows = Counter(int(value) for _, _, value in command.broker.read(command.target))
    lost = sent - len(rows)
    doubled = sum(rows.values()) - len(rows)
    print(f"rows in {sent}, out {sum(rows.values())}, lost {lost}, doubled {doubled}")
    assert len(set(found)) >= ROUNDS // 3, "some were killed at work"
    check_exactly_once(command.broker, command.target, range(sent))
    command.broker.wait_until_none_open()


@rest
def test_a_jvm_that_dies_is_told_and_leaves_nothing_open(command: Command) -> None:
    command.broker.send(command.source, range(200))
    process = command.start("--trigger", "100 milliseconds")
    command.wait_for_rows(200)
    command.broker.send(command.source, range(200, 3_000))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (jvm,) = [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]
    os.kill(jvm, signal.SIGKILL)
    code, output = command.ended(process)
    assert code == 1, output
    check_message(output, "the JVM has ended, killed or out of memory (spark.driver.memory)")
    assert command.left_running(10) == []
    assert command.broker.open_transactions() == []


@rest
def test_of_two_runs_with_one_checkpoint_one_goes_on(command: Command) -> None:
    """Whoever has lost the pipeline leaves what is open to the one that has it."""
    command.broker.send(command.source, range(200))
    first = command.start("--trigger", "100 milliseconds")
    command.wait_for_rows(200)
    second = command.start("--trigger", "100 milliseconds")
    deadline = time.monotonic() + 90
    sent = 200
    while first.poll() is None and second.poll() is None:
        assert time.monotonic() < deadline, "one has to give way"
        command.broker.send(command.source, range(sent, sent + 20))
        sent += 20
        time.sleep(0.3)
    loser, winner = (first, second) if first.poll() is not None else (second, first)
    code, output = command.ended(loser)
    assert code == 1, output
    check_message(output, "another")
    command.broker.send(command.source, range(sent, sent + 100))
    command.wait_for_rows(sent + 100)
    assert winner.poll() is None
    stop_with(winner, "int")
    assert command.ended(winner)[0] == 130
    check_exactly_once(command.broker, command.target, range(sent + 100))
    assert command.broker.open_transactions() == []
