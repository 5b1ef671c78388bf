"""What security costs: the same load over PLAINTEXT, SSL and SASL_SSL, with an authorizer and 1,000 entries, at Twofold
and at Apache Kafka, in one run.

`security.entries`: a check, and a produce request, with few and with very many entries. The short form, of about two
minutes: `--seconds 1 --rounds 1`.
"""

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import UUID

from rich.table import Table

from bench import client_settings
from bench.against import connect, cost
from bench.growth import timed
from bench.processor import cpu_seconds
from bench.report import Report, progress
from bench.secured import KAFKA, PROTOCOLS, TWOFOLD, Secured, entries, secured
from bench.servers import ROOT, Target
from bench.throughput import PARTITIONS
from twofold.broker.network.context import Peer, RequestContext
from twofold.broker.network.standard_authorizer import StandardAuthorizer
from twofold.client.admin.model import NewTopic
from twofold.controller.security.acls import AclSet
from twofold.controller.security.records import AccessControlEntry
from twofold.records.batch import BatchBuilder
from twofold.security.acl_codes import AclResourceType, Operation
from twofold.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

TOPIC = "bench"
ENTRIES = 1000
RECORD_BYTES = 1024
PRODUCERS = 10
CHECKS = 20_000
TIMES = 3  # of which the least counts: other work on the machine only adds
SIZES = (10, 1_000, 100_000)
# What is not sent yet is little beside what a run sends, and a slow connection fails no record.
PATIENT = {"queue.buffering.max.kbytes": "65536", "message.timeout.ms": "120000"}
Row = dict[str, float]


def client(module: str, server: Secured, protocol: str, *arguments: object) -> Row:
    settings = server.client(protocol) | (PATIENT if "produce" in arguments else {})
    command = [sys.executable, "-m", module, *map(str, arguments), "--address", server.address(protocol)]
    command += ["--topic", TOPIC, "--partitions", str(PARTITIONS), *client_settings.flags(settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"the client of {server.name} over {protocol} failed:\n{done.stderr[-2000:]}")
    found: Row = json.loads(done.stdout.splitlines()[-1])
    if found.get("failed"):
        raise RuntimeError(f"{found['failed']:.0f} records failed at {server.name} over {protocol}")
    return found


def moved(what: str, server: Secured, protocol: str, seconds: float, *more: object) -> Row:
    """MB per second, and what the broker's processors spend on a MB."""
    spent = cpu_seconds(server.pid)
    size = ("--record-bytes", RECORD_BYTES, "--seconds", seconds)
    found = client("bench.load", server, protocol, what, *size, *more)
    megabytes = found["records"] * RECORD_BYTES / 1e6
    cpu_ms = (cpu_seconds(server.pid) - spent) * 1000 / megabytes
    return {"rate": megabytes / found["seconds"], "cpu": cpu_ms, "records": found["records"]}


class Load(NamedTuple):
    title: str
    unit: str
    cpu_unit: str
    measure: Callable[[Secured, str, float], Row]


def produced(server: Secured, protocol: str, seconds: float) -> Row:
    return moved("produce", server, protocol, seconds)


def fetched(server: Secured, protocol: str, seconds: float) -> Row:
    """Of what is there: the same records over each protocol."""
    return moved("fetch", server, protocol, 10 * seconds, "--count", int(ENOUGH * seconds))


def committed(server: Secured, protocol: str, seconds: float) -> Row:
    shape = ("--producers", PRODUCERS, "--seconds", seconds, "--pid", server.pid)
    found = client("bench.transaction_load", server, protocol, *shape)
    return {"rate": found["rate"], "cpu": found["broker_us"], "p99_ms": found["p99_ms"]}


ENOUGH = 50_000  # records per second of the run that a fetch reads at most: produce has written more
LOADS = (
    Load("produce 1 KB", "MB/s", "ms of processor time per MB", produced),
    Load("fetch 1 KB", "MB/s", "ms of processor time per MB", fetched),
    Load(f"transactions of {PRODUCERS} producers", "per s", "us of processor time each", committed),
)


def run(report: Report, *, seconds: float = 3, rounds: int = 3, with_oracle: bool = True) -> None:
    names = (TWOFOLD, KAFKA) if with_oracle else (TWOFOLD,)
    with secured(names) as servers:
        for server in progress(servers, f"{ENTRIES:,} entries"):
            prepare(server)
        for load in LOADS:
            measured = {protocol: all_of(load, servers, protocol, seconds, rounds) for protocol in PROTOCOLS}
            for protocol, rows in measured.items():
                report.add(f"security: {load.title}", protocol, rows)
            report.show(table_of(load, names, measured))
    run_entries(report)


def prepare(server: Secured) -> None:
    """The topic, the entries, and a JVM that has compiled what is measured."""
    server.grant(ENTRIES)
    with server.admin() as admin:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).get()
    for protocol in PROTOCOLS:
        produced(server, protocol, 1)
        committed(server, protocol, 1)


def all_of(load: Load, servers: Sequence[Secured], protocol: str, seconds: float, rounds: int) -> dict[str, Row]:
    """The servers take turns; the median of each figure."""
    samples: dict[str, list[Row]] = {server.name: [] for server in servers}
    for _ in progress(range(rounds), f"{load.title}, {protocol}"):
        for server in servers:
            samples[server.name].append(load.measure(server, protocol, seconds))
    return {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in samples.items()
    }


def table_of(load: Load, names: Sequence[str], measured: dict[str, dict[str, Row]]) -> Table:
    table = Table(title=f"{load.title}, {ENTRIES:,} entries: {load.unit} (of PLAINTEXT), {load.cpu_unit}")
    for column in ("", *(f"{name}{what}" for name in names for what in ("", ": cpu")), "of kafka"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for protocol, rows in measured.items():
        cells = []
        for name in names:
            row, plain = rows[name], measured["PLAINTEXT"][name]
            cells += [f"{row['rate']:,.0f} ({row['rate'] / plain['rate']:.2f})", f"{row['cpu']:,.2f}"]
        ratio = f"{rows[TWOFOLD]['rate'] / rows[KAFKA]['rate']:.2f}" if KAFKA in rows else "-"
        table.add_row(protocol, *cells, ratio)
    return table


# --- few entries and very many ---


def run_entries(report: Report, *, sizes: tuple[int, ...] | None = None) -> None:
    table = Table(title="processor time by entries, us")
    for column in ("entries", "a check", "that is remembered", "a produce request", "ratio to the first"):
        table.add_column(column, justify="right")
    first = 0.0
    for size in progress(sizes or SIZES, "entries"):
        fresh_us, kept_us = check_us(size)
        produce_us = request_us(size)
        first = first or fresh_us
        row = {"check_us": fresh_us, "remembered_us": kept_us, "produce_us": produce_us}
        report.add("security: entries", str(size), row)
        table.add_row(f"{size:,}", f"{fresh_us:.2f}", f"{kept_us:.2f}", f"{produce_us:.0f}", f"{fresh_us / first:.2f}")
    report.show(table)


def check_us(size: int) -> tuple[float, float]:
    """Of a topic that was not asked about lately, and of one that was."""
    draft = AclSet().mutate()
    for number, one in enumerate(entries(size)):
        fields = (one.resource_type, one.resource_name, one.pattern_type, one.principal, one.host)
        codes = (one.operation, one.permission)
        draft.add(AccessControlEntry(UUID(int=number), *map(plain, fields), *map(int, codes)))  # type: ignore[arg-type]
    acls = draft.finish()
    asked = StandardAuthorizer(
        lambda: acls, super_users=frozenset(), without_entries=False, audit=lambda *refused: None
    )
    context = RequestContext(0, 12, 1, "bench", Peer("127.0.0.1", 1, "SASL_SSL", "User:bench"))
    names = [f"{TOPIC}-{number}" for number in range(CHECKS)]

    def check(number: int) -> None:
        if not asked.authorize(context, Operation.WRITE, AclResourceType.TOPIC, names[number]):
            raise RuntimeError(f"{names[number]} was refused")

    fresh = []
    gc.disable()  # it would go through what the other suites have left
    try:
        for _ in range(TIMES):
            asked._decided.clear()
            fresh.append(timed(CHECKS, check))
        return min(fresh), min(timed(CHECKS, lambda _: check(CHECKS - 1)) for _ in range(TIMES))
    finally:
        gc.enable()


def plain(value: object) -> object:
    return int(value) if isinstance(value, int) else value


def request_us(size: int) -> float:
    """A produce request of one record, by a client that did not log in."""
    builder = BatchBuilder()
    builder.add(None, bytes(100), int(time.time() * 1000))
    rows = [PartitionProduceData(index=0, records=builder.build())]
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=rows)])
    with secured([TWOFOLD]) as (server,):
        server.grant(size)
        with server.admin() as admin:
            admin.create_topics([NewTopic(TOPIC, 1)]).get()
        target = Target(TWOFOLD, server.address("PLAINTEXT"), server.pid)
        probe = connect(target)

        def produce(_: int) -> None:
            code = probe.ask(request, 0, 8).responses[0].partition_responses[0].error_code
            if code:
                raise RuntimeError(f"a batch was answered with error {code}")

        try:
            return min(cost(target, produce)["cpu_us"] for _ in range(TIMES))
        finally:
            probe.close()
