"""`python -m bench [NAME ...]`: all of the measurements when none is named."""

import argparse
import inspect
from collections.abc import Callable

from bench import (
    against,
    columnar,
    consumer,
    dual_write,
    first_look,
    groups,
    growth,
    hostile,
    install,
    latency,
    members,
    metadata,
    producer,
    security,
    spark_sink,
    spark_source,
    spark_stream,
    start,
    testing,
    throughput,
    transaction_curves,
    transactions,
    two_phase,
    txn_tools,
)
from bench.report import Report, console

SUITES: dict[str, Callable[..., None]] = {
    "start": start.run,
    "install": install.run,
    "throughput": throughput.run,
    "latency": latency.run,
    "growth": growth.run,
    "against": against.run,
    "groups": groups.run,
    "members": members.run,
    "hostile": hostile.run,
    "metadata": metadata.run,
    "transactions": transactions.run,
    "two_phase": two_phase.run,
    "security": security.run,
    "dual_write": dual_write.run,
    "txn_tools": txn_tools.run,
    "producer": producer.run,
    "consumer": consumer.run,
    "columnar": columnar.run,
    "spark_source": spark_source.run,
    "spark_sink": spark_sink.run,
    "spark_stream": spark_stream.run,
}
# What a suite consists of, to be asked for by name.
PARTS: dict[str, Callable[..., None]] = {
    "start.after_kill": first_look.run,
    "start.testing": testing.run,
    "members.heartbeats": members.run_heartbeats,
    "metadata.creation": metadata.run_creation,
    "metadata.meanwhile": metadata.run_meanwhile,
    "metadata.lookup": metadata.run_lookup,
    "metadata.start": metadata.run_start,
    "security.entries": security.run_entries,
    "transactions.rates": transactions.run_rates,
    "transactions.idempotent": transactions.run_idempotent,
    "transactions.open": transaction_curves.run_open,
    "transactions.load": transaction_curves.run_load,
    "transactions.aborted": transaction_curves.run_aborted,
}


def main() -> None:
    known = SUITES | PARTS
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="NAME", help=f"of {', '.join(known)} (default: every suite)")
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("--seconds", type=float, help="how long each rate is measured, where rates are")
    parser.add_argument("--rounds", type=int, help="how often, where medians are taken")
    parser.add_argument("--sizes", type=lambda text: tuple(map(int, text.split(","))), help="of a curve: 10,1000")
    parser.add_argument("--no-oracle", dest="with_oracle", action="store_false", default=None)
    options = parser.parse_args()
    unknown = [name for name in options.suites if name not in known]
    if unknown:
        parser.error(f"no suite {unknown[0]!r}: choose from {', '.join(known)}")
    given = {name: value for name, value in vars(options).items() if name in PASSED and value is not None}
    report = Report(quiet=options.format == "json")
    for name in options.suites or SUITES:
        takes = inspect.signature(known[name]).parameters
        known[name](report, **{key: value for key, value in given.items() if key in takes})
    path, page = report.save(), report.write_page()
    if options.format == "json":
        print(report.as_json())
    else:
        console.print(f"[dim]results in {path}, tables and plots in {page}")


PASSED = ("seconds", "rounds", "sizes", "with_oracle")

if __name__ == "__main__":
    main()
