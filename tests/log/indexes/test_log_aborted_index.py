"""Aborted transactions: found where their markers are, in the index of that segment."""

from kits.log.noting import Place
from kits.log.partition import data_batch, marker
from twofold.log.api import AbortedTransaction, Origin
from twofold.log.indexes.txn_index import AbortedEntry
from twofold.types import ProducerId


def aborted_place() -> Place:
    """Transactions of producers 1 and 2 whose markers lie in the second and in the third segment."""
    place = Place()
    place.log.append(data_batch(pid=1, txn=True), leader_epoch=0)
    place.log.append(data_batch(pid=2, txn=True), leader_epoch=0)
    for pid in (1, 2):
        place.log.roll()
        options = {"origin": Origin.COORDINATOR, "leader_epoch": 0, "transaction_version": 0}
        place.log.append(marker(pid, commit=False), **options)  # type: ignore[arg-type]
    place.log.advance_high_watermark(place.log.log_end_offset)
    return place


def test_aborted_transactions_are_found_where_their_markers_are() -> None:
    aborted = aborted_place().log._aborted
    assert aborted.bases == [2, 3]
    assert aborted.between(0, 4) == (AbortedTransaction(ProducerId(1), 0), AbortedTransaction(ProducerId(2), 1))
    assert aborted.between(3, 4) == (AbortedTransaction(ProducerId(2), 1),)
    assert aborted.between(0, 1) == (AbortedTransaction(ProducerId(1), 0),)


def test_a_damaged_transaction_index_is_built_from_the_log_again() -> None:
    place = aborted_place()
    segment = place.log._segments.all[1]
    segment.unload()
    place.log._segments.close_files()
    file = place.disk.open(segment.path(".txnindex"))
    file.truncate(7)
    file.close()
    assert list(place.log._aborted.of(segment).entries()) == [AbortedEntry(ProducerId(1), 0, 2, 1)]


def test_segments_that_go_take_their_aborted_transactions_with_them() -> None:
    aborted = aborted_place().log._aborted
    aborted.bases = [2, 3, 9]
    aborted.replace({2, 3}, 2, has_aborts=True)
    assert aborted.bases == [2, 9]
    aborted.replace({2}, 2, has_aborts=False)
    assert aborted.bases == [9]
    aborted.bases = [2, 3, 9]
    aborted.forget_above(3)
    aborted.forget_below(3)
    assert aborted.bases == [3]
