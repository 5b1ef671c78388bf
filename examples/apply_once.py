"""Orders from a topic become bills in a database, each once, although the workers are killed and paused.

    python examples/apply_once.py --orders 200

The workers are members of one group. What a record becomes and the offset after it are one transaction of the database
(`twofold.dualwrite.ApplyOnce`). A worker that is killed has committed both or neither. A worker that is paused loses
its partitions to the others. When it wakes up, with records in its hands, the rows of its partitions have a later
generation of the group, and its transaction changes nothing.

The workers below kill or stop themselves at random, before and inside the transaction. In the end the table must have
every order once.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from sqlalchemy import Connection, Engine, create_engine, text

import twofold
from twofold.client import ConsumerRecord
from twofold.dualwrite import ApplyOnce
from twofold.embedded import Broker

TOPIC, GROUP = "orders", "billing"
WORKERS, PARTITIONS = 3, 4
SESSION_MS = 1_000
SETTINGS = {"group.min.session.timeout.ms": SESSION_MS, "group.initial.rebalance.delay.ms": 0}


# --- the application ---


def work(address: str, database: str, orders: int, dice: random.Random) -> None:
    engine = create_engine(database, connect_args={"timeout": 30})

    def bill(db: Connection, records: list[ConsumerRecord]) -> None:
        maybe_die(dice, "with the rows locked")
        for record in records:
            # There is no key: an order that is applied twice would be billed twice.
            db.execute(text("INSERT INTO bills VALUES (:number)"), {"number": int(record.value or b"")})
        maybe_die(dice, "before COMMIT")

    with ApplyOnce(
        engine,
        bootstrap_servers=address,
        group_id=GROUP,
        topics=[TOPIC],
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=SESSION_MS // 5,
        max_poll_records=5,
    ) as worker:
        while len(bills(engine)) < orders:
            if worker.step(bill, timeout_ms=200):
                maybe_die(dice, "after COMMIT")


def bills(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return sorted(connection.execute(text("SELECT number FROM bills")).scalars())


# --- what is done to it ---


def maybe_die(dice: random.Random, where: str) -> None:
    word, how = dice.choices((("", 0), ("killed", signal.SIGKILL), ("paused", signal.SIGSTOP)), (88, 6, 6))[0]
    if word:
        print(word, where, flush=True)
        os.kill(os.getpid(), how)


class Worker:
    """A process. A paused one sleeps until its session is over, and wakes up late."""

    def __init__(self, command: list[str], seed: int) -> None:
        self._process = subprocess.Popen([*command, "--seed", str(seed)], stdout=subprocess.PIPE, text=True)
        self._wakes_at: float | None = None

    def look(self) -> str | None:
        """How it has ended; None while it has not."""
        code = self._process.poll()
        if code is not None:
            if code not in (0, -signal.SIGKILL):
                raise SystemExit(f"a worker failed by itself ({code})")
            return "finished" if code == 0 else "killed"
        state = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T" and self._wakes_at is None:
            self._wakes_at = time.monotonic() + 2 * SESSION_MS / 1000
        elif self._wakes_at is not None and time.monotonic() > self._wakes_at:
            self._wakes_at = None
            self._process.send_signal(signal.SIGCONT)
        return None

    def words(self) -> Iterator[str]:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            yield from (line.strip() for line in lines)


def run(address: str, database: str, orders: int, seed: int) -> Counter[str]:
    """How often workers were killed and paused, and where."""
    dice, ends = random.Random(seed), Counter[str]()
    command = [sys.executable, __file__, "--worker", address, database, "--orders", str(orders)]
    workers = [Worker(command, dice.randrange(1 << 30)) for _ in range(WORKERS)]
    finished = 0
    while workers:
        for worker in list(workers):
            end = worker.look()
            if end is not None:
                workers.remove(worker)
                ends.update(worker.words())
                finished += end == "finished"
                if end == "killed" and not finished:
                    workers.append(Worker(command, dice.randrange(1 << 30)))
        if not workers and not finished:
            workers.append(Worker(command, dice.randrange(1 << 30)))
        time.sleep(0.02)
    return ends


def main() -> int:
    parser = argparse.ArgumentParser(description="records in a database, each once, across crashes and pauses")
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker", nargs=2, metavar=("ADDRESS", "DATABASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker, options.orders, random.Random(options.seed))
        return 0
    with tempfile.TemporaryDirectory(prefix="twofold-apply-once-") as name, Broker(settings=SETTINGS) as broker:
        database = f"sqlite:///{name}/billing.db"
        engine = create_engine(database)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE bills (number INTEGER NOT NULL)"))
        broker.create_topic(TOPIC, partitions=PARTITIONS)
        with twofold.Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(options.orders):
                producer.send(TOPIC, str(number).encode(), partition=number % PARTITIONS)
        ends = run(broker.bootstrap_servers, database, options.orders, options.seed)
        found = bills(engine)
        engine.dispose()
    console = Console()
    for words, count in sorted(ends.items()):
        console.print(f"{count} workers {words}")
    same = found == list(range(options.orders))
    console.print(f"{len(found)} bills, {len(set(found))} orders of {options.orders}")
    console.print("[green]every order was billed once" if same else "[red]they differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
