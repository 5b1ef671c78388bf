"""Start to first acknowledged produce as a process, and idle memory: Twofold and Apache Kafka."""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.table import Table

from bench.report import Report, progress
from twofold.records.batch import BatchBuilder

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from kits.processes.server import TwofoldServer, memory_of  # noqa: E402
from oracle.driver import Connection, WireClosed  # noqa: E402
from oracle.kafka import running_oracle  # noqa: E402


def first_acknowledged(port: int, started: float) -> float:
    """Seconds from `started` until a produce is acknowledged, asked by a client that adds no waits of its own."""
    builder = BatchBuilder()
    builder.add(None, b"first", 1_700_000_000_000)
    batch = builder.build()
    wanted = {"name": "first", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    data = [{"name": "first", "partition_data": [{"index": 0, "records": batch}]}]
    while time.perf_counter() < started + 30:
        try:
            with Connection("127.0.0.1", port) as connection:
                connection.ask("CreateTopics", 4, topics=[wanted], timeout=10_000, validate_only=False)
                body = {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": data}
                answer = connection.ask("Produce", 8, **body)
                if answer["responses"][0]["partition_responses"][0]["error_code"] == 0:
                    return time.perf_counter() - started
        except (OSError, WireClosed):
            pass
        time.sleep(0.002)
    raise RuntimeError(f"no acknowledgement from port {port}")


def run(report: Report, *, rounds: int = 5) -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode on disk
    times, memory = [], []
    with tempfile.TemporaryDirectory(prefix="twofold-bench-") as directory:
        for number in progress(range(-1, rounds), "start"):
            server = TwofoldServer(Path(directory) / str(number))
            started = time.perf_counter()
            server.start(wait=False)
            try:
                took = first_acknowledged(server.port, started)
                if number >= 0:  # the first start writes the bytecode
                    times.append(took)
                    memory.append(server.resident_bytes)
            finally:
                server.kill()
    started = time.perf_counter()
    with running_oracle() as oracle:
        kafka_seconds = first_acknowledged(oracle.port, started)
        kafka_memory = memory_of(oracle.pid)
    table = Table(title="start to first acknowledged produce, memory after it")
    for column in ("", "seconds (median)", "MB"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("twofold", f"{statistics.median(times):.2f}", f"{statistics.median(memory) / 1e6:.0f}")
    table.add_row("apache kafka 4.3.1 (with format)", f"{kafka_seconds:.2f}", f"{kafka_memory / 1e6:.0f}")
    report.add("start", "twofold", {"seconds": times, "memory_bytes": memory})
    report.add("start", "kafka", {"seconds": kafka_seconds, "memory_bytes": kafka_memory})
    report.show(table)
