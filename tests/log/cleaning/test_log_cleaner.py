"""Compaction of one log: what stays, what goes, and when."""

import asyncio
from dataclasses import replace
from hashlib import blake2s
from random import Random
from typing import Any

import pytest

from kits.log.cleaning import DAY_MS, CleanKit, batches, committed_view, keyed, offsets, pairs, shapes
from kits.log.partition import DATA, NOW, TP
from kits.log.replay import assert_indexes, stored_batches
from twofold.log.api import Bound, Origin
from twofold.log.options import CleanerOptions, LogOptions
from twofold.records.batch import DELETE_HORIZON, BatchBuilder, iter_headers
from twofold.records.compression import Codec
from twofold.runtime.files import read_file
from twofold.types import TopicPartition
from twofold.wire.errors import OutOfOrderSequenceNumber


def files(kit: CleanKit, suffix: str) -> list[str]:
    return [name for name in kit.disk.list(f"{DATA}/{TP}") if name.endswith(suffix)]


# Keys


def test_the_newest_record_of_each_key_stays_with_its_offset() -> None:
    kit = CleanKit()
    kit.put(("a", "1"), ("b", "1"), ("c", "1"))
    kit.put(("a", "2"))
    kit.put(("b", "2"), roll=True)
    kit.put(("a", "active"))
    assert kit.clean()
    assert pairs(kit.log) == [(2, "c", "1"), (3, "a", "2"), (4, "b", "2"), (5, "a", "active")]
    assert kit.log.cleaned_offset == 5
    assert (kit.log.log_start_offset, kit.log.log_end_offset, kit.log.high_watermark) == (0, 6, 6)


def test_a_batch_keeps_its_header_when_records_go() -> None:
    kit = CleanKit()
    kit.put(("a", "1"), ("b", "1"), ("c", "1"), pid=7, timestamp=NOW - 10, step_ms=3, headers=True)
    kit.put(("c", "2"), roll=True)
    (before, old), _ = batches(kit.log)
    assert kit.clean()
    (after, records), _ = batches(kit.log)
    assert records == old[:2]
    assert after.max_timestamp == NOW - 7
    changed: dict[str, Any] = {"batch_length": 0, "crc": 0, "count": 0, "max_timestamp": 0}
    assert after._replace(**changed) == before._replace(**changed)
    assert after.last_sequence == 2


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_are_compressed_again_as_they_were(codec: Codec) -> None:
    kit = CleanKit()
    kit.put(*((f"key-{index}", "x" * 50) for index in range(20)), codec=codec, headers=True)
    kit.put(("other", "y"), codec=codec)
    untouched = stored_batches(kit.log)[1]
    kit.put(*((f"key-{index}", "z") for index in range(10)), codec=codec, roll=True)
    assert kit.clean()
    assert [offset for offset, _, _ in pairs(kit.log)] == list(range(10, 31))
    assert all(header.codec == codec for header, _ in batches(kit.log))
    assert stored_batches(kit.log)[1] == untouched, "byte for byte"
    assert batches(kit.log)[0][1][0].headers == (("h", b"key-10"),)


def test_long_keys_count_by_all_of_their_bytes() -> None:
    kit = CleanKit()
    long = "k" * 300
    kit.put((long + "1", "1"), (long + "2", "1"), (long[:15], "1"), (long[:16], "1"))
    kit.put((long + "1", "2"), (long[:15], "2"), roll=True)
    kit.clean()
    assert offsets(kit.log) == [1, 3, 4, 5]


def test_a_key_cannot_be_mistaken_for_the_digest_of_another() -> None:
    kit = CleanKit()
    victim = "v" * 40
    digest = blake2s(victim.encode(), digest_size=16).digest()
    kit.put((victim, "1"))
    builder = BatchBuilder()
    builder.add(digest, b"x", NOW)
    kit.append(builder.build())
    kit.log.roll()
    kit.clean()
    assert [header.last_offset for header, _ in batches(kit.log)] == [0, 1]


def test_records_without_a_key_go() -> None:
    kit = CleanKit(cleanup_policy=frozenset({"delete"}))
    kit.data()
    kit.put(("a", "1"), roll=True)
    kit.log.update_config(replace(kit.config, cleanup_policy=frozenset({"compact"})))
    kit.clean()
    assert offsets(kit.log) == [1]


def test_reading_from_any_offset_gives_what_follows() -> None:
    kit = CleanKit(segment_bytes=300)
    for index in range(60):
        kit.put((f"k{index % 7}", str(index)))
    kit.log.roll()
    assert kit.clean()
    everything = pairs(kit.log)
    assert len(everything) == 7
    for start in range(60):
        assert [row for row in pairs(kit.log, start) if row[0] >= start] == [
            row for row in everything if row[0] >= start
        ]


def test_tombstones_stay_for_delete_retention_and_then_go() -> None:
    kit = CleanKit(delete_retention_ms=1000)
    kit.put(("a", "1"), ("b", "1"))
    kit.put(("a", None), roll=True)
    kit.clean()
    assert pairs(kit.log) == [(1, "b", "1"), (2, "a", None)]
    header = batches(kit.log)[1][0]
    assert header.has_delete_horizon and header.base_timestamp == NOW + 1000
    assert batches(kit.log)[1][1][0].timestamp == NOW, "the record has its own time still"
    kit.clock.now_ms += 999
    kit.clean(again=True)
    assert offsets(kit.log) == [1, 2]
    kit.clock.now_ms += 1
    kit.put(("c", "1"), roll=True)
    kit.clean()
    assert offsets(kit.log) == [1, 3]


def test_a_tombstone_that_is_overwritten_goes_at_once() -> None:
    kit = CleanKit()
    kit.put(("a", None))
    kit.put(("a", "2"), roll=True)
    kit.clean()
    assert pairs(kit.log) == [(1, "a", "2")]


# What can be cleaned


def test_the_active_segment_is_never_cleaned() -> None:
    kit = CleanKit()
    kit.put(("a", "1"))
    kit.put(("a", "2"))
    assert not kit.clean()
    assert offsets(kit.log) == [0, 1]


def test_records_younger_than_the_minimum_lag_stay() -> None:
    kit = CleanKit(min_compaction_lag_ms=1000)
    kit.put(("a", "1"), timestamp=NOW - 5000)
    kit.put(("a", "2"), timestamp=NOW - 5000, roll=True)
    kit.put(("a", "3"), timestamp=NOW - 500, roll=True)
    kit.put(("a", "4"))
    kit.clean()
    assert offsets(kit.log) == [1, 2, 3]
    assert kit.log.cleaned_offset == 2
    kit.clock.now_ms += 501
    kit.clean()
    assert offsets(kit.log) == [2, 3]


def test_a_log_is_cleaned_when_its_dirty_part_is_large_enough() -> None:
    kit = CleanKit(min_cleanable_dirty_ratio=0.6, segment_bytes=10_000)
    cleaner = kit.manager.cleaner
    for index in range(10):
        kit.put((f"k{index}", "x"))
    kit.log.roll()
    assert asyncio.run(cleaner.clean_filthiest()), "all of it is dirty"
    for index in range(10):
        kit.put((f"l{index}", "x"))
    kit.log.roll()
    assert not asyncio.run(cleaner.clean_filthiest()), "half of it is"
    for index in range(10):
        kit.put((f"m{index}", "x"))
    kit.log.roll()
    assert asyncio.run(cleaner.clean_filthiest())
    assert not asyncio.run(cleaner.clean_filthiest())


def test_after_the_maximum_lag_a_log_is_cleaned_however_little_is_dirty() -> None:
    kit = CleanKit(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    kit.put(("a", "1"))
    kit.put(("a", "2"), roll=True)
    assert not asyncio.run(kit.manager.cleaner.clean_filthiest())
    kit.clock.now_ms += 1001
    assert asyncio.run(kit.manager.cleaner.clean_filthiest())
    assert offsets(kit.log) == [1]


def test_the_maximum_lag_closes_segments_early() -> None:
    kit = CleanKit(max_compaction_lag_ms=1000)
    kit.put(("a", "1"))
    kit.put(("a", "2"), timestamp=NOW + 1001)
    assert kit.log.segment_count == 2


def test_only_compacted_logs_are_cleaned() -> None:
    kit = CleanKit(cleanup_policy=frozenset({"delete"}))
    kit.put(("a", "1"), roll=True)
    kit.put(("a", "1"), roll=True)
    assert not asyncio.run(kit.manager.cleaner.clean_filthiest())


def test_keys_that_do_not_fit_into_memory_wait_for_the_next_pass() -> None:
    kit = CleanKit(
        options=LogOptions(transaction_verification_enabled=False, cleaner=CleanerOptions(dedupe_buffer_bytes=1000))
    )
    for round_number in range(3):
        for index in range(10):
            kit.put((f"k{index}", str(round_number)))
    kit.log.roll()
    passes = 0
    while kit.log.cleaned_offset < 30:
        before = kit.log.cleaned_offset
        assert kit.clean()
        assert kit.log.cleaned_offset > before
        passes += 1
    assert 3 < passes < 12
    assert offsets(kit.log) == list(range(20, 30))


# Segments


def test_small_segments_become_one_as_far_as_they_fit() -> None:
    kit = CleanKit(segment_bytes=1000)
    for index in range(100):
        kit.put((f"k{index % 10}", str(index)))
    kit.log.roll()
    many = kit.log.segment_count
    kit.clean()
    kit.clean(again=True)
    assert many > 8
    assert kit.log.segment_count == 2
    assert offsets(kit.log) == list(range(90, 100))
    assert files(kit, ".snapshot") == [f"{100:020d}.snapshot"]
    for segment in kit.log._segments.all:
        assert_indexes(kit.log, segment)
        assert segment.size <= 1000
    kit.restart()
    assert offsets(kit.log) == list(range(90, 100))


def test_a_new_segment_ends_where_the_last_of_the_old_ones_begins_or_later() -> None:
    """That is how an opening knows which ones it replaces."""
    size = len(keyed(("a", "1")))
    kit = CleanKit(segment_bytes=2 * size)
    for key in ("a", "b", "b"):
        kit.put((key, "1"), roll=True)
    kit.put(("c", "1"))
    kit.clean()
    assert kit.log._segments.bases == [0, 2, 3]
    assert shapes(kit.log) == [(0, 1), (1, 0), (2, 1), (3, 1)]
    header = batches(kit.log)[1][0]
    assert (header.producer_id, header.base_sequence, header.attributes) == (-1, -1, 0)
    kit.log.update_config(replace(kit.log.config, segment_bytes=10 * size))
    kit.clean(again=True)
    assert shapes(kit.log) == [(0, 1), (2, 1), (3, 1)]


def test_old_files_lose_their_names_and_go_later() -> None:
    kit = CleanKit(file_delete_delay_ms=1000)
    kit.put(("a", "1"), roll=True)
    kit.put(("a", "2"), roll=True)
    kit.clean()
    assert files(kit, ".log") == [f"{0:020d}.log", f"{2:020d}.log"]
    assert len(files(kit, ".deleted")) == 6
    assert not files(kit, ".swap") and not files(kit, ".cleaned")
    assert len(kit.log.take_deleted_files(NOW + 1000)) == 6


def test_a_segment_of_which_nothing_goes_is_left_alone() -> None:
    kit = CleanKit()
    kit.put(("a", "1"), roll=True)
    segment = kit.log._segments.all[0]
    assert kit.clean()
    assert kit.log._segments.all[0] is segment
    assert not files(kit, ".deleted") and not files(kit, ".cleaned")


def test_a_reader_in_the_middle_goes_on() -> None:
    kit = CleanKit()
    for index in range(20):
        kit.put((f"k{index % 2}", str(index)))
    kit.log.roll()
    first = kit.log.read(0, 200, Bound.HIGH_WATERMARK).records
    after = list(iter_headers(first))[-1][1].next_offset
    assert 0 < after < 18
    kit.clean()
    assert [offset for offset, _, _ in pairs(kit.log, after)] == [18, 19]


def test_times_are_found_after_cleaning() -> None:
    kit = CleanKit()
    for index in range(20):
        kit.put((f"k{index % 4}", str(index)), timestamp=NOW + index)
    kit.log.roll()
    kit.clean()
    found = kit.log.offset_for_timestamp(NOW + 3, Bound.LOG_END)
    assert found is not None and found.offset == 16
    newest = kit.log.offset_of_max_timestamp(Bound.LOG_END)
    assert newest is not None and newest.offset == 19


def test_a_time_that_only_an_emptied_batch_has_is_not_found() -> None:
    kit = CleanKit()
    kit.put(("a", "1"), pid=7, timestamp=NOW + 100)
    kit.put(("a", "2"), roll=True)
    kit.clean()
    assert shapes(kit.log) == [(0, 0), (1, 1)]
    newest = kit.log.offset_of_max_timestamp(Bound.LOG_END)
    assert newest is not None and newest[:2] == (1, NOW)
    assert kit.log.offset_for_timestamp(NOW + 50, Bound.LOG_END) is None


def test_compact_and_delete_together_do_both() -> None:
    kit = CleanKit(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=2 * DAY_MS)
    kit.put(("a", "old"), ("b", "old"), timestamp=NOW - 3 * DAY_MS)
    kit.put(("a", "1"), timestamp=NOW - 3 * DAY_MS, roll=True)
    kit.put(("a", "2"), roll=True)
    kit.put(("c", "1"))
    kit.log.update_config(replace(kit.log.config, segment_bytes=100))  # so that they do not become one
    kit.clean()
    assert pairs(kit.log) == [(1, "b", "old"), (3, "a", "2"), (4, "c", "1")]
    assert kit.log.apply_retention(NOW) == 1
    assert kit.log.log_start_offset == 3
    assert pairs(kit.log) == [(3, "a", "2"), (4, "c", "1")]


def test_a_segment_left_empty_does_not_stop_retention() -> None:
    kit = CleanKit(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=DAY_MS, segment_bytes=100)
    kit.put(("a", "1"), timestamp=NOW - 2 * DAY_MS, roll=True)
    kit.put(("a", "2"), timestamp=NOW - 2 * DAY_MS, roll=True)
    kit.put(("a", "3"), roll=True)
    kit.clean()
    assert kit.log._segments.all[0].size == 0
    kit.clock.now_ms += DAY_MS
    kit.put(("b", "1"), timestamp=kit.clock.now_ms)
    kit.clock.now_ms += 1
    kit.log.apply_retention(kit.clock.now_ms)
    assert kit.log.log_start_offset == 3


def test_the_offsets_topic_shrinks_to_about_its_keys() -> None:
    """Many commits of few groups, as __consumer_offsets gets them."""
    kit = CleanKit(segment_bytes=20_000)
    for commit in range(2000):
        kit.put((f"group-{commit % 10}-topic-with-a-name-0", f"offset {commit}"))
    kit.log.roll()
    size = kit.log.size_bytes
    assert kit.clean()
    assert kit.clean(again=True)
    assert len(pairs(kit.log)) == 10
    assert kit.log.size_bytes < size / 100
    assert kit.log.segment_count == 2
    assert kit.log.cleaned_offset == 2000


# Producers and the end of the log


def test_cleaner_last_seq() -> None:
    kit = CleanKit()
    kit.put(("a", "1"), pid=7, seq=0)
    kit.put(("a", "2"), pid=7, seq=1)
    kit.put(("a", "3"), pid=8, seq=0)
    kit.put(("a", "4"), roll=True)
    kit.clean()
    assert shapes(kit.log) == [(1, 0), (2, 0), (3, 1)]
    header = batches(kit.log)[0][0]
    assert (header.producer_id, header.base_sequence, header.count, header.size) == (7, 1, 0, 61)
    before = kit.log.producers()
    for restart in (kit.crash, kit.restart, kit.crash):
        restart()
        assert kit.log.producers() == before
        assert kit.put(("a", "2"), pid=7, seq=1) == 1, "a duplicate is known still"
        with pytest.raises(OutOfOrderSequenceNumber):
            kit.put(("a", "x"), pid=7, seq=3)
    kit.put(("a", "5"), pid=7, seq=2, roll=True)
    kit.clean(again=True)
    assert shapes(kit.log) == [(2, 0), (4, 1)], "the empty one goes when there is a newer one"


def test_state_from_the_log_alone_is_the_same_after_cleaning() -> None:
    kit = CleanKit()
    kit.put(("a", "1"), pid=7, seq=0, txn=True)
    kit.mark(7, 1, ce=3, tv=2)
    kit.put(("a", "2"), pid=8, seq=5)
    kit.put(("a", "3"), roll=True)
    kit.clean()
    kit.log.flush()
    before = kit.log.producers()
    kit.manager.checkpoint()
    kit.crash(power_cut=False)
    for name in files(kit, ".snapshot"):
        kit.disk.remove(f"{DATA}/{TP}/{name}")
    kit.crash(power_cut=False)
    assert kit.log.producers() == before


def test_the_last_batch_below_the_high_watermark_stays_without_records() -> None:
    kit = CleanKit()
    kit.put(("a", "1"))
    kit.put(("b", None), roll=True)
    kit.clean()
    kit.clock.now_ms += 2 * DAY_MS
    kit.clean(again=True)
    assert shapes(kit.log) == [(0, 1), (1, 0)]
    kit.put(("c", "1"), roll=True)
    kit.clean()
    assert shapes(kit.log) == [(0, 1), (2, 1)], "exactly the last one"


def test_cleaner_marker_epoch() -> None:
    """A producer of which only markers are left in the log is known by its last one."""
    kit = CleanKit(delete_retention_ms=0)
    kit.put(("a", "1"), pid=7, txn=True)
    kit.mark(7, 1, ce=4, tv=2)
    kit.put(("a", "2"), roll=True)
    for _ in range(3):
        kit.clock.now_ms += 1
        kit.clean(again=True)
    assert [header.is_control for header, _ in batches(kit.log)] == [True, False]
    row = kit.log.producers()
    for name in files(kit, ".snapshot"):
        kit.disk.remove(f"{DATA}/{TP}/{name}")
    kit.crash(power_cut=False)
    assert kit.log.producers() == row
    assert (row[0].producer_epoch, row[0].coordinator_epoch) == (1, 4)


def test_markers_of_producers_that_are_forgotten_go() -> None:
    kit = CleanKit(delete_retention_ms=0)
    kit.put(("a", "1"), pid=7, txn=True)
    kit.mark(7, 1, tv=2)
    kit.put(("a", "2"), roll=True)
    kit.clean()
    kit.clock.now_ms += 2 * DAY_MS
    kit.log.expire_producers(kit.clock.now_ms)
    for _ in range(3):
        kit.clock.now_ms += 1
        kit.clean(again=True)
    assert offsets(kit.log) == [2]
    assert shapes(kit.log) == [(2, 1)]


# Transactions


def test_cleaner_aborted() -> None:
    kit = CleanKit()
    kit.put(("a", "committed"))
    kit.put(("a", "aborted"), ("b", "aborted"), pid=7, txn=True)
    kit.put(("c", "1"), pid=8, txn=True)
    kit.mark(7, commit=False)
    kit.mark(8)
    kit.put(("d", "1"), pid=7, seq=2, roll=True, origin=Origin.COORDINATOR)
    before = committed_view(kit.log)
    kit.clean()
    assert pairs(kit.log) == [(0, "a", "committed"), (3, "c", "1"), (6, "d", "1")]
    assert committed_view(kit.log) == before == {"a": "committed", "c": "1", "d": "1"}
    assert [header.last_offset for header, _ in batches(kit.log) if header.is_control] == [4, 5]
    assert kit.log.read(0, 10_000, Bound.LAST_STABLE).aborted == ((7, 1),), "listed while the marker is needed"
    kit.clock.now_ms += DAY_MS - 1
    kit.clean(again=True)
    kit.clean(again=True)
    assert [header.last_offset for header, _ in batches(kit.log) if header.is_control] == [4, 5]
    assert kit.log.read(0, 10_000, Bound.LAST_STABLE).aborted == ()
    kit.clock.now_ms += DAY_MS
    kit.clean(again=True)
    assert [header.last_offset for header, _ in batches(kit.log) if header.is_control] == [5]
    assert committed_view(kit.log) == before


def test_cleaner_two_pass() -> None:
    kit = CleanKit(delete_retention_ms=1000)
    kit.put(("a", "1"), pid=7, txn=True)
    kit.mark(7)
    kit.put(("a", "2"), pid=7, seq=1, origin=Origin.COORDINATOR)
    kit.put(("b", "2"), roll=True)
    kit.clean()
    marker = batches(kit.log)[0][0]
    assert marker.is_control and not marker.has_delete_horizon, "data of the transaction was met on the way"
    kit.clean(again=True)
    marker = batches(kit.log)[0][0]
    assert marker.attributes & DELETE_HORIZON and marker.base_timestamp == NOW + 1000
    assert marker.max_timestamp == NOW
    kit.clock.now_ms += 999
    kit.clean(again=True)
    assert batches(kit.log)[0][0] == marker
    kit.clock.now_ms += 1
    kit.clean(again=True)
    assert shapes(kit.log) == [(2, 1), (3, 1)]


def test_a_marker_stays_as_long_as_an_emptied_batch_of_its_transaction() -> None:
    kit = CleanKit(delete_retention_ms=0)
    kit.put(("a", "1"), ("b", "1"), pid=7, txn=True)
    kit.mark(7, commit=False)
    kit.put(("c", "1"), roll=True)
    for _ in range(3):
        kit.clock.now_ms += 1
        kit.clean(again=True)
        assert shapes(kit.log) == [(1, 0), (2, 1), (3, 1)]
        assert kit.log.read(0, 1000, Bound.LAST_STABLE).aborted == ((7, 0),)
    kit.put(("c", "2"), pid=7, seq=2, roll=True, origin=Origin.COORDINATOR)
    kit.clock.now_ms += 1
    kit.clean(again=True)
    assert shapes(kit.log) == [(2, 1), (4, 1)]
    kit.clean(again=True)
    assert shapes(kit.log) == [(2, 1), (4, 1)]
    kit.clean(again=True)
    assert shapes(kit.log) == [(4, 1)]


def test_cleaner_uncleanable() -> None:
    """Nothing at or beyond the last stable offset is touched."""
    kit = CleanKit()
    kit.put(("a", "1"))
    kit.put(("a", "2"), roll=True)
    kit.put(("b", "1"))
    kit.put(("a", "open"), pid=7, txn=True)
    kit.put(("b", "2"), roll=True)
    kit.put(("b", "3"), roll=True)
    assert kit.log.last_stable_offset == 3
    kit.clean()
    assert offsets(kit.log) == [1, 2, 3, 4, 5]
    assert kit.log.cleaned_offset == 2
    assert not kit.clean()
    kit.mark(7)
    kit.clean()
    assert offsets(kit.log) == [3, 5]


def test_an_abort_is_known_where_its_marker_lies_in_a_later_segment() -> None:
    kit = CleanKit()
    kit.put(("a", "1"))
    kit.put(("a", "aborted"), pid=7, txn=True, roll=True)
    kit.put(("b", "1"), roll=True)
    kit.mark(7, commit=False)
    kit.put(("c", "1"), pid=7, seq=1, origin=Origin.COORDINATOR)
    kit.clean()
    assert pairs(kit.log) == [(0, "a", "1"), (2, "b", "1"), (4, "c", "1")]
    assert kit.log.last_stable_offset == 5


def test_an_abort_before_the_dirty_part_says_nothing_about_later_transactions() -> None:
    kit = CleanKit()
    kit.put(("a", "aborted"), pid=7, txn=True)
    kit.mark(7, commit=False)
    kit.put(("b", "1"), pid=7, seq=1, txn=True)
    kit.mark(7)
    kit.log.roll()
    kit.clean()
    kit.put(("b", "2"), pid=7, seq=2, txn=True)
    kit.mark(7)
    kit.log.roll()
    kit.clean()
    assert pairs(kit.log) == [(4, "b", "2")]
    assert committed_view(kit.log) == {"b": "2"}


def test_commits_of_groups_in_transactions_shrink_too() -> None:
    kit = CleanKit(delete_retention_ms=0)
    for index in range(50):
        kit.put(("group", str(index)), pid=7, seq=index, txn=True)
        kit.mark(7, commit=index % 2 == 0)
    kit.log.roll()
    for _ in range(3):
        kit.clock.now_ms += 1
        kit.clean(again=True)
    assert committed_view(kit.log) == {"group": "48"}
    assert shapes(kit.log) == [(96, 1), (97, 1), (98, 0), (99, 1)]


# When things go wrong


def test_a_log_that_cannot_be_cleaned_is_named_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    kit = CleanKit(min_cleanable_dirty_ratio=0.1)
    good = kit.manager.get_or_create(TopicPartition("good", 0), None, kit.config)
    for log in (kit.log, good):
        for index in range(4):
            log.append(keyed(("a", str(index)), ("b", "x" * 100)), leader_epoch=0)
        log.advance_high_watermark(4 * 2)
        log.roll()
    path = kit.log._segments.all[0].log_path
    file = kit.disk.open(path)
    data = file.read(0, file.size())
    file.write(80, bytes([data[80] ^ 1]))
    cleaner = kit.manager.cleaner
    done = [asyncio.run(cleaner.clean_filthiest()) for _ in range(4)]
    assert sorted(done) == [False, False, False, True]
    assert list(cleaner._uncleanable) == [TP]
    assert f"{DATA}/{TP} cannot be compacted" in caplog.text
    assert len(pairs(good)) == 2
    assert read_file(kit.disk, path)[80] == data[80] ^ 1
    assert not files(kit, ".swap")


def test_a_full_disk_stops_the_pass_not_the_log() -> None:
    kit = CleanKit()
    for index in range(20):
        kit.put((f"k{index % 5}", "x" * 100))
    kit.log.roll()
    kit.log.flush()
    kit.disk.set_free_bytes(300)
    assert not kit.clean()
    assert kit.log.failure is None
    assert not kit.manager.cleaner._uncleanable
    assert len(offsets(kit.log)) == 20
    kit.disk.clear_faults()
    assert kit.clean()
    assert len(offsets(kit.log)) == 5


def test_a_log_that_is_cut_meanwhile_is_left_as_it_is() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(kit.manager.cleaner.clean(kit.log))
        for _ in range(stop_after):
            await asyncio.sleep(0)
        kit.log.truncate_to(10)
        await task

    ends = []
    for stop_after in range(60):
        kit = CleanKit()
        for index in range(20):
            kit.put((f"k{index % 5}", "x"))
        kit.log.roll()
        asyncio.run(main())
        end, left = kit.log.log_end_offset, offsets(kit.log)
        ends.append(end)
        assert (end, left) in [(10, list(range(10))), (15, [])], stop_after
        assert not files(kit, ".swap") and not files(kit, ".cleaned"), stop_after
        for restart in (kit.restart, kit.crash):
            restart()
            assert offsets(kit.log) == left
            assert kit.log.log_end_offset == end, "also where all before the cut was compacted away"
    assert set(ends) == {10, 15}, "before and after the swap"


def test_a_topic_that_is_deleted_meanwhile_leaves_nothing() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(kit.manager.cleaner.clean(kit.log))
        for _ in range(stop_after):
            await asyncio.sleep(0)
        kit.manager.delete(TP)
        kit.log = kit.manager.get_or_create(TP, None, kit.config)
        kit.put(("new", "1"))
        await task

    for stop_after in range(60):  # noqa: B007 - main reads it
        kit = CleanKit()
        for index in range(20):
            kit.put((f"k{index % 5}", "x"))
        kit.log.roll()
        asyncio.run(main())
        assert not files(kit, ".swap")
        kit.restart()
        assert pairs(kit.log) == [(0, "new", "1")]
        assert kit.log.cleaned_offset == 0


def test_the_checkpoint_is_kafkas_and_survives() -> None:
    kit = CleanKit()
    kit.put(("a", "1"))
    kit.put(("a", "2"), roll=True)
    kit.clean()
    assert read_file(kit.disk, f"{DATA}/cleaner-offset-checkpoint") == b"0\n1\nevents 0 2\n"
    kit.crash()
    assert kit.log.cleaned_offset == 2
    kit.restart()
    assert kit.log.cleaned_offset == 2
    kit.log.truncate_to(1)
    assert kit.log.cleaned_offset == 1
    assert read_file(kit.disk, f"{DATA}/cleaner-offset-checkpoint") == b"0\n1\nevents 0 1\n"


@pytest.mark.parametrize("lost", ["recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_gaps_between_segments_are_no_holes(lost: str) -> None:
    kit = CleanKit(segment_bytes=300)
    for index in range(60):
        kit.put((f"k{index % 7}", str(index)))
    kit.log.roll()
    kit.clean()
    kit.put(("last", "1"))
    kit.log.flush()
    left = pairs(kit.log)
    kit.disk.remove(f"{DATA}/{lost}")
    kit.crash(power_cut=False)
    assert pairs(kit.log) == left
    assert kit.log.log_end_offset == 61


def test_the_rate_is_bounded() -> None:
    kit = CleanKit(
        options=LogOptions(transaction_verification_enabled=False, cleaner=CleanerOptions(max_bytes_per_second=1000.0))
    )
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)
        kit.clock.now_ms += int(delay_s * 1000)

    kit.manager._runtime.timers.sleep = sleep
    for index in range(20):
        kit.put((f"k{index % 5}", "x" * 1000))
    kit.log.roll()
    size = kit.log.size_bytes
    assert kit.clean()
    assert sum(slept) == pytest.approx(2.25 * size / 1000, rel=0.02), "read twice, a quarter written"


def test_the_cleaner_runs_in_the_background_and_can_be_disabled() -> None:
    for enabled in (True, False):
        options = LogOptions(transaction_verification_enabled=False, cleaner=CleanerOptions(enabled=enabled))
        kit = CleanKit(options=options)
        kit.put(("a", "1"))
        kit.put(("a", "2"), roll=True)

        async def main(kit: CleanKit = kit) -> None:
            task = asyncio.create_task(kit.manager.run_background())
            for _ in range(100):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(main())
        assert offsets(kit.log) == ([1] if enabled else [0, 1])


def test_a_log_that_is_not_open_is_not_opened_for_nothing() -> None:
    kit = CleanKit()
    kit.put(("a", "1"))
    kit.put(("a", "2"), roll=True)
    kit.clean()
    kit.restart()
    asyncio.run(kit.manager.cleaner.clean_filthiest())
    assert not kit.log.is_open
    kit.put(("a", "3"), roll=True)
    kit.put(("a", "4"), roll=True)
    kit.restart()
    assert asyncio.run(kit.manager.cleaner.clean_filthiest())
    assert offsets(kit.log) == [3]


def test_random_bytes_of_values_do_not_disturb() -> None:
    random = Random(5)
    kit = CleanKit()
    for index in range(50):
        kit.put((f"k{index % 9}", "".join(chr(random.randrange(1, 2000)) for _ in range(random.randrange(300)))))
    kit.log.roll()
    before = {key: value for _, key, value in pairs(kit.log)}
    kit.clean()
    assert {key: value for _, key, value in pairs(kit.log)} == before
    assert len(pairs(kit.log)) == 9
