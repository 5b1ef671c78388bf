"""A SQLite table and a topic that stay in step, although their writer and the broker are killed again and again.

    python examples/dual_write.py --orders 100

Each order goes into both, by the dual-write recipe of KIP-939:

    1. begin in the database, begin in the log
    2. send the record
    3. prepare: from here on the log keeps the transaction, whatever happens, until somebody decides
    4. write the row and, in the same database transaction, the prepared state
    5. commit in the database: this is the decision
    6. commit in the log

Whoever starts after a crash reads the stored state and completes with it: the log commits if the database did, and
aborts if it did not. The worker below is killed with -9 at random between any two steps, the broker now and then; at
the end the table and the topic must have the same orders, each once, in the same order.
"""

import argparse
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import twofold
from twofold.client import Consumer, LoopThread, TopicPartition

TOPIC = "orders"
TRANSACTIONAL_ID = "order-writer"
STEPS = ("begun", "sent", "prepared", "written", "decided", "done")
CRASH = 0.04  # at each step
SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, item TEXT);
CREATE TABLE IF NOT EXISTS kafka_transaction_state (transactional_id TEXT PRIMARY KEY, prepared_state TEXT);
"""


# --- the application ---


def work(address: str, database: str, orders: int, reached: Callable[[str], None]) -> None:
    """Write orders until there are `orders`; `reached` is told every step."""
    db = sqlite3.connect(database, isolation_level=None)
    db.executescript(SCHEMA)
    with twofold.Producer(
        bootstrap_servers=address, transactional_id=TRANSACTIONAL_ID, transaction_two_phase_commit_enable=True
    ) as producer:
        recover(producer, db)
        while (number := next_order(db)) <= orders:
            write_order(producer, db, number, reached)
    db.close()


def recover(producer: twofold.Producer, db: sqlite3.Connection) -> None:
    row = db.execute(
        "SELECT prepared_state FROM kafka_transaction_state WHERE transactional_id = ?", (TRANSACTIONAL_ID,)
    ).fetchone()
    producer.init_transactions(keep_prepared_txn=True)
    producer.complete_transaction(row[0] if row else "")


def next_order(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(number), 0) + 1 FROM orders").fetchone()[0])


def write_order(
    producer: twofold.Producer, db: sqlite3.Connection, number: int, reached: Callable[[str], None]
) -> None:
    item = f"item {number}"
    db.execute("BEGIN IMMEDIATE")
    with producer.transaction() as txn:
        reached("begun")
        txn.send(TOPIC, f"{number} {item}".encode())
        reached("sent")
        state = txn.prepare()
        reached("prepared")
        db.execute("INSERT INTO orders VALUES (?, ?)", (number, item))
        db.execute("INSERT OR REPLACE INTO kafka_transaction_state VALUES (?, ?)", (TRANSACTIONAL_ID, str(state)))
        reached("written")
        db.execute("COMMIT")
        reached("decided")
    reached("done")


# --- what is done to it ---


def worker(address: str, database: str, orders: int, seed: int) -> None:
    dice = random.Random(seed)

    def reached(step: str) -> None:
        if dice.random() < CRASH:
            print(step, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    work(address, database, orders, reached)


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


def run(directory: Path, orders: int, seed: int) -> tuple[Counter[str], int]:
    """How often the writer died at which step, and how often the broker did."""
    server = Server(directory)
    server.start()
    dice, deaths, restarts = random.Random(seed), Counter[str](), 0
    try:
        while True:
            command = [sys.executable, __file__, "--worker", server.address, str(directory / "orders.db")]
            command += ["--orders", str(orders), "--seed", str(dice.randrange(1 << 30))]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                if dice.random() < 0.2:
                    time.sleep(dice.uniform(0, 0.5))
                    server.kill()
                    server.start()
                    restarts += 1
                last_words = process.communicate()[0].split()
            if process.returncode == 0:
                return deaths, restarts
            if not last_words:
                raise SystemExit(f"the writer failed by itself ({process.returncode})")
            deaths[last_words[0]] += 1
    finally:
        read_topic(server.address, directory / "topic.txt")
        server.kill()


def read_topic(address: str, path: Path) -> None:
    async def read() -> list[str]:
        tp = TopicPartition(TOPIC, 0)
        async with Consumer(bootstrap_servers=address, isolation_level="read_committed") as consumer:
            consumer.assign([tp])
            consumer.seek(tp, 0)
            end, found = (await consumer.end_offsets([tp]))[tp], []
            while await consumer.position(tp) < end:
                found += [(record.value or b"").decode() for record in await consumer.poll(100)]
            return found

    with LoopThread() as loop:
        path.write_text("\n".join(loop.run(read())))


def main() -> int:
    parser = argparse.ArgumentParser(description="SQLite and a topic in step across crashes")
    parser.add_argument("--orders", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", nargs=2, metavar=("ADDRESS", "DATABASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker, options.orders, options.seed)
        return 0
    with tempfile.TemporaryDirectory(prefix="twofold-dual-write-") as name:
        directory = Path(name)
        deaths, restarts = run(directory, options.orders, options.seed)
        in_log = (directory / "topic.txt").read_text().splitlines()
        rows = sqlite3.connect(directory / "orders.db").execute("SELECT number, item FROM orders ORDER BY number")
        in_table = [f"{number} {item}" for number, item in rows]
    same = in_log == in_table and len(in_table) == options.orders
    table = Table(title="dual write")
    table.add_column("what")
    table.add_column("count", justify="right")
    for step in STEPS:
        table.add_row(f"writer killed, {step}", str(deaths[step]))
    table.add_row("broker killed", str(restarts))
    table.add_row("orders in the table", str(len(in_table)))
    table.add_row("orders in the topic", str(len(in_log)))
    console = Console()
    console.print(table)
    console.print("[green]the same orders, in the same order, each once" if same else "[red]they differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
