"""What the suites of the cleaner share: keyed batches, a pass on demand, what is left afterwards."""

import asyncio
from typing import Any

from kits.log.partition import NOW, Kit
from twofold.log.api import Bound, Origin
from twofold.log.log import PartitionLog
from twofold.records.batch import BatchBuilder, Header, Record, iter_headers, iter_records
from twofold.records.compression import Codec

COMPACTED: dict[str, Any] = {"cleanup_policy": frozenset({"compact"}), "index_interval_bytes": 200}
DAY_MS = 86_400_000

Pair = tuple[str, str | None]


def keyed(
    *pairs: Pair, pid: int = -1, seq: int = 0, epoch: int = 0, txn: bool = False, codec: Codec = Codec.NONE, **more: Any
) -> bytes:
    """A batch of these keys and values; None is a tombstone."""
    builder = BatchBuilder(
        codec,
        producer_id=pid,
        producer_epoch=epoch if pid >= 0 else -1,
        base_sequence=seq if pid >= 0 else -1,
        transactional=txn,
    )
    timestamp, step_ms = more.pop("timestamp", NOW), more.pop("step_ms", 0)
    for index, (key, value) in enumerate(pairs):
        headers = (("h", key.encode()),) if more.get("headers") else ()
        text = None if value is None else value.encode()
        builder.add(key.encode(), text, timestamp + index * step_ms, headers)
    return builder.build()


class CleanKit(Kit):
    def __init__(self, **more: Any) -> None:
        super().__init__(**{**COMPACTED, **more})

    def put(self, *pairs: Pair, roll: bool = False, origin: Origin = Origin.CLIENT, **more: Any) -> int:
        offset = self.append(keyed(*pairs, **more), origin=origin).base_offset
        if roll:
            self.log.roll()
        return offset

    def clean(self, *, again: bool = False) -> bool:
        """A pass over all that can be cleaned; with `again` also over what was."""
        if again:
            self.log.cleaned_offset = 0
        return asyncio.run(self.manager.cleaner.clean(self.log))

    def roll_and_clean(self) -> None:
        self.log.roll()
        assert self.clean()


def batches(log: PartitionLog, start: int | None = None) -> list[tuple[Header, list[Record]]]:
    """All batches a reader gets, by reading on from where the last read ended."""
    found: list[tuple[Header, list[Record]]] = []
    offset = log.log_start_offset if start is None else start
    while offset < log.log_end_offset:
        data = log.read(offset, 500, Bound.LOG_END).records
        if not data:
            break
        for at, header in iter_headers(data):
            found.append((header, list(iter_records(data, at))))
            offset = header.next_offset
    return found


def pairs(log: PartitionLog, start: int | None = None) -> list[tuple[int, str, str | None]]:
    """(offset, key, value) of every record that is not a marker."""
    return [
        (record.offset, (record.key or b"").decode(), None if record.value is None else record.value.decode())
        for header, records in batches(log, start)
        if not header.is_control
        for record in records
    ]


def offsets(log: PartitionLog) -> list[int]:
    return [offset for offset, _, _ in pairs(log)]


def shapes(log: PartitionLog) -> list[tuple[int, int]]:
    """(last offset, number of records) of every batch."""
    return [(header.last_offset, len(records)) for header, records in batches(log)]


def committed_view(log: PartitionLog) -> dict[str, str]:
    """The table that a read_committed reader builds: the newest value of each key that is not deleted."""
    table: dict[str, str] = {}
    aborted: dict[int, list[int]] = {}
    offset = log.log_start_offset
    end = log.last_stable_offset
    while offset < end:
        result = log.read(offset, 500, Bound.LAST_STABLE)
        if not result.records:
            break
        for transaction in result.aborted or ():
            known = aborted.setdefault(transaction.producer_id, [])
            if transaction.first_offset not in known:
                known.append(transaction.first_offset)
        for at, header in iter_headers(result.records):
            offset = header.next_offset
            _apply(table, aborted, header, list(iter_records(result.records, at)))
    return table


def _apply(table: dict[str, str], aborted: dict[int, list[int]], header: Header, records: list[Record]) -> None:
    """As a client does: from its first offset on a transaction is skipped, up to its marker."""
    known = sorted(aborted.get(header.producer_id, ()))
    if header.is_control:
        aborted[header.producer_id] = [first for first in known if first > header.last_offset]
        return
    if header.is_transactional and known and known[0] <= header.last_offset:
        return
    for record in records:
        key = (record.key or b"").decode()
        if record.value is None:
            table.pop(key, None)
        else:
            table[key] = record.value.decode()
