"""Our producer beside its peers, in turn against the same broker: `send` beside aiokafka, `send_batch` beside
confluent-kafka, records of 100 B and of 1 KB.

The goal is twice the peer's rate. Records that are sent one by one go into batches of 16 KB on both sides;
confluent-kafka has batches of up to 1 MB, as `send_batch`.
"""

import json
import statistics
import subprocess
import sys

from rich.table import Table

from bench.report import Report, progress
from bench.servers import ROOT, TWOFOLD, targets
from bench.throughput import create, delete

GOAL = 2.0
PAIRS = (("send", "aiokafka"), ("send-batch", "confluent"))
SIZES = (100, 1024)


def load(client: str, address: str, *, topic: str, record_bytes: int, seconds: float) -> float:
    """Records per second."""
    command = [sys.executable, "-m", "bench.producer_load", client, "--address", address, "--topic", topic]
    command += ["--record-bytes", str(record_bytes), "--seconds", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{client} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return float(found["records"] / found["seconds"])


def run(report: Report, *, seconds: float = 3, rounds: int = 3) -> None:
    table = Table(title="one producer, records/s (MB/s)")
    for column in ("", "ours", "the peer", "ratio"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    with targets(partitions=4, with_oracle=False, only=frozenset({TWOFOLD})) as (server,):
        for ours, peer in PAIRS:
            for record_bytes in SIZES:
                topic = f"bench-{ours}-{record_bytes}"
                label = f"{ours} {record_bytes} B / {peer}"
                rates: dict[str, list[float]] = {ours: [], peer: []}
                for _ in progress(range(rounds), label):
                    for client in (ours, peer):
                        create(server.address, topic)
                        rates[client].append(
                            load(client, server.address, topic=topic, record_bytes=record_bytes, seconds=seconds)
                        )
                        delete(server.address, topic)
                mine, theirs = (statistics.median(rates[name]) for name in (ours, peer))
                ratio = mine / theirs
                color = "green" if ratio >= GOAL else "red"
                table.add_row(label, show(mine, record_bytes), show(theirs, record_bytes), f"[{color}]{ratio:.2f}")
                report.add("producer", label, {"ours": mine, "peer": theirs, "ratio": ratio})
    report.show(table)


def show(rate: float, record_bytes: int) -> str:
    return f"{rate:,.0f} ({rate * record_bytes / 1e6:.0f})"
