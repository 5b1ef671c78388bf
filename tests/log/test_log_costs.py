"""What an append and a read cost does not grow with the log. Counted in operations and bytes, not in time."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from kits.log.partition import DATA, NOW, TP, data_batch, headers, make_runtime, marker
from twofold.config.topic import LogConfig
from twofold.log.api import Bound, Origin
from twofold.log.log import PartitionLog
from twofold.log.manager import LogManager, LogOptions
from twofold.runtime.api import Data, File
from twofold.runtime.sim.disk import SimDisk


@dataclass
class Counts:
    reads: int = 0
    bytes_read: int = 0
    writes: int = 0
    bytes_written: int = 0
    opens: int = 0


class CountedFile:
    def __init__(self, file: File, counts: Counts) -> None:
        self._file = file
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, offset: int, size: int) -> bytes:
        data = self._file.read(offset, size)
        self._counts.reads += 1
        self._counts.bytes_read += len(data)
        return data

    def write(self, offset: int, data: Data) -> None:
        self._counts.writes += 1
        self._counts.bytes_written += len(data)
        self._file.write(offset, data)


class CountedDisk(SimDisk):
    """Counts what reaches it; of each file only the unsynced part is remembered for a crash, so flush now and then."""

    def __init__(self) -> None:
        super().__init__(Random(0))
        self.counts = Counts()

    def open(self, path: str, *, create: bool = False) -> Any:
        self.counts.opens += 1
        return CountedFile(super().open(path, create=create), self.counts)

    def take(self) -> Counts:
        """What was counted since the last time."""
        counts = replace(self.counts)
        self.counts.__init__()  # type: ignore[misc]  # the open files keep counting into this object
        return counts


BATCH = data_batch(value=b"x" * 500)


def filled(segments: int, **config: Any) -> tuple[CountedDisk, PartitionLog]:
    disk = CountedDisk()
    manager = LogManager(make_runtime(disk), DATA, LogOptions(transaction_verification_enabled=False))
    manager.load()
    log = manager.get_or_create(TP, None, LogConfig(segment_bytes=10 * len(BATCH), **config))
    while log.segment_count < segments:
        log.append(BATCH, leader_epoch=0)
    log.append(BATCH, leader_epoch=0)
    log.append(BATCH, leader_epoch=0)
    log.flush()
    log.advance_high_watermark(log.log_end_offset)
    disk.take()
    return disk, log


def cost_of_appends(disk: CountedDisk, log: PartitionLog) -> Counts:
    for _ in range(5):
        log.append(BATCH, leader_epoch=0)
    return disk.take()


def cost_of_reads(disk: CountedDisk, log: PartitionLog) -> list[Counts]:
    """At the start, in the middle and at the end, once warm and once where the indexes are not in memory."""
    log.advance_high_watermark(log.log_end_offset)
    found = []
    end = log.log_end_offset
    for segment in log._segments.all[:-1]:
        segment.unload()
    for offset in (3, end // 2, end - 3, end - 3, end // 2, 3):
        result = log.read(offset, 2 * len(BATCH), Bound.LAST_STABLE)
        assert headers(result.records)[0].base_offset == offset
        found.append(disk.take())
    return found


def test_appends_and_reads_cost_the_same_with_10_and_with_2000_segments() -> None:
    small, large = filled(10), filled(2000)
    assert cost_of_appends(*small) == cost_of_appends(*large) == Counts(writes=5, bytes_written=5 * len(BATCH))
    for few, many in zip(cost_of_reads(*small), cost_of_reads(*large), strict=True):
        assert many.reads <= few.reads + 1
        assert many.bytes_read <= few.bytes_read + 2 * len(BATCH)
        assert many.reads <= 6
        assert many.bytes_read <= 25 * len(BATCH)


def test_a_batch_is_written_once_and_read_once() -> None:
    disk, log = filled(1)
    log.update_config(LogConfig())
    large = data_batch(value=b"y" * 100_000)
    log.append(large, leader_epoch=0)
    assert disk.take() == Counts(writes=1, bytes_written=len(large))
    start = log.log_end_offset
    log.read(start, 1, Bound.LOG_END)
    for _ in range(3):
        log.append(large, leader_epoch=0)
    disk.take()
    assert len(log.read(start, 3 * len(large), Bound.LOG_END).records) == 3 * len(large)
    counts = disk.take()
    assert counts.bytes_read <= 3 * len(large) + 3 * 8192
    log.read(log.log_end_offset, 1 << 20, Bound.LOG_END)
    assert disk.take() == Counts(), "nothing is read where nothing is"


def test_a_reader_that_goes_on_where_it_stopped_reads_only_what_it_gets() -> None:
    disk, log = filled(1)
    log.update_config(LogConfig(index_interval_bytes=0))
    for _ in range(7):
        log.append(BATCH, leader_epoch=0)
    log.read(3, 1, Bound.LOG_END)
    disk.take()
    log.read(4, 2 * len(BATCH), Bound.LOG_END)
    counts = disk.take()
    assert counts.bytes_read == 2 * len(BATCH) + 8
    log.read(6, 100 * len(BATCH), Bound.LOG_END)
    log.append(BATCH, leader_epoch=0)
    disk.take()
    assert len(log.read(log.log_end_offset - 1, 100 * len(BATCH), Bound.LOG_END).records) == len(BATCH)
    assert disk.take() == Counts(reads=1, bytes_read=len(BATCH))


class CountedLookups(dict[Any, Any]):
    """A table that notices being walked."""

    walks = 0

    def values(self) -> Any:
        CountedLookups.walks += 1
        return super().values()

    def __iter__(self) -> Any:
        CountedLookups.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("producers", [10, 3000])
def test_appends_do_not_walk_the_producers_or_the_open_transactions(producers: int) -> None:
    _, log = filled(1)
    log.update_config(LogConfig())
    for pid in range(producers):
        log.append(data_batch(pid=pid, seq=0, txn=True), leader_epoch=0)
    log._producers.table.entries = CountedLookups(log._producers.table.entries)
    CountedLookups.walks = 0
    for pid in range(0, producers, 3):
        log.append(data_batch(pid=pid, seq=1, txn=True), leader_epoch=0)
        log.append(marker(pid, commit=False), origin=Origin.COORDINATOR, leader_epoch=0, transaction_version=0)
        log.advance_high_watermark(log.log_end_offset)
        assert log.last_stable_offset > 0
    assert CountedLookups.walks == 0
    oldest = log.oldest_open_transaction()
    assert oldest is not None and oldest.producer_id == 1


def test_aborted_transactions_are_looked_up_only_where_they_are() -> None:
    disk, log = filled(300)
    log.append(data_batch(pid=7, seq=0, txn=True), leader_epoch=0)
    log.append(marker(7, commit=False), origin=Origin.COORDINATOR, leader_epoch=0, transaction_version=0)
    log.advance_high_watermark(log.log_end_offset)
    log.read(3, 1, Bound.LAST_STABLE)
    disk.take()
    assert log.read(4, 1, Bound.LAST_STABLE).aborted == ()
    assert disk.take().reads <= 3, "not one for each of the 300 segments in between"


def test_a_time_is_found_without_reading_the_log() -> None:
    disk, log = filled(50)
    log.offset_for_timestamp(NOW, Bound.LOG_END)
    disk.take()
    log.offset_for_timestamp(NOW, Bound.LOG_END)
    log.offset_of_max_timestamp(Bound.LOG_END)
    assert disk.take().bytes_read <= 60_000
