"""A SQLite table and a topic that stay in step, although their writer is killed and paused, and the broker is killed.

    python examples/dual_write.py --orders 100

Each order goes into both, by `twofold.dualwrite`: a row and a record, both or neither. The application is the function
`work`; everything below it is what happens to applications. `docs/guide/two-phase-commit.md` has the protocol, and says
what happens at each step.

The workers are killed with -9 or stopped at random between any two steps, the broker is killed now and then; at the end
the table and the topic must have the same orders, each once, in the same order.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sqlalchemy import Column, Engine, Integer, MetaData, String, create_engine, func, insert, select
from sqlalchemy import Table as DatabaseTable
from sqlalchemy.exc import OperationalError

from twofold.client import Consumer, LoopThread, TopicPartition
from twofold.dualwrite import DecidedNotVisible, DualWrite, NotDone, TakenOver
from twofold.dualwrite.protocol import At
from twofold.dualwrite.steps import Reached

TOPIC = "orders"
TRANSACTIONAL_ID = "order-writer"
STEPS = [at.value for at in At if at.value.startswith(("take over: ", "write: "))]
orders_table = DatabaseTable(
    "orders", MetaData(), Column("number", Integer, primary_key=True), Column("item", String(80))
)


# --- the application ---


def work(address: str, engine: Engine, orders: int, reached: Reached) -> None:
    """Write orders until there are `orders`. `reached` is told every step; only this example has a use for it."""
    with DualWrite(engine, bootstrap_servers=address, transactional_id=TRANSACTIONAL_ID, observer=reached) as dual:
        dual.take_over()  # otherwise the first transaction does it
        while (number := next_order(engine)) <= orders:
            try:
                with dual.transaction() as (db, log):
                    db.execute(insert(orders_table).values(number=number, item=f"item {number}"))
                    log.send(TOPIC, f"{number} item {number}".encode())
            except DecidedNotVisible:
                continue  # it is done: the log shows it when the broker is back


def next_order(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(func.coalesce(func.max(orders_table.c.number), 0) + 1)).scalar_one())


def open_database(path: Path, patience_s: float = 5.0) -> Engine:
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": patience_s})
    orders_table.create(engine, checkfirst=True)
    return engine


# --- what is done to it ---


def worker(address: str, database: str, orders: int, seed: int) -> int:
    """Prints one line when it is about to be killed or stopped, or has to give up."""
    dice = random.Random(seed)

    def reached(step: str) -> None:
        word, how = dice.choices((("", 0), ("killed", signal.SIGKILL), ("paused", signal.SIGSTOP)), (93, 4, 3))[0]
        if word:
            print(word, step, flush=True)
            os.kill(os.getpid(), how)

    try:
        work(address, open_database(Path(database), patience_s=0.3), orders, reached)
    except TakenOver:
        print("gave up, another one took over", flush=True)
        return 3
    except (NotDone, OperationalError) as error:
        print("gave up,", type(error.__cause__ or error).__name__, flush=True)
        return 3
    return 0


class Server:
    """`twofold serve` with two-phase commit, killed and started again on the same data."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        listen = ["--listen", self.address, "--data", str(directory / "log")]
        self._command = [sys.executable, "-m", "twofold", "serve", *listen]
        self._command += ["-o", "transaction.two.phase.commit.enable=true"]
        self._output = (directory / "server.log").open("ab")

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=self._output, stderr=self._output)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Workers:
    """One after the other; those that are stopped wake up when another one has ended."""

    def __init__(self, command: list[str], seed: int) -> None:
        self.ends = Counter[str]()
        self._command = command
        self._dice = random.Random(seed)
        self.asleep: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        command = [*self._command, "--seed", str(self._dice.randrange(1 << 30))]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def has_finished(self, process: subprocess.Popen[str]) -> bool:
        """Wait until the worker has written all orders, or something else ends it or stops it."""
        assert process.stdout is not None
        last_words = process.stdout.readline().strip()
        self.ends[last_words] += 1
        if last_words.startswith("paused"):
            os.waitpid(process.pid, os.WUNTRACED)
            self.asleep.append(process)
            return False
        if process.wait() not in (0, 3, -signal.SIGKILL):
            raise SystemExit(f"a writer failed by itself ({process.returncode})")
        return process.returncode == 0

    def wake_up(self) -> None:
        """All, in any order: some own the row, some wait for it, some have been taken over."""
        sleepers, self.asleep = self.asleep, []
        for process in self._dice.sample(sleepers, len(sleepers)):
            process.send_signal(signal.SIGCONT)
        for process in sleepers:
            self.has_finished(process)


def run(directory: Path, orders: int, seed: int) -> tuple[Counter[str], int]:
    """How often writers ended at which step, and how often the broker was killed."""
    database = str(directory / "orders.db")
    open_database(Path(database)).dispose()
    server = Server(directory)
    server.start()
    dice, restarts = random.Random(seed), 0
    workers = Workers([sys.executable, __file__, "--worker", server.address, database, "--orders", str(orders)], seed)
    try:
        while True:
            process = workers.start()
            if dice.random() < 0.2:
                time.sleep(dice.uniform(0, 0.5))
                server.kill()
                server.start()
                restarts += 1
            if workers.has_finished(process):
                break
            if dice.random() < 0.5:
                workers.wake_up()
        while workers.asleep:
            workers.wake_up()
        return workers.ends, restarts
    finally:
        read_topic(server.address, directory / "topic.txt")
        server.kill()


def read_topic(address: str, path: Path) -> None:
    async def read() -> list[str]:
        tp = TopicPartition(TOPIC, 0)
        async with Consumer(bootstrap_servers=address, isolation_level="read_committed") as consumer:
            consumer.assign([tp])
            consumer.seek(tp, 0)
            found: list[str] = []
            while (await consumer.lag())[tp]:
                found += [(record.value or b"").decode() for record in await consumer.poll(1_000)]
            return found

    with LoopThread() as loop:
        path.write_text("\n".join(loop.run(read())))


def main() -> int:
    parser = argparse.ArgumentParser(description="SQLite and a topic in step across crashes and pauses")
    parser.add_argument("--orders", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", nargs=2, metavar=("ADDRESS", "DATABASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(*options.worker, options.orders, options.seed)
    with tempfile.TemporaryDirectory(prefix="twofold-dual-write-") as name:
        directory = Path(name)
        ends, restarts = run(directory, options.orders, options.seed)
        in_log = (directory / "topic.txt").read_text().splitlines()
        engine = open_database(directory / "orders.db")
        with engine.connect() as db:
            rows = db.execute(select(orders_table).order_by(orders_table.c.number)).all()
        engine.dispose()
        in_table = [f"{number} {item}" for number, item in rows]
    same = in_log == in_table and len(in_table) == options.orders
    table = Table(title="dual write")
    for heading in ("writer", "killed", "paused"):
        table.add_column(heading)
    for step in STEPS:
        table.add_row(step, str(ends[f"killed {step}"]), str(ends[f"paused {step}"]))
    console = Console()
    console.print(table)
    gave_up = {words: count for words, count in ends.items() if words.startswith("gave up")}
    console.print(f"broker killed {restarts} times; writers {gave_up}")
    console.print(f"{len(in_table)} orders in the table, {len(in_log)} in the topic")
    console.print("[green]the same orders, in the same order, each once" if same else "[red]they differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
