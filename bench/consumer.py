"""Our consumer beside aiokafka's, in turn against the same broker and the same topic, each the only member of a group:
`poll` beside `getmany`, a loop beside a loop, records of 100 B and of 1 KB.

The goal is 1.5 times the rate of aiokafka. Both poll up to 500 records, check checksums and commit by themselves.
"""

import json
import statistics
import subprocess
import sys

from rich.table import Table

from bench.producer import show
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


def load(client: str, address: str, *, topic: str, records: int) -> float:
    """Records per second."""
    command = [sys.executable, "-m", "bench.consumer_load", client, "--address", address, "--topic", topic]
    command += ["--records", str(records)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{client} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return float(found["records"] / found["seconds"])


def run(report: Report, *, rounds: int = 3) -> None:
    table = Table(title="one consumer of a group, records/s (MB/s)")
    for column in ("", "ours", "aiokafka", "ratio"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    with targets(partitions=4, with_oracle=False, only=frozenset({TWOFOLD})) as (server,):
        for record_bytes, records in SIZES.items():
            topic = f"bench-consume-{record_bytes}"
            create(server.address, topic)
            fill(server.address, topic, record_bytes, records)
            for ours, peer in PAIRS:
                label = f"{ours} {record_bytes} B / {peer}"
                rates: dict[str, list[float]] = {ours: [], peer: []}
                for _ in progress(range(rounds), label):
                    for client in (ours, peer):
                        rates[client].append(load(client, server.address, topic=topic, records=records))
                mine, theirs = (statistics.median(rates[name]) for name in (ours, peer))
                ratio = mine / theirs
                color = "green" if ratio >= GOAL else "red"
                table.add_row(label, show(mine, record_bytes), show(theirs, record_bytes), f"[{color}]{ratio:.2f}")
                report.add("consumer", label, {"ours": mine, "peer": theirs, "ratio": ratio})
            delete(server.address, topic)
    report.show(table)
