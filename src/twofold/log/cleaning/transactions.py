"""What compaction knows about transactions while it walks a log in the order of its offsets.

1. Data of an aborted transaction goes, all of it. The list of aborted transactions reaches to the end of the last
   segment that is walked, since a transaction is listed where its marker is.
2. A marker may go once nothing of its transaction was met on the way, not even the header of an emptied batch: aborted
   data never outlives the marker that says so.
3. One object sees all segments of a walk: transactions do not end with segments.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from twofold.log.indexes.txn_index import AbortedEntry
from twofold.records.batch import Header
from twofold.records.control import EndMarker


@dataclass(slots=True)
class _Aborted:
    entry: AbortedEntry
    seen: bool = False


class CleanedTransactions:
    __slots__ = ("_aborted", "_committed", "_pending")

    def __init__(self, aborted: Iterable[AbortedEntry]) -> None:
        self._pending = deque(sorted(aborted, key=lambda entry: entry.first_offset))
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()

    def is_aborted(self, header: Header) -> bool:
        """Whether a data batch belongs to a transaction that was aborted; notes that it was met."""
        if not header.is_transactional:
            return False
        self._begin_up_to(header.last_offset)
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        aborted.seen = True
        return True

    def end(self, header: Header, marker: EndMarker) -> tuple[bool, AbortedEntry | None]:
        """(whether a marker may go, the entry that the transaction index needs because of it)."""
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if marker.commit:
            met = producer_id in self._committed
            self._committed.discard(producer_id)
            return not met, None
        aborted = self._aborted.pop(producer_id, None)
        if aborted is None or not aborted.seen:
            return True, None
        return False, aborted.entry

    def _begin_up_to(self, offset: int) -> None:
        pending = self._pending
        while pending and pending[0].first_offset <= offset:
            entry = pending.popleft()
            self._aborted.setdefault(entry.producer_id, _Aborted(entry))
