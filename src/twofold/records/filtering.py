"""What a reader of committed data may see of fetched bytes. Pure.

A broker hands out whole batches and, for read_committed, the list of aborted transactions that touch them; leaving
out their batches is the reader's work. A producer id is aborted from its entry's first offset up to its next ABORT
marker; a COMMIT marker ends nothing, because it belongs to another transaction of that producer.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop

from twofold.records.batch import Buffer, Header, iter_headers
from twofold.records.control import ControlType, read_control_type


def visible_batches(buf: Buffer, aborted: Iterable[tuple[int, int]] | None) -> Iterator[tuple[int, Header, bool]]:
    """Position and header of every complete batch, and whether its records are for the application.

    `aborted` holds (first offset, producer id) and is None for read_uncommitted. Batches that are not visible are
    passed on too: the reader's position moves over them.
    """
    upcoming = list(aborted or ())
    heapify(upcoming)
    open_aborted: set[int] = set()
    for position, header in iter_headers(buf):
        if aborted is None or not header.has_producer_id:
            yield position, header, not header.is_control
            continue
        while upcoming and upcoming[0][0] <= header.last_offset:
            open_aborted.add(heappop(upcoming)[1])
        if header.is_control:
            if header.producer_id in open_aborted and read_control_type(buf, position) is ControlType.ABORT:
                open_aborted.discard(header.producer_id)
            yield position, header, False
        else:
            yield position, header, not (header.is_transactional and header.producer_id in open_aborted)
