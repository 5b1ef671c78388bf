"""The example of two-phase commit keeps its promise at every step, whether its writer is killed there or paused."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import twofold
from kits.processes.dual_write_worker import example
from kits.processes.server import TwofoldServer
from twofold.client import Consumer, TopicPartition
from twofold.client.transactions.states import diagram
from twofold.runtime.real import run

ROOT = Path(__file__).parent.parent.parent
WORKER = ROOT / "tests" / "kits" / "processes" / "dual_write_worker.py"
LONG = bool(os.environ.get("TWOFOLD_LONG"))
TAKING_OVER = ("fenced", "claiming", "owned", "recovered")
WRITING = ("begun", "sent", "locked", "written", "prepared", "stored", "decided", "done")
HOLDING_THE_LOCK = ("claiming", "locked", "written", "prepared", "stored")
ORDERS = 5
PATIENT, IMPATIENT = 60.0, 0.2

pytestmark = pytest.mark.interop


class Shop:
    """A table and a topic, and the processes that write to both."""

    def __init__(self, server: TwofoldServer, directory: Path) -> None:
        self.address = server.bootstrap_servers
        self.name = f"orders-{uuid.uuid4().hex[:12]}"
        self.database = str(directory / "orders.db")
        self.processes: list[subprocess.Popen[str]] = []
        example(self.name).create(self.database)

    def start(self, *ending: str, orders: int = ORDERS, patience_s: float = PATIENT) -> subprocess.Popen[str]:
        command = [sys.executable, str(WORKER), self.address, self.database, self.name, str(orders), str(patience_s)]
        process = subprocess.Popen([*command, *ending], stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def start_until(self, step: str, how: str, *, orders: int = ORDERS) -> subprocess.Popen[str]:
        """A writer that kills or stops itself at a step: of its taking over, or of its second order."""
        process = self.start(step, "1" if step in TAKING_OVER else "2", how, orders=orders)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if how == "SIGSTOP":
            assert os.WIFSTOPPED(status), read_lines(process)
        else:
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == -signal.SIGKILL
        return process

    def finish(self) -> None:
        """A writer that takes over and writes all orders."""
        process = self.start()
        lines = read_lines(process)
        assert process.wait(60) == 0, lines

    def last_words(self) -> str:
        """What a writer says that ends with an error."""
        command = [sys.executable, str(WORKER), self.address, self.database, self.name, str(ORDERS), str(PATIENT)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        return done.stderr

    def close(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()

    def in_table(self) -> list[str]:
        with closing(sqlite3.connect(self.database)) as db:
            return [f"{number} {item}" for number, item in db.execute("SELECT * FROM orders ORDER BY number")]

    def in_topic(self) -> list[str]:
        async def read() -> list[str]:
            tp = TopicPartition(self.name, 0)
            async with Consumer(bootstrap_servers=self.address, isolation_level="read_committed") as consumer:
                consumer.assign([tp])
                consumer.seek(tp, 0)
                found: list[str] = []
                while (await consumer.lag())[tp]:
                    found += [(record.value or b"").decode() for record in await consumer.poll(1_000)]
                return found

        return run(read())

    def check(self, orders: int = ORDERS) -> None:
        expected = [f"{number} item {number}" for number in range(1, orders + 1)]
        assert (self.in_table(), self.in_topic()) == (expected, expected)


def read_lines(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return [line.strip() for line in process.stdout]


def read_until(process: subprocess.Popen[str], step: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == step:
            return
    raise AssertionError(f"the writer ended before {step!r}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    settings = {"transaction.two.phase.commit.enable": "true"}
    with TwofoldServer(tmp_path_factory.mktemp("dual-write"), settings) as running:
        yield running


@pytest.fixture
def shop(server: TwofoldServer, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(server, tmp_path)
    try:
        yield made
    finally:
        made.close()


def steps(first: int) -> list[tuple[str, str]]:
    """Every step of a writer, and of taking over from one that had prepared, or decided and not committed. Without
    TWOFOLD_LONG every third of them, from `first` on."""
    found = [("", step) for step in WRITING] + [
        (left, step) for left in ("prepared", "decided") for step in TAKING_OVER
    ]
    return found if LONG else found[first::3]


def test_the_steps_of_the_example_are_those_that_are_tried(shop: Shop) -> None:
    assert example(shop.name).STEPS == TAKING_OVER + WRITING


@pytest.mark.parametrize(("left", "step"), steps(0))
def test_table_and_topic_agree_when_the_writer_is_killed_at_any_step(shop: Shop, left: str, step: str) -> None:
    if left:
        shop.start_until(left, "SIGKILL")
    shop.start_until(step, "SIGKILL")
    shop.finish()
    shop.check()


@pytest.mark.parametrize(("left", "step"), steps(1))
def test_table_and_topic_agree_when_a_paused_writer_wakes_up_after_another_took_over(
    shop: Shop, left: str, step: str
) -> None:
    if left:
        shop.start_until(left, "SIGKILL")
    paused = shop.start_until(step, "SIGSTOP", orders=ORDERS + 3)
    other = shop.start()
    if step in HOLDING_THE_LOCK:
        # The other one has fenced the log and waits for the row.
        read_until(other, "fenced")
        paused.send_signal(signal.SIGCONT)
        assert read_lines(paused)[-1].startswith(("Fenced", "TakenOver"))
        if step == "claiming":  # each has what the other one needs, the log or the row: the next one gets both
            assert read_lines(other)[-1].startswith("TakenOver")
            shop.finish()
        assert other.wait(60) == (3 if step == "claiming" else 0), read_lines(other)
    else:
        assert other.wait(60) == 0, read_lines(other)
        shop.check()
        paused.send_signal(signal.SIGCONT)
        assert read_lines(paused)[-1].startswith(("Fenced", "TakenOver"))
    assert paused.wait(60) == 3
    shop.check()


@pytest.mark.parametrize("step", ["sent", "owned", "recovered"])
def test_a_writer_that_wakes_up_late_does_not_disturb_the_one_that_took_over(shop: Shop, step: str) -> None:
    paused = shop.start_until(step, "SIGSTOP")
    other = shop.start_until("sent", "SIGSTOP")
    paused.send_signal(signal.SIGCONT)
    assert paused.wait(60) == 3
    other.send_signal(signal.SIGCONT)
    assert other.wait(60) == 0, read_lines(other)
    shop.check()


@pytest.mark.parametrize("left", ["prepared", "decided"])
def test_table_and_topic_agree_when_several_take_over_at_once(shop: Shop, left: str) -> None:
    shop.start_until(left, "SIGKILL")
    together = [shop.start() for _ in range(4)]
    for process in together:
        last = read_lines(process)[-1]
        assert process.wait(60) in (0, 3) and (process.returncode == 0 or last.startswith(("Fenced", "TakenOver")))
    shop.finish()
    shop.check()


@pytest.mark.parametrize("step", HOLDING_THE_LOCK)
def test_nothing_is_decided_while_the_database_is_locked(shop: Shop, step: str) -> None:
    paused = shop.start_until(step, "SIGSTOP")
    other = shop.start(patience_s=IMPATIENT)
    assert read_lines(other) == ["fenced", "OperationalError: database is locked"]
    assert other.wait(60) == 3
    paused.kill()
    paused.wait(60)
    shop.finish()
    shop.check()


def test_a_commit_that_the_database_refuses_is_no_decision(shop: Shop) -> None:
    """A reader keeps the database from committing: that fails after the log has prepared."""
    writer = shop.start("begun", "2", "SIGSTOP", patience_s=IMPATIENT)
    os.waitpid(writer.pid, os.WUNTRACED)
    with closing(sqlite3.connect(shop.database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM orders").fetchone()
        writer.send_signal(signal.SIGCONT)
        assert read_lines(writer)[-2:] == ["stored", "OperationalError: database is locked"]
        assert writer.wait(60) == 3
        assert shop.in_table() == shop.in_topic() == ["1 item 1"]
    shop.finish()
    shop.check()


def test_a_writer_whose_database_fails_after_prepare_rolls_back_aborts_and_goes_on(shop: Shop) -> None:
    with closing(sqlite3.connect(shop.database, timeout=PATIENT)) as db:
        fault = (
            "CREATE TRIGGER fault BEFORE UPDATE OF prepared_state ON writers BEGIN SELECT RAISE(ABORT, 'fault'); END"
        )
        db.execute(fault)
        writer = shop.start()
        for _ in range(3):
            read_until(writer, "prepared")
        db.execute("DROP TRIGGER fault")
    lines = read_lines(writer)
    assert (writer.wait(60), lines.count("decided")) == (0, ORDERS)
    shop.check()


def test_a_decision_that_an_administrator_aborted_stops_the_next_writer_with_its_state(shop: Shop) -> None:
    shop.start_until("decided", "SIGKILL")
    with twofold.Admin(bootstrap_servers=shop.address) as admin:
        admin.force_terminate_transaction(shop.name)
    for _ in range(2):
        assert re.search(rf"PreparedAborted: transaction \d+:\d+ of '{shop.name}'.*aborted", shop.last_words())
    with closing(sqlite3.connect(shop.database)) as db, db:  # what the guide says
        db.execute("DELETE FROM orders WHERE number = 2")
        db.execute("UPDATE writers SET prepared_state = ''")
    shop.finish()
    shop.check()


def test_the_row_of_another_cluster_is_refused(shop: Shop) -> None:
    with closing(sqlite3.connect(shop.database)) as db, db:
        db.execute("UPDATE writers SET cluster = 'elsewhere'")
    assert re.search(rf"'{shop.name}' writes to cluster elsewhere, and this is cluster \S+", shop.last_words())
    assert shop.in_table() == []


def test_a_table_and_a_topic_stay_in_step_across_crashes_and_pauses() -> None:
    command = [sys.executable, str(ROOT / "examples" / "dual_write.py"), "--orders", "25", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same orders, in the same order, each once" in done.stdout
    rows = [(int(killed), int(paused)) for killed, paused in re.findall(r"│ +(\d+) +│ +(\d+) +│", done.stdout)]
    assert len(rows) == 12 and sum(killed for killed, _ in rows) > 0 and sum(paused for _, paused in rows) > 0


def test_the_guide_shows_the_table_of_states() -> None:
    page = (ROOT / "docs" / "guide" / "two-phase-commit.md").read_text()
    assert f"```mermaid\n{diagram()}\n```" in page, "copy what transaction_states.diagram() returns into the guide"
