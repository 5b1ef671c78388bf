"""How long a record takes at a fixed rate: until it is acknowledged, and until a consumer has it. Twofold and Apache
Kafka take turns in one run; medians of the rounds are compared."""

import json
import statistics
import subprocess
import sys
from typing import Any

from rich.table import Table

from bench.report import Report, progress
from bench.servers import KAFKA, ROOT, TWOFOLD, targets
from bench.throughput import create

RATES = (100, 1_000, 5_000)
PARTITIONS = 4
RECORD_BYTES = 1024
WARM_UP_S = 8
WHATS = ("acknowledged", "read")
FIGURES = ("p50_ms", "p99_ms", "p999_ms")


def measure(address: str, topic: str, rate: int, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.latency_load", "--address", address, "--topic", topic]
    command += ["--rate", str(rate), "--seconds", str(seconds), "--record-bytes", str(RECORD_BYTES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if found["failed"] or found["missing"]:
        raise RuntimeError(f"{found['failed']} records failed and {found['missing']} were not read at {address}")
    return found


def medians(rounds: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    return {
        what: {figure: statistics.median(found[what][figure] for found in rounds) for figure in FIGURES}
        for what in WHATS
    }


def run(report: Report, *, seconds: float = 5, rounds: int = 3, with_oracle: bool = True) -> None:
    table = Table(title=f"latency of {RECORD_BYTES} B at a fixed rate, ms: p50, p99, p99.9")
    for column in ("per s", "until", "twofold", "kafka", "p99 ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    names = frozenset({TWOFOLD, KAFKA} if with_oracle else {TWOFOLD})
    with targets(partitions=PARTITIONS, with_oracle=with_oracle, only=names) as found:
        for target in found:
            create(target.address, "latency")
            measure(target.address, "latency", 1_000, WARM_UP_S)  # a JVM compiles while it runs
        for rate in RATES:
            measured: dict[str, list[dict[str, Any]]] = {target.name: [] for target in found}
            for _ in progress(range(rounds), f"latency at {rate:,}/s"):
                for target in found:
                    measured[target.name].append(measure(target.address, "latency", rate, seconds))
            rows = {name: medians(each) for name, each in measured.items()}
            report.add("latency", f"{rate} records/s", rows)
            for what in WHATS:
                mine, theirs = rows[TWOFOLD][what], rows.get(KAFKA, {}).get(what)
                ratio = f"{mine['p99_ms'] / theirs['p99_ms']:.2f}" if theirs else "-"
                table.add_row(f"{rate:,}", what, show(mine), show(theirs) if theirs else "-", ratio)
    report.show(table)


def show(row: dict[str, float]) -> str:
    return "  ".join(f"{row[figure]:.1f}" for figure in FIGURES)
