"""One segment of a partition log: `<base>.log` and its three indexes.

1. Only the `.log` file is the truth. The indexes follow from it. They are written when the segment is sealed or closed,
   and an index that is not on disk is built from the log again.
2. Batches are appended whole; `size` is the end of the last one, whatever the file holds behind it.
3. A position is found by bisection and a walk over at most about one index interval of headers.
4. `max_timestamp` covers batches with data: not control batches, not those that compaction emptied.
"""

import logging
from collections.abc import Iterator
from itertools import islice

from twofold.log.indexes.cache import IndexCache
from twofold.log.indexes.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from twofold.log.indexes.offset_index import MAX_RELATIVE_OFFSET, CorruptIndex, OffsetIndex
from twofold.log.indexes.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from twofold.log.indexes.time_index import TimeIndex
from twofold.log.indexes.txn_index import ENTRY_SIZE as TXN_ENTRY_SIZE
from twofold.log.indexes.txn_index import AbortedEntry, TxnIndex
from twofold.log.segments.files import FilePool
from twofold.log.segments.scan import InvalidBatch, ProducerFields, find_batch, iter_headers, read_producer_fields
from twofold.records.batch import CONTROL, LOG_OVERHEAD, Header
from twofold.runtime.api import Data
from twofold.runtime.files import read_file
from twofold.types import NO_TIMESTAMP

log = logging.getLogger("twofold.log")

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DEFAULT_INDEX_INTERVAL_BYTES = 4096
LOOK_AT_BATCHES = 64
UNKNOWN_TIMESTAMP = -2  # of a segment whose time index was not looked at yet
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
INDEX_SUFFIXES = SEGMENT_SUFFIXES[1:]


class Segment:
    __slots__ = (
        "base_offset",
        "created_ms",
        "first_timestamp",
        "index_entries",
        "jitter_ms",
        "log_path",
        "prefix",
        "size",
        "suffix",
        "_bytes_since_index",
        "_cache",
        "_files",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_offset_index",
        "_rebuilt",
        "_time_index",
        "_txn_index",
        "_written",
    )

    def __init__(
        self,
        files: FilePool,
        cache: IndexCache,
        directory: str,
        base_offset: int,
        size: int,
        created_ms: int,
        suffix: str = "",
    ) -> None:
        """With a `suffix` its files are about to replace others."""
        self._files = files
        self._cache = cache
        self.base_offset = base_offset
        self.prefix = f"{directory}/{base_offset:020d}"
        self.suffix = suffix
        self.log_path = self.path(LOG_SUFFIX)
        self.size = size
        self.created_ms = created_ms
        self.jitter_ms = 0
        self.first_timestamp = NO_TIMESTAMP
        self._max_timestamp = UNKNOWN_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._bytes_since_index = 0
        self.index_entries = 0
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TxnIndex | None = None
        self._rebuilt = False
        self._written = [0, 0, 0]  # entries of the three indexes that are in their files

    def path(self, kind: str) -> str:
        return self.prefix + kind + self.suffix

    def create(self) -> None:
        """Make the file of a new segment; nothing of an earlier file with its name stays."""
        file = self._files.get(self.log_path, create=True)
        if file.size():
            file.truncate(0)
        self.start_empty()

    def start_empty(self) -> None:
        """Begin with empty indexes; files of an earlier life with these names count for nothing."""
        self.size = 0
        self.first_timestamp = self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self._bytes_since_index = self.index_entries = 0
        self._offset_index = OffsetIndex(self.base_offset)
        self._time_index = TimeIndex(self.base_offset)
        self._txn_index = TxnIndex()
        self._written = [0, 0, 0]

    # Appending

    def append(self, data: Data) -> int:
        """Write whole batches at the end; returns where. The caller notes each of them."""
        position = self.size
        self._files.get(self.log_path).write(position, data)
        self.size = position + len(data)
        return position

    def forget_rest(self) -> None:
        """Cut off what a write that failed has left behind the end."""
        file = self._files.get(self.log_path)
        if file.size() > self.size:
            file.truncate(self.size)

    def note(self, header: Header, base_offset: int, position: int, index_interval_bytes: int) -> None:
        """Take a batch into the indexes."""
        offset_index, time_index = self._offset_index, self._time_index
        assert offset_index is not None and time_index is not None, "only the active segment is appended to"
        timestamp = header.max_timestamp
        if timestamp > self._max_timestamp and not header.attributes & CONTROL and header.count:
            self._max_timestamp = timestamp
            self._max_timestamp_offset = base_offset + header.last_offset_delta
        if position == 0:
            self.first_timestamp = timestamp
        if self._bytes_since_index > index_interval_bytes:
            offset_index.append(base_offset + header.last_offset_delta, position)
            self.index_entries += 1
            time_index.maybe_append(self._max_timestamp, self._max_timestamp_offset)
            self._bytes_since_index = 0
        self._bytes_since_index += header.batch_length + LOG_OVERHEAD

    def note_aborted(self, entry: AbortedEntry) -> None:
        self.txn_index.append(entry)

    def fits(self, last_offset: int) -> bool:
        return last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def indexes_are_full(self, segment_index_bytes: int) -> bool:
        """Whether the next entry might not fit."""
        time_limit = segment_index_bytes // TIME_ENTRY_SIZE - 1
        return self.index_entries >= segment_index_bytes // OFFSET_ENTRY_SIZE or len(self.time_index) >= time_limit

    # Indexes

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """(the greatest timestamp of a data batch, the last offset of the first batch that has it), or (-1, base)."""
        if self._max_timestamp == UNKNOWN_TIMESTAMP:
            self._max_timestamp, self._max_timestamp_offset = self._last_time_entry()
        return self._max_timestamp, self._max_timestamp_offset

    def _last_time_entry(self) -> tuple[int, int]:
        """What a sealed segment's time index ends with, without loading all of it."""
        path = self.path(TIME_INDEX_SUFFIX)
        try:
            size = self._files.disk.file_size(path)
            if not size:
                return self.time_index.last()  # which also checks whether the index should be empty
            data = self._files.get(path).read(size - TIME_ENTRY_SIZE, TIME_ENTRY_SIZE)
            return TimeIndex.parse(self.base_offset, data).last()
        except (FileNotFoundError, CorruptIndex):
            return self.time_index.last()

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._load()
            assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load()
            assert self._time_index is not None
        return self._time_index

    @property
    def txn_index(self) -> TxnIndex:
        """CorruptIndex when the file is damaged: building it again needs the producers' state (`indexes.aborted`)."""
        if self._txn_index is None:
            data = self._read(TXN_INDEX_SUFFIX) or b""
            try:
                self._txn_index = TxnIndex.parse(data, self.base_offset)
            except CorruptIndex as error:
                raise CorruptIndex(f"{self.path(TXN_INDEX_SUFFIX)}: {error}") from None
            self._written[2] = len(self._txn_index)
        return self._txn_index

    @property
    def is_loaded(self) -> bool:
        return self._offset_index is not None

    @property
    def memory_bytes(self) -> int:
        """About how much memory unloading frees."""
        entries = len(self._offset_index or ()) * OFFSET_ENTRY_SIZE + len(self._time_index or ()) * TIME_ENTRY_SIZE
        return entries + len(self._txn_index or ()) * TXN_ENTRY_SIZE

    def unload(self) -> None:
        """Drop the indexes of a sealed segment from memory."""
        self._offset_index = self._time_index = self._txn_index = None

    def _load(self) -> None:
        try:
            self._offset_index, self._time_index = self._parse_indexes()
        except CorruptIndex as error:
            log.warning("%s: %s; building its indexes from the log", self.prefix, error)
            self._rebuild()
        self._written[:2] = [len(self.offset_index), len(self.time_index)]
        self._max_timestamp, self._max_timestamp_offset = self.time_index.last()
        self._cache.touch(self)

    def _parse_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        if not self.size:
            return OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        offsets, times = self._read(INDEX_SUFFIX), self._read(TIME_INDEX_SUFFIX)
        if offsets is None or times is None:
            raise CorruptIndex(f"{INDEX_SUFFIX if offsets is None else TIME_INDEX_SUFFIX} is missing")
        if not times and self._begins_with_time():
            raise CorruptIndex(f"{TIME_INDEX_SUFFIX} is empty")
        return OffsetIndex.parse(self.base_offset, offsets, self.size), TimeIndex.parse(self.base_offset, times)

    def _begins_with_time(self) -> bool:
        """Whether one of the first batches has a place in the time index."""
        for _, header in islice(self.headers(), LOOK_AT_BATCHES):
            if header.max_timestamp >= 0 and not header.is_control and header.count:
                return True
        return False

    def _read(self, suffix: str) -> bytes | None:
        try:
            return read_file(self._files.disk, self.path(suffix))
        except FileNotFoundError:
            return None

    def rebuild_once(self) -> bool:
        """Build the indexes of a sealed segment from the log if that was not done; False where it does not help."""
        if self._rebuilt:
            return False
        self._rebuilt = True
        known = (self._offset_index, self._time_index, list(self._written))
        log.warning("%s: it leads to no batch; building it from the log", self.path(INDEX_SUFFIX))
        if self._rebuild():
            return True
        self._offset_index, self._time_index, self._written = known  # they lead to what lies behind the damage
        return False

    def _rebuild(self) -> bool:
        """Build offset and time index of a sealed segment anew; the interval used to write them is not known."""
        txn_index = self._txn_index
        size, written = self.size, self._written[2]
        self.start_empty()
        try:
            for position, header in iter_headers(self._files.get(self.log_path), 0, size):
                self.note(header, header.base_offset, position, DEFAULT_INDEX_INTERVAL_BYTES)
        except InvalidBatch as error:
            # What comes before it can be served, and is found without walking over it.
            log.error("%s: %s; its indexes end there", self.log_path, error)
            self.size, self._txn_index, self._written[2] = size, txn_index, written
            return False
        self.size, self._txn_index, self._written[2] = size, txn_index, written
        self.time_index.maybe_append(self._max_timestamp, self._max_timestamp_offset)
        self.write_indexes()
        return True

    def seal(self) -> None:
        """No more appends for now: complete the time index and hand all three to the operating system."""
        self.time_index.maybe_append(self._max_timestamp, self._max_timestamp_offset)
        self.write_indexes()

    def write_indexes(self) -> None:
        self._write_index(0, INDEX_SUFFIX, OFFSET_ENTRY_SIZE, self._offset_index)
        self._write_index(1, TIME_INDEX_SUFFIX, TIME_ENTRY_SIZE, self._time_index)
        if self._txn_index is not None and (len(self._txn_index) or self._written[2]):
            self._write_index(2, TXN_INDEX_SUFFIX, TXN_ENTRY_SIZE, self._txn_index)

    def _write_index(
        self, which: int, suffix: str, entry_size: int, index: OffsetIndex | TimeIndex | TxnIndex | None
    ) -> None:
        written = self._written[which]
        if index is None or (written == len(index) and written):
            return
        file = self._files.get(self.path(suffix), create=True)
        if written == 0:
            file.truncate(0)
        if len(index) > written:
            file.write(written * entry_size, index.encode(written))
        self._written[which] = len(index)

    def has_txn_index(self) -> bool:
        path = self.path(TXN_INDEX_SUFFIX)
        return self._files.disk.exists(path) and self._files.disk.file_size(path) > 0

    def discard_txn_index(self) -> None:
        """Forget the aborted transactions and their file; the other two files are emptied when next written."""
        path = self.path(TXN_INDEX_SUFFIX)
        self._files.forget(path)
        if self._files.disk.exists(path):
            self._files.disk.remove(path)
        self._txn_index = TxnIndex()
        self._written[2] = 0

    def index_paths(self) -> list[str]:
        """The index files that belong to this sealed segment."""
        paths = [self.path(INDEX_SUFFIX), self.path(TIME_INDEX_SUFFIX)]
        return paths + [self.path(TXN_INDEX_SUFFIX)] * bool(self._written[2])

    # Reading

    def time_of_first_batch(self) -> int:
        """-1 where there is none."""
        if self.first_timestamp == NO_TIMESTAMP and self.size:
            self.first_timestamp = next(self.headers())[1].max_timestamp
        return self.first_timestamp

    def headers(self, start: int = 0) -> Iterator[tuple[int, Header]]:
        return iter_headers(self._files.get(self.log_path), start, self.size)

    def producer_fields_before(self, offset: int) -> list[ProducerFields]:
        """Fields of the batches from the last indexed one below `offset` up to `offset`; empty if there are none."""
        _, start = self.offset_index.lookup(offset - 1)
        return read_producer_fields(self._files.get(self.log_path), start, self.size, offset)

    def position_of(self, offset: int) -> int:
        """The position of the first batch that ends at `offset` or later; `size` where there is none."""
        last_offset, start = self.offset_index.lookup(offset)
        if last_offset == offset or offset <= self.base_offset:
            return start
        return find_batch(self._files.get(self.log_path), start, self.size, offset)

    def end_of_read(self, start: int, max_bytes: int, limit: int, at_least_one: bool) -> int:
        """Where to stop so that whole batches of at most `max_bytes` lie between; `start` when not even one fits.

        Stops at an indexed batch, so that nothing has to be walked: up to one index interval less than would fit.
        """
        if limit - start <= max_bytes:
            return limit
        boundary = self.offset_index.floor_position(start + max_bytes)
        if boundary > start:
            return boundary
        try:
            for position, header in self.headers(start):
                end = position + header.size
                if end > start + max_bytes:
                    return end if position == start and at_least_one else position
        except InvalidBatch as error:
            if error.position <= start:
                raise
            return error.position  # what lies before the damage is good
        return limit

    def read(self, start: int, end: int) -> bytes:
        data = self._files.get(self.log_path).read(start, end - start)
        if len(data) != end - start:
            raise InvalidBatch(start, f"{len(data)} of {end - start} bytes could be read")
        return data

    def base_offset_at(self, position: int) -> int:
        """The base offset of the batch at `position`."""
        return int.from_bytes(self._files.get(self.log_path).read(position, 8), "big")

    def load_tail(self) -> int:
        """Read what the indexes do not say about a segment that becomes the active one; returns its next offset.

        It was sealed when it was closed, so the time index ends with the greatest timestamp.
        """
        index, times = self.offset_index, self.time_index
        _, last_indexed = index.lookup(self.base_offset + MAX_RELATIVE_OFFSET)
        self._max_timestamp, self._max_timestamp_offset = times.last()
        next_offset, end = self.base_offset, 0
        for position, header in self.headers(last_indexed):
            end = position + header.size
            next_offset = header.next_offset
            if header.max_timestamp > self._max_timestamp and not header.is_control and header.count:
                self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, header.last_offset
        if end != self.size:
            raise InvalidBatch(end, f"a torn batch: the file has {self.size} bytes")
        self._bytes_since_index = self.size - last_indexed
        self.index_entries = len(index)
        if self.size:
            self.first_timestamp = next(self.headers())[1].max_timestamp
        self._cache.forget(self)  # the indexes of the active segment stay
        return next_offset

    def move_to(self, files: FilePool, cache: IndexCache) -> None:
        """Use these from now on. A thread opened the segment, with files of its own."""
        self._files, self._cache = files, cache

    # Truncating and removing

    def truncate(self, size: int, next_offset: int, index_interval_bytes: int) -> None:
        """Cut the batches from position `size` on, in the log (and sync that) and in the indexes.

        The sync comes first of all: what was cut must not come back behind what is written next.
        """
        aborted = [entry for entry in self.txn_index.entries() if entry.last_offset < next_offset]
        file = self._files.get(self.log_path)
        file.truncate(size)
        file.sync()
        self.discard_txn_index()
        self.start_empty()
        for position, header in iter_headers(self._files.get(self.log_path), 0, size):
            self.note(header, header.base_offset, position, index_interval_bytes)
        self.size = size
        for entry in aborted:
            self.note_aborted(entry)

    def paths(self) -> list[str]:
        return [path for suffix in SEGMENT_SUFFIXES if self._files.disk.exists(path := self.path(suffix))]

    def close_files(self) -> None:
        for suffix in SEGMENT_SUFFIXES:
            self._files.forget(self.path(suffix))


def rename_segment(segment: Segment, files: FilePool, suffix: str) -> None:
    """Give the files of a segment another suffix. The log comes last: until then the other files do not count."""
    segment.close_files()
    for kind in (*INDEX_SUFFIXES, LOG_SUFFIX):
        path = segment.path(kind)
        if files.disk.exists(path):
            files.disk.rename(path, segment.prefix + kind + suffix)
    segment.suffix = suffix
    segment.log_path = segment.path(LOG_SUFFIX)


def rename_to_deleted(files: FilePool, segment: Segment) -> list[str]:
    """Take a segment's names away; returns the new names, to be removed later."""
    renamed = []
    segment.close_files()
    for path in segment.paths():
        files.disk.rename(path, path + DELETED_SUFFIX)
        renamed.append(path + DELETED_SUFFIX)
    return renamed
