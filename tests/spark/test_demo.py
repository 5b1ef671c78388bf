"""`make demo`: its verdict, the runs that it judges, and that nothing of it stays behind."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from connector import when_long

from kits.processes import commands

DEMO = Path(__file__).parents[2] / "examples" / "demo"
PATIENCE_S = 500
pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
runs = pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs a JDK")

pytest.importorskip("pyspark")
sys.path.insert(0, str(DEMO))

import access  # noqa: E402
from access import ADMIN, PIPELINE, READER, SHOP, SecureAccess  # noqa: E402
from names import ENRICHED, ORDERS  # noqa: E402
from orders import PRODUCTS, Order, Sent  # noqa: E402
from plot import draw  # noqa: E402
from processes import Broker  # noqa: E402
from verdict import Verdict, of_enriched, of_revenue  # noqa: E402
from watch import Row, Sample  # noqa: E402

# One a second: two windows of ten seconds that are closed, and one that is not.
SENT = [Sent(Order(n, f"customer-{n % 3}", "p1", 1 + n % 4), at_ms=1_000_000_000 + n * 1000) for n in range(31)]


def enriched_row(order: Order) -> Row:
    name, price = PRODUCTS[order.product]
    row = {"order_id": order.order_id, "customer": order.customer, "name": name, "amount": price * order.quantity}
    return Row(partition=int(order.customer[-1]) % 2, key=order.customer, value=json.dumps(row).encode())


def enriched_rows() -> list[Row]:
    return [enriched_row(sent.order) for sent in SENT]


def window(start: int) -> Row:
    name, price = PRODUCTS["p1"]
    amount = price * sum(s.order.quantity for s in SENT[start : start + 10])
    return Row(0, name, json.dumps({"start_s": 1_000_000 + start, "name": name, "amount": amount}).encode())


def with_wrong_amount(row: Row) -> Row:
    return replace(row, value=row.value.replace(b'"amount": ', b'"amount": 1'))


def test_every_row_once_is_good() -> None:
    assert of_enriched(SENT, enriched_rows()) == Verdict(expected=31, read=31, lost=0, doubled=0, disordered=0)


def test_a_missing_row_is_lost_and_a_second_one_doubled() -> None:
    rows = enriched_rows()
    assert of_enriched(SENT, rows[1:]) == Verdict(expected=31, read=30, lost=1, doubled=0, disordered=0)
    assert of_enriched(SENT, [rows[0], *rows]) == Verdict(expected=31, read=32, lost=0, doubled=1, disordered=0)


def test_a_wrong_row_does_not_stand_for_the_right_one() -> None:
    rows = enriched_rows()
    for wrong in (with_wrong_amount(rows[0]), replace(rows[0], key="customer-9")):
        verdict = of_enriched(SENT, [wrong, *rows[1:]])
        assert (verdict.lost, verdict.doubled) == (1, 1)


def test_a_row_behind_a_later_one_of_its_key_is_out_of_order() -> None:
    rows = enriched_rows()
    swapped = [*rows[:3], rows[6], *rows[4:6], rows[3], *rows[7:]]
    assert swapped[3].key == swapped[6].key
    assert of_enriched(SENT, swapped) == Verdict(expected=31, read=31, lost=0, doubled=0, disordered=1)
    assert not of_enriched(SENT, swapped).good


def test_rows_of_different_keys_may_come_in_any_order() -> None:
    by_partition = sorted(enriched_rows(), key=lambda row: row.partition)
    assert by_partition != enriched_rows()
    assert of_enriched(SENT, by_partition).good


def test_a_key_in_two_partitions_has_no_order() -> None:
    rows = enriched_rows()
    assert of_enriched(SENT, [*rows[:-1], replace(rows[-1], partition=1 - rows[-1].partition)]).disordered == 1


def test_closed_windows_have_to_be_there_and_open_ones_may() -> None:
    both = [window(0), window(10)]
    assert of_revenue(SENT, both) == Verdict(expected=2, read=2, lost=0, doubled=0)
    assert of_revenue(SENT, [*both, window(20)]).good
    assert of_revenue(SENT, both[:1]).lost == 1
    assert of_revenue(SENT, [*both, both[1]]).doubled == 1
    assert not of_revenue(SENT, [both[0], with_wrong_amount(both[1])]).good


@pytest.mark.parametrize("doubled", [0, 91])
def test_the_picture_marks_rows_that_are_there_twice(tmp_path: Path, doubled: int) -> None:
    """The rows pass what was sent when the last batch is written."""
    samples = [Sample(float(at), at * 10, {"exact": at * 10, "plain": at * 9}) for at in range(50)]
    samples.append(Sample(50.0, 490, {"exact": 490, "plain": 490 + doubled}))
    path = tmp_path / "demo.svg"
    draw(path, samples, [(20.0, "driver killed")], {"exact": "exactly once", "plain": "off"}, {"plain": doubled})
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text())
    assert f"off: {490 + doubled} rows visible" in texts and "driver killed" in texts
    assert ("91 rows doubled" in texts and "are there twice" in " ".join(texts)) == bool(doubled)


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SecureAccess]:
    """The broker of `--secure`, without Spark."""

    def twofold(*arguments: str) -> None:
        done = commands.run(*arguments)
        assert done.returncode == 0, done.stderr

    monkeypatch.setattr(access, "twofold", twofold)
    broker = Broker(tmp_path)
    secure = SecureAccess(tmp_path, broker.address)
    secure.prepare()
    try:
        broker.start(secure)
        yield secure
    finally:
        broker.kill()


def written(secure: SecureAccess, user: str, topic: str) -> str:
    """What became of a record: "" or the name of the error."""
    fates: list[str] = []
    producer = Producer(secure.client(user) | {"message.timeout.ms": 20_000, "log_level": 0})
    producer.produce(topic, b"x", on_delivery=lambda error, _: fates.append(error.name() if error else ""))
    producer.flush(30)
    return fates[0]


def test_each_user_of_the_secure_demo_may_do_its_part_and_no_more(secure: SecureAccess) -> None:
    admin = AdminClient({**secure.client(ADMIN)})
    for created in admin.create_topics([NewTopic(topic, 1, 1) for topic in (ORDERS, ENRICHED)]).values():
        created.result(30)
    assert written(secure, SHOP, ORDERS) == written(secure, PIPELINE, ENRICHED) == ""
    for user, topic in ((SHOP, ENRICHED), (PIPELINE, ORDERS), (READER, ORDERS), (READER, ENRICHED)):
        assert written(secure, user, topic) == "TOPIC_AUTHORIZATION_FAILED", (user, topic)
    assert set(AdminClient({**secure.client(READER)}).list_topics(timeout=30).topics) == {ENRICHED}
    options = secure.spark()
    password = secure.client(PIPELINE)["sasl.password"]
    assert password not in str(options) and password in Path(options["kafka.sasl.password"][7:-1]).read_text()


def _heed_interrupts() -> None:
    """A process in the background ignores SIGINT, and so would what it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Run:
    """A demo in a process; whatever it starts carries a mark in its environment."""

    directory: Path
    mark: str = field(default_factory=lambda: f"TWOFOLD_DEMO_TEST={uuid.uuid4().hex}")
    process: "subprocess.Popen[str] | None" = None

    def start(self, *flags: str, **env: str) -> "subprocess.Popen[str]":
        name, value = self.mark.split("=")
        self.process = subprocess.Popen(
            [sys.executable, str(DEMO / "run.py"), "--per-second", "20", "--plot", str(self.plot), *flags],
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
        """Command lines of all processes of this run."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def commands(self) -> set[str]:
        """Words of those command lines, programs and scripts by their names."""
        return {Path(word).name for line in self.alive() for word in line.split()}

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
@pytest.mark.parametrize("flags", [(), ("--secure",)], ids=["plain", "secure"])
def test_the_demo_loses_and_doubles_nothing_and_leaves_only_its_picture(run: Run, flags: tuple[str, ...]) -> None:
    run.start(*flags)
    code, output = run.finish()
    assert code == 0, output
    assert "nothing lost, nothing doubled, every key in its order, every window right" in output
    assert run.plot.read_bytes().startswith(b"\x89PNG")
    assert directories(run) == []
    run.check_nothing_is_left()


@runs
@when_long
def test_a_broken_sink_fails_the_verdict(run: Run) -> None:
    run.start(TWOFOLD_DEMO_BREAK="1")
    code, output = run.finish()
    assert code == 1, output
    assert "rows were lost, doubled, or out of order" in output
    run.check_nothing_is_left()


def killed_with(run: Run, number: int, when: str) -> int:
    """The exit code of a demo that gets a signal as soon as a process of that name runs."""
    process = run.start()
    deadline = time.monotonic() + 120
    while when not in run.commands():
        assert process.poll() is None and time.monotonic() < deadline, f"no {when} was started"
        time.sleep(0.05)
    process.send_signal(number)
    code, output = run.finish()
    assert "Traceback" not in output
    run.check_nothing_is_left()
    return code


def directories(run: Run) -> list[str]:
    return [path.name for path in run.directory.glob("twofold-demo-*")]


@runs
def test_a_demo_that_is_killed_with_9_leaves_nothing_running(run: Run) -> None:
    assert killed_with(run, signal.SIGKILL, "pyspark.daemon") == -signal.SIGKILL


@runs
@when_long
@pytest.mark.parametrize("when", ["serve", "pipeline.py", "java"])
def test_a_demo_that_is_killed_with_9_at_another_moment_leaves_nothing_running(run: Run, when: str) -> None:
    assert killed_with(run, signal.SIGKILL, when) == -signal.SIGKILL


@runs
def test_an_interrupted_demo_leaves_nothing_running(run: Run) -> None:
    assert killed_with(run, signal.SIGINT, "java") == 130
    assert directories(run) == []


@runs
@when_long
@pytest.mark.parametrize("when", ["serve", "java", "pyspark.daemon"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["term", "int", "hup"])
def test_a_demo_that_is_told_to_end_leaves_nothing_running(run: Run, number: int, when: str) -> None:
    assert killed_with(run, number, when) == 128 + number
    assert directories(run) == []


@pytest.mark.parametrize("java", ["nothing", "old"])
def test_without_a_jdk_that_spark_can_use_the_demo_says_so(run: Run, java: str) -> None:
    binaries = run.directory / "bin"
    binaries.mkdir()
    if java == "old":
        (binaries / "java").write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
        (binaries / "java").chmod(0o755)
    run.start(PATH=f"{binaries}:/nowhere" if java == "nothing" else f"{binaries}:{os.environ['PATH']}", JAVA_HOME="")
    code, output = run.finish()
    assert code == 1
    assert "install a JDK 17 or 21" in output
    assert ("is Java 8" if java == "old" else "no java in PATH") in output
    assert directories(run) == []
