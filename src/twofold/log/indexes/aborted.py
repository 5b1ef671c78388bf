"""The aborted transactions of one log, over the transaction indexes of all its segments.

1. An aborted transaction stands in the index of the segment that holds its marker, not where its records are.
2. `bases` names the segments that have such an index, in order: a reader looks into no other.
3. A damaged index is built from the log again, when a reader wants it.
"""

import logging
from bisect import bisect_left

from twofold.log.api import AbortedTransaction
from twofold.log.indexes.offset_index import CorruptIndex
from twofold.log.indexes.txn_index import AbortedEntry, TxnIndex
from twofold.log.producers.log_producers import LogProducers
from twofold.log.producers.replay import replay, replay_batch
from twofold.log.producers.snapshot_store import SnapshotStore
from twofold.log.producers.table import ProducerTable
from twofold.log.segments.segment import Segment
from twofold.log.segments.segment_list import SegmentList

log = logging.getLogger("twofold.log")

_new_tuple = tuple.__new__


class AbortedIndex:
    __slots__ = ("bases", "_producers", "_segments")

    def __init__(self, segments: SegmentList, producers: LogProducers) -> None:
        self._segments = segments
        self._producers = producers
        self.bases: list[int] = []

    def add(self, entry: AbortedEntry, segment: Segment) -> None:
        """Note a transaction whose marker was just appended to the active segment."""
        segment.note_aborted(entry)
        if not self.bases or self.bases[-1] != segment.base_offset:
            self.bases.append(segment.base_offset)

    def between(self, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Aborted transactions with records in [start, end); their markers may lie in later segments."""
        found: list[AbortedTransaction] = []
        segments = self._segments
        first = segments.floor_base(start)
        for at in range(bisect_left(self.bases, first), len(self.bases)):
            segment = segments.all[segments.floor(self.bases[at])]
            for producer_id, first_offset, _, stable in self.of(segment).entries(start):
                if first_offset < end:
                    found.append(_new_tuple(AbortedTransaction, (producer_id, first_offset)))
                if stable >= end:
                    return tuple(found)
        return tuple(found)

    def of(self, segment: Segment) -> TxnIndex:
        """A segment's transaction index, built again from the log if its file is damaged."""
        try:
            return segment.txn_index
        except CorruptIndex as error:
            log.warning("%s; building it from the log", error)
            segments = self._segments
            end = segments.end_of(segments.floor(segment.base_offset))
            rebuild_txn_index(segment, segments.all, self._producers.snapshots, end)
            return segment.txn_index

    def forget_above(self, base_offset: int) -> None:
        """The segments after the one with this base are gone."""
        self.bases = [base for base in self.bases if base <= base_offset]

    def forget_below(self, base_offset: int) -> None:
        """The segments before the one with this base are gone."""
        self.bases = [base for base in self.bases if base >= base_offset]

    def replace(self, replaced: set[int], base_offset: int, *, has_aborts: bool) -> None:
        """A new segment took the place of those with the bases `replaced`."""
        kept = [base for base in self.bases if base not in replaced]
        self.bases = sorted([*kept, base_offset]) if has_aborts else kept


def rebuild_txn_index(segment: Segment, segments: list[Segment], snapshots: SnapshotStore, end: int) -> None:
    """Find the aborted transactions of a segment again, by replaying it from the nearest snapshot."""
    producers = ProducerTable()
    loaded = snapshots.load(segment.base_offset)
    start, entries = loaded if loaded is not None else (segments[0].base_offset, [])
    producers.reset(entries, start)
    replay(producers, segments, start, segment.base_offset)
    segment.discard_txn_index()
    for position, header in segment.headers():
        if header.producer_id >= 0 and header.base_offset < end:
            batch = segment.read(position, position + header.size) if header.is_control else b""
            aborted = replay_batch(producers, header, batch, 0)
            if aborted is not None:
                segment.note_aborted(aborted)
    segment.write_indexes()
