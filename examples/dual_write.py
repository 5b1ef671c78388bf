"""A SQLite table and a topic that stay in step, although their writer is killed and paused, and the broker is killed.

    python examples/dual_write.py --orders 100

Each order goes into both. Before the first one, a writer takes over:

    1. fence: init_transactions(keep_prepared_txn=True). No earlier writer can change the log any more.
    2. lock the row of the writers' table and own it. No earlier writer can change the database any more.
    3. complete the log's transaction by the state that stands in the row, read under that lock.

Then for each order:

    4. send the record
    5. lock the row, see that it is still ours, write the order
    6. prepare: from here on the log keeps the transaction, whatever happens, until a decision comes
    7. store the prepared state in the row and commit in the database: this is the decision
    8. commit in the log

The log commits what the database has, and aborts what it has not. A writer that was only paused, and wakes up after
another one took over, finds that it does not own the row, or that it is fenced. `docs/guide/two-phase-commit.md` says
what happens at each step.

The workers below are killed with -9 or stopped at random between any two steps, the broker is killed now and then; at
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
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

import twofold
from twofold.client import Consumer, LoopThread, TopicPartition
from twofold.errors import Fenced, InDoubt

TOPIC = "orders"
TRANSACTIONAL_ID = "order-writer"
STEPS = (
    *("fenced", "claiming", "owned", "recovered"),
    *("begun", "sent", "locked", "written", "prepared", "stored", "decided", "done"),
)
SCHEMA = """
CREATE TABLE orders (number INTEGER PRIMARY KEY, item TEXT);
CREATE TABLE writers (transactional_id TEXT PRIMARY KEY, cluster TEXT, owner TEXT, prepared_state TEXT);
"""
Reached = Callable[[str], None]


# --- the application ---


class TakenOver(Exception):
    """Another writer owns the row."""


def create(database: str) -> None:
    with closing(sqlite3.connect(database)) as db, db:
        db.executescript(SCHEMA)
        db.execute("INSERT INTO writers VALUES (?, '', '', '')", (TRANSACTIONAL_ID,))


def work(address: str, database: str, orders: int, reached: Reached, patience_s: float = 5.0) -> None:
    """Write orders until there are `orders`; `reached` is told every step."""
    with (
        closing(sqlite3.connect(database, isolation_level=None, timeout=patience_s)) as db,
        twofold.Producer(
            bootstrap_servers=address, transactional_id=TRANSACTIONAL_ID, transaction_two_phase_commit_enable=True
        ) as producer,
    ):
        me = take_over(producer, db, cluster_at(address), reached)
        while (number := next_order(db)) <= orders:
            try:
                write_order(producer, db, me, number, reached)
            except InDoubt:
                # The database has rolled back, or it had committed: the row says which.
                with locked(db):
                    change_owner(db, me, me)
                    _, _, state = read_row(db)
                producer.complete_transaction(state)


def take_over(producer: twofold.Producer, db: sqlite3.Connection, cluster: str, reached: Reached) -> str:
    """Become the writer, and finish what the one before left open. Returns what the row calls its owner."""
    _, owner_before, _ = read_row(db)
    producer.init_transactions(keep_prepared_txn=True)
    reached("fenced")
    me = uuid.uuid4().hex
    with locked(db):
        reached("claiming")
        change_owner(db, owner_before, me)
        known_cluster, _, state = read_row(db)
        if known_cluster not in ("", cluster):
            raise RuntimeError(f"{TRANSACTIONAL_ID!r} writes to cluster {known_cluster}, and this is cluster {cluster}")
        db.execute("UPDATE writers SET cluster = ? WHERE owner = ?", (cluster, me))
    reached("owned")
    producer.complete_transaction(state)
    reached("recovered")
    return me


def write_order(producer: twofold.Producer, db: sqlite3.Connection, me: str, number: int, reached: Reached) -> None:
    item = f"item {number}"
    with producer.transaction() as txn:
        reached("begun")
        txn.send(TOPIC, f"{number} {item}".encode())
        reached("sent")
        with locked(db):
            change_owner(db, me, me)
            reached("locked")
            db.execute("INSERT INTO orders VALUES (?, ?)", (number, item))
            reached("written")
            state = txn.prepare()
            reached("prepared")
            db.execute("UPDATE writers SET prepared_state = ? WHERE owner = ?", (str(state), me))
            reached("stored")
        reached("decided")
    reached("done")


@contextmanager
def locked(db: sqlite3.Connection) -> Iterator[None]:
    """No other process writes to the database inside this block. It commits at its end, or rolls back."""
    db.execute("BEGIN IMMEDIATE")
    with db:
        yield


def change_owner(db: sqlite3.Connection, owner: str, new_owner: str) -> None:
    """An update locks the row in every database, also from one owner to the same."""
    found = db.execute(
        "UPDATE writers SET owner = ? WHERE transactional_id = ? AND owner = ?", (new_owner, TRANSACTIONAL_ID, owner)
    )
    if found.rowcount != 1:
        raise TakenOver(f"{TRANSACTIONAL_ID!r} belongs to writer {read_row(db)[1]!r}, not to {owner!r} any more")


def read_row(db: sqlite3.Connection) -> tuple[str, str, str]:
    row = "SELECT cluster, owner, prepared_state FROM writers WHERE transactional_id = ?"
    cluster, owner, state = db.execute(row, (TRANSACTIONAL_ID,)).fetchone()
    return cluster, owner, state


def next_order(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(number), 0) + 1 FROM orders").fetchone()[0])


def cluster_at(address: str) -> str:
    with twofold.Admin(bootstrap_servers=address) as admin:
        return admin.describe_cluster().cluster_id


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
        work(address, database, orders, reached, patience_s=0.3)
    except (TakenOver, Fenced, sqlite3.OperationalError) as error:
        print("gave up,", type(error).__name__, flush=True)
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
    create(database)
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
            end, found = (await consumer.end_offsets([tp]))[tp], []
            while await consumer.position(tp) < end:
                found += [(record.value or b"").decode() for record in await consumer.poll(100)]
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
        with closing(sqlite3.connect(directory / "orders.db")) as db:
            in_table = [f"{number} {item}" for number, item in db.execute("SELECT * FROM orders ORDER BY number")]
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
