"""Run files of tests again and again beside a load that keeps every core busy; tell which fail, and their times.

    .venv/bin/python tools/run_again.py tests/broker/fetch/test_fetch_session_rules.py
    .venv/bin/python tools/run_again.py --times 5 --load 0 --at-once 2 tests/interop/test_groups_*.py
    .venv/bin/python tools/run_again.py --ledger again.json --minutes 20 tests/interop/test_*.py   (a slice: the same
                                                                                                   again goes on)

A test that passes alone and fails now and then beside others relies on an order, a speed or a barrier that
nothing promises. The output of every run that failed is kept in --logs. `make steady` runs the files of the kinds that
are prone to it.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

NO_TESTS_RAN = 5


class Ran(NamedTuple):
    file: str
    number: int
    seconds: float
    passed: bool
    last_line: str


def keep_busy() -> None:
    while True:
        sum(range(100_000))


@contextmanager
def load(processes: int) -> Iterator[None]:
    busy = [multiprocessing.Process(target=keep_busy, daemon=True) for _ in range(processes)]
    for process in busy:
        process.start()
    try:
        yield
    finally:
        for process in busy:
            process.kill()


def run_file(file: str, number: int, logs: Path) -> Ran:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", file]
    started = time.monotonic()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    seconds = time.monotonic() - started
    passed = done.returncode in (0, NO_TESTS_RAN)
    if not passed:
        (logs / f"{Path(file).stem}-{number}.log").write_text(done.stdout)
    return Ran(file, number, seconds, passed, (done.stdout.strip().splitlines() or [""])[-1])


class Ledger:
    """What was run, in a file if one is given, so that the repetitions can be made in slices."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rows: list[Ran] = []
        if path is not None and path.exists():
            self.rows = [Ran(*row) for row in json.loads(path.read_text())]

    def add(self, ran: Ran) -> None:
        self.rows.append(ran)
        if self._path is not None:
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(self.rows))
            partial.replace(self._path)


def run_all(files: list[str], options: argparse.Namespace, ledger: Ledger, console: Console) -> None:
    """Turn after turn, so that a run that is cut short has seen every file."""
    wanted = [(file, number) for number in range(1, options.times + 1) for file in files]
    done = {(ran.file, ran.number) for ran in ledger.rows}
    left = [each for each in wanted if each not in done]
    until = time.monotonic() + options.minutes * 60
    with Progress(console=console) as progress, ThreadPoolExecutor(options.at_once) as pool:
        bar = progress.add_task("runs", total=len(wanted), completed=len(wanted) - len(left))
        waiting = [pool.submit(run_file, file, number, options.logs) for file, number in left]
        for future in as_completed(waiting):
            if future.cancelled():
                continue
            ran = future.result()
            ledger.add(ran)
            progress.advance(bar)
            if time.monotonic() > until:
                for rest in waiting:
                    rest.cancel()
            if not ran.passed:
                console.print(f"{ran.file}, run {ran.number}: {ran.last_line}", markup=False, highlight=False)


def show(rows: list[Ran]) -> None:
    table = Table("file", "runs", "failed", "median s", "longest s")
    for file in sorted({row.file for row in rows}):
        own = [row for row in rows if row.file == file]
        seconds = [row.seconds for row in own]
        failed = sum(not row.passed for row in own)
        table.add_row(file, str(len(own)), str(failed), f"{statistics.median(seconds):.1f}", f"{max(seconds):.1f}")
    Console(width=120).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run files of tests again and again beside a load.")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1, help="processes that do nothing but compute")
    parser.add_argument("--at-once", type=int, default=1, help="files that run at the same time")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing more after this long")
    parser.add_argument("--ledger", type=Path, help="keep what was run there; the same command again runs what is left")
    parser.add_argument("--logs", type=Path, default=Path(".cache/run_again"), help="where the output of failures goes")
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(options.ledger)
    with load(options.load):
        run_all(options.files, options, ledger, Console(stderr=True))
    rows = ledger.rows
    show(rows)
    failed = [row for row in rows if not row.passed]
    where = f": see {options.logs}" if failed else ""
    print(f"{len(rows)} of {options.times * len(options.files)} runs, {len(failed)} failed{where}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
