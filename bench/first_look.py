"""A start after kill -9 with many partitions: how long requests take while the broker looks at each partition, and when
its metrics are true."""

import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.table import Table

from bench.report import Report, progress
from bench.start import first_acknowledged
from twofold.records.batch import BatchBuilder

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from kits.processes.server import TwofoldServer  # noqa: E402
from oracle.driver import Connection  # noqa: E402
from oracle.processes import free_port  # noqa: E402

SIZES = (100, 1_000, 10_000)
OPEN = 100  # transactions that the kill leaves open, each in a partition of its own
PATIENCE_S = 120
NOT_LOOKED_AT = "twofold_partitions_not_looked_at "


def fill(server: TwofoldServer, partitions: int) -> None:
    """A record in every partition, and open transactions in some."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
    admin.create_topics([NewTopic("filled", partitions)])["filled"].result(60)
    config = {"bootstrap.servers": server.bootstrap_servers, "linger.ms": 5}
    producer = Producer(config | {"enable.idempotence": True})
    for partition in range(partitions):
        producer.produce("filled", b"value", partition=partition)
        producer.poll(0)
    assert producer.flush(60) == 0
    for number in range(OPEN):
        transactional = Producer(config | {"transactional.id": f"open-{number}"})
        transactional.init_transactions(30)
        transactional.begin_transaction()
        transactional.produce("filled", b"open", partition=number % partitions)
        assert transactional.flush(30) == 0


def not_looked_at(server: TwofoldServer) -> int:
    with urllib.request.urlopen(f"http://{server.settings['metrics.listener']}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    (line,) = (line for line in text.splitlines() if line.startswith(NOT_LOOKED_AT))
    return int(float(line.split()[-1]))


def produce_ms(connection: Connection) -> float:
    builder = BatchBuilder()
    builder.add(None, b"meanwhile", 1_700_000_000_000)
    data = [{"name": "first", "partition_data": [{"index": 0, "records": builder.build()}]}]
    started = time.perf_counter()
    connection.ask("Produce", 8, transactional_id=None, acks=-1, timeout=10_000, topic_data=data)
    return (time.perf_counter() - started) * 1000


def measure(directory: Path, partitions: int) -> dict[str, float]:
    server = TwofoldServer(directory, {"metrics.listener": f"127.0.0.1:{free_port()}"})
    server.start()
    try:
        fill(server, partitions)
        server.kill()
        started = time.perf_counter()
        server.start(wait=False)
        first = first_acknowledged(server.port, started)
        took, asked_at = [], 0.0
        with Connection("127.0.0.1", server.port) as connection:
            while True:
                took.append(produce_ms(connection))
                if time.perf_counter() > asked_at + 0.2:
                    asked_at = time.perf_counter()
                    if not_looked_at(server) == 0:
                        break
                assert asked_at < started + PATIENCE_S, "the broker has not looked at every partition"
                time.sleep(0.002)
        true_after = time.perf_counter() - started
    finally:
        server.kill()
    took.sort()
    p99 = took[int(len(took) * 0.99)]
    return {"first_s": first, "true_s": true_after, "p50_ms": took[len(took) // 2], "p99_ms": p99, "max_ms": took[-1]}


def run(report: Report, *, sizes: tuple[int, ...] = SIZES) -> None:
    table = Table(title="start after kill -9: first acknowledged produce, metrics true, produce meanwhile")
    for column in ("partitions", "first (s)", "metrics true (s)", "p50 (ms)", "p99 (ms)", "longest (ms)"):
        table.add_column(column, justify="right")
    for size in progress(sizes, "partitions"):
        with tempfile.TemporaryDirectory(prefix="twofold-bench-") as directory:
            row = measure(Path(directory), size)
        cells = (
            f"{row['first_s']:.2f}",
            f"{row['true_s']:.2f}",
            *(f"{row[k]:.1f}" for k in ("p50_ms", "p99_ms", "max_ms")),
        )
        table.add_row(f"{size:,}", *cells)
        report.add("start.after_kill", str(size), row)
    report.show(table)
