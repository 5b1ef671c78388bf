"""Start to first acknowledged produce as a process, and idle memory: Twofold and Apache Kafka."""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.table import Table

from bench.report import Report, progress

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from oracle.kafka import running_oracle  # noqa: E402
from support.server import TwofoldServer, memory_of  # noqa: E402


def first_acknowledged(address: str, started: float) -> float:
    """Seconds from `started` until a stock producer, already running, gets its first record acknowledged."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": address, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 10, "log_level": 0}
    producer = Producer({**settings, "topic.metadata.refresh.fast.interval.ms": 10, "retry.backoff.ms": 5})
    acknowledged: list[object] = []
    producer.produce("first", b"x", on_delivery=lambda error, _: acknowledged.append(error))
    while not acknowledged and time.perf_counter() < started + 30:
        producer.poll(0.005)
    if acknowledged != [None]:
        raise RuntimeError(f"no acknowledgement from {address}: {acknowledged}")
    return time.perf_counter() - started


def run(report: Report, *, rounds: int = 5) -> None:
    times, memory = [], []
    with tempfile.TemporaryDirectory(prefix="twofold-bench-") as directory:
        for number in progress(range(rounds), "start"):
            server = TwofoldServer(Path(directory) / str(number))
            started = time.perf_counter()
            server.start(wait=False)
            try:
                times.append(first_acknowledged(server.bootstrap_servers, started))
                memory.append(server.memory_bytes())
            finally:
                server.kill()
    started = time.perf_counter()
    with running_oracle() as oracle:
        kafka_seconds = first_acknowledged(oracle.bootstrap_servers, started)
        kafka_memory = memory_of(oracle.pid)
    table = Table(title="start to first acknowledged produce, memory after it")
    for column in ("", "seconds (median)", "MB"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("twofold", f"{statistics.median(times):.2f}", f"{statistics.median(memory) / 1e6:.0f}")
    table.add_row("apache kafka 4.3.1 (with format)", f"{kafka_seconds:.2f}", f"{kafka_memory / 1e6:.0f}")
    report.add("start", "twofold", {"seconds": times, "memory_bytes": memory})
    report.add("start", "kafka", {"seconds": kafka_seconds, "memory_bytes": kafka_memory})
    report.show(table)
