"""What a follower of the metadata log holds: nothing above the high watermark is handed out, nothing is lost unseen."""

import pytest

from twofold.cluster.metadata_tail import LostRecords, MetadataTail
from twofold.records.batch import BatchBuilder
from twofold.wire.errors import CorruptMessage


def batch(base_offset: int, *values: bytes, epoch: int = 1, control: bool = False) -> bytes:
    builder = BatchBuilder(base_offset=base_offset, leader_epoch=epoch, control=control)
    for value in values:
        builder.add(b"\0\0\0\2" if control else None, value, 0)
    return builder.build()


def tail_of(*batches: bytes) -> MetadataTail:
    tail = MetadataTail()
    tail.accept(b"".join(batches))
    return tail


def test_only_what_is_below_the_high_watermark_is_handed_out() -> None:
    tail = tail_of(batch(0, b"a", b"b"), batch(2, b"c"), batch(3, b"d"))
    assert [found.values for found in tail.commit(3)] == [(b"a", b"b"), (b"c",)]
    assert tail.end_offset == 4
    assert tail.commit(3) == []
    assert [found.values for found in tail.commit(4)] == [(b"d",)]


def test_a_batch_that_is_committed_in_part_waits() -> None:
    assert tail_of(batch(0, b"a", b"b")).commit(1) == []


def test_a_control_batch_takes_its_offset_and_has_no_values() -> None:
    (found,) = tail_of(batch(0, b"leader", control=True)).commit(1)
    assert (found.values, found.end_offset) == ((), 1)


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    whole = batch(0, b"a")
    tail = tail_of(whole, batch(1, b"b")[:-1])
    assert tail.end_offset == 1


def test_what_is_here_already_is_passed_over() -> None:
    tail = tail_of(batch(0, b"a"), batch(1, b"b"))
    tail.accept(batch(1, b"b") + batch(2, b"c"))
    assert [found.values for found in tail.commit(3)] == [(b"a",), (b"b",), (b"c",)]


@pytest.mark.parametrize("data", [batch(0, b"a")[:-1] + b"\xff", batch(1, b"a")], ids=["damaged", "with a gap"])
def test_what_was_not_written_so_is_refused_as_a_whole(data: bytes) -> None:
    tail = MetadataTail()
    with pytest.raises(CorruptMessage):
        tail.accept(data)
    assert tail.end_offset == 0


def test_records_that_a_new_leader_does_not_have_are_dropped() -> None:
    tail = tail_of(batch(0, b"a"), batch(1, b"b"), batch(2, b"c", epoch=2), batch(3, b"d", epoch=3))
    tail.commit(1)
    tail.truncate(2, 3)
    assert (tail.end_offset, tail.last_epoch) == (3, 2)
    tail.truncate(1, 2)
    assert (tail.end_offset, tail.last_epoch) == (2, 1)


def test_a_log_that_parts_inside_a_batch_drops_the_whole_batch() -> None:
    tail = tail_of(batch(0, b"a"), batch(1, b"b", b"c"))
    tail.truncate(1, 2)
    assert tail.end_offset == 1


def test_a_leader_without_what_was_committed_is_noticed() -> None:
    tail = tail_of(batch(0, b"a"), batch(1, b"b"), batch(2, b"c"))
    tail.commit(2)
    with pytest.raises(LostRecords, match="offset 1 of epoch 1 was committed"):
        tail.truncate(1, 1)


def test_a_snapshot_replaces_all() -> None:
    tail = tail_of(batch(0, b"a"), batch(1, b"b"))
    tail.restart(100, 7)
    assert (tail.end_offset, tail.last_epoch) == (100, 7)
    assert tail.commit(200) == []
