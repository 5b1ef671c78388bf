"""The columnar codec: records per second of one core between Arrow columns and record batches.

The time is that of the thread, not of the clock: what else runs on the machine is not the codec's. The goal is ten
million records of 100 B in both directions.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table

from bench.report import Report, progress
from twofold.records.batch import read_header, stamp
from twofold.records.columnar import Columns, Decoder, load
from twofold.records.columnar_arrays import Backend
from twofold.records.columnar_plain import Plain
from twofold.records.compression import Codec

GOAL = 10e6
PARTITIONS = 12
KEY_BYTES = 16
TIMESTAMP_MS = 1_700_000_000_000
LOADING = """
import time; started = time.perf_counter()
from twofold.records import columnar; imported = time.perf_counter()
columnar.load(); print(imported - started, time.perf_counter() - imported)
"""


def columns(count: int, value_bytes: int) -> tuple[Any, Any]:
    """Keys of one size and values of about that many bytes, half of each compressible."""
    chance = np.random.default_rng(7)
    sizes = chance.integers(value_bytes * 4 // 5, value_bytes * 6 // 5, count)
    ends = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    data = chance.integers(0, 256, ends[-1], np.uint8)
    data[np.arange(len(data)) % 64 < 32] = 0x61
    values = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    return pa.array([b"key-%012d" % row for row in range(count)]), values


def encode(backend: Backend, keys: Any, values: Any, codec: Codec, limit: int) -> list[bytearray]:
    batches = Columns(keys, values, TIMESTAMP_MS, backend=backend).encode(codec=codec, limit=limit)
    return [batch.build() for batch in batches]


def encode_partitions(backend: Backend, keys: Any, values: Any) -> None:
    rows = Columns(keys, values, TIMESTAMP_MS, backend=backend)
    for batches in rows.encode_by_partition(rows.partitions(PARTITIONS), PARTITIONS).values():
        for batch in batches:
            batch.build()


def fetched(batches: list[bytearray]) -> bytes:
    log = bytearray()
    offset = 0
    for batch in batches:
        stamp(batch, 0, base_offset=offset, leader_epoch=1)
        offset += read_header(batch).count
        log += batch
    return bytes(log)


def decode(backend: Backend, log: bytes, *, headers: bool = False) -> None:
    for _ in Decoder("topic", 0, backend=backend, include_headers=headers).decode(log):
        pass  # dropped as soon as it is there, as after its way to Spark


def rate(count: int, work: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.thread_time()
        work()
        best = min(best, time.thread_time() - started)
    return count / best


def run(report: Report, *, rounds: int = 15) -> None:
    table = Table(title="columnar codec, million records/s of one core (MB/s)")
    for column in ("", "encode", "decode"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    compiled, plain = load(), Plain()
    cases: list[tuple[str, Backend, int, int, Codec, int]] = [
        ("100 B, batches of 1 MiB", compiled, 100_000, 100, Codec.NONE, 1 << 20),
        ("100 B, batches of 16 KiB", compiled, 100_000, 100, Codec.NONE, 1 << 14),
        ("1 KB, batches of 1 MiB", compiled, 20_000, 1024, Codec.NONE, 1 << 20),
        *((f"100 B, {codec.name.lower()}", compiled, 20_000, 100, codec, 1 << 20) for codec in list(Codec)[1:]),
        ("100 B, without numba", plain, 20_000, 100, Codec.NONE, 1 << 20),
    ]
    for label, backend, count, size, codec, limit in progress(cases, "columnar"):
        keys, values = columns(count, size)
        log = fetched(encode(backend, keys, values, codec, limit))
        some = rounds if codec == Codec.NONE and backend is compiled else 3
        rates = {
            "encode": rate(count, lambda: encode(backend, keys, values, codec, limit), some),  # noqa: B023
            "decode": rate(count, lambda: decode(backend, log), some),  # noqa: B023
        }
        has_goal = label == cases[0][0]
        table.add_row(label, *(show(found, size, goal=has_goal) for found in rates.values()))
        report.add("columnar", label, rates)
    keys, values = columns(100_000, 100)
    found = rate(100_000, lambda: encode_partitions(compiled, keys, values), rounds)
    label = f"100 B, by key into {PARTITIONS} partitions"
    table.add_row(label, show(found, 100, goal=False), "")
    report.add("columnar", label, {"encode": found})
    report.show(table)
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, timeout=100, check=True)
    imported, loaded = map(float, done.stdout.split())
    report.add("columnar", "a fresh process", {"import_s": imported, "load_s": loaded})
    small = Table(title="a fresh process, seconds")
    for column in ("import of pyarrow and numpy", "numba and its cached kernels"):
        small.add_column(column, justify="right")
    small.add_row(f"{imported:.2f}", f"{loaded:.2f}")
    report.show(small)


def show(found: float, value_bytes: int, *, goal: bool) -> str:
    text = f"{found / 1e6:.1f} ({found * (value_bytes + KEY_BYTES) / 1e6:,.0f})"
    return f"[{'green' if found >= GOAL else 'red'}]{text}" if goal else text
