"""Append, read, roll, reopen: what everything else stands on."""

import pytest

from kits.log.partition import DATA, TP, Kit, data_batch, headers
from twofold.log.api import Bound
from twofold.wire.errors import OffsetOutOfRange


def test_nothing_is_on_disk_before_the_first_append() -> None:
    kit = Kit()
    assert not kit.disk.exists(f"{DATA}/{TP}")
    assert kit.log.read(0, 1000, Bound.LOG_END).records == b""
    kit.data()
    assert kit.disk.list(f"{DATA}/{TP}") == ["00000000000000000000.log"]


def test_batches_are_read_back_with_their_offsets_and_epoch() -> None:
    kit = Kit()
    for count in (1, 3, 2):
        kit.append(data_batch(count), leader_epoch=4)
    found = headers(kit.log.read(0, 10_000, Bound.LOG_END).records)
    assert [(header.base_offset, header.last_offset, header.leader_epoch) for header in found] == [
        (0, 0, 4),
        (1, 3, 4),
        (4, 5, 4),
    ]
    assert kit.log.log_end_offset == 6


def test_a_read_inside_a_batch_gives_the_whole_batch() -> None:
    kit = Kit()
    kit.data(count=3)
    kit.data(count=5)
    assert [header.base_offset for header in headers(kit.log.read(5, 10_000, Bound.LOG_END).records)] == [3]


def test_offsets_outside_of_the_log_are_out_of_range() -> None:
    kit = Kit()
    kit.data(count=3)
    assert kit.log.read(3, 100, Bound.LOG_END).records == b""
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRange):
            kit.log.read(offset, 100, Bound.LOG_END)


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_comes_back_after_a_restart(clean: bool) -> None:
    kit = Kit(segment_bytes=2000, index_interval_bytes=200)
    written = [kit.data(count=2, value=b"x" * 100) for _ in range(50)]
    if clean:
        kit.restart()
    else:
        kit.crash(power_cut=False)
    assert kit.log.log_end_offset == 100
    assert kit.log.segment_count > 5
    for offset in written:
        assert headers(kit.log.read(offset, 1, Bound.LOG_END).records)[0].base_offset == offset
    assert kit.data() == 100
