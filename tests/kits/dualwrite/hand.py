"""A process that writes orders with DualWrite, and kills or stops itself where a test wants it.

`kits.processes.warm` forks it, so that a case costs no imports. It says every step in a line; a last line that begins
with "ended" says why it stopped, if it was not killed. Exit codes: 0 all orders are written, 3 a named error.
"""

import json
import os
import random
import signal
import socket
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from kits.processes.warm import Warm, leave
from twofold.dualwrite import DualWrite, DualWriteError

PRELOADED = ("psycopg", "pymysql", "sqlalchemy.dialects.postgresql.psycopg", "sqlalchemy.dialects.mysql.pymysql")
DONE, GAVE_UP = 0, 3


@dataclass(frozen=True)
class Job:
    url: str
    address: str
    name: str
    """Of the topic, and the transactional id."""
    orders: int = 3
    step: str = ""
    """Where it sends `how` to itself, the `times`-th time that it comes there."""
    times: int = 1
    how: str = ""
    lock_timeout_s: float = 30.0
    caller: str = ""
    """What the caller's code does besides: a name of CALLERS."""
    quick: bool = False
    """Does not wait long for a broker that is away."""
    seed: int | None = None
    """Sends signals to itself at random, and writes `orders` orders with numbers of its own."""

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))


class Hand:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._seen = Counter[str]()
        self._dice = random.Random(job.seed)
        self._engine = create_engine(job.url)

    def work(self) -> int:
        job = self._job
        waits = 1_500 if job.quick else 30_000
        try:
            with DualWrite(
                self._engine,
                bootstrap_servers=job.address,
                transactional_id=job.name,
                lock_timeout_s=job.lock_timeout_s,
                observer=self._reached,
                linger_ms=0,
                max_block_ms=waits,
                request_timeout_ms=waits,
                delivery_timeout_ms=waits,
            ) as dual:
                dual.take_over()
                if job.seed is None:
                    self._write_all(dual)
                else:
                    for _ in range(job.orders):
                        self._write(dual, self._dice.randrange(1 << 30))
        except (DualWriteError, DBAPIError) as error:
            say(f"ended {type(error).__name__}: {error}".splitlines()[0])
            return GAVE_UP
        return DONE

    def _write_all(self, dual: DualWrite) -> None:
        while (number := next_order(self._engine)) <= self._job.orders:
            self._write(dual, number)

    def _write(self, dual: DualWrite, number: int) -> None:
        with dual.transaction() as (db, log):
            log.send(self._job.name, str(number).encode())
            db.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
            if self._job.caller:
                CALLERS[self._job.caller](db)

    def _reached(self, step: str) -> None:
        job = self._job
        if job.seed is not None:
            how = self._dice.choices((0, signal.SIGKILL, signal.SIGSTOP), (97, 1.5, 1.5))[0]
            if how:
                os.kill(os.getpid(), how)
            return
        self._seen[step] += 1
        say(step)
        if job.step == step and self._seen[step] == job.times:
            os.kill(os.getpid(), signal.Signals[job.how])


def next_order(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT coalesce(max(number), 0) + 1 FROM orders")).scalar_one())


def meet_a_deadlock(db: Connection) -> None:
    """The test has the second account and then wants the first."""
    db.execute(text("UPDATE accounts SET balance = balance + 1 WHERE number = 1"))
    say("has the first account")
    sys.stdin.readline()
    db.execute(text("UPDATE accounts SET balance = balance + 1 WHERE number = 2"))


def swallow_a_deadlock(db: Connection) -> None:
    try:
        meet_a_deadlock(db)
    except DBAPIError as error:
        say(f"swallowed {type(error).__name__}")


def wait_for_an_account(db: Connection) -> None:
    """The test has it, and the caller does not wait long."""
    limits = {"postgresql": "SET LOCAL lock_timeout = '1s'", "mariadb": "SET SESSION innodb_lock_wait_timeout = 1"}
    db.execute(text(limits[db.dialect.name]))
    db.execute(text("UPDATE accounts SET balance = balance + 1 WHERE number = 2"))


def repeat_an_order(db: Connection) -> None:
    db.execute(text("INSERT INTO orders VALUES (1)"))


def swallow_a_violation(db: Connection) -> None:
    try:
        repeat_an_order(db)
    except DBAPIError as error:
        say(f"swallowed {type(error).__name__}")


CALLERS: dict[str, Any] = {
    function.__name__: function
    for function in (
        meet_a_deadlock,
        swallow_a_deadlock,
        wait_for_an_account,
        repeat_an_order,
        swallow_a_violation,
    )
}


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    for module in PRELOADED:
        __import__(module)
    arguments = Warm(socket.socket(fileno=int(sys.argv[1]))).serve()
    if arguments is None:
        leave(0)
    leave(Hand(Job(**json.loads(arguments[0]))).work())
