"""Our consumer beside aiokafka's, in turn against the same broker and the same topic, each the only member of a group:
`poll` beside `getmany`, a loop beside a loop, records of 100 B and of 1 KB.

The goal is 1.5 times the rate of aiokafka. Both poll up to 500 records, check checksums and commit by themselves. On a
busy machine rates say little; the processor time of a record, in the same runs, says more.
"""

import json
import statistics
import subprocess
import sys
from typing import NamedTuple

from rich.table import Table

from bench.report import Report, progress
from bench.servers import ROOT, TWOFOLD, targets
from bench.throughput import create, delete

GOAL = 1.5
PAIRS = (("poll", "aiokafka-many"), ("loop", "aiokafka-loop"), ("blocking", "aiokafka-loop"))
SIZES = {100: 400_000, 1024: 150_000}
"""The records of each topic: a second or more for the slowest."""


def fill(address: str, topic: str, record_bytes: int, records: int) -> None:
    from twofold import Producer

    with Producer(bootstrap_servers=address) as producer:
        values = [index.to_bytes(4, "big") * (record_bytes // 4) for index in range(1000)]
        for start in range(0, records, 1000):
            # One partition after the other: columns without keys would all be of one size.
            producer.send_batch(topic, None, values, partition=start // 1000 % 4)


class Measured(NamedTuple):
    rate: float
    """Records per second."""
    cpu_us: float
    """Processor time of a record, of the client's process."""


def load(client: str, address: str, *, topic: str, records: int) -> Measured:
    command = [sys.executable, "-m", "bench.consumer_load", client, "--address", address, "--topic", topic]
    command += ["--records", str(records)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{client} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Measured(found["records"] / found["seconds"], found["cpu_seconds"] / found["records"] * 1e6)


def medians(rows: list[Measured]) -> Measured:
    return Measured(*map(statistics.median, zip(*rows, strict=True)))


def run(report: Report, *, rounds: int = 3) -> None:
    table = Table(title="one consumer of a group: records/s, and us of processor time per record")
    for column in ("", "ours", "aiokafka", "ratio", "us", "us", "ratio"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    with targets(partitions=4, with_oracle=False, only=frozenset({TWOFOLD})) as (server,):
        for record_bytes, records in SIZES.items():
            topic = f"bench-consume-{record_bytes}"
            create(server.address, topic)
            fill(server.address, topic, record_bytes, records)
            for ours, peer in PAIRS:
                label = f"{ours} {record_bytes} B / {peer}"
                runs: dict[str, list[Measured]] = {ours: [], peer: []}
                for _ in progress(range(rounds), label):
                    for client in (ours, peer):
                        runs[client].append(load(client, server.address, topic=topic, records=records))
                mine, theirs = medians(runs[ours]), medians(runs[peer])
                found = {
                    "ours": mine.rate,
                    "peer": theirs.rate,
                    "ratio": mine.rate / theirs.rate,
                    "ours_cpu_us": mine.cpu_us,
                    "peer_cpu_us": theirs.cpu_us,
                    "cpu_ratio": theirs.cpu_us / mine.cpu_us,
                }
                table.add_row(
                    label,
                    f"{mine.rate:,.0f}",
                    f"{theirs.rate:,.0f}",
                    colored(found["ratio"]),
                    f"{mine.cpu_us:.2f}",
                    f"{theirs.cpu_us:.2f}",
                    colored(found["cpu_ratio"]),
                )
                report.add("consumer", label, found)
            delete(server.address, topic)
    report.show(table)


def colored(ratio: float) -> str:
    return f"[{'green' if ratio >= GOAL else 'red'}]{ratio:.2f}"
