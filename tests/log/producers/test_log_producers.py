"""Producers in a partition: sequences, epochs, duplicates, markers, stability."""

from collections.abc import Callable

import pytest

from kits.log.partition import DATA, NOW, TP, Kit, data_batch, headers, marker
from twofold.log.api import AbortedTransaction, Bound, Origin, ProducerRow
from twofold.log.indexes.txn_index import AbortedEntry, TxnIndex
from twofold.log.manager import LogOptions
from twofold.log.producers.entry import BatchMetadata, ForeignBatch, ProducerEntry
from twofold.log.producers.snapshots import CorruptProducerSnapshot, decode_snapshot, encode_snapshot
from twofold.records.batch import SEQUENCE_MAX
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)

P = ProducerId(7)
VERIFYING = LogOptions(transaction_verification_enabled=True)


def refused(error: type[KafkaError], append: Callable[..., int], *args: object, **options: object) -> None:
    with pytest.raises(error):
        append(*args, **options)


def row(kit: Kit, pid: int = P) -> ProducerRow:
    (found,) = (found for found in kit.log.producers() if found.producer_id == pid)
    return found


def verification(kit: Kit, epoch: int, sequence: int, supports_epoch_bump: bool) -> int | None:
    return kit.log.start_verification(P, ProducerEpoch(epoch), sequence, supports_epoch_bump)


# Sequences and duplicates


def test_seq_basic() -> None:
    kit = Kit()
    assert [kit.data(P, seq) for seq in (0, 1, 2)] == [0, 1, 2]
    assert kit.data(P, 1) == 1
    assert kit.log.log_end_offset == 3
    refused(OutOfOrderSequenceNumber, kit.data, P, 5)
    assert kit.data(P, 0, epoch=1) == 3
    refused(InvalidProducerEpoch, kit.data, P, 3, epoch=0)
    refused(OutOfOrderSequenceNumber, kit.data, P, 1, epoch=2)
    assert kit.log.log_end_offset == 4


def test_seq_wrap() -> None:
    kit = Kit()
    kit.data(P, SEQUENCE_MAX)
    assert kit.data(P, 0) == 1
    assert kit.data(P, 1) == 2
    kit.data(8, SEQUENCE_MAX - 10)
    kit.data(8, SEQUENCE_MAX - 9, count=20)
    assert row(kit, 8).last_sequence == 9
    assert kit.data(8, SEQUENCE_MAX - 9, count=20) == 4, "the wrapped batch is known again"
    assert kit.data(8, 10) == 24
    kit.data(9, SEQUENCE_MAX)
    refused(OutOfOrderSequenceNumber, kit.data, 9, 1)


def test_dup_window() -> None:
    kit = Kit()
    for seq in range(0, 12, 2):
        kit.data(P, seq, count=2)
    assert [kit.data(P, seq, count=2) for seq in (2, 4, 6, 8, 10)] == [2, 4, 6, 8, 10]
    refused(OutOfOrderSequenceNumber, kit.data, P, 0, count=2)
    refused(OutOfOrderSequenceNumber, kit.data, P, 3, count=2)
    refused(OutOfOrderSequenceNumber, kit.data, P, 10, count=1)
    assert kit.log.log_end_offset == 12


def test_duplicate_answers_with_the_original_offsets_and_appends_nothing() -> None:
    kit = Kit(message_timestamp_type="LogAppendTime")
    first = kit.append(data_batch(3, pid=P, seq=0))
    kit.clock.now_ms += 5000
    again = kit.append(data_batch(3, pid=P, seq=0))
    assert again == first._replace(duplicate=True)
    assert first.log_append_time_ms == NOW


def test_dup_same_epoch_only() -> None:
    kit = Kit()
    assert kit.data(P, 0, epoch=0) == 0
    assert kit.data(P, 0, epoch=1) == 1


def test_dup_after_restart() -> None:
    """Apache Kafka knows only the last batch from a snapshot; here the others are found again in the log."""
    for clean in (True, False):
        kit = Kit()
        for seq in range(6):
            kit.data(P, seq)
        kit.restart() if clean else kit.crash(power_cut=False)
        assert [kit.data(P, seq) for seq in range(1, 6)] == [1, 2, 3, 4, 5]
        refused(OutOfOrderSequenceNumber, kit.data, P, 0)
        assert kit.data(P, 6) == 6


def test_sequences_of_an_unknown_producer_may_start_anywhere() -> None:
    assert Kit().data(P, 1000) == 0


def test_a_rejected_batch_leaves_no_trace() -> None:
    kit = Kit()
    kit.data(P, 0)
    before = (kit.log.producers(), kit.log.log_end_offset, kit.log.size_bytes)
    refused(OutOfOrderSequenceNumber, kit.data, P, 2, txn=True)
    refused(OutOfOrderSequenceNumber, kit.data, P, 2, epoch=1)
    assert (kit.log.producers(), kit.log.log_end_offset, kit.log.size_bytes) == before


# Markers


def test_marker_no_state() -> None:
    kit = Kit()
    assert kit.mark(P, epoch=3, tv=2) == 0
    assert row(kit) == ProducerRow(P, ProducerEpoch(3), -1, NOW, 0, -1)
    refused(OutOfOrderSequenceNumber, kit.data, P, 1, epoch=3, txn=True)
    assert kit.data(P, 0, epoch=3, txn=True) == 1


def test_marker_bumps_epoch() -> None:
    kit = Kit()
    kit.data(P, 0, epoch=0, txn=True)
    kit.mark(P, epoch=1, tv=2)
    refused(InvalidProducerEpoch, kit.data, P, 1, epoch=0)
    refused(InvalidProducerEpoch, kit.data, P, 0, epoch=0, txn=True)
    assert kit.data(P, 0, epoch=1, txn=True) == 2


def test_marker_tv2_strict() -> None:
    kit = Kit()
    kit.data(P, 0, epoch=5, txn=True)
    refused(InvalidProducerEpoch, kit.mark, P, epoch=5, tv=2)
    refused(InvalidProducerEpoch, kit.mark, P, epoch=4, tv=2)
    kit.mark(P, epoch=6, tv=2)
    kit.mark(P, epoch=6, tv=2)
    kit.data(P, 0, epoch=32767, txn=True)
    kit.mark(P, epoch=32767, tv=2)
    assert row(kit).current_txn_start_offset == -1


def test_marker_tv0_equal() -> None:
    kit = Kit()
    kit.data(P, 0, epoch=5, txn=True)
    kit.mark(P, epoch=5, tv=0, commit=False)
    assert row(kit).current_txn_start_offset == -1
    refused(InvalidProducerEpoch, kit.mark, P, epoch=4, tv=0)
    assert kit.data(P, 1, epoch=5, txn=True) == 2, "the same epoch keeps the window"


def test_a_plain_batch_of_a_transactional_producer_id_is_foreign() -> None:
    kit = Kit()
    kit.data(P, 0, epoch=5, txn=True)
    refused(ForeignBatch, kit.data, P, 0, epoch=6)
    kit.mark(P, epoch=6, tv=2)
    refused(ForeignBatch, kit.data, P, 0, epoch=6)
    refused(ForeignBatch, kit.data, P, 0, epoch=7)
    refused(InvalidProducerEpoch, kit.data, P, 0, epoch=5)


def test_coordinator_fencing() -> None:
    kit = Kit()
    kit.mark(P, ce=5)
    refused(TransactionCoordinatorFenced, kit.mark, P, ce=4)
    kit.mark(P, ce=5)
    kit.restart()
    refused(TransactionCoordinatorFenced, kit.mark, P, ce=4)
    assert kit.mark(P, ce=6) == 2


def test_nontxn_in_txn() -> None:
    kit = Kit()
    kit.data(P, 0, txn=True)
    refused(InvalidTxnState, kit.data, P, 1, txn=False)
    assert kit.data(P, 1, txn=True) == 1


def test_replica_gaps() -> None:
    kit = Kit()
    kit.log.append_replicated(data_batch(1, pid=P, seq=100, epoch=4, base_offset=10, leader_epoch=2))
    kit.log.append_replicated(data_batch(2, pid=P, seq=7, epoch=3, base_offset=20, leader_epoch=5))
    kit.log.append_replicated(marker(P, 2, coordinator_epoch=9, base_offset=30, leader_epoch=5))
    kit.log.append_replicated(marker(P, 2, coordinator_epoch=8, base_offset=31, leader_epoch=5))
    assert kit.log.log_end_offset == 32
    assert row(kit) == ProducerRow(P, ProducerEpoch(2), -1, NOW, 8, -1)
    assert kit.log.end_offset_for_epoch(2) == (2, 20)


def test_offsets_topic_no_seq() -> None:
    kit = Kit()
    for _ in range(3):
        kit.data(P, 0, origin=Origin.COORDINATOR, txn=True)
    assert kit.log.log_end_offset == 3


# Stability


def append_only(kit: Kit, batch: bytes, origin: Origin = Origin.CLIENT) -> int:
    """Append without moving the high watermark."""
    return kit.log.append(batch, origin=origin, leader_epoch=0, transaction_version=0).base_offset


def fill_to(kit: Kit, offset: int) -> None:
    if kit.log.log_end_offset < offset:
        append_only(kit, data_batch(offset - kit.log.log_end_offset))
    assert kit.log.log_end_offset == offset


def test_first_unstable() -> None:
    kit = Kit()
    fill_to(kit, 10)
    append_only(kit, data_batch(pid=1, txn=True))
    fill_to(kit, 20)
    append_only(kit, data_batch(pid=2, txn=True))
    fill_to(kit, 30)
    append_only(kit, marker(1), Origin.COORDINATOR)
    assert kit.log.last_stable_offset == 0
    kit.log.advance_high_watermark(30)
    assert kit.log.last_stable_offset == 10, "the marker at 30 is not replicated yet"
    kit.log.advance_high_watermark(31)
    assert kit.log.last_stable_offset == 20
    fill_to(kit, 40)
    append_only(kit, marker(2, commit=False), Origin.COORDINATOR)
    kit.log.advance_high_watermark(35)
    assert kit.log.last_stable_offset == 20
    kit.log.advance_high_watermark(41)
    assert kit.log.last_stable_offset == 41


def test_stability_waits_for_the_smallest_first_offset_among_unreplicated_markers() -> None:
    kit = Kit()
    append_only(kit, data_batch(pid=1, txn=True))
    append_only(kit, data_batch(pid=2, txn=True))
    append_only(kit, marker(2), Origin.COORDINATOR)
    append_only(kit, marker(1), Origin.COORDINATOR)
    for high_watermark, stable in ((1, 0), (3, 0), (4, 4)):
        kit.log.advance_high_watermark(high_watermark)
        assert kit.log.last_stable_offset == stable


def aborted_entries(kit: Kit) -> list[AbortedEntry]:
    return [entry for segment in kit.log._segments.all for entry in segment.txn_index.entries()]


def test_lso_completed_order() -> None:
    kit = Kit()
    kit.data(1, 0, txn=True)
    kit.data(2, 0, txn=True)
    kit.mark(1, commit=False)
    kit.mark(2, commit=False)
    assert aborted_entries(kit) == [AbortedEntry(ProducerId(1), 0, 2, 1), AbortedEntry(ProducerId(2), 1, 3, 4)]


def test_empty_txn_no_index() -> None:
    kit = Kit()
    kit.data()
    kit.mark(P, commit=False)
    assert aborted_entries(kit) == []
    assert kit.log.last_stable_offset == 2


def test_late_txn() -> None:
    kit = Kit()
    kit.data(P, 0, txn=True, timestamp=NOW - 5000)
    kit.clock.now_ms += 60_000
    kit.data(P, 1, txn=True, timestamp=NOW)
    kit.data(8, 0, txn=True)
    assert kit.log.oldest_open_transaction() == (0, P, 0, NOW, True)
    kit.restart()
    kit.log.ensure_open()
    assert kit.log.oldest_open_transaction() == (0, P, 0, NOW, True)
    kit.log.truncate_to(0)
    assert kit.log.oldest_open_transaction() is None


def test_open_txn_not_expired() -> None:
    kit = Kit()
    kit.data(P, 0, txn=True)
    kit.data(8, 0)
    later = NOW + 2 * kit.options.producer_id_expiration_ms
    assert kit.log.expire_producers(NOW + kit.options.producer_id_expiration_ms - 1) == 0
    assert kit.log.expire_producers(later) == 1
    assert [found.producer_id for found in kit.log.producers()] == [P]


def test_log_start_beyond_an_open_transaction_clamps_the_stable_offset() -> None:
    kit = Kit()
    kit.data(P, 0, txn=True)
    kit.data(count=4)
    kit.log.advance_log_start(3)
    assert kit.log.last_stable_offset == 3
    assert row(kit).current_txn_start_offset == 0
    kit.mark(P)
    assert kit.log.last_stable_offset == 6


# Snapshots


VECTOR = bytes.fromhex(
    "0001 3aa55dc7 00000001 0000000000000007 0001 00000004 0000000000000068 00000004 0000018bcfe56800 00000003"
    "0000000000000064"
)


def test_snapshot_has_the_bytes_of_kafka() -> None:
    entry = ProducerEntry(
        P, ProducerEpoch(1), 3, NOW, 100, (BatchMetadata(0, 99, 0, NOW - 1), BatchMetadata(4, 104, 4, NOW))
    )
    assert encode_snapshot([entry]) == VECTOR
    assert decode_snapshot(VECTOR) == [entry._replace(window=entry.window[1:])]


@pytest.mark.parametrize("size", range(len(VECTOR)))
def test_a_torn_snapshot_is_refused(size: int) -> None:
    with pytest.raises(CorruptProducerSnapshot):
        decode_snapshot(VECTOR[:size])


def test_aborted_entry_has_the_bytes_of_kafka() -> None:
    vector = bytes.fromhex("0000 0000000000000007 0000000000000064 0000000000000069 000000000000006a")
    index = TxnIndex()
    index.append(AbortedEntry(ProducerId(7), 100, 105, 106))
    assert index.encode() == vector
    assert list(TxnIndex.parse(vector, 100).entries()) == [AbortedEntry(ProducerId(7), 100, 105, 106)]


def snapshots(kit: Kit) -> list[int]:
    names = kit.disk.list(f"{DATA}/{TP}")
    return [int(name[:20]) for name in names if name.endswith(".snapshot")]


def overwrite(kit: Kit, path: str, data: bytes) -> None:
    file = kit.disk.open(path)
    file.truncate(0)
    file.write(0, data)
    file.close()


@pytest.mark.parametrize("damage", [b"", b"\x00\x01", VECTOR[:-1], b"\x00\x02" + VECTOR[2:]])
def test_snapshot_corrupt(damage: bytes) -> None:
    kit = Kit()
    for seq in range(3):
        kit.data(P, seq, txn=True)
    kit.log.roll()
    kit.data(P, 3, txn=True)
    kit.stop()
    assert snapshots(kit) == [3, 4]
    overwrite(kit, f"{DATA}/{TP}/{4:020d}.snapshot", damage)
    kit.start()
    assert row(kit) == ProducerRow(P, ProducerEpoch(0), 3, NOW, -1, 0)
    assert snapshots(kit) == [3]
    assert kit.data(P, 3, txn=True) == 3
    assert kit.data(P, 4, txn=True) == 4


def test_state_is_replayed_where_no_snapshot_is_left() -> None:
    kit = Kit(segment_bytes=300)
    for seq in range(10):
        kit.data(P, seq, txn=True)
    kit.stop()
    for offset in snapshots(kit):
        kit.disk.remove(f"{DATA}/{TP}/{offset:020d}.snapshot")
    kit.start()
    assert row(kit) == ProducerRow(P, ProducerEpoch(0), 9, NOW, -1, 0)
    assert [kit.data(P, seq, txn=True) for seq in range(5, 10)] == [5, 6, 7, 8, 9]


def test_truncate_reload() -> None:
    kit = Kit()
    kit.data(count=2)
    kit.data(P, 0, txn=True)
    kit.data(P, 1, txn=True)
    kit.mark(P, commit=False)
    kit.log.roll()
    kit.data(count=3)
    kit.log.truncate_to(4)
    assert row(kit).current_txn_start_offset == 2
    assert kit.log.last_stable_offset == 2
    assert aborted_entries(kit) == []
    kit.log.truncate_to(2)
    assert P not in [found.producer_id for found in kit.log.producers()]
    assert (kit.log.log_end_offset, kit.log.last_stable_offset, kit.log.high_watermark) == (2, 2, 2)


def test_stray_snapshots() -> None:
    kit = Kit()
    for _ in range(3):
        kit.data(P, kit.log.log_end_offset, count=2)
        kit.log.roll()
    kit.data(P, 6, count=2)
    kit.stop()
    for stray in (1, 3, 7):
        file = kit.disk.open(f"{DATA}/{TP}/{stray:020d}.snapshot", create=True)
        file.write(0, encode_snapshot([]))
    kit.start()
    kit.log.ensure_open()
    assert snapshots(kit) == [2, 4, 6, 8]


def test_a_full_truncation_forgets_producers() -> None:
    kit = Kit()
    kit.data(P, 0, txn=True)
    kit.log.truncate_fully_and_start_at(100)
    assert kit.log.producers() == []
    assert (kit.log.log_start_offset, kit.log.log_end_offset, kit.log.last_stable_offset) == (100, 100, 100)
    assert kit.data(P, 55) == 100
    kit.crash(power_cut=False)
    assert (kit.log.log_start_offset, kit.log.log_end_offset) == (100, 101)


# Verification


def test_verify_guard() -> None:
    kit = Kit(options=VERIFYING)
    refused(InvalidTxnState, kit.data, P, 0, txn=True)
    guard = verification(kit, 0, 0, False)
    assert guard is not None
    refused(InvalidTxnState, kit.data, P, 0, txn=True, guard=guard + 1)
    assert kit.data(P, 0, txn=True, guard=guard) == 0
    assert verification(kit, 0, 1, False) is None
    assert kit.data(P, 1, txn=True) == 1, "an open transaction needs no guard"
    kit.mark(P, epoch=0)
    refused(InvalidTxnState, kit.data, P, 2, txn=True, guard=guard)
    new = verification(kit, 0, 2, False)
    assert new != guard
    kit.mark(P, epoch=0)
    refused(InvalidTxnState, kit.data, P, 2, txn=True, guard=new)
    assert Kit().data(P, 0, txn=True) == 0, "verification is off"


def test_an_idempotent_batch_needs_no_verification() -> None:
    assert Kit(options=VERIFYING).data(P, 0) == 0


def test_a_duplicate_is_answered_without_a_guard() -> None:
    kit = Kit(options=VERIFYING)
    kit.data(P, 0, txn=True, guard=verification(kit, 0, 0, False))
    kit.mark(P, epoch=0)
    assert kit.data(P, 0, txn=True) == 0


def test_verify_lowest_seq() -> None:
    kit = Kit(options=VERIFYING)
    guard = verification(kit, 0, 1, False)
    assert verification(kit, 0, 0, False) == guard
    refused(OutOfOrderSequenceNumber, kit.data, P, 1, txn=True, guard=guard)
    assert kit.data(P, 0, txn=True, guard=guard) == 0
    assert kit.data(P, 1, txn=True, guard=guard) == 1


def test_verify_stale_epoch() -> None:
    kit = Kit(options=VERIFYING)
    kit.data(P, 0, epoch=2)
    with pytest.raises(InvalidProducerEpoch):
        verification(kit, 1, 0, True)
    refused(InvalidProducerEpoch, kit.data, P, 0, epoch=1, txn=True)


def test_tv2_nonzero_first() -> None:
    kit = Kit(options=VERIFYING)
    refused(OutOfOrderSequenceNumber, kit.data, P, 3, txn=True, guard=verification(kit, 0, 3, True))
    kit = Kit(options=VERIFYING)
    assert kit.data(P, 3, txn=True, guard=verification(kit, 0, 3, False)) == 0


def test_guard_survives_same_epoch_marker() -> None:
    kit = Kit(options=VERIFYING)
    kit.data(P, 0, epoch=0, txn=True, guard=verification(kit, 0, 0, True))
    guard = verification(kit, 1, 0, True)
    kit.mark(P, epoch=1, tv=2)
    assert kit.data(P, 0, epoch=1, txn=True, guard=guard) == 2


def test_verifications_expire_with_their_producers() -> None:
    kit = Kit(options=VERIFYING)
    guard = verification(kit, 0, 0, True)
    kit.log.expire_producers(NOW + kit.options.producer_id_expiration_ms)
    refused(InvalidTxnState, kit.data, P, 0, txn=True, guard=guard)


# Reading committed


def test_rc_fetch_empty_abort_list() -> None:
    kit = Kit()
    kit.data(P, 0, txn=True)
    result = kit.log.read(0, 1000, Bound.LAST_STABLE)
    assert (result.records, result.aborted, result.last_stable_offset) == (b"", (), 0)
    assert kit.log.read(0, 1000, Bound.HIGH_WATERMARK).aborted is None


def test_rc_fetch_cross_segment() -> None:
    kit = Kit()
    kit.data(P, 0, txn=True)
    kit.log.roll()
    kit.data(count=2)
    kit.log.roll()
    kit.mark(P, commit=False)
    for _ in range(2):
        result = kit.log.read(0, 1000, Bound.LAST_STABLE)
        assert [header.producer_id for header in headers(result.records)] == [P]
        assert result.aborted == (AbortedTransaction(P, 0),)
        assert kit.log.read(1, 1000, Bound.LAST_STABLE).aborted == (AbortedTransaction(P, 0),), "still open there"
        kit.restart()


def test_aborts_in_several_later_segments_are_all_found() -> None:
    kit = Kit()
    for pid in (1, 2, 3):
        kit.data(pid, 0, txn=True)
    for pid in (3, 1, 2):
        kit.log.roll()
        kit.mark(pid, commit=False)
    aborted = kit.log.read(0, 1000, Bound.LAST_STABLE).aborted
    assert aborted is not None
    assert sorted(aborted) == [(1, 0), (2, 1), (3, 2)]
    assert kit.log.read(4, 1000, Bound.LAST_STABLE).aborted == ((1, 0), (2, 1))


def test_delayed_rc_fetch() -> None:
    kit = Kit()
    kit.data(P, 0, txn=True)
    assert kit.log.read(0, 1000, Bound.LAST_STABLE).records == b""
    kit.mark(P, commit=False)
    result = kit.log.read(0, 1000, Bound.LAST_STABLE)
    assert len(headers(result.records)) == 2
    assert result.aborted == (AbortedTransaction(P, 0),)


def test_a_read_stops_before_the_first_unstable_batch() -> None:
    kit = Kit()
    kit.data(count=3)
    kit.data(count=2)
    kit.data(P, 0, txn=True)
    kit.data(count=2)
    assert [header.base_offset for header in headers(kit.log.read(1, 1000, Bound.LAST_STABLE).records)] == [0, 3]
    assert kit.log.read(5, 1000, Bound.LAST_STABLE).records == b""
    assert kit.log.read(6, 1000, Bound.LAST_STABLE).records == b""


def test_listoffsets_rc() -> None:
    kit = Kit()
    for index in range(5):
        kit.data(timestamp=NOW + index)
    kit.data(P, 0, txn=True, timestamp=NOW + 5)
    kit.data(timestamp=NOW + 6)
    kit.data(timestamp=NOW + 7)
    assert kit.log.bound(Bound.LAST_STABLE) == 5
    assert kit.log.bound(Bound.HIGH_WATERMARK) == 8
    assert kit.log.offset_for_timestamp(NOW + 7, Bound.LAST_STABLE) is None
    assert kit.log.offset_for_timestamp(NOW + 7, Bound.HIGH_WATERMARK) == (7, NOW + 7, 0)
    assert kit.log.offset_for_timestamp(NOW + 3, Bound.LAST_STABLE) == (3, NOW + 3, 0)
