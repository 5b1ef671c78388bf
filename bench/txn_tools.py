"""`twofold txn` on a broker with many open transactions: time and memory of `list`, `hanging` and `blocked`.

1,000 partitions, and one transaction among them that hangs, which `hanging` has to find. Each command is a process of
its own, as people run it: `seconds` is from its start to its end, `tool MB` its peak. `broker MB` is the memory of the
broker afterwards, `longest wait` how long it left another client without an answer meanwhile. What a broker does once
after a kill -9, when a partition is asked for the first time (its recovered end goes to disk), is not counted.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.table import Table

from bench.report import Report, progress
from bench.servers import TwofoldServer
from bench.transaction_curves import one_of_each_partition, prepare, wait_until_loaded
from bench.transaction_folder import open_id
from bench.wire import Client
from twofold.wire.messages.metadata import MetadataRequest

SIZES = (1_000, 10_000, 100_000)
PARTITIONS = 1_000
VERBS = ("list", "hanging", "blocked")
PING_EVERY_S = 0.005
# The goals of `make bench`, for the largest size.
SECONDS = 60
TOOL_MB = 1_000

Row = dict[str, float]


class Pings:
    """Another client that asks something small all the time; the longest wait for an answer."""

    def __init__(self, server: TwofoldServer) -> None:
        self._client = Client(server.host, server.port)
        self._stop = threading.Event()
        self.longest_s = 0.0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(PING_EVERY_S):
            started = time.perf_counter()
            self._client.ask(MetadataRequest(topics=[]), 3, 12)
            self.longest_s = max(self.longest_s, time.perf_counter() - started)

    def __enter__(self) -> "Pings":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


def tool(server: TwofoldServer, verb: str, output: Path) -> Row:
    """One command with its rows counted."""
    command = [sys.executable, "-m", "twofold", "txn", verb, "--format", "json", "--timeout", "300"]
    environment = os.environ | {"TWOFOLD_BOOTSTRAP_SERVER": server.bootstrap_servers}
    with output.open("w") as stream, Pings(server) as pings:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=stream, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        took = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"twofold txn {verb} ended with {process.returncode}")
    return {
        "seconds": took,
        "tool_mb": usage.ru_maxrss / 1e3,
        "broker_mb": server.resident_bytes / 1e6,
        "longest_wait_s": pings.longest_s,
        "rows": len(json.loads(output.read_text())),
    }


def measure(directory: Path, size: int) -> dict[str, Row]:
    server = prepare(directory, spread=PARTITIONS, open=size, hanging=1)
    server.start()
    try:
        client = Client(server.host, server.port)
        wait_until_loaded(client, one_of_each_partition(open_id, size))
        client.close()
        tool(server, "blocked", directory / "output.json")
        rows = {verb: tool(server, verb, directory / "output.json") for verb in VERBS}
    finally:
        server.kill()
    expected = {"list": size, "hanging": 1, "blocked": min(size, PARTITIONS)}
    found = {verb: row["rows"] for verb, row in rows.items()}
    if found != expected:
        raise RuntimeError(f"of {size} open transactions and one that hangs were shown {found}, not {expected}")
    return rows


def run(report: Report, *, sizes: tuple[int, ...] = SIZES) -> None:
    table = Table(title=f"twofold txn, {PARTITIONS:,} partitions, one hanging transaction among the open ones")
    for column in ("open transactions", "verb", "seconds", "tool MB", "broker MB", "longest wait s"):
        table.add_column(column, justify="left" if column == "verb" else "right")
    with tempfile.TemporaryDirectory(prefix="twofold-txn-tools-") as directory:
        for size in progress(sizes, "twofold txn"):
            for verb, row in measure(Path(directory) / str(size), size).items():
                report.add("txn_tools", f"{verb}, {size} open", row)
                figures = (f"{row['seconds']:.1f}", f"{row['tool_mb']:.0f}", f"{row['broker_mb']:.0f}")
                table.add_row(f"{size:,}", verb, *figures, f"{row['longest_wait_s']:.2f}")
                if row["seconds"] > SECONDS or row["tool_mb"] > TOOL_MB:
                    raise RuntimeError(f"{verb} of {size:,}: {row}, above {SECONDS} s or {TOOL_MB} MB")
    report.show(table)
