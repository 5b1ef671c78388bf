"""Stored batches act on a table of producers again, as they did when they were appended."""

import logging
from collections.abc import Sequence

from twofold.log.indexes.txn_index import AbortedEntry
from twofold.log.producers.table import ProducerTable
from twofold.log.segments.segment import Segment
from twofold.records.batch import Buffer, Header
from twofold.records.control import read_end_marker
from twofold.types import NO_TIMESTAMP
from twofold.wire.errors import InvalidRecord, InvalidTxnState

log = logging.getLogger("twofold.log")


def replay(producers: ProducerTable, segments: Sequence[Segment], start: int, end: int) -> None:
    """Bring the table from `start` to `end` by the batches in between."""
    for at, segment in enumerate(segments):
        after = segments[at + 1].base_offset if at + 1 < len(segments) else end
        if after <= start or segment.base_offset >= end:
            continue
        for position, header in segment.headers(segment.position_of(start)):
            if header.base_offset >= end:
                break
            if header.producer_id >= 0:
                batch = segment.read(position, position + header.size) if header.is_control else b""
                replay_batch(producers, header, batch, 0)
    producers.end_offset = end


def replay_batch(producers: ProducerTable, header: Header, buffer: Buffer, at: int) -> AbortedEntry | None:
    """Let a stored batch of a producer act on the table, as it did when it was appended."""
    try:
        marker = None
        if header.is_control:
            marker = read_end_marker(buffer, at)
            if marker is None:  # emptied by compaction: its transaction is gone completely
                return None
        change = producers.evaluate(header, header.base_offset, marker, None, NO_TIMESTAMP)
    except (InvalidTxnState, InvalidRecord) as error:
        log.warning("the batch at offset %d does not change its producer: %s", header.base_offset, error)
        return None
    return producers.apply(change, header)
