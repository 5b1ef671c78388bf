"""Retention by time and size, DeleteRecords, and the files that go."""

from typing import Any

import pytest

from kits.log.partition import DATA, NOW, TP, Kit, data_batch, headers
from twofold.log.api import Bound
from twofold.wire.errors import OffsetOutOfRange

DAY_MS = 86_400_000
SIZE = len(data_batch())


def files(kit: Kit, suffix: str) -> list[str]:
    return [name for name in kit.disk.list(f"{DATA}/{TP}") if name.endswith(suffix)]


def three_segments(**config: Any) -> Kit:
    """Segments [0, 2), [2, 4), [4, 6), whose newest records are 3, 2 and 1 days old."""
    kit = Kit(**{"segment_bytes": 2 * SIZE, **config})
    for index in range(6):
        kit.data(timestamp=NOW - (3 - index // 2) * DAY_MS)
    return kit


@pytest.mark.parametrize(("days", "start"), [(4, 0), (3, 0), (2.5, 2), (1.5, 4), (0.5, 6)])
def test_segments_whose_newest_record_is_too_old_go(days: float, start: int) -> None:
    kit = three_segments(retention_ms=int(days * DAY_MS))
    assert kit.log.apply_retention(NOW) == start // 2
    assert kit.log.log_start_offset == start
    with pytest.raises(OffsetOutOfRange):
        kit.log.read(start - 1, 100, Bound.LOG_END)
    assert kit.data() == 6
    for _ in range(2):
        assert headers(kit.log.read(start, 1, Bound.LOG_END).records)[0].base_offset == start
        kit.crash(power_cut=False)
        assert kit.log.log_start_offset == start


@pytest.mark.parametrize(("segments", "start"), [(9, 0), (3, 0), (2.5, 0), (2, 2), (1.9, 2), (1, 4), (0.5, 4), (0, 6)])
def test_segments_beyond_the_size_limit_go(segments: float, start: int) -> None:
    kit = three_segments(retention_ms=-1, retention_bytes=int(segments * 2 * SIZE))
    kit.log.apply_retention(NOW)
    assert kit.log.log_start_offset == start


def test_records_without_timestamps_age_by_their_file() -> None:
    kit = Kit(segment_bytes=2 * SIZE, retention_ms=DAY_MS)
    for _ in range(3):
        kit.data(timestamp=-1)
    assert kit.log.apply_retention(NOW + DAY_MS) == 0
    assert kit.log.apply_retention(NOW + DAY_MS + 1) == 2
    assert kit.log.log_start_offset == 3


@pytest.mark.parametrize("policy", [{"compact"}, set()])
def test_only_the_delete_policy_deletes(policy: set[str]) -> None:
    kit = Kit(cleanup_policy=frozenset(policy), retention_ms=1, retention_bytes=0)
    kit.data(key=b"k", timestamp=NOW - DAY_MS)
    assert kit.log.apply_retention(NOW) == 0
    assert kit.log.log_start_offset == 0


def test_nothing_at_or_beyond_the_high_watermark_goes() -> None:
    kit = Kit(segment_bytes=2 * SIZE, retention_ms=1)
    for _ in range(6):
        kit.log.append(data_batch(timestamp=NOW - DAY_MS), leader_epoch=0)
    kit.log.advance_high_watermark(3)
    kit.log.apply_retention(NOW)
    assert kit.log.log_start_offset == 2


def test_deleting_records_moves_the_log_start_and_whole_segments_follow() -> None:
    kit = Kit(segment_bytes=2 * SIZE)
    for _ in range(6):
        kit.data()
    kit.log.advance_log_start(3)
    assert kit.log.segment_count == 3
    with pytest.raises(OffsetOutOfRange):
        kit.log.read(2, 100, Bound.LOG_END)
    kit.log.advance_log_start(1)
    assert kit.log.log_start_offset == 3, "it never goes back"
    kit.log.apply_retention(NOW)
    assert kit.log.segment_count == 2
    with pytest.raises(OffsetOutOfRange):
        kit.log.advance_log_start(7)
    kit.restart()
    assert kit.log.log_start_offset == 3


def test_removed_segments_lose_their_names_at_once_and_their_files_later() -> None:
    kit = three_segments(retention_ms=int(2.5 * DAY_MS), file_delete_delay_ms=1000)
    kit.data(7, 0)
    kit.log.apply_retention(NOW)
    assert files(kit, ".log") == [f"{base:020d}.log" for base in (2, 4, 6)]
    assert files(kit, ".deleted") == [f"{0:020d}{suffix}.deleted" for suffix in (".index", ".log", ".timeindex")]
    assert kit.log.take_deleted_files(NOW + 999) == []
    assert len(kit.log.take_deleted_files(NOW + 1000)) == 3
    assert kit.log.take_deleted_files(NOW + 1000) == []
    assert files(kit, ".snapshot") == [f"{base:020d}.snapshot" for base in (2, 4, 6)]


def test_files_that_were_to_be_removed_are_removed_at_the_next_start() -> None:
    kit = three_segments(retention_ms=int(2.5 * DAY_MS))
    kit.log.apply_retention(NOW)
    kit.restart()
    kit.log.ensure_open()
    assert files(kit, ".deleted") == []


def test_retention_keeps_producers() -> None:
    kit = Kit(segment_bytes=SIZE, retention_ms=1)
    kit.data(7, 0, timestamp=NOW - DAY_MS)
    kit.data(timestamp=NOW - DAY_MS)
    kit.log.apply_retention(NOW)
    assert kit.log.log_start_offset == 2
    assert kit.data(7, 0) == 0, "still known as a duplicate"
    kit.crash()
    assert kit.data(7, 1) == 2


def test_the_aborted_transactions_of_removed_segments_are_forgotten() -> None:
    kit = Kit(retention_ms=1)
    kit.data(7, 0, txn=True, timestamp=NOW - DAY_MS)
    kit.mark(7, commit=False, timestamp=NOW - DAY_MS)
    kit.log.roll()
    kit.data()
    kit.log.apply_retention(NOW)
    assert kit.log.read(2, 1000, Bound.LAST_STABLE).aborted == ()
    assert kit.log._aborted.bases == []
