"""What durability costs: transactions of one producer with two-phase commit, each step of it on disk before it is
acknowledged, beside the same producer without (`python -m bench two_phase`)."""

import statistics
import tempfile
import time
from pathlib import Path

from rich.table import Table

from bench.report import Report, progress
from bench.servers import TwofoldServer
from twofold import Producer

RECORDS = (1, 100)
VALUE = b"v" * 100
WARM_UP = 20


def run(report: Report, *, seconds: float = 3) -> None:
    table = Table(title="transactions/s of one producer, prepared and committed, p50 and p99 in ms")
    for column in ("records", "plain", "p50", "p99", "two-phase", "p50", "p99", "ratio"):
        table.add_column(column, justify="right", no_wrap=True)
    settings = {"transaction.two.phase.commit.enable": "true"}
    with (
        tempfile.TemporaryDirectory(prefix="twofold-bench-") as directory,
        TwofoldServer(Path(directory) / "twofold", settings) as server,
    ):
        for records in progress(RECORDS, "two-phase commit"):
            plain = measure(server.bootstrap_servers, records, seconds, two_phase=False)
            durable = measure(server.bootstrap_servers, records, seconds, two_phase=True)
            table.add_row(
                str(records),
                *(f"{plain[key]:,.1f}" for key in ("rate", "p50_ms", "p99_ms")),
                *(f"{durable[key]:,.1f}" for key in ("rate", "p50_ms", "p99_ms")),
                f"{durable['rate'] / plain['rate']:.2f}",
            )
            report.add("two-phase commit", f"{records} records", {"plain": plain, "two_phase": durable})
    report.show(table)


def measure(address: str, records: int, seconds: float, *, two_phase: bool) -> dict[str, float]:
    with Producer(
        bootstrap_servers=address,
        transactional_id=f"bench-{records}-{two_phase}",
        transaction_two_phase_commit_enable=two_phase,
    ) as producer:
        producer.init_transactions()
        for _ in range(WARM_UP):
            transact(producer, records, two_phase)
        taken: list[float] = []
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            start = time.perf_counter()
            transact(producer, records, two_phase)
            taken.append((time.perf_counter() - start) * 1000)
        elapsed = time.perf_counter() - began
    cuts = statistics.quantiles(taken, n=100)
    return {"rate": len(taken) / elapsed, "p50_ms": cuts[49], "p99_ms": cuts[98]}


def transact(producer: Producer, records: int, two_phase: bool) -> None:
    producer.begin_transaction()
    for _ in range(records):
        producer.send("bench", VALUE)
    if two_phase:
        producer.prepare_transaction()
    producer.commit_transaction()
