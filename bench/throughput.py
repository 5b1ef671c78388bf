"""Produce and fetch from one confluent-kafka process: Twofold beside a reference client and Apache Kafka.

The three are measured in turn, several rounds, in one run on one machine; the median of each is compared. Only the
ratios travel between machines.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from rich.table import Table

from bench.report import Report, progress

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from kits.processes.server import TwofoldServer  # noqa: E402
from oracle.kafka import running_oracle  # noqa: E402
from oracle.processes import free_port, spawn, stop  # noqa: E402

PARTITIONS = 4
GOAL = 0.7


@contextmanager
def reference(directory: Path, record_bytes: int) -> Iterator[str]:
    port = free_port()
    output = directory / f"reference-{record_bytes}.log"
    sizes = ["--record-bytes", str(record_bytes), "--partitions", str(PARTITIONS)]
    process = spawn([sys.executable, "-m", "bench.reference", "--port", str(port), *sizes], output=output, cwd=ROOT)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        stop(process)


def load(what: str, address: str, *, topic: str, record_bytes: int, seconds: float, flags: Sequence[str] = ()) -> float:
    """Records per second."""
    command = [sys.executable, "-m", "bench.load", what, "--address", address, "--topic", topic]
    command += ["--partitions", str(PARTITIONS), "--record-bytes", str(record_bytes), "--seconds", str(seconds), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    if result["failed"]:
        raise RuntimeError(f"{result['failed']} records failed at {address}")
    return float(result["records"] / result["seconds"])


def create(address: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()


def delete(address: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.delete_topics([topic])[topic].result()


def median_rates(
    measure: Callable[[str], float], addresses: dict[str, str], rounds: int, label: str
) -> dict[str, float]:
    rates: dict[str, list[float]] = {name: [] for name in addresses}
    for _ in progress(range(rounds), label):
        for name, address in addresses.items():
            rates[name].append(measure(address))
    return {name: statistics.median(values) for name, values in rates.items()}


def run(report: Report, *, seconds: float = 3, rounds: int = 3, with_oracle: bool = True) -> None:
    table = Table(title="one confluent-kafka process, MB/s (records/s)")
    for column in ("", "reference", "twofold", "ratio", "kafka", "vs kafka"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    rows = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="twofold-bench-")))
        twofold = stack.enter_context(TwofoldServer(directory / "twofold"))
        brokers = {"twofold": twofold.bootstrap_servers}
        if with_oracle:
            brokers["kafka"] = stack.enter_context(running_oracle()).bootstrap_servers
        for record_bytes in (1024, 100):
            top = stack.enter_context(reference(directory, record_bytes))
            for idempotent in (False, True):
                topic = f"bench-{record_bytes}-{idempotent}"
                flags = ["--idempotent"] if idempotent else []
                for address in brokers.values():
                    create(address, topic)
                everyone = {"reference": top, **brokers}
                produce = partial(load, "produce", topic=topic, record_bytes=record_bytes, seconds=seconds, flags=flags)
                kind = "idempotent" if idempotent else "plain"
                size = "1 KB" if record_bytes == 1024 else f"{record_bytes} B"
                label = f"produce {size} {kind}"
                rows.append((label, record_bytes, median_rates(produce, everyone, rounds, label)))
                if idempotent:
                    label = f"fetch {size}"
                    fetch = partial(load, "fetch", topic=topic, record_bytes=record_bytes, seconds=seconds)
                    rows.append((label, record_bytes, median_rates(fetch, everyone, rounds, label)))
                for address in brokers.values():
                    delete(address, topic)
    for label, record_bytes, rates in rows:
        ratio = rates["twofold"] / rates["reference"]
        kafka = rates.get("kafka")
        table.add_row(
            label,
            show(rates["reference"], record_bytes),
            show(rates["twofold"], record_bytes),
            f"[{'green' if ratio >= GOAL else 'red'}]{ratio:.2f}",
            show(kafka, record_bytes) if kafka else "-",
            f"{rates['twofold'] / kafka:.2f}" if kafka else "-",
        )
        report.add("throughput", label, rates | {"ratio": ratio})
    report.show(table)


def show(rate: float, record_bytes: int) -> str:
    return f"{rate * record_bytes / 1e6:.0f} ({rate / 1000:.0f}k)"
