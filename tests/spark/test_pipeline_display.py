"""What is seen of a running pipeline: a table of 80 columns on a terminal, lines elsewhere, JSON for programs."""

import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from connector import LONG
from pipeline_kit import COPY, SPARK, Command
from sink_kit import SETTINGS, Broker

from kits.processes.server import TwofoldServer
from twofold.pipeline.config import Flags, PipelineConfig, build
from twofold.pipeline.display import Display, JsonLines, Table, display_for
from twofold.pipeline.running import Activity, SinkProgress

COLUMNS, ROWS = 80, 24
PATIENCE_S = 240
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a JDK")
rest = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs all of them")


def config_of(*sinks: str) -> PipelineConfig:
    return build(Path("orders.py"), None, Flags(sources=("orders",), sinks=sinks, checkpoint="/c"))


def progress(name: str, **values: object) -> SinkProgress:
    return SinkProgress(name, **({"batch_id": 7, "rows": 1_234_567, "rows_per_s": 2_345.6, "lag": 89} | values))  # type: ignore[arg-type]


def at_work(name: str) -> SinkProgress:
    return progress(name, activity=Activity.RUNNING)


# On a terminal


class Terminal:
    """A pseudo terminal of 80 columns, and what is written to it."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._text = b""

    def read(self, patience_s: float = 0.5) -> str:
        """Everything until now and what comes meanwhile."""
        deadline = time.monotonic() + patience_s
        while select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            try:
                chunk = os.read(self._master, 65536)
            except OSError:
                break  # the other side is closed
            if not chunk:
                break
            self._text += chunk
        return self._text.decode()

    def close(self) -> None:
        for number in (self._master, self.slave):
            os.close(number)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def lines_of(text: str) -> list[str]:
    """What can be seen, without colours and movements."""
    return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip() for line in text.replace("\r", "\n").splitlines()]


def test_the_table_fits_80_columns_and_tells_everything(terminal: Terminal) -> None:
    stream = os.fdopen(os.dup(terminal.slave), "w", buffering=1)
    names = ("totals", "a_sink_whose_name_is_much_longer_than_those_that_people_mostly_choose")
    with Table(config_of(*names), stream) as display:
        display.set_open({"totals": 4})
        display.show([at_work(name) for name in names])
        shown = lines_of(terminal.read(1.0))
    assert max(map(len, shown)) <= COLUMNS
    assert any(re.fullmatch(r"SINK +STATE +LAST BATCH +ROWS +ROWS/S +LAG +OPEN TXNS", line) for line in shown), shown
    assert any(re.fullmatch(r"totals +running +7 +1,234,567 +2,346 +89 +4", line) for line in shown), shown
    assert any("Ctrl-C stops it" in line for line in shown)


def test_a_path_is_not_broken_into_lines(terminal: Terminal) -> None:
    stream = os.fdopen(os.dup(terminal.slave), "w", buffering=1)
    path = "/home/somebody/" + "a-long-name/" * 12 + "pipeline.log"
    with Table(config_of("totals"), stream) as display:
        display.say(f"what Spark says goes to {path}")
    assert any(path in line for line in lines_of(terminal.read()))


# Elsewhere


def test_lines_of_text_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    stream.close = lambda: None  # type: ignore[method-assign]
    with Display(config_of("totals", "rest"), stream) as display:
        display.say("starting")
        display.show([at_work("totals"), SinkProgress("rest")])
        assert stream.getvalue() == "orders: starting\n", "not more often than people read"
        display._line_at -= 60
        display.set_open({"totals": 4})
        display.show([at_work("totals"), SinkProgress("rest")])
        assert stream.getvalue().splitlines()[1:] == [
            "orders.totals: batch 7, 1,234,567 rows, 2,346 rows/s, lag 89, 4 open transactions",
            "orders.rest: no batch yet",
        ]
        display.finish()
    assert stream.getvalue().splitlines()[3] == "orders.totals: batch 7, 1,234,567 rows, 2,346 rows/s, lag 89"


def test_json_has_a_line_for_every_change() -> None:
    stream = io.StringIO()
    stream.close = lambda: None  # type: ignore[method-assign]
    with JsonLines(config_of("totals", "rest"), stream) as display:
        display.set_open({"totals": 4})
        for _ in range(3):
            display.show([at_work("totals"), SinkProgress("rest")])
        display.show([progress("totals", activity=Activity.RUNNING, batch_id=8, rows=1_234_568), SinkProgress("rest")])
        display.finish()
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(row["event"], row["sink"], row["batch_id"]) for row in found] == [
        ("progress", "totals", 7),
        ("progress", "totals", 8),
        ("end", "totals", 8),
        ("end", "rest", None),
    ]
    assert found[0] == {
        "event": "progress",
        "pipeline": "orders",
        "sink": "totals",
        "state": "running",
        "batch_id": 7,
        "rows": 1_234_567,
        "rows_per_s": 2345.6,
        "lag": 89,
        "open_transactions": 4,
    }


# As Spark 4.3 tells it, less what is not looked at.
NOTHING_TO_DO = {
    "batchId": 3,
    "timestamp": "2026-11-16T12:00:00.000Z",
    "numInputRows": 0,
    "durationMs": {"latestOffset": 4, "triggerExecution": 5},
    "sources": [
        {
            "startOffset": '{"orders": {"0": 20, "1": 30}}',
            "endOffset": '{"orders": {"0": 20, "1": 30}}',
            "latestOffset": '{"orders": {"0": 20, "1": 30}}',
        }
    ],
}


def test_a_restarted_sink_without_new_rows_is_idle_with_lag_0_and_the_last_batch_of_the_run_before() -> None:
    restarted = SinkProgress("totals")
    restarted.take(NOTHING_TO_DO)
    assert (restarted.activity, restarted.lag, restarted.batch_id, restarted.rows) == (Activity.IDLE, 0, 2, 0)
    stream = io.StringIO()
    Display(config_of("totals"), stream)._print([restarted])
    assert stream.getvalue() == "orders.totals: idle, last batch 2, 0 rows in this run, lag 0\n"
    fresh = SinkProgress("totals")
    fresh.take(NOTHING_TO_DO | {"batchId": 0})
    assert (fresh.activity, fresh.batch_id) == (Activity.IDLE, -1)


def test_a_sink_is_running_after_a_batch_and_idle_after_a_look_that_found_nothing() -> None:
    sink = SinkProgress("totals")
    batch = NOTHING_TO_DO | {"numInputRows": 10, "durationMs": {"addBatch": 9}, "processedRowsPerSecond": 50.0}
    for _ in range(2):
        sink.take(NOTHING_TO_DO)
        sink.take(batch)
    assert (sink.batch_id, sink.rows, sink.rows_per_s) == (3, 10, 50.0)
    assert sink.activity is Activity.RUNNING
    sink.take(NOTHING_TO_DO | {"batchId": 4})
    assert (sink.activity, sink.batch_id, sink.rows, sink.rows_per_s) == (Activity.IDLE, 3, 10, 0.0)


def test_json_tells_that_a_sink_became_idle() -> None:
    stream = io.StringIO()
    stream.close = lambda: None  # type: ignore[method-assign]
    idle = progress("totals", activity=Activity.IDLE, lag=0, rows_per_s=0.0)
    with JsonLines(config_of("totals"), stream) as display:
        for row in (SinkProgress("totals"), at_work("totals"), idle, idle):
            display.show([row])
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(row["state"], row["batch_id"], row["lag"]) for row in found] == [("running", 7, 89), ("idle", 7, 0)]


def test_a_log_that_became_large_is_rotated_under_processes_that_have_it_open(tmp_path: Path) -> None:
    from twofold.pipeline.session import ROTATED_KEPT, rotate

    log = tmp_path / "shop-12.log"
    rotate(log)  # not there yet
    with subprocess.Popen(
        ["bash", "-c", f"while read line; do echo $line; done >>{log}"], stdin=subprocess.PIPE
    ) as jvm:
        assert jvm.stdin is not None
        for number in range(6):
            jvm.stdin.write(b"%d %s\n" % (number, b"x" * 100))
            jvm.stdin.flush()
            deadline = time.monotonic() + 10
            while not log.exists() or not log.read_text().startswith(f"{number} "):
                assert time.monotonic() < deadline, "nothing came"
                time.sleep(0.01)
            rotate(log, at_bytes=1_000)
            assert log.stat().st_size > 0, "it is small"
            rotate(log, at_bytes=100)
            assert log.stat().st_size == 0
        jvm.stdin.close()
    kept = {path.name: path.read_text()[0] for path in tmp_path.glob("shop-12.*.log")}
    assert kept == {f"shop-12.{number}.log": str(6 - number) for number in range(1, ROTATED_KEPT + 1)}


def test_a_reader_that_stops_reading_stops_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with JsonLines(config_of("totals"), os.fdopen(writer, "w", buffering=1)) as display:
        display.say("nobody hears it")
        display.finish()


def test_what_goes_into_the_log_file_meanwhile_is_not_the_display(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from twofold.pipeline.session import quiet

    with display_for(config_of("totals"), as_json=False) as display, quiet(tmp_path / "log"):
        os.write(1, b"a JVM speaks\n")
        display.say("people read this")
    assert "people read this" in capfd.readouterr().err
    assert (tmp_path / "log").read_text() == "a JVM speaks\n"


# Of a real run


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    with TwofoldServer(tmp_path / "server", SETTINGS) as server:
        broker = Broker(server.bootstrap_servers)
        yield Command(broker, tmp_path, broker.topic(), broker.topic())


@needs_java
@rest
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_on_a_terminal_a_run_draws_its_table_and_ctrl_c_ends_it(command: Command, terminal: Terminal) -> None:
    """As a person has it: the terminal's own Ctrl-C, which reaches every process."""
    command.broker.send(command.source, range(300))
    (command.directory / "pipe.py").write_text(COPY)
    process = subprocess.Popen(
        [sys.executable, "-m", "twofold", "pipeline", "run", "pipe.py", *command.flags, *SPARK],
        cwd=command.directory,
        env=command.env | {"TERM": "xterm"},
        stdin=terminal.slave,
        stdout=terminal.slave,
        stderr=terminal.slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
    )
    deadline = time.monotonic() + PATIENCE_S
    while not any(re.match(r"out +running +\d+ +300 ", line) for line in lines_of(terminal.read())):
        assert time.monotonic() < deadline, terminal.read()
        assert process.poll() is None, terminal.read()
    time.sleep(2.5)
    os.write(terminal._master, b"\x03")
    while process.poll() is None:
        assert time.monotonic() < deadline, terminal.read()
        terminal.read()
    text = terminal.read()
    shown = lines_of(text)
    assert process.returncode == 130, text
    log_lines = [line for line in shown if "what Spark says goes to" in line]
    assert log_lines and max(len(line) for line in shown if line not in log_lines) <= COLUMNS
    assert any(re.fullmatch(r"out +(running|idle) +\d+ +300 +[\d,]+ +\d+ +0", line) for line in shown), (
        "with open transactions"
    )
    assert "pipe: stopping" in text and "Traceback" not in text
    assert [line for line in shown if line.startswith("pipe.out: batch")]
    command.processes.append(process)  # type: ignore[arg-type]
    assert command.left_running() == []
    assert command.broker.open_transactions() == []


@needs_java
@rest
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_json_of_a_run(command: Command) -> None:
    command.broker.send(command.source, range(300))
    (command.directory / "pipe.py").write_text(COPY)
    run = ["pipeline", "run", "pipe.py", *command.flags, *SPARK, "--trigger", "available-now", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "twofold", *run, "--option", "in.maxOffsetsPerTrigger=100"],
        cwd=command.directory,
        env=command.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[Mapping[str, object]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["event"] for row in found][:1] == ["message"]
    last = found[-1]
    assert (last["event"], last["sink"], last["rows"], last["lag"]) == ("end", "out", 300, 0), last
