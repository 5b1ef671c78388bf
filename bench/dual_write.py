"""What a dual write costs: one row and one record in both or neither, beside the database's own commit of that row, and
beside an outbox row in the same commit, which another program has yet to send (`python -m bench dual_write`)."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.table import Table
from sqlalchemy import Engine, create_engine, text

from bench.report import Report, console, progress
from bench.servers import TwofoldServer
from kits.databases.postgresql import PostgresServer
from kits.databases.sqlite import SqliteFiles
from twofold.dualwrite import DualWrite

VALUE = "v" * 100
WARM_UP = 20
TOPIC = "bench"
INSERT = text("INSERT INTO orders (item) VALUES (:item)")
INSERT_OUTBOX = text("INSERT INTO outbox (record) VALUES (:item)")
KITS: tuple[type[SqliteFiles] | type[PostgresServer], ...] = (SqliteFiles, PostgresServer)
KEY = {"sqlite": "INTEGER PRIMARY KEY", "postgresql": "BIGSERIAL PRIMARY KEY"}


def run(report: Report, *, seconds: float = 3) -> None:
    table = Table(
        title="one row and one record: p50 in ms, and the dual write as a multiple of the others",
        caption="Every commit is on disk before it is acknowledged, in the database and in the log.",
    )
    for column in ("database", "commit", "outbox", "dual", "of commit", "of outbox", "dual/s"):
        table.add_column(column, justify="right", no_wrap=True)
    settings = {"transaction.two.phase.commit.enable": "true"}
    with (
        tempfile.TemporaryDirectory(prefix="twofold-bench-") as directory,
        TwofoldServer(Path(directory) / "twofold", settings) as server,
    ):
        for kit in progress(KITS, "dual write"):
            try:
                with database(kit) as engine:
                    found = measure_all(engine, server.bootstrap_servers, seconds)
            except pytest.skip.Exception as reason:
                console.print(f"[dim]{kit.name}: {reason}")
                continue
            ratios = {name: found["dual"]["p50_ms"] / found[name]["p50_ms"] for name in ("commit", "outbox")}
            table.add_row(
                kit.name,
                *(f"{found[name]['p50_ms']:.2f}" for name in ("commit", "outbox", "dual")),
                *(f"{ratio:.1f}" for ratio in ratios.values()),
                f"{found['dual']['rate']:,.0f}",
            )
            report.add("dual write", kit.name, {**found, "ratios": ratios})
    report.show(table)


@contextmanager
def database(kit: type[SqliteFiles] | type[PostgresServer]) -> Iterator[Engine]:
    with kit() if kit is SqliteFiles else PostgresServer(fsync=True) as running:
        engine = create_engine(running.create("bench"))
        key = KEY[engine.dialect.name]
        with engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE orders (number {key}, item TEXT)"))
            connection.execute(text(f"CREATE TABLE outbox (number {key}, record TEXT)"))
        try:
            yield engine
        finally:
            engine.dispose()


def measure_all(engine: Engine, address: str, seconds: float) -> dict[str, dict[str, float]]:
    def commit() -> None:
        with engine.begin() as connection:
            connection.execute(INSERT, {"item": VALUE})

    def outbox() -> None:
        with engine.begin() as connection:
            connection.execute(INSERT, {"item": VALUE})
            connection.execute(INSERT_OUTBOX, {"item": VALUE})

    with DualWrite(engine, bootstrap_servers=address, transactional_id=f"bench-{engine.dialect.name}") as writer:

        def dual() -> None:
            with writer.transaction() as (db, log):
                db.execute(INSERT, {"item": VALUE})
                log.send(TOPIC, VALUE.encode())

        return measure({"commit": commit, "outbox": outbox, "dual": dual}, seconds)


def measure(kinds: dict[str, Callable[[], None]], seconds: float) -> dict[str, dict[str, float]]:
    """In turns, so that whatever else the machine does happens to all of them."""
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    began = time.perf_counter()
    while len(taken["dual"]) <= WARM_UP or time.perf_counter() - began < seconds * len(kinds):
        for name, transact in kinds.items():
            start = time.perf_counter()
            transact()
            taken[name].append((time.perf_counter() - start) * 1000)
    return {name: figures(times[WARM_UP:]) for name, times in taken.items()}


def figures(times_ms: list[float]) -> dict[str, float]:
    return {"rate": 1000 / statistics.fmean(times_ms), "p50_ms": statistics.median(times_ms)}
