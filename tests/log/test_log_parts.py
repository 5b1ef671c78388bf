"""Each part of a log keeps its own rules: bounds, segments, producers, reading, truncation, opening.

Durability and the aborted transactions have modules of their own in the rooms beside this one.
"""

import gc
import importlib
import pkgutil
import weakref

import pytest

import twofold.log
from kits.log.noting import DIRECTORY, Place
from kits.log.partition import NOW, data_batch, headers
from twofold.log.api import Bound
from twofold.log.bounds import LogBounds
from twofold.log.log import PartitionLog
from twofold.log.producers.table import ProducerTable
from twofold.log.recovery.epochs import EpochCache
from twofold.log.recovery.rescue import has_sync_failed
from twofold.wire.errors import OffsetOutOfRange

# The whole


def test_no_class_of_the_log_has_more_than_one_ancestor_in_it() -> None:
    found = {}
    for module in pkgutil.walk_packages(twofold.log.__path__, "twofold.log."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, type) and value.__module__.startswith("twofold.log"):
                found[name] = sum(one.__module__.startswith("twofold.log") for one in value.__mro__)
    assert found["PartitionLog"] == 1
    assert max(found.values()) <= 2, found


def test_a_log_without_users_goes_without_a_collection() -> None:
    """What was made while the broker started is never collected: a circle of references would stay for good."""
    place = Place()
    place.append()
    place.log.truncate_to(0)
    gone = weakref.ref(place.log)
    gc.disable()
    try:
        place.log = place.new_log()
        assert gone() is None
    finally:
        gc.enable()


# Bounds


def test_bounds_never_show_a_reader_what_is_beyond_its_bound() -> None:
    bounds = LogBounds(2, 10, 7, 0)
    bounds.last_stable_offset = 5
    assert [bounds.of(bound) for bound in Bound] == [10, 7, 5]


@pytest.mark.parametrize(("checkpointed", "clamped"), [(0, 2), (2, 2), (7, 7), (10, 10), (11, 10)])
def test_a_checkpointed_high_watermark_is_clamped_to_what_is_left_of_the_log(checkpointed: int, clamped: int) -> None:
    assert LogBounds(2, 10, checkpointed, 0).clamped_high_watermark() == clamped


def test_the_last_stable_offset_stays_at_the_oldest_open_transaction_but_not_below_the_log_start() -> None:
    place = Place()
    place.append(3)
    place.log.append(data_batch(pid=1, txn=True), leader_epoch=0)
    place.append(2)
    table, bounds = place.log._producers.table, place.log._bounds
    assert (bounds.last_stable_offset, bounds.high_watermark) == (3, 6)
    bounds.log_start_offset = 5
    bounds.update_stable(table)
    assert bounds.last_stable_offset == 5
    bounds.set_high_watermark(6, ProducerTable())
    assert bounds.last_stable_offset == 6


# Segments


def test_segments_are_found_by_their_offsets() -> None:
    place = Place()
    for _ in range(3):
        place.append(4)
        place.log.roll()
    segments = place.log._segments
    assert segments.bases == [0, 4, 8, 12]
    assert [segments.floor(offset) for offset in (0, 3, 4, 11, 12, 99)] == [0, 0, 1, 2, 3, 3]
    assert segments.floor_base(9) == 8
    place.append()
    assert [segments.end_of(at) for at in range(4)] == [4, 8, 12, 13]
    assert place.owner.heard == [f"rolled, {count} segments" for count in (2, 3, 4)]


def test_a_removed_segment_leaves_its_name_at_once_and_its_files_after_the_delay() -> None:
    place = Place(file_delete_delay_ms=60_000)
    place.append()
    place.log.roll()
    segments = place.log._segments
    segments.remove(segments.all[:1])
    assert segments.bases == [1]
    assert not place.disk.exists(f"{DIRECTORY}/{0:020d}.log")
    assert segments.take_deleted_files(NOW + 59_999) == []
    due = segments.take_deleted_files(NOW + 60_000)
    assert f"{DIRECTORY}/{0:020d}.log.deleted" in due
    assert segments.take_deleted_files(NOW + 60_000) == [], "each file is given once"


def test_nothing_is_on_disk_before_the_first_append() -> None:
    place = Place()
    assert not place.disk.exists(DIRECTORY)
    place.append()
    assert place.disk.exists(f"{DIRECTORY}/{0:020d}.log")


# Producers


def test_a_cut_brings_the_producers_back_to_what_they_were() -> None:
    place = Place()
    for sequence in range(3):
        place.log.append(data_batch(pid=5, seq=sequence), leader_epoch=0)
    place.log.append(data_batch(pid=6, txn=True), leader_epoch=0)
    producers = place.log._producers
    producers.reload(place.log._segments.all, 2)
    assert [(row.producer_id, row.last_sequence) for row in producers.table.rows()] == [(5, 1)]
    assert not list(producers.table.open_transactions())


def test_a_snapshot_is_written_once_per_offset() -> None:
    place = Place()
    place.log.append(data_batch(pid=5), leader_epoch=0)
    producers = place.log._producers
    producers.snapshot_at(1)
    path = producers.snapshots.path(1)
    place.disk.remove(path)
    producers.snapshot_at(1)
    assert not place.disk.exists(path), "it is known already"
    assert producers.snapshots.offsets() == [1]


def test_the_times_of_producers_are_taken_once_per_log_end() -> None:
    place = Place()
    assert place.log.take_times() is None
    place.log.append(data_batch(pid=5), leader_epoch=0)
    assert place.log.take_times() is not None
    assert place.log.take_times() is None
    place.log._producers.forget_times()
    assert place.log.take_times() is not None


# Reading


def test_a_reader_goes_over_segments_without_an_offset_for_it() -> None:
    place = Place()
    place.append(2)
    place.log.roll()
    place.append(2)
    reader = place.log._reader
    found = [headers(reader.read(offset, 1, Bound.LOG_END, True).records)[0].base_offset for offset in range(4)]
    assert found == [0, 1, 2, 3]
    assert reader.read(4, 1, Bound.LOG_END, True).records == b""
    with pytest.raises(OffsetOutOfRange, match=r"offset 5 is outside of \[0, 4\]"):
        reader.read(5, 1, Bound.LOG_END, True)


# Truncation


def test_a_lower_recovery_point_is_told_before_the_first_file_changes() -> None:
    place = Place()
    place.append(5)
    place.log.flush()

    def look(log: PartitionLog) -> None:
        place.owner.heard.append(f"{log.recovery_point} of {log.log_end_offset}")

    place.owner.recovery_point_changed = look
    place.log.truncate_to(2)
    assert place.owner.heard == ["2 of 5", "high watermark 2"]
    assert place.log.log_end_offset == 2


def test_the_log_start_moves_up_to_the_high_watermark_only() -> None:
    place = Place()
    place.append(3)
    truncation = place.log._truncation()
    with pytest.raises(OffsetOutOfRange, match="cannot move to 4, the high watermark is 3"):
        truncation.advance_log_start(4)
    truncation.advance_log_start(2)
    truncation.advance_log_start(1)
    assert place.log.log_start_offset == 2


# Opening


def test_a_log_that_was_closed_cleanly_is_not_recovered_and_one_whose_sync_failed_is() -> None:
    place = Place()
    place.append(3)
    place.log.close()
    opened = place.new_log(exists=True, closed_cleanly=True, recovery_point=3)
    assert opened._unopened is not None and opened._unopened.skip_recovery_on_open
    assert (opened.segment_count, opened.size_bytes) == (1, place.log.size_bytes)
    opened.ensure_open()
    assert opened._durability.unchanged_since_clean_shutdown
    opened.mark_sync_failed()
    again = place.new_log(exists=True, closed_cleanly=True, recovery_point=3)
    again.ensure_open()
    assert not again._durability.unchanged_since_clean_shutdown
    assert not again.sync_failed and not has_sync_failed(place.disk, DIRECTORY)
    assert again.log_end_offset == 3


def test_epochs_that_are_taken_over_replace_what_was_known() -> None:
    epochs = EpochCache([(1, 0)])
    epochs.adopt(EpochCache([(2, 5), (4, 9)]))
    assert (epochs.latest, epochs.entries()) == (4, [(2, 5), (4, 9)])
    epochs.clear()
    assert (epochs.latest, epochs.entries()) == (-1, [])
