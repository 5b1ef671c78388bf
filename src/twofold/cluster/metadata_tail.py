"""What a follower of the metadata log holds of it: the end that is not committed yet, and where to fetch next.

1. Batches follow each other without gaps, and each is whole. What is cut off at the end of an answer is dropped; the
   next fetch brings it.
2. Only batches below the high watermark are handed out. Those above it may be replaced after an election.
3. A batch is never cut. A leader whose log parts in the middle of one makes us fetch that batch again.
4. What was handed out stays. A leader that lacks some of it has lost what its quorum had committed (`LostRecords`).
"""

from collections import deque
from typing import NamedTuple

from twofold.records.batch import crc_is_valid, iter_headers, iter_records
from twofold.wire.errors import CorruptMessage


class MetadataBatch(NamedTuple):
    """A batch of the metadata log; `values` are framed metadata records, none of them in a control batch."""

    base_offset: int
    end_offset: int
    epoch: int
    values: tuple[bytes, ...]
    size: int


class LostRecords(Exception):
    """The leader does not have what was committed."""


class MetadataTail:
    def __init__(self) -> None:
        self._pending: deque[MetadataBatch] = deque()
        self._committed_end = 0
        self._committed_epoch = 0  # of the last batch that was handed out

    @property
    def end_offset(self) -> int:
        """Where the next fetch begins."""
        return self._pending[-1].end_offset if self._pending else self._committed_end

    @property
    def last_epoch(self) -> int:
        """Of the last batch that is here."""
        return self._pending[-1].epoch if self._pending else self._committed_epoch

    def restart(self, end_offset: int, epoch: int) -> None:
        """A snapshot stands for all below `end_offset`."""
        self._pending.clear()
        self._committed_end, self._committed_epoch = end_offset, epoch

    def accept(self, data: bytes) -> None:
        """Take in what a fetch brought; CorruptMessage, and nothing is taken in, where it is not what was written."""
        found: list[MetadataBatch] = []
        expected = self.end_offset
        for position, header in iter_headers(data):
            if header.next_offset <= expected:
                continue  # of a fetch that began inside of what is here
            if header.base_offset != expected or not crc_is_valid(data, position, header):
                raise CorruptMessage(
                    f"the metadata batch at offset {header.base_offset} is damaged, or not the one at {expected}"
                )
            values: tuple[bytes, ...] = ()
            if not header.is_control:
                values = tuple(record.value or b"" for record in iter_records(data, position))
            found.append(MetadataBatch(expected, header.next_offset, header.leader_epoch, values, header.size))
            expected = header.next_offset
        self._pending.extend(found)

    def commit(self, high_watermark: int) -> list[MetadataBatch]:
        """The batches that are below the high watermark and were not before."""
        found: list[MetadataBatch] = []
        while self._pending and self._pending[0].end_offset <= high_watermark:
            batch = self._pending.popleft()
            self._committed_end, self._committed_epoch = batch.end_offset, batch.epoch
            found.append(batch)
        return found

    def truncate(self, epoch: int, end_offset: int) -> None:
        """The leader's log and this one part: its records of `epoch`, the newest that both may know, end there."""
        while self._pending and (self._pending[-1].epoch > epoch or self._pending[-1].end_offset > end_offset):
            self._pending.pop()
        if not self._pending and (self._committed_epoch > epoch or self._committed_end > end_offset):
            raise LostRecords(
                f"the leader's metadata of epoch {epoch} ends at offset {end_offset}, and offset "
                f"{self._committed_end - 1} of epoch {self._committed_epoch} was committed before"
            )
