"""Transactions: Twofold beside a reference client and Apache Kafka, in one run with the same client.

`python -m bench transactions` runs everything here; `transactions.rates`, `transactions.idempotent`,
`transactions.open`, `transactions.load` and `transactions.aborted` one part.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from bench import transaction_curves
from bench.report import Report, progress
from bench.servers import KAFKA, REFERENCE, ROOT, TWOFOLD, Target, targets

PARTITIONS = 4
PRODUCERS = (1, 10, 50)
RECORDS = (1, 100)
COMMIT_MS = 100
WARM_UPS = 8
# The goals of `make bench`: of the reference client's rate, of Kafka's rate, of its p99 from ten producers on, of its
# processor time, and of the rate without transactions.
RATE_OF_REFERENCE = 0.8
RATE_OF_KAFKA = 1.0
P99_OF_KAFKA = 0.6
CPU_OF_KAFKA = 0.7
RATE_OF_IDEMPOTENT = 0.85

Row = dict[str, float]


def client(module: str, target: Target, *arguments: object) -> Row:
    command = [sys.executable, "-m", module, *map(str, arguments), "--address", target.address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"the client of {target.name} failed:\n{done.stderr[-2000:]}")
    result: Row = json.loads(done.stdout.splitlines()[-1])
    return result


def create(target: Target, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    if target.name != REFERENCE:
        admin = AdminClient({"bootstrap.servers": target.address, "log_level": 0})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()


# --- transactions per second, latency, processor time ---


def run_rates(
    report: Report, *, seconds: float = 3, rounds: int = 1, with_oracle: bool = True, warm: bool = True
) -> None:
    shapes = [(producers, records) for records in RECORDS for producers in PRODUCERS]
    measured: dict[tuple[int, int], dict[str, Row]] = {}
    with targets(partitions=PARTITIONS, with_oracle=with_oracle) as found:
        for target in progress(found, "warming up"):
            create(target, "bench")
            if warm:
                warm_up(target)
        for producers, records in progress(shapes, "transactions"):
            measured[producers, records] = median_of_rounds(found, producers, records, seconds, rounds)
    for (producers, records), rows in measured.items():
        report.add("transactions", f"{producers} producers, {records} records", with_ratios(rows))
    report.show(rates_table(measured))
    report.show(latency_table(measured))


def warm_up(target: Target) -> None:
    """Until a transaction costs the broker no less than before: a JVM compiles for a while."""
    before = float("inf")
    for _ in range(WARM_UPS):
        cost = client("bench.transaction_load", target, *load_options(target, 10, 1, 3, 0))["broker_us"]
        if cost > 0.9 * before:
            return
        before = cost


def load_options(target: Target, producers: int, records: int, seconds: float, warmup: float) -> list[object]:
    options: dict[str, object] = {
        "--producers": producers,
        "--records": records,
        "--seconds": seconds,
        "--warmup": warmup,
    }
    options |= {"--topic": "bench", "--partitions": PARTITIONS, "--pid": target.pid}
    return [part for option in options.items() for part in option]


def median_of_rounds(found: list[Target], producers: int, records: int, seconds: float, rounds: int) -> dict[str, Row]:
    samples: dict[str, list[Row]] = {target.name: [] for target in found}
    for _ in range(rounds):
        for target in found:
            options = load_options(target, producers, records, seconds, warmup=1)
            samples[target.name].append(client("bench.transaction_load", target, *options))
    return {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in samples.items()
    }


def with_ratios(rows: dict[str, Row]) -> dict[str, Any]:
    ours = rows[TWOFOLD]
    found: dict[str, Any] = dict(rows)
    if REFERENCE in rows:
        found["rate_of_reference"] = ours["rate"] / rows[REFERENCE]["rate"]
    if KAFKA in rows:
        kafka = rows[KAFKA]
        found["rate_of_kafka"] = ours["rate"] / kafka["rate"]
        found["p99_of_kafka"] = ours["p99_ms"] / kafka["p99_ms"]
        found["cpu_of_kafka"] = ours["broker_us"] / kafka["broker_us"]
    return found


def rates_table(measured: dict[tuple[int, int], dict[str, Row]]) -> Table:
    table = Table(title="transactions per second, one confluent-kafka process")
    for column in ("producers", "records", "reference", "twofold", "of reference", "kafka", "of kafka"):
        table.add_column(column, justify="right", no_wrap=True)
    for (producers, records), rows in measured.items():
        ratios = with_ratios(rows)
        table.add_row(
            str(producers), str(records),
            f"{rows[REFERENCE]['rate']:,.0f}",
            f"{rows[TWOFOLD]['rate']:,.0f}",
            least(ratios["rate_of_reference"], RATE_OF_REFERENCE),
            f"{rows[KAFKA]['rate']:,.0f}" if KAFKA in rows else "-",
            least(ratios.get("rate_of_kafka"), RATE_OF_KAFKA),
        )  # fmt: skip
    return table


def latency_table(measured: dict[tuple[int, int], dict[str, Row]]) -> Table:
    table = Table(
        title="commit latency in ms and broker processor time in us per transaction: reference, twofold, kafka"
    )
    for column in ("producers", "records", "p50 ms", "p99 ms", "of kafka", "cpu us", "of kafka"):
        table.add_column(column, justify="right", no_wrap=True)
    for (producers, records), rows in measured.items():
        ratios = with_ratios(rows)
        p99 = ratios.get("p99_of_kafka")
        table.add_row(
            str(producers), str(records),
            each(rows, "p50_ms", ".1f"),
            each(rows, "p99_ms", ".1f"),
            most(p99, P99_OF_KAFKA) if producers >= 10 else plain(p99),
            each(rows, "broker_us", ".0f"),
            most(ratios.get("cpu_of_kafka"), CPU_OF_KAFKA),
        )  # fmt: skip
    return table


def each(rows: dict[str, Row], key: str, form: str) -> str:
    return "  ".join(f"{row[key]:{form}}" for row in rows.values())


def least(value: float | None, goal: float) -> str:
    return "-" if value is None else f"[{'green' if value >= goal else 'red'}]{value:.2f}"


def most(value: float | None, goal: float) -> str:
    return "-" if value is None else f"[{'green' if value <= goal else 'red'}]{value:.2f}"


def plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# --- transactional against idempotent throughput ---


def run_idempotent(report: Report, *, seconds: float = 3, rounds: int = 1, with_oracle: bool = True) -> None:
    """Transactions of 100 ms against the same producer without them (KIP-98's own measure)."""
    table = Table(title=f"produce 1 KB: records/s, commits every {COMMIT_MS} ms against idempotent")
    for column in ("", "idempotent", "transactional", "ratio"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    with targets(partitions=PARTITIONS, with_oracle=with_oracle) as found:
        for target in found:
            create(target, "throughput")
        for target, rows in zip(found, progress(idempotent_rows(found, seconds, rounds), "idempotent"), strict=True):
            ratio = rows["transactional"] / rows["idempotent"]
            shown = least(ratio, RATE_OF_IDEMPOTENT) if target.name == TWOFOLD else plain(ratio)
            table.add_row(target.name, f"{rows['idempotent']:,.0f}", f"{rows['transactional']:,.0f}", shown)
            report.add("transactional against idempotent", target.name, rows | {"ratio": ratio})
    report.show(table)


def idempotent_rows(found: list[Target], seconds: float, rounds: int) -> Iterator[Row]:
    shared = ["--topic", "throughput", "--partitions", PARTITIONS, "--idempotent"]
    kinds: dict[str, list[object]] = {"idempotent": [], "transactional": ["--commit-ms", COMMIT_MS]}
    for target in found:
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        client("bench.load", target, "produce", *shared, "--seconds", 1)  # warm
        for _ in range(rounds):
            for kind, flags in kinds.items():
                result = client("bench.load", target, "produce", *shared, "--seconds", seconds, *flags)
                if result["failed"]:
                    raise RuntimeError(f"{result['failed']} records failed at {target.name}")
                rates[kind].append(result["records"] / result["seconds"])
        yield {kind: statistics.median(values) for kind, values in rates.items()}


def run(report: Report, *, seconds: float = 3, rounds: int = 1, with_oracle: bool = True) -> None:
    run_rates(report, seconds=seconds, rounds=rounds, with_oracle=with_oracle)
    run_idempotent(report, seconds=seconds, rounds=rounds, with_oracle=with_oracle)
    transaction_curves.run_open(report)
    transaction_curves.run_load(report)
    transaction_curves.run_aborted(report)
