"""The windows of producers after a snapshot was loaded: found again in the headers before the snapshot.

A snapshot keeps one batch of each producer, as Apache Kafka's does, and a client may still have five in flight when the
broker stops. Without the other four a retry after the restart would be out of order.

1. A window ends where the producer's sequence numbers do: at 0, at another epoch, or at a gap. Producers of which
   nothing is missing cost nothing.
2. The walk goes backwards from the snapshot, from one entry of an offset index to the one before, and passes over what
   lies between the producers that still miss something. Headers only.
3. It looks at a bounded number of headers. Producers that wrote nothing in so many batches have nothing in flight; they
   keep what the snapshot says.
"""

import logging
from bisect import bisect_left
from collections.abc import Sequence

from twofold.log.producers.entry import WINDOW, BatchMetadata, ProducerEntry
from twofold.log.producers.table import ProducerTable
from twofold.log.segments.scan import InvalidBatch, ProducerFields
from twofold.log.segments.segment import Segment
from twofold.records.batch import CONTROL, SEQUENCE_MAX

log = logging.getLogger("twofold.log")

MOST_HEADERS = 50_000
HEADERS_PER_BLOCK = 4  # what it costs to begin a block, in headers


class _Search:
    """For the batches of one producer before those that are known."""

    __slots__ = ("below", "due_sequence", "entry", "epoch", "found")

    def __init__(self, entry: ProducerEntry) -> None:
        known = entry.window[0]
        self.entry = entry
        self.epoch = entry.epoch
        self.due_sequence = known.first_sequence - 1  # with which the batch before ends
        self.below = known.first_offset
        self.found: list[BatchMetadata] = []  # the newest first


def deepen_windows(producers: ProducerTable, segments: Sequence[Segment], end: int, most: int = MOST_HEADERS) -> None:
    """Complete the windows of a table that was loaded from a snapshot at `end`, as far as they can be found."""
    searches = [_Search(entry) for entry in producers.entries.values() if _misses_some(entry)]
    if not searches:
        return
    try:
        _walk_back(searches, segments, end, most)
    except (OSError, InvalidBatch) as error:
        # A log that can be appended to must open, even if some retries are refused then.
        log.warning("%s: not all duplicates will be recognised: %s", segments[0].prefix, error)
    entries = producers.entries
    for search in searches:
        if search.found:
            entry = search.entry
            entries[entry.producer_id] = entry._replace(window=(*reversed(search.found), *entry.window))


def _misses_some(entry: ProducerEntry) -> bool:
    return len(entry.window) == 1 and entry.window[0].first_sequence > 0


def _walk_back(searches: Sequence[_Search], segments: Sequence[Segment], end: int, most: int) -> None:
    waiting = sorted(searches, key=lambda search: search.below)
    active: dict[int, _Search] = {}
    bases = [segment.base_offset for segment in segments]
    while most > 0 and (active or waiting):
        if not active:
            end = min(end, waiting[-1].below)
        at = bisect_left(bases, end) - 1
        if at < 0:
            return
        block = segments[at].producer_fields_before(end)
        end = block[0][0] if block else bases[at]
        most -= len(block) + HEADERS_PER_BLOCK
        while waiting and waiting[-1].below > end:
            search = waiting.pop()
            active[search.entry.producer_id] = search
        _look_through(block, active)


def _look_through(block: list[ProducerFields], active: dict[int, _Search]) -> None:
    """Hand the batches of a block to the searches, the newest first. Searches that are complete are left out."""
    for base_offset, _, attributes, delta, timestamp, producer_id, epoch, sequence in reversed(block):
        search = active.get(producer_id)
        if search is None:
            continue
        if epoch == search.epoch:
            last_offset = base_offset + delta
            if attributes & CONTROL or last_offset >= search.below:
                continue
            last_sequence = sequence + delta
            if last_sequence > SEQUENCE_MAX:
                last_sequence -= SEQUENCE_MAX + 1
            if last_sequence == search.due_sequence:
                search.found.append(BatchMetadata(last_sequence, last_offset, delta, timestamp))
                search.due_sequence = sequence - 1
                search.below = base_offset
                if sequence and len(search.found) < WINDOW - 1:
                    continue
        del active[producer_id]
