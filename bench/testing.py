"""A broker for one test: until it is ready, until a new group has its first message, until it is gone, and its memory.

The embedded broker is in the process of the test, Twofold and Apache Kafka are processes of their own. The stock client
is the same, and no broker waits for more members of a group. A container would add what it costs to start one.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.first_message import first_message
from bench.report import Report, progress
from bench.servers import TunedOracle, TwofoldServer, jars_or_skip

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from kits.processes.server import memory_of  # noqa: E402

NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}
Measured = dict[str, float]
COLUMNS = {"ready_s": "ready, s", "first_s": "first message of a group, s", "gone_s": "gone, s", "memory_bytes": "MB"}

# In a process of its own: what a test pays that has imported nothing of Twofold yet.
EMBEDDED = """
import json, sys, time
sys.path.insert(0, %(path)r)
import confluent_kafka
from bench.first_message import first_message

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before = resident()
started = time.perf_counter()
from twofold.embedded import Broker
imported = time.perf_counter()
broker = Broker().start()
ready = time.perf_counter()
first = first_message(broker.bootstrap_servers)
memory = resident() - before
began = time.perf_counter()
broker.faults.advance(60)
moved = time.perf_counter() - began
began = time.perf_counter()
broker.restart()
restarted = time.perf_counter() - began
began = time.perf_counter()
broker.close()
found = {"ready_s": ready - started, "first_s": first, "gone_s": time.perf_counter() - began, "memory_bytes": memory}
print(json.dumps(found | {"import_s": imported - started, "moved_minute_s": moved, "restart_s": restarted}))
"""


def embedded() -> Measured:
    program = EMBEDDED % {"path": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    found: Measured = json.loads(done.stdout)
    return found


def process(server: Any) -> Measured:
    """Of one that has `start`, `pid` and `bootstrap_servers`."""
    started = time.perf_counter()
    server.start()
    ready = time.perf_counter() - started
    first = first_message(server.bootstrap_servers)
    memory = memory_of(server.pid)
    began = time.perf_counter()
    server.kill() if isinstance(server, TwofoldServer) else server.stop()
    return {"ready_s": ready, "first_s": first, "gone_s": time.perf_counter() - began, "memory_bytes": memory}


def run(report: Report, *, rounds: int = 5, with_oracle: bool = True) -> None:
    table = Table(title="a broker for one test")
    for column in ("", *COLUMNS.values()):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory(prefix="twofold-bench-") as place:
        kinds: dict[str, Callable[[int], Measured]] = {
            "embedded": lambda _: embedded(),
            "twofold serve": lambda number: process(TwofoldServer(Path(place) / f"t{number}", NO_DELAY)),
        }
        if with_oracle:
            jars = jars_or_skip()

            def kafka(number: int) -> Measured:
                directory = Path(place) / f"k{number}"
                directory.mkdir()
                return process(TunedOracle(jars, directory, NO_DELAY))

            kinds["Apache Kafka 4.3.1 (with format)"] = kafka
        for name, measure in kinds.items():
            found = [measure(number) for number in progress(range(rounds), name)]
            medians = {key: statistics.median(each[key] for each in found) for key in found[0]}
            cells = [f"{medians[key] / 1e6:.0f}" if key == "memory_bytes" else f"{medians[key]:.2f}" for key in COLUMNS]
            table.add_row(name, *cells)
            report.add("start.testing", name, medians)
            more = {key: value for key, value in medians.items() if key not in COLUMNS}
            if more:
                table.caption = ", ".join(f"{name} {key}: {value:.2f}" for key, value in more.items())
    report.show(table)
