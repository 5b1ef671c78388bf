"""`make demo`: its verdict, the runs that it judges, and that nothing of it stays behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from connector import when_long

DEMO = Path(__file__).parents[2] / "examples" / "demo"
PATIENCE_S = 500
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
runs = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a JDK")

pytest.importorskip("pyspark")
sys.path.insert(0, str(DEMO))

from orders import PRODUCTS, Order, Sent  # noqa: E402
from verdict import Verdict, of_enriched, of_revenue  # noqa: E402

# One a second: two windows of ten seconds that are closed, and one that is not.
SENT = [Sent(Order(n, f"customer-{n % 3}", "p1", 1 + n % 4), at_ms=1_000_000_000 + n * 1000) for n in range(26)]


def enriched_row(order: Order) -> bytes:
    name, price = PRODUCTS[order.product]
    row = {"order_id": order.order_id, "customer": order.customer, "name": name, "amount": price * order.quantity}
    return json.dumps(row).encode()


def enriched_rows() -> list[bytes]:
    return [enriched_row(sent.order) for sent in SENT]


def window(start: int) -> bytes:
    name, price = PRODUCTS["p1"]
    amount = price * sum(s.order.quantity for s in SENT[start : start + 10])
    return json.dumps({"start_s": 1_000_000 + start, "name": name, "amount": amount}).encode()


def test_every_row_once_is_good():
    assert of_enriched(SENT, enriched_rows()) == Verdict(expected=26, read=26, lost=0, doubled=0)


def test_a_missing_row_is_lost_and_a_second_one_doubled():
    rows = enriched_rows()
    assert of_enriched(SENT, rows[1:]) == Verdict(expected=26, read=25, lost=1, doubled=0)
    assert of_enriched(SENT, [*rows, rows[3], rows[3]]) == Verdict(expected=26, read=28, lost=0, doubled=2)


def test_a_wrong_row_does_not_stand_for_the_right_one():
    rows = enriched_rows()
    wrong = rows[0].replace(b'"amount": ', b'"amount": 1')
    assert not of_enriched(SENT, [wrong, *rows[1:]]).good


def test_closed_windows_have_to_be_there_and_open_ones_may():
    both = [window(0), window(10)]
    assert of_revenue(SENT, both) == Verdict(expected=2, read=2, lost=0, doubled=0)
    assert of_revenue(SENT, [*both, window(20)]).good
    assert of_revenue(SENT, both[:1]).lost == 1
    assert of_revenue(SENT, [*both, both[1]]).doubled == 1
    assert not of_revenue(SENT, [both[0], both[1].replace(b'"amount": ', b'"amount": 1')]).good


def _heed_interrupts() -> None:
    """A process in the background ignores SIGINT, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Run:
    """A demo in a process; whatever it starts carries a mark in its environment."""

    directory: Path
    mark: str = field(default_factory=lambda: f"TWOFOLD_DEMO_TEST={uuid.uuid4().hex}")
    process: "subprocess.Popen[str] | None" = None

    def start(self, **env: str) -> "subprocess.Popen[str]":
        name, value = self.mark.split("=")
        self.process = subprocess.Popen(
            [sys.executable, str(DEMO / "run.py"), "--per-second", "20", "--plot", str(self.plot)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {name: value, "TMPDIR": str(self.directory)} | env,
            preexec_fn=_heed_interrupts,
        )
        return self.process

    @property
    def plot(self) -> Path:
        return self.directory / "plots" / "demo.png"

    def finish(self) -> tuple[int, str]:
        assert self.process is not None
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output

    def alive(self) -> list[str]:
        """Names of all processes of this run."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "comm").read_text().strip())
            except OSError:
                continue
        return found

    def check_nothing_is_left(self) -> None:
        """Python processes of Spark see a moment later that its JVM is gone."""
        deadline = time.monotonic() + 20
        while alive := self.alive():
            assert time.monotonic() < deadline, f"still running: {alive}"
            time.sleep(0.1)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    if run.process is not None and run.process.poll() is None:
        run.process.terminate()
        run.process.communicate(timeout=30)


@runs
@when_long
def test_the_demo_loses_and_doubles_nothing_and_leaves_only_its_picture(run: Run):
    run.start()
    code, output = run.finish()
    assert code == 0, output
    assert "nothing lost, nothing doubled" in output
    assert run.plot.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in run.directory.glob("twofold-demo-*")] == []
    run.check_nothing_is_left()


@runs
@when_long
def test_a_broken_sink_fails_the_verdict(run: Run):
    run.start(TWOFOLD_DEMO_BREAK="1")
    code, output = run.finish()
    assert code == 1, output
    assert "rows were lost or doubled" in output
    run.check_nothing_is_left()


@runs
def test_an_interrupted_demo_leaves_nothing_running(run: Run):
    process = run.start()
    deadline = time.monotonic() + 120
    while "java" not in run.alive():
        assert process.poll() is None and time.monotonic() < deadline, "no JVM was started"
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    code, output = run.finish()
    assert code == 130, output
    run.check_nothing_is_left()
    assert [path.name for path in run.directory.glob("twofold-demo-*")] == []
