"""How cost grows: per batch from an empty log to 10 GB, and from 1 to 5,000 partitions.

Measured on the log itself, in processor time of its thread (user and system), so that neither a
busy neighbour nor the sync of finished segments in the background counts.
A flat curve is the claim; the last column is the cost as a multiple of the first row.
"""

import asyncio
import os
import random
import resource
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from bench.report import Report, progress
from twofold.config.topic import LogConfig
from twofold.log.api import Bound
from twofold.log.log import PartitionLog
from twofold.log.manager import LogManager
from twofold.records.batch import BatchBuilder
from twofold.runtime.real import real_runtime
from twofold.types import TopicPartition

GIGABYTE = 1_000_000_000
BATCH_BYTES = 64 << 10


def batch(size: int = BATCH_BYTES) -> bytes:
    builder = BatchBuilder()
    for _ in range(max(1, size // 1100)):
        builder.add(None, bytes(1080), 1_700_000_000_000)
    return builder.build()


def split(count: int, step: Callable[[int], object]) -> tuple[float, float]:
    """Microseconds per call of `step(i)`: in our code, and in the kernel (page cache, write-back)."""
    before = resource.getrusage(resource.RUSAGE_THREAD)
    for number in range(count):
        step(number)
    after = resource.getrusage(resource.RUSAGE_THREAD)
    per_call = 1e6 / count
    return (after.ru_utime - before.ru_utime) * per_call, (after.ru_stime - before.ru_stime) * per_call


def timed(count: int, step: Callable[[int], object]) -> float:
    """Processor microseconds per call of `step(i)`."""
    return sum(split(count, step))


async def by_length(report: Report, directory: Path, gigabytes: int) -> None:
    manager = LogManager(real_runtime(), str(directory))
    manager.load()
    log = manager.get_or_create(TopicPartition("growth", 0), uuid.uuid4(), LogConfig())
    data = batch()
    per_gigabyte = GIGABYTE // len(data)
    chance = random.Random(10)
    table = Table(title=f"one partition, batches of {len(data) // 1024} KB: processor us per batch")
    for column in ("log before", "append: ours", "kernel", "read at end", "read anywhere", "ours vs empty"):
        table.add_column(column, justify="right")
    first = None

    def append(_: int) -> None:
        log.append(data, leader_epoch=0)
        log.advance_high_watermark(log.log_end_offset)

    def read_tail(_: int) -> None:
        log.read(log.log_end_offset - 50, 1 << 20, Bound.HIGH_WATERMARK)

    def read_anywhere(_: int) -> None:
        log.read(chance.randrange(log.log_end_offset), 1 << 16, Bound.HIGH_WATERMARK)

    for size in progress(range(gigabytes), "10 GB"):
        cost, kernel = split(2000, append)
        tail, anywhere = timed(2000, read_tail), timed(2000, read_anywhere)
        first = first or cost
        shown = (cost, kernel, tail, anywhere)
        table.add_row(f"{size} GB", *(f"{value:.1f}" for value in shown), f"{cost / first:.2f}")
        report.add(
            "length",
            f"{size} GB",
            {"append_us": cost, "kernel_us": kernel, "read_end_us": tail, "read_anywhere_us": anywhere},
        )
        timed(per_gigabyte - 2000, append)
        await asyncio.sleep(0)
    report.show(table)
    await manager.close()


async def by_partitions(report: Report, directory: Path) -> None:
    data = batch(4096)
    table = Table(title=f"many partitions, batches of {len(data) // 1024} KB in turn: processor us per batch")
    for column in ("partitions", "append", "read", "open files", "MB", "append vs one"):
        table.add_column(column, justify="right")
    first = None
    for partitions in progress((1, 10, 100, 500, 1000, 5000), "partitions"):
        place = directory / f"p{partitions}"
        manager = LogManager(real_runtime(), str(place))
        manager.load()
        topic = uuid.uuid4()
        logs = [manager.get_or_create(TopicPartition("many", p), topic, LogConfig()) for p in range(partitions)]

        def append(number: int, logs: list[PartitionLog] = logs) -> None:
            log = logs[number % len(logs)]
            log.append(data, leader_epoch=0)
            log.advance_high_watermark(log.log_end_offset)

        def read(number: int, logs: list[PartitionLog] = logs) -> None:
            logs[number % len(logs)].read(0, 1 << 16, Bound.HIGH_WATERMARK)

        timed(partitions, append)  # the first batch of a partition makes its directory: not part of the curve
        cost, reading = timed(10_000, append), timed(10_000, read)
        first = first or cost
        files = len(os.listdir("/proc/self/fd"))
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
        table.add_row(
            f"{partitions:,}", f"{cost:.1f}", f"{reading:.1f}", str(files), f"{memory:.0f}", f"{cost / first:.2f}"
        )
        row = {"append_us": cost, "read_us": reading, "open_files": files, "memory_mb": memory}
        report.add("partitions", str(partitions), row)
        await manager.close()
        shutil.rmtree(place)
    report.show(table)


def run(report: Report, *, gigabytes: int = 10) -> None:
    base = Path(tempfile.gettempdir())
    free = shutil.disk_usage(base).free
    if free < (gigabytes + 2) * GIGABYTE:
        gigabytes = max(1, int(free / GIGABYTE) - 2)
        print(f"only {free / GIGABYTE:.0f} GB free in {base}: measuring up to {gigabytes} GB")
    with tempfile.TemporaryDirectory(prefix="twofold-growth-") as directory:
        asyncio.run(by_partitions(report, Path(directory) / "many"))
        asyncio.run(by_length(report, Path(directory) / "long", gigabytes))
