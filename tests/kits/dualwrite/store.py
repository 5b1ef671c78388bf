"""A table and a topic of one name, and the processes that write to both."""

import os
import signal
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from kits.dualwrite.hand import GAVE_UP, Job
from kits.dualwrite.shop import topic_values
from kits.processes.commands import Command, environment

PATIENCE_S = 60.0
ORDERS = 3


class DatabaseKit(Protocol):
    """What the kits of databases have in common."""

    name: str

    def create(self, database: str) -> str: ...


class JobText(Protocol):
    @property
    def text(self) -> str: ...


class Process:
    """A `kits.dualwrite.hand` that runs, or another program of its kind."""

    def __init__(self, job: JobText, program: str = "kits.dualwrite.hand") -> None:
        output, writing = os.pipe()
        reading, given = os.pipe()
        self._given = given
        self._output = os.fdopen(output)
        self._command = Command(
            (job.text,),
            stdin=reading,
            stdout=writing,
            stderr=writing,
            env=environment(),
            program=program,
        )
        for descriptor in (reading, writing):
            os.close(descriptor)
        self.lines: list[str] = []

    def read_until(self, line: str) -> None:
        """Wait until it says so."""
        for found in self._output:
            self.lines.append(found.strip())
            if self.lines[-1] == line:
                return
        raise AssertionError(f"it ended before {line!r}: {self.lines}")

    def answer(self) -> None:
        """To a caller's code that waits for the test."""
        os.write(self._given, b"\n")

    def wait_until_stopped(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self.is_stopped:
            assert self._command.poll() is None, self.read_all()
            assert time.monotonic() < until, self.lines
            time.sleep(0.002)

    @property
    def is_stopped(self) -> bool:
        """By SIGSTOP."""
        try:
            return Path(f"/proc/{self._command.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    @property
    def code(self) -> int | None:
        return self._command.poll()

    def wake_up(self) -> None:
        self._command.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGSTOP, from outside."""
        self._command.send_signal(signal.SIGSTOP)
        self.wait_until_stopped()

    def kill(self) -> None:
        self._command.kill()

    def wait(self) -> int:
        code = self._command.wait(PATIENCE_S)
        self.read_all()
        return code

    def read_all(self) -> list[str]:
        self.lines += [line.strip() for line in self._output]
        return self.lines

    @property
    def last_words(self) -> str:
        """Why it stopped, by the name of the error."""
        last = self.lines[-1] if self.lines else ""
        return last.removeprefix("ended ").split(":")[0] if last.startswith("ended") else last

    def close(self) -> None:
        self._command.__exit__(None, None, None)
        self._output.close()
        os.close(self._given)


class Store:
    """With a database of its own, and a topic and a transactional id of its own."""

    def __init__(self, kit: DatabaseKit, address: str) -> None:
        self.name = f"orders_{uuid.uuid4().hex[:12]}"
        self.address = address
        self.url = kit.create(self.name)
        self.engine = create_engine(self.url, poolclass=NullPool)  # servers come and go
        self._processes: list[Process] = []
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (number INTEGER PRIMARY KEY)"))
            connection.execute(text("CREATE TABLE accounts (number INTEGER PRIMARY KEY, balance INTEGER)"))
            accounts = ", ".join(f"({number}, 0)" for number in range(1, 41))
            connection.execute(text(f"INSERT INTO accounts VALUES {accounts}"))

    def start(self, **job: object) -> Process:
        given: dict[str, object] = {"orders": ORDERS, **job}
        process = Process(Job(self.url, self.address, self.name, **given))  # type: ignore[arg-type]
        self._processes.append(process)
        return process

    def start_until(self, step: str, how: str, **job: object) -> Process:
        """One that kills or stops itself at a step: of its take-over, or of its second order."""
        process = self.start(step=step, times=1 if step.startswith("take over") else 2, how=how, **job)
        if how == "SIGSTOP":
            process.wait_until_stopped()
        else:
            assert process.wait() == -signal.SIGKILL, process.lines
        return process

    def finish(self, orders: int = ORDERS) -> None:
        """One that takes over and writes all orders."""
        process = self.start(orders=orders)
        assert process.wait() == 0, process.lines

    def in_table(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.execute(text("SELECT number FROM orders")).scalars())

    def in_topic(self) -> list[int]:
        return sorted(map(int, topic_values(self.address, self.name)))

    def move_to_cluster(self, cluster: str) -> str:
        """What the row says that its state belongs to; returns what it said before."""
        here = {"cluster": cluster, "name": self.name}
        with self.engine.begin() as connection:
            found = text("SELECT cluster_id FROM twofold_prepared WHERE transactional_id = :name")
            before = str(connection.execute(found, here).scalar_one())
            moved = text("UPDATE twofold_prepared SET cluster_id = :cluster WHERE transactional_id = :name")
            connection.execute(moved, here)
        return before

    def check(self, orders: int = ORDERS) -> None:
        expected = list(range(1, orders + 1))
        assert (self.in_table(), self.in_topic()) == (expected, expected)

    def forget(self, process: Process) -> None:
        """It has ended."""
        self._processes.remove(process)
        process.close()

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self.engine.dispose()


def ended_otherwise(process: Process, names: Sequence[str]) -> None:
    """With one of the named errors."""
    assert process.wait() == GAVE_UP and process.last_words in names, process.lines
