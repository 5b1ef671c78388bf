"""What the batches of a partition say about transactions: which records belong together, and how that ended."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from twofold.records.batch import iter_headers, iter_records
from twofold.records.control import read_end_marker
from twofold.types import TopicPartition


class Fate(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    PLAIN = "not transactional"


class Marker(NamedTuple):
    offset: int
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int = 0


@dataclass(eq=False)
class Block:
    """What one transaction wrote to one partition: from its first batch to its marker."""

    producer_id: int
    first_offset: int
    epochs: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    marker: Marker | None = None

    @property
    def fate(self) -> Fate:
        if self.producer_id < 0:
            return Fate.PLAIN
        if self.marker is None:
            return Fate.OPEN
        return Fate.COMMITTED if self.marker.commit else Fate.ABORTED


class Entry(NamedTuple):
    offset: int
    value: bytes
    block: Block


class LogTruth:
    """A partition from its first batch on, as slow and simple as possible."""

    def __init__(self, topic_partition: TopicPartition, batches: Iterable[bytes] = ()) -> None:
        self.topic_partition = topic_partition
        self.entries: dict[int, Entry] = {}
        self.blocks: list[Block] = []
        self.markers: list[Marker] = []
        self.last_markers: dict[int, Marker] = {}
        """By producer id."""
        self.end = 0
        self._open: dict[int, Block] = {}
        for batch in batches:
            self.add(batch)

    def add(self, data: bytes) -> None:
        for position, header in iter_headers(data):
            self.end = header.base_offset  # compaction leaves holes
            if header.is_control:
                found = read_end_marker(data, position)
                if found is not None:
                    self.mark(header.producer_id, header.producer_epoch, found.commit, found.coordinator_epoch)
            else:
                producer_id = header.producer_id if header.is_transactional else -1
                values = {record.offset: record.value or b"" for record in iter_records(data, position)}
                self.put(producer_id, header.producer_epoch, values)
            self.end = header.next_offset

    def put(self, producer_id: int, epoch: int, values: dict[int, bytes]) -> Block:
        """Records of one batch, at their offsets; a negative producer id stands for no transaction."""
        first = min(values, default=self.end)
        block = self._open.get(producer_id)
        if block is None:
            block = Block(producer_id, first)
            self.blocks.append(block)
            if producer_id >= 0:
                self._open[producer_id] = block
        if epoch not in block.epochs:
            block.epochs.append(epoch)
        for offset, value in values.items():
            block.offsets.append(offset)
            self.entries[offset] = Entry(offset, value, block)
        self.end = max(values, default=self.end - 1) + 1
        return block

    def write(self, producer_id: int, epoch: int, values: Sequence[bytes]) -> Block:
        """The same, at the end."""
        return self.put(producer_id, epoch, dict(enumerate(values, self.end)))

    def mark(self, producer_id: int, epoch: int, commit: bool, coordinator_epoch: int = 0) -> Marker:
        marker = Marker(self.end, producer_id, epoch, commit, coordinator_epoch)
        self.markers.append(marker)
        self.last_markers[producer_id] = marker
        block = self._open.pop(producer_id, None)
        if block is not None:
            block.marker = marker
        self.end += 1
        return marker

    @property
    def open_blocks(self) -> list[Block]:
        return list(self._open.values())

    @property
    def first_open_offset(self) -> int:
        """The LSO may not be beyond this."""
        return min((block.first_offset for block in self._open.values()), default=self.end)

    def committed(self) -> Iterator[Entry]:
        return (entry for entry in self.entries.values() if entry.block.fate in (Fate.COMMITTED, Fate.PLAIN))
