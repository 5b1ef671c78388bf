"""Reading a log by offset and by time.

1. No reader gets an offset at or beyond its bound, and a read gives whole batches of one segment.
2. A read costs the same whatever the length of the log: a segment and a position in it are found by bisection.
3. A read that fails stops this reader and nothing else.
"""

import logging
from math import inf

from twofold.log.api import AbortedTransaction, Bound, ReadResult, TimestampOffset
from twofold.log.bounds import LogBounds
from twofold.log.environment import LogContext
from twofold.log.indexes.aborted import AbortedIndex
from twofold.log.segments.lookup import find_max_timestamp, find_timestamp
from twofold.log.segments.scan import InvalidBatch
from twofold.log.segments.segment import Segment
from twofold.log.segments.segment_list import SegmentList
from twofold.records.batch import MAGIC, MAGIC_POSITION
from twofold.wire.errors import CorruptMessage, KafkaError, KafkaStorageError, OffsetOutOfRange

log = logging.getLogger("twofold.log")

POSITION_CACHE_SIZE = 32
COMPLAIN_EVERY_S = 10.0


class LogReader:
    __slots__ = ("_aborted", "_bounds", "_complained_at", "_context", "_positions", "_segments")

    def __init__(self, context: LogContext, bounds: LogBounds, segments: SegmentList, aborted: AbortedIndex) -> None:
        self._context = context
        self._bounds = bounds
        self._segments = segments
        self._aborted = aborted
        self._positions: dict[int, tuple[int, int]] = {}  # offset: (base of its segment, position)
        self._complained_at = -inf

    def forget_positions(self) -> None:
        """Segments were cut or replaced."""
        self._positions.clear()

    # By offset

    def read(self, offset: int, max_bytes: int, bound: Bound, at_least_one: bool) -> ReadResult:
        bounds = self._bounds
        if not bounds.log_start_offset <= offset <= bounds.log_end_offset:
            raise OffsetOutOfRange(
                f"{self._context.topic_partition}: offset {offset} is outside of [{bounds.log_start_offset}, "
                f"{bounds.log_end_offset}]"
            )
        records = b""
        end_offset = upper = bounds.of(bound)
        if offset < upper:
            try:
                records, end_offset = self._read(offset, max_bytes, upper, at_least_one)
            except (OSError, InvalidBatch) as error:
                records, end_offset = self._read_again(offset, max_bytes, upper, at_least_one, error)
        aborted: tuple[AbortedTransaction, ...] | None = None
        if bound is Bound.LAST_STABLE:
            aborted = self._aborted.between(offset, end_offset) if records and self._aborted.bases else ()
        return ReadResult(records, bounds.high_watermark, bounds.last_stable_offset, bounds.log_start_offset, aborted)

    def _read_again(
        self, offset: int, max_bytes: int, upper: int, at_least_one: bool, error: Exception
    ) -> tuple[bytes, int]:
        """After bytes that are no batch: the index of the segment may be wrong, so build it anew and read again."""
        segments = self._segments
        segment = segments.all[segments.floor(offset)]
        try:
            if isinstance(error, InvalidBatch) and segment is not segments.all[-1] and segment.rebuild_once():
                self._positions.clear()
                return self._read(offset, max_bytes, upper, at_least_one)
        except (OSError, InvalidBatch) as again:
            error = again
        raise self._unreadable(f"at {offset}", error, segment.log_path) from error

    def _read(self, offset: int, max_bytes: int, upper: int, at_least_one: bool) -> tuple[bytes, int]:
        """(records, an offset that none of them reaches)."""
        segments = self._segments
        at = segments.floor(offset)
        last = len(segments.all) - 1
        while at <= last:
            segment = segments.all[at]
            next_base = segments.end_of(at)
            start = self._position(segment, offset)
            limit = segment.size if upper >= next_base else self._position(segment, upper)
            if at < last:
                self._context.environment.indexes.touch(segment)
            if start < limit:
                return self._read_segment(segment, start, limit, max_bytes, min(upper, next_base), at_least_one)
            if upper <= next_base:
                break
            at += 1
        return b"", upper

    def _read_segment(
        self, segment: Segment, start: int, limit: int, max_bytes: int, upper: int, at_least_one: bool
    ) -> tuple[bytes, int]:
        end = segment.end_of_read(start, max_bytes, limit, at_least_one)
        if end == start:
            return b"", upper
        end_offset = upper if end == limit else segment.base_offset_at(end)
        # The position where this reader goes on, and that of a bound, are asked for again soon.
        if len(self._positions) >= POSITION_CACHE_SIZE:
            del self._positions[next(iter(self._positions))]
        self._positions[end_offset] = (segment.base_offset, end)
        records = segment.read(start, end)
        if len(records) > MAGIC_POSITION and records[MAGIC_POSITION] != MAGIC:
            raise InvalidBatch(start, f"magic {records[MAGIC_POSITION]} where {MAGIC} is known")
        return records, end_offset

    def _position(self, segment: Segment, offset: int) -> int:
        known = self._positions.get(offset)
        if known is not None and known[0] == segment.base_offset:
            return known[1]
        return segment.position_of(offset)

    def _unreadable(self, what: str, error: Exception, path: str = "") -> KafkaError:
        """A failed read says nothing about what is written. The client may ask very often, so few are logged."""
        now = self._context.environment.clock.monotonic()
        if now - self._complained_at >= COMPLAIN_EVERY_S:
            self._complained_at = now
            log.error("%s cannot be read %s: %s", path or self._context.directory, what, error)
        kind = CorruptMessage if isinstance(error, InvalidBatch) else KafkaStorageError
        return kind(f"{self._context.topic_partition} cannot be read {what}: {error}")

    # By time

    def offset_for_timestamp(self, timestamp: int, bound: Bound) -> TimestampOffset | None:
        try:
            found = find_timestamp(self._segments.all, timestamp, self._bounds.log_start_offset)
        except (OSError, InvalidBatch) as error:
            raise self._unreadable(f"to find timestamp {timestamp}", error) from error
        return found if found is not None and found.offset < self._bounds.of(bound) else None

    def offset_of_max_timestamp(self, bound: Bound) -> TimestampOffset | None:
        try:
            found = find_max_timestamp(self._segments.all)
        except (OSError, InvalidBatch) as error:
            raise self._unreadable("to find its greatest timestamp", error) from error
        return found if found is not None and found.offset < self._bounds.of(bound) else None
