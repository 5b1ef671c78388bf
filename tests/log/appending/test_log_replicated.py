"""A log that follows another one: batches up to an epoch, watermarks that go down, epochs without records."""

import pytest

from kits.log.noting import Place
from kits.log.partition import DATA, Kit, data_batch, headers, marker
from twofold.log.api import Bound
from twofold.log.recovery.checkpoints import HIGH_WATERMARKS, read_offsets
from twofold.types import TopicPartition
from twofold.wire.errors import CorruptMessage

P = 7
TP = TopicPartition("events", 0)


def offsets(kit: Kit) -> list[int]:
    records = b""
    while (more := kit.log.read(kit.log.log_start_offset + len(headers(records)), 1 << 20, Bound.LOG_END).records) and (
        len(headers(records + more)) > len(headers(records))
    ):
        records += more
    return [header.base_offset for header in headers(records)]


def run_of(*epochs: int, start: int = 0) -> bytes:
    """Batches of one record, one for each epoch."""
    return b"".join(data_batch(base_offset=start + at, leader_epoch=epoch) for at, epoch in enumerate(epochs))


# --- up to an epoch ---


def test_batches_of_a_later_epoch_and_all_behind_them_are_left_out():
    kit = Kit()
    kit.log.append_replicated(run_of(3, 3, 4, 3), last_epoch=3)
    assert kit.log.log_end_offset == 2
    assert kit.log.leader_epoch == 3
    kit.log.append_replicated(run_of(4, 4, start=2), last_epoch=4)
    assert (kit.log.log_end_offset, kit.log.leader_epoch) == (4, 4)


def test_epochs_of_replicated_batches_never_fall():
    """A log in which they do would be cut there when it is recovered."""
    kit = Kit()
    kit.log.append_replicated(run_of(3, 4))
    with pytest.raises(CorruptMessage, match="leader epoch 3"):
        kit.log.append_replicated(run_of(3, start=2))
    with pytest.raises(CorruptMessage, match="leader epoch 4"):
        kit.log.append_replicated(run_of(5, 4, start=2))
    assert kit.log.log_end_offset == 2


def test_epochs_come_into_the_cache_as_they_appear_and_survive_a_kill():
    kit = Kit()
    kit.log.append_replicated(run_of(2, 2, 5, 5, 6))
    for log in (kit.log, kit.crash(power_cut=False)):
        assert [log.end_offset_for_epoch(epoch) for epoch in (2, 3, 5, 6)] == [(2, 2), (2, 2), (5, 4), (6, 5)]


# --- pieces ---


def test_what_is_fetched_at_once_fills_as_many_segments_as_it_needs():
    size = len(data_batch())
    kit = Kit(segment_bytes=3 * size)
    kit.log.append_replicated(run_of(*[1] * 8))
    assert [entry[1] for entry in kit.log.segment_sizes()] == [3 * size, 3 * size, 2 * size]
    assert offsets(kit) == list(range(8))
    assert [
        header.base_offset for header in headers(kit.crash(power_cut=False).read(6, 1 << 20, Bound.LOG_END).records)
    ] == [6, 7]


def test_a_hole_that_no_segment_spans_divides_what_is_fetched_at_once():
    kit = Kit()
    far = 2**31 + 4
    kit.log.append_replicated(data_batch(base_offset=7) + data_batch(base_offset=far) + data_batch(base_offset=far + 1))
    assert [header.base_offset for header in headers(kit.log.read(8, 1 << 20, Bound.LOG_END).records)] == [far, far + 1]
    assert kit.crash(power_cut=False).log_end_offset == far + 2


def test_producers_of_all_pieces_are_known():
    batches = [data_batch(2, pid=P, seq=2 * at, base_offset=2 * at, leader_epoch=1, txn=True) for at in range(5)]
    kit = Kit(segment_bytes=len(batches[0]))
    kit.log.append_replicated(b"".join(batches) + marker(P, base_offset=10, leader_epoch=1))
    (row,) = kit.log.producers()
    assert (row.last_sequence, row.current_txn_start_offset) == (9, -1)
    assert kit.crash(power_cut=False).producers() == [row]


def test_a_batch_that_the_leader_should_not_have_taken_is_taken_and_changes_no_producer():
    """A transaction of this producer is open, and the batch is outside of it: a replay passes over it, too."""
    kit = Kit()
    kit.log.append_replicated(data_batch(pid=P, txn=True, leader_epoch=1))
    kit.log.append_replicated(data_batch(pid=P, seq=1, base_offset=1, leader_epoch=1))
    rows = kit.log.producers()
    assert kit.log.log_end_offset == 2
    assert kit.crash(power_cut=False).producers() == rows


def test_a_due_flush_is_left_to_a_caller_that_asks_for_that():
    kit = Kit(flush_messages=2)
    assert not kit.log.append_replicated(run_of(1), defer_flush=True)
    assert kit.log.append_replicated(run_of(1, start=1), defer_flush=True)
    assert kit.log.recovery_point == 0
    kit.log.append_replicated(run_of(1, start=2))
    assert kit.log.recovery_point == 3


# --- the high watermark ---


def test_the_high_watermark_follows_the_leaders_in_both_directions_within_the_log():
    kit = Kit()
    kit.log.append_replicated(run_of(*[1] * 6))
    moves = [(4, True), (4, False), (9, True), (2, True)]
    for offset, moved in moves:
        assert kit.log.take_high_watermark(offset) == moved
    assert (kit.log.high_watermark, kit.log.last_stable_offset) == (2, 2)
    kit.log.take_high_watermark(5)
    kit.log.advance_log_start(3)
    kit.log.take_high_watermark(1)
    assert kit.log.high_watermark == 3


def test_an_open_transaction_holds_the_stable_offset_wherever_the_watermark_goes():
    kit = Kit()
    kit.log.append_replicated(run_of(1, 1) + data_batch(pid=P, txn=True, base_offset=2, leader_epoch=1))
    for offset, stable in ((3, 2), (1, 1), (3, 2)):
        kit.log.take_high_watermark(offset)
        assert kit.log.last_stable_offset == stable


def test_a_watermark_that_a_cut_lowers_is_on_disk_before_the_cut():
    """Else the records that come next at those offsets would count as safe after a kill."""
    kit = Kit()
    kit.log.append_replicated(run_of(*[1] * 6))
    kit.log.take_high_watermark(6)
    kit.manager.checkpoint()
    kit.log.truncate_to(2)
    kit.log.append_replicated(run_of(*[2] * 4, start=2))
    assert read_offsets(kit.disk, f"{DATA}/{HIGH_WATERMARKS}") == {TP: 2}
    recovered = kit.crash(power_cut=False)
    assert (recovered.log_end_offset, recovered.high_watermark) == (6, 2)


def test_a_cut_above_the_watermark_does_not_write_it():
    place = Place()
    place.log.append_replicated(run_of(*[1] * 6))
    place.log.take_high_watermark(3)
    place.log.truncate_to(4)
    place.log.truncate_to(1)
    assert [heard for heard in place.owner.heard if heard.startswith("high")] == ["high watermark 1"]


# --- epochs without records ---


def test_a_cut_at_the_end_forgets_an_epoch_that_got_no_record():
    kit = Kit()
    kit.log.append_replicated(run_of(2, 2))
    kit.log.assign_leader_epoch(5)
    kit.log.truncate_to(2)
    assert kit.log.leader_epoch == 2
    assert kit.log.log_end_offset == 2
    kit.log.truncate_to(7)
    assert kit.log.leader_epoch == 2
    kit.log.append_replicated(run_of(3, start=2))
    assert kit.restart().end_offset_for_epoch(2) == (2, 2)
