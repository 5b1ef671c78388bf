"""The catalogue of scenarios of a partition log: each is a test of its name, and what was missing.

The table says where; a scenario whose test is renamed or removed fails here.
"""

import asyncio
import importlib

import pytest

from kits.log.partition import DATA, NOW, TP, Kit, headers, marker, marker_of
from twofold.log.api import AbortedTransaction, Bound, MarkersResult, Origin, TransactionMarker
from twofold.log.manager import LogOptions
from twofold.log.producers.snapshots import CorruptProducerSnapshot, decode_snapshot
from twofold.records.batch import crc_is_valid, iter_headers
from twofold.records.control import ControlType, EndMarker, read_end_marker
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.errors import InvalidProducerEpoch, InvalidTxnState, TransactionCoordinatorFenced

P = 7

PRODUCERS, CLEANER = "log.producers.test_log_producers", "log.cleaning.test_log_cleaner"
SCENARIOS = {
    55: (PRODUCERS, "seq-basic"),
    56: (PRODUCERS, "seq-wrap"),
    57: (PRODUCERS, "dup-window"),
    58: (PRODUCERS, "dup-same-epoch-only"),
    59: (PRODUCERS, "dup-after-restart"),
    60: (PRODUCERS, "marker-no-state"),
    61: (PRODUCERS, "marker-bumps-epoch"),
    62: (PRODUCERS, "marker-tv2-strict"),
    63: (PRODUCERS, "marker-tv0-equal"),
    64: (PRODUCERS, "coordinator-fencing"),
    65: (PRODUCERS, "nontxn-in-txn"),
    66: (PRODUCERS, "replica-gaps"),
    67: (PRODUCERS, "offsets-topic-no-seq"),
    68: (PRODUCERS, "first-unstable"),
    69: (PRODUCERS, "lso-completed-order"),
    70: (PRODUCERS, "empty-txn-no-index"),
    71: (PRODUCERS, "late-txn"),
    72: (PRODUCERS, "open-txn-not-expired"),
    73: (PRODUCERS, "snapshot-corrupt"),
    74: (PRODUCERS, "truncate-reload"),
    75: (PRODUCERS, "stray-snapshots"),
    76: (PRODUCERS, "verify-guard"),
    77: (PRODUCERS, "verify-lowest-seq"),
    78: (PRODUCERS, "verify-stale-epoch"),
    79: (PRODUCERS, "tv2-nonzero-first"),
    80: (PRODUCERS, "guard-survives-same-epoch-marker"),
    81: (PRODUCERS, "rc-fetch-empty-abort-list"),
    82: (PRODUCERS, "rc-fetch-cross-segment"),
    83: (PRODUCERS, "delayed-rc-fetch"),  # over the wire: test_write_txn_markers.py
    84: (PRODUCERS, "listoffsets-rc"),
    85: (CLEANER, "cleaner-aborted"),
    86: (CLEANER, "cleaner-last-seq"),
    87: (CLEANER, "cleaner-marker-epoch"),
    88: (CLEANER, "cleaner-uncleanable"),
    89: (CLEANER, "cleaner-two-pass"),
}


@pytest.mark.parametrize(("number", "module", "name"), [(number, *row) for number, row in SCENARIOS.items()])
def test_every_scenario_is_a_test_of_its_name(number: int, module: str, name: str) -> None:
    assert callable(getattr(importlib.import_module(module), f"test_{name.replace('-', '_')}", None)), (number, name)


def test_the_catalogue_is_complete() -> None:
    assert list(SCENARIOS) == list(range(55, 90))


# 60-64 once more, as the coordinator's markers come: several at once, each on its own


def mark(kit: Kit, *markers: TransactionMarker) -> MarkersResult:
    result = kit.log.append_markers(markers, leader_epoch=0)
    kit.log.advance_high_watermark(kit.log.log_end_offset)
    return result


def test_markers_of_several_transactions_are_one_write_with_an_outcome_each() -> None:
    kit = Kit()
    for pid in (1, 2, 3):
        kit.data(pid, 0, epoch=5, txn=True)
    outcomes, appended = mark(
        kit,
        marker_of(1, 6, 9, True),
        marker_of(2, 5, 9, True),  # not higher
        marker_of(3, 5, 9, False, 1),
        marker_of(4, 0, 9, False),
        marker_of(1, 6, 8, True),  # an older coordinator than the first one's
    )
    assert [outcome if isinstance(outcome, int) else type(outcome) for outcome in outcomes] == [
        3,
        InvalidProducerEpoch,
        4,
        5,
        TransactionCoordinatorFenced,
    ]
    assert appended is not None
    assert (appended.base_offset, appended.last_offset) == (3, 5)
    assert kit.log.last_stable_offset == 1, "the transaction of producer 2 is open"
    assert kit.log.read(0, 1000, Bound.LAST_STABLE).aborted == ()
    mark(kit, marker_of(2, 6, 9, True))
    assert kit.log.read(0, 1000, Bound.LAST_STABLE).aborted == (AbortedTransaction(ProducerId(3), 2),)


def test_refused_markers_alone_write_nothing() -> None:
    kit = Kit()
    kit.data(P, 0, epoch=5, txn=True)
    size = kit.log.size_bytes
    outcomes, appended = mark(kit, marker_of(P, 4, 0, True))
    assert [type(outcome) for outcome in outcomes] == [InvalidProducerEpoch]
    assert (appended, kit.log.size_bytes, kit.log.log_end_offset) == (None, size, 1)


@pytest.mark.parametrize("timestamps", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_that_the_log_makes_is_the_one_that_it_would_take(timestamps: str, commit: bool) -> None:
    """`append_markers` and `append` of the same marker: same bytes, same state, also after a crash."""
    kits = [Kit(message_timestamp_type=timestamps) for _ in range(2)]
    for kit in kits:
        kit.data(P, 0, epoch=1, txn=True)
    mark(kits[0], marker_of(P, 2, 4, commit))
    kits[1].append(marker(P, 2, commit=commit, coordinator_epoch=4), origin=Origin.COORDINATOR, transaction_version=2)
    first, second = (kit.log.read(0, 1000, Bound.LAST_STABLE) for kit in kits)
    assert first == second
    for at, header in iter_headers(first.records):
        assert crc_is_valid(first.records, at, header)
        assert header.is_log_append_time is (timestamps == "LogAppendTime")
    assert kits[0].log.producers() == kits[1].log.producers()
    before = kits[0].log.producers()
    assert kits[0].crash(power_cut=False).producers() == before


def test_the_segments_roll_under_markers_too() -> None:
    kit = Kit(segment_bytes=300)
    for number in range(12):
        mark(kit, marker_of(number, 0, 0, True))
    assert kit.log.segment_count == 4
    kit.restart()
    assert len(kit.log.producers()) == 12


def test_a_coordinator_epoch_below_none_is_fenced_for_an_unknown_producer() -> None:
    kit = Kit()
    outcomes, _ = mark(kit, marker_of(P, 0, -2, True), marker_of(P, 0, -1, True))
    assert [type(outcome) for outcome in outcomes] == [TransactionCoordinatorFenced, int]


@pytest.mark.parametrize("how", ["live", "kill", "power cut", "clean", "snapshot", "replica"])
def test_the_marker_of_an_administrator_never_lowers_the_coordinator_epoch(how: str) -> None:
    """It has none (KIP-664): -1 passes, is in the log, and the entry keeps what it had, in replay too."""
    kit = Kit()
    kit.data(P, 0, txn=True)
    mark(kit, marker_of(P, 0, 5, True, 0))
    kit.data(P, 1, txn=True)
    if how == "snapshot":
        kit.log.roll()  # what comes now is replayed onto the snapshot of before
    (offset,), _ = mark(kit, marker_of(P, 0, -1, False, 0, by_hand=True))
    assert offset == 3 and kit.log.last_stable_offset == 4
    assert read_end_marker(kit.log.read(3, 10_000, Bound.LOG_END).records) == EndMarker(ControlType.ABORT, -1)
    if how == "replica":
        stored = kit.log.read(0, 10_000, Bound.LOG_END).records
        kit = Kit()
        kit.log.append_replicated(stored)
        kit.log.advance_high_watermark(4)
    elif how == "power cut":
        asyncio.run(kit.log.sync())
        kit.crash()
    elif how in ("kill", "snapshot"):
        kit.crash(power_cut=False)
    elif how == "clean":
        kit.restart()
    (row,) = kit.log.producers()
    assert (row.producer_epoch, row.coordinator_epoch, row.current_txn_start_offset) == (0, 5, -1)
    kit.data(P, 2, txn=True)
    (refused,), _ = mark(kit, marker_of(P, 0, 4, True, 0))
    assert isinstance(refused, TransactionCoordinatorFenced), "an older coordinator is still known as one"
    (refused,), _ = mark(kit, marker_of(P, 0, -1, True, 0))
    assert isinstance(refused, TransactionCoordinatorFenced), "only an administrator has none"


def test_markers_keep_the_guard_of_the_next_transaction_by_version() -> None:
    """80: a TV2 marker with the epoch that is being verified keeps the guard, an older client's ends it."""
    for version, kept in ((2, True), (0, False)):
        kit = Kit(options=LogOptions(transaction_verification_enabled=True))
        kit.data(P, 0, txn=True, guard=kit.log.start_verification(ProducerId(P), ProducerEpoch(0), 0, True))
        guard = kit.log.start_verification(ProducerId(P), ProducerEpoch(1), 0, True)
        mark(kit, marker_of(P, 1, 0, True, version))
        if kept:
            assert kit.data(P, 0, epoch=1, txn=True, guard=guard) == 2
        else:
            with pytest.raises(InvalidTxnState):
                kit.data(P, 0, epoch=1, txn=True, guard=guard)


# 71


def test_an_open_transaction_is_as_old_as_its_first_append_whatever_happens_to_the_log() -> None:
    """Also behind a snapshot, after a roll, and where the oldest ends: the next one is the oldest then."""
    kit = Kit()
    kit.data(P, 0, txn=True, timestamp=NOW - 9000)
    kit.clock.now_ms += 5000
    kit.data(8, 0, txn=True, timestamp=NOW + 4000)
    kit.log.roll()
    kit.clock.now_ms += 5000
    kit.data(P, 1, txn=True, timestamp=NOW)
    assert kit.log.oldest_open_transaction() == (0, P, 0, NOW, True)
    kit.keep_times()
    kit.clock.now_ms += 5000
    assert kit.crash(power_cut=False).oldest_open_transaction() == (0, P, 0, NOW, True)
    mark(kit, marker_of(P, 1, 0, True))
    assert kit.log.oldest_open_transaction() == (1, 8, 0, NOW + 5000, True)
    mark(kit, marker_of(8, 1, 0, True))
    assert kit.log.oldest_open_transaction() is None


# 73


def test_a_snapshot_with_one_wrong_bit_is_not_believed() -> None:
    kit = Kit()
    for seq in range(3):
        kit.data(P, seq, txn=True)
    kit.stop()
    path = f"{DATA}/{TP}/{3:020d}.snapshot"
    file = kit.disk.open(path)
    data = bytearray(file.read(0, file.size()))
    data[-1] ^= 1
    file.write(0, bytes(data))
    file.close()
    with pytest.raises(CorruptProducerSnapshot, match="CRC"):
        decode_snapshot(bytes(data))
    kit.start()
    (row,) = kit.log.producers()
    assert (row.last_sequence, row.current_txn_start_offset) == (2, 0)
    assert kit.disk.list(f"{DATA}/{TP}").count(f"{3:020d}.snapshot") == 0


# 74


def test_truncating_between_two_markers_opens_the_second_transaction_again() -> None:
    kit = Kit()
    for epoch in range(2):
        kit.data(P, 0, epoch=epoch, txn=True)
        mark(kit, marker_of(P, epoch + 1, 3, False))
    assert kit.log.read(0, 1000, Bound.LAST_STABLE).aborted == (
        AbortedTransaction(ProducerId(P), 0),
        AbortedTransaction(ProducerId(P), 2),
    )
    kit.log.truncate_to(3)
    assert kit.log.last_stable_offset == 2
    (row,) = kit.log.producers()
    assert (row.producer_epoch, row.coordinator_epoch, row.current_txn_start_offset) == (1, 3, 2)
    assert kit.log.read(0, 1000, Bound.LAST_STABLE).aborted == (AbortedTransaction(ProducerId(P), 0),)


# 82


def test_an_abort_is_found_however_many_segments_lie_between() -> None:
    kit = Kit(segment_bytes=200)
    kit.data(P, 0, txn=True)
    for _ in range(20):
        kit.data(count=2)
    mark(kit, marker_of(P, 1, 0, False))
    assert kit.log.segment_count > 10
    for _ in range(2):
        result = kit.log.read(0, 100, Bound.LAST_STABLE)
        assert [header.producer_id for header in headers(result.records)] == [P]
        assert result.aborted == (AbortedTransaction(ProducerId(P), 0),)
        kit.restart()
    tail = kit.log.read(kit.log.log_end_offset - 1, 1000, Bound.LAST_STABLE).records
    found = read_end_marker(tail)
    assert found is not None and not found.commit
