"""One pass of compaction over a log: the keys of the dirty part are mapped, then all segments are written anew.

1. It works on sealed segments, which do not change, with files and indexes of its own: it may run in any thread. It
   runs in slices; after each it says how many bytes it read and wrote.
2. Nothing that it writes has a name that counts (`.cleaned`) until the log swaps it in.
3. A batch that loses nothing is copied byte for byte. Offsets never change.
4. The last data batch of a producer that the log still knows keeps at least its header (KAFKA-5490), as does the batch
   that ends at the high watermark (KAFKA-17076), so that sequences and the end of the log survive. Where a producer has
   only markers its last ones stay.
5. Tombstones and markers go in two steps. A pass that finds them no longer needed writes into their batch how long they
   stay. A pass after that time removes them (KAFKA-8522).
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from twofold.config.topic import LogConfig
from twofold.log.cleaning.records import OffsetMap, emptied, placeholder, rewrite, section_of, select
from twofold.log.cleaning.transactions import CleanedTransactions
from twofold.log.indexes.cache import IndexCache
from twofold.log.indexes.offset_index import MAX_RELATIVE_OFFSET
from twofold.log.indexes.txn_index import AbortedEntry, TxnIndex
from twofold.log.producers.entry import ProducerEntry
from twofold.log.segments.files import FilePool
from twofold.log.segments.scan import iter_checked
from twofold.log.segments.segment import CLEANED_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, Segment
from twofold.records.batch import LOG_OVERHEAD, Header, read_header
from twofold.records.control import read_end_marker
from twofold.records.spans import iter_spans
from twofold.runtime.api import Disk
from twofold.runtime.files import read_file
from twofold.types import ProducerId

OPEN_FILES = 8
SLICE_COST = 800  # in records; a few milliseconds
BATCH_COST = 4
WRITE_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class SealedSource:
    """What a thread may know of a sealed segment."""

    prefix: str
    log_path: str
    base_offset: int
    end_offset: int
    size: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """All that a pass needs to know of its log, as of the time it was made."""

    directory: str
    config: LogConfig
    sources: tuple[SealedSource, ...]  # from the first segment on
    first_dirty: int
    high_watermark: int
    producers: dict[ProducerId, ProducerEntry]
    txn_indexes: tuple[tuple[int, str], ...]  # (base, path) of sealed segments that have one, also later ones
    active_txn_index: tuple[int, bytes]
    now_ms: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A new segment in `.cleaned` files, on disk, for some old ones in a row."""

    base_offset: int
    size: int
    sources: tuple[SealedSource, ...]
    has_aborts: bool


class CleaningPass:
    def __init__(self, disk: Disk, plan: CleaningPlan, memory_bytes: float) -> None:
        self._disk = disk
        self._plan = plan
        self._files = FilePool(disk, OPEN_FILES)
        self._cache = IndexCache()
        self._cost = 0
        self._bytes = 0
        self._aborted: list[AbortedEntry] = []
        self._transactions = CleanedTransactions(())
        self._segment: Segment | None = None
        self.offset_map = OffsetMap(plan.first_dirty, memory_bytes)
        self.result: Rewritten | None = None
        self.records_read = 0
        self.bytes_read = 0
        self.bytes_written = 0

    # Slices

    def _spend(self, header: Header) -> bool:
        """Account for a batch; True at the end of a slice."""
        size, count = header.batch_length + LOG_OVERHEAD, header.count
        self.records_read += count
        self.bytes_read += size
        self._bytes += size
        self._cost += count + (size >> 9) + BATCH_COST
        return self._cost >= SLICE_COST

    def _slice(self) -> int:
        done, self._bytes, self._cost = self._bytes, 0, 0
        return done

    def _batches(self, source: SealedSource) -> Iterator[tuple[Header, bytes, int]]:
        file = self._disk.open(source.log_path)
        try:
            for _, header, buffer, at in iter_checked(file, 0, source.size):
                yield header, buffer, at
        finally:
            file.close()

    # First the keys

    def map_keys(self) -> Iterator[int]:
        """Find the newest offset of each key in the dirty part, as far as memory reaches."""
        yield from self._map_dirty()
        for _ in self.offset_map.seal():
            yield self._slice()

    def _map_dirty(self) -> Iterator[int]:
        plan, offset_map = self._plan, self.offset_map
        self._aborted = self._read_aborted()
        # Transactions that ended before must not claim what their producers wrote since.
        transactions = CleanedTransactions(entry for entry in self._aborted if entry.last_offset >= plan.first_dirty)
        for source in plan.sources:
            if source.end_offset <= plan.first_dirty:
                continue
            for header, buffer, at in self._batches(source):
                if header.next_offset <= plan.first_dirty:
                    continue
                if header.is_control:
                    marker = read_end_marker(buffer, at)
                    if marker is not None:
                        transactions.end(header, marker)
                elif not self._map(header, buffer, at, transactions.is_aborted(header)):
                    return
                offset_map.end = max(offset_map.end, header.next_offset)
                if self._spend(header):
                    yield self._slice()
            offset_map.end = max(offset_map.end, source.end_offset)
        yield self._slice()

    def _map(self, header: Header, buffer: bytes, at: int, is_aborted: bool) -> bool:
        """False when no more keys fit into memory."""
        if is_aborted:
            return self.offset_map.skip(header)
        if not header.count:
            return True
        return self.offset_map.add(header, section_of(header, buffer, at))

    def _read_aborted(self) -> list[AbortedEntry]:
        plan = self._plan
        base, data = plan.active_txn_index
        indexes = [TxnIndex.parse(read_file(self._disk, path), base) for base, path in plan.txn_indexes]
        indexes.append(TxnIndex.parse(data, base))
        end = plan.sources[-1].end_offset
        return [entry for index in indexes for entry in index.entries() if entry.first_offset < end]

    # Then the segments

    def groups(self) -> list[tuple[SealedSource, ...]]:
        """Segments in a row that fit into one."""
        config = self._plan.config
        sources = [source for source in self._plan.sources if source.base_offset < self.offset_map.end]
        groups: list[list[SealedSource]] = []
        sums = [0, 0, 0]
        for source in sources:
            sizes = [source.size, *(self._size(source.prefix + suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))]
            total = [before + size for before, size in zip(sums, sizes, strict=True)]
            limits = (config.segment_bytes, config.segment_index_bytes, config.segment_index_bytes)
            fits = all(size <= limit for size, limit in zip(total, limits, strict=True))
            if groups and fits and source.end_offset - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET:
                groups[-1].append(source)
                sums = total
            else:
                groups.append([source])
                sums = sizes
        self._transactions = CleanedTransactions(self._aborted)
        return [tuple(group) for group in groups]

    def _size(self, path: str) -> int:
        return self._disk.file_size(path) if self._disk.exists(path) else 0

    def rewrite(self, group: tuple[SealedSource, ...]) -> Iterator[int]:
        """Write a group anew; `result` is None afterwards when there was nothing to gain."""
        self.result = None
        base_offset = group[0].base_offset
        segment = Segment(
            self._files, self._cache, self._plan.directory, base_offset, 0, group[0].created_ms, CLEANED_SUFFIX
        )
        self._segment = segment
        self._remove(segment)
        segment.create()
        changed = yield from self._write(segment, group)
        if changed or len(group) > 1:
            self._finish(segment)
            self.result = Rewritten(base_offset, segment.size, group, bool(len(segment.txn_index)))
        else:
            self._remove(segment)
        yield self._slice()

    def close(self) -> None:
        """Leave no file behind that the log did not take."""
        if self._segment is not None:
            self._remove(self._segment)
        self._files.close()

    def _write(self, segment: Segment, group: tuple[SealedSource, ...]) -> Generator[int, None, bool]:
        """Write what stays of the group; returns whether anything went or changed."""
        interval = self._plan.config.index_interval_bytes
        pending = bytearray()
        changed = False
        end = group[0].base_offset
        header = None
        for source in group:
            for header, buffer, at in self._batches(source):
                kept = self._filter(segment, header, buffer, at)
                if kept is None:
                    segment.note(header, header.base_offset, segment.size + len(pending), interval)
                    pending += memoryview(buffer)[at : at + header.size]
                    end = header.next_offset
                else:
                    changed = True
                    if kept:
                        segment.note(read_header(kept), header.base_offset, segment.size + len(pending), interval)
                        pending += kept
                        end = header.next_offset
                if len(pending) >= WRITE_BYTES:
                    self._append(segment, pending)
                if self._spend(header):
                    yield self._slice()
        last = max((source.base_offset for source in group[1:] if source.size), default=-1)
        if header is not None and end <= last:
            # An opening that completes the swap learns from the end of the new segment which segments it replaces. It
            # must replace all of them: a deleted record could come back without its tombstone.
            pending += placeholder(header)
        self._append(segment, pending)
        return changed

    def _append(self, segment: Segment, pending: bytearray) -> None:
        if pending:
            self._files.get(segment.log_path).write(segment.size, pending)
            segment.size += len(pending)
            self.bytes_written += len(pending)
            self._bytes += len(pending)
            pending.clear()

    # Batches

    def _filter(self, segment: Segment, header: Header, buffer: bytes, at: int) -> bytes | None:
        """What stays of a batch: None for all of it as it is, empty bytes for nothing."""
        if header.is_control:
            return self._filter_control(segment, header, buffer, at)
        if self._transactions.is_aborted(header) or not header.count:
            return self._without_records(header)
        if self.offset_map.covers(header) and self.offset_map.is_dead(header):
            return self._without_records(header)
        section = section_of(header, buffer, at)
        kept = select(header, section, self.offset_map, self._plan.now_ms)
        if not kept:
            return self._without_records(header)
        wants_horizon = not header.has_delete_horizon and any(span.is_tombstone for span in kept)
        if len(kept) == header.count and not wants_horizon:
            return None
        return rewrite(header, section, kept, self._horizon_ms if wants_horizon else None)

    def _filter_control(self, segment: Segment, header: Header, buffer: bytes, at: int) -> bytes | None:
        if not header.count:  # its transaction is gone completely
            return self._without_records(header)
        marker = read_end_marker(buffer, at)
        if marker is None:
            return None
        removable, aborted = self._transactions.end(header, marker)
        if aborted is not None:
            segment.note_aborted(aborted)
        if not removable:
            return None
        if not header.has_delete_horizon:
            section = section_of(header, buffer, at)
            return rewrite(header, section, list(iter_spans(header, section)), self._horizon_ms)
        if header.base_timestamp > self._plan.now_ms or self._is_only_trace_of_producer(header):
            return None
        return self._without_records(header)

    @property
    def _horizon_ms(self) -> int:
        return self._plan.now_ms + self._plan.config.delete_retention_ms

    def _without_records(self, header: Header) -> bytes | None:
        if not (self._is_last_of_producer(header) or header.next_offset == self._plan.high_watermark):
            return b""
        return emptied(header) if header.count else None

    def _is_last_of_producer(self, header: Header) -> bool:
        entry = self._plan.producers.get(header.producer_id)
        if entry is None:
            return False
        if entry.window:
            return entry.window[-1].last_offset == header.last_offset
        return header.is_control and header.producer_epoch == entry.epoch

    def _is_only_trace_of_producer(self, header: Header) -> bool:
        """Whether only this marker tells the epoch of its producer. It keeps its record, so that a replay finds it."""
        entry = self._plan.producers.get(header.producer_id)
        return entry is not None and not entry.window and header.producer_epoch == entry.epoch

    def _finish(self, segment: Segment) -> None:
        segment.seal()
        segment.close_files()
        for path in segment.paths():
            file = self._disk.open(path)
            try:
                file.sync()
            finally:
                file.close()

    def _remove(self, segment: Segment) -> None:
        segment.close_files()
        for path in segment.paths():
            self._disk.remove(path)
