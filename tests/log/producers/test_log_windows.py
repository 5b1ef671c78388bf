"""The window of five batches after a restart: what a snapshot does not say is found in the headers before it."""

import logging
from collections.abc import Callable

import pytest

from kits.log.partition import DATA, TP, Kit, data_batch
from twofold.log.producers.entry import WINDOW, BatchMetadata
from twofold.log.producers.windows import deepen_windows
from twofold.log.segments.segment import Segment
from twofold.records.batch import SEQUENCE_MAX
from twofold.types import ProducerId
from twofold.wire.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber

P = ProducerId(7)


def known(kit: Kit, pid: int = P) -> list[int]:
    """The first sequence numbers in a producer's window."""
    kit.log.ensure_open()
    return [batch.first_sequence for batch in kit.log._producers.table.entries[ProducerId(pid)].window]


def whole_windows(kit: Kit) -> dict[ProducerId, tuple[BatchMetadata, ...]]:
    kit.log.ensure_open()
    return {pid: entry.window for pid, entry in kit.log._producers.table.entries.items()}


def test_windows_are_the_same_after_a_clean_restart() -> None:
    kit = Kit(index_interval_bytes=200)
    sequences = dict.fromkeys(range(1, 8), 0)
    for number in range(80):
        pid = 1 + number * number % 7
        kit.data(pid, sequences[pid], count=1 + number % 3, timestamp=1_700_000_000_000 + number)
        sequences[pid] += 1 + number % 3
        kit.data()
    before = whole_windows(kit)
    assert {len(window) for window in before.values()} == {WINDOW}
    kit.restart()
    assert whole_windows(kit) == before


def test_windows_reach_over_segments() -> None:
    kit = Kit()
    for seq in range(7):
        kit.data(P, seq)
        kit.log.roll()
        kit.data(8, seq)
    kit.restart()
    assert known(kit) == known(kit, 8) == [2, 3, 4, 5, 6]
    assert [kit.data(P, seq) for seq in range(2, 7)] == [4, 6, 8, 10, 12]


def test_windows_survive_a_crash_behind_the_snapshot_of_a_segment() -> None:
    """Recovery starts from the snapshot where the last segment begins."""
    kit = Kit()
    for seq in range(4):
        kit.data(P, seq)
    kit.log.roll()
    kit.data(P, 4)
    kit.log.flush()
    kit.manager.checkpoint()
    kit.crash(power_cut=False)
    assert known(kit) == [0, 1, 2, 3, 4]


def test_windows_survive_a_truncation() -> None:
    kit = Kit()
    for seq in range(6):
        kit.data(P, seq)
    kit.log.roll()
    kit.data(P, 6)
    kit.log.truncate_to(6)
    assert known(kit) == [1, 2, 3, 4, 5]


def test_a_window_begins_with_its_epoch() -> None:
    kit = Kit()
    for seq in range(3):
        kit.data(P, seq, epoch=0)
    for seq in range(3):
        kit.data(P, seq, epoch=1)
    kit.restart()
    assert known(kit) == [0, 1, 2]
    with pytest.raises(InvalidProducerEpoch):
        kit.data(P, 2, epoch=0)


def test_a_marker_of_the_same_epoch_hides_nothing_and_one_of_a_new_epoch_everything() -> None:
    kit = Kit()
    for seq in range(3):
        kit.data(P, seq, txn=True)
        kit.mark(P, epoch=0)
        kit.data(8, seq, txn=True)
    kit.mark(8, epoch=1, tv=2)
    kit.restart()
    assert known(kit) == [0, 1, 2]
    assert known(kit, 8) == []


def test_a_gap_in_the_sequence_ends_the_window() -> None:
    """A producer that was forgotten and came back in the middle of its sequence."""
    kit = Kit()
    for seq in range(3):
        kit.data(P, seq)
    kit.log._producers.table.entries.clear()
    for seq in (50, 51):
        kit.data(P, seq)
    kit.restart()
    assert known(kit) == [50, 51]
    with pytest.raises(OutOfOrderSequenceNumber):
        kit.data(P, 2)


def test_a_batch_over_the_end_of_the_sequence_is_found() -> None:
    kit = Kit()
    for seq, count in ((SEQUENCE_MAX - 5, 3), (SEQUENCE_MAX - 2, 5), (2, 1), (3, 4)):
        kit.data(P, seq, count=count)
    kit.restart()
    assert known(kit) == [SEQUENCE_MAX - 5, SEQUENCE_MAX - 2, 2, 3]
    assert kit.data(P, SEQUENCE_MAX - 2, count=5) == 3


def test_what_retention_took_is_not_in_the_window() -> None:
    kit = Kit()
    for seq in range(3):
        kit.data(P, seq)
    kit.log.roll()
    for seq in range(3, 5):
        kit.data(P, seq)
    kit.log.flush()
    kit.log.advance_log_start(3)
    assert kit.log.apply_retention(0) == 1
    assert known(kit) == [0, 1, 2, 3, 4], "what runs forgets nothing"
    kit.restart()
    assert known(kit) == [3, 4]


def test_offsets_in_transactions_have_no_sequence_to_look_for(count_reads: Callable[[Kit], list[int]]) -> None:
    kit = Kit()
    for _ in range(50):
        kit.data(P, 0, txn=True)
        kit.mark(P, epoch=0)
    kit.restart()
    assert known(kit) == [0]
    assert count_reads(kit) == []


@pytest.fixture
def count_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kit], list[int]]:
    """Deepen the windows once more and say how many batches each step looked at."""

    def count(kit: Kit, most: int = 10**9) -> list[int]:
        steps: list[int] = []
        segment = type(kit.log._segments.all[0])
        real = segment.producer_fields_before

        def counted(self: Segment, offset: int) -> object:
            found = real(self, offset)
            steps.append(len(found))
            return found

        monkeypatch.setattr(segment, "producer_fields_before", counted)
        deepen_windows(kit.log._producers.table, kit.log._segments.all, kit.log.log_end_offset, most)
        monkeypatch.undo()
        return steps

    return count


def shallow(kit: Kit) -> None:
    """Forget all of the windows but what a snapshot says."""
    entries = kit.log._producers.table.entries
    for pid, entry in entries.items():
        entries[pid] = entry._replace(window=entry.window[-1:])


def test_what_lies_between_is_passed_over(count_reads: Callable[..., list[int]]) -> None:
    """An idle producer costs what is around its own batches, not the log behind them."""
    kit = Kit(index_interval_bytes=500)
    kit.data(count=5)
    for seq in range(3):
        kit.data(P, seq)
    for _ in range(3000):
        kit.data()
    shallow(kit)
    steps = count_reads(kit)
    assert known(kit) == [0, 1, 2]
    assert sum(steps) < 50


def test_the_walk_is_bounded(count_reads: Callable[..., list[int]]) -> None:
    kit = Kit(index_interval_bytes=500)
    kit.data(P, 0)
    for _ in range(3000):
        kit.data()
    kit.data(P, 1)
    for seq in range(3):
        kit.data(8, seq)
    shallow(kit)
    assert sum(count_reads(kit, 300)) < 400
    assert known(kit) == [1], "what the snapshot said"
    assert known(kit, 8) == [0, 1, 2], "the newest come first"
    assert sum(count_reads(kit)) > 3000
    assert known(kit) == [0, 1]


def test_a_damaged_old_segment_does_not_keep_the_log_shut(caplog: pytest.LogCaptureFixture) -> None:
    kit = Kit()
    for seq in range(3):
        kit.data(P, seq)
    kit.log.roll()
    for seq in range(3, 5):
        kit.data(P, seq)
    kit.stop()
    file = kit.disk.open(f"{DATA}/{TP}/{0:020d}.log")
    file.write(8, b"\xff" * 4)
    file.close()
    with caplog.at_level(logging.WARNING, "twofold.log"):
        kit.start()
        assert known(kit)[-1] == 4
    assert "not all duplicates" in caplog.text
    assert kit.data(P, 5) == 5


def test_a_log_without_producers_looks_at_nothing(count_reads: Callable[..., list[int]]) -> None:
    kit = Kit()
    kit.append(data_batch(3))
    kit.restart()
    kit.log.ensure_open()
    assert count_reads(kit) == []
