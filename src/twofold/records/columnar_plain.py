"""The columnar codec without compiled kernels: the same results from numpy and the parser of single records.

A record costs about a microsecond. That is the way where numba is not installed, and everywhere for the first records
of a process, which would be done before the kernels were loaded.
"""

from dataclasses import dataclass
from itertools import compress, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from twofold.records.batch import BatchBuilder, Record, RecordHeader, parse_records
from twofold.records.column_batch import MAX_RECORDS, encode
from twofold.records.columnar_arrays import (
    BytesColumn,
    ColumnSource,
    Damaged,
    Encoded,
    Int32s,
    Int64s,
    Rows,
    Section,
    headers_array,
)
from twofold.records.key_hash import partition_for_key
from twofold.wire.errors import InvalidRecord

_MAX_BODY = 2**31 - 16  # a record's length is an int32, and its deltas are not counted yet
_MAX_MILLIS = (2**63 - 1) // 1000
_THRESHOLDS = np.array([1 << shift for shift in range(7, 64, 7)], np.uint64)  # from here a varint has one byte more


class Plain:
    def partitions(self, keys: BytesColumn, partition_count: int, out: Int32s) -> None:
        for row, key in enumerate(keys.to_list(len(out))):
            if key is not None:
                out[row] = partition_for_key(key, partition_count)

    def sort_rows(self, partitions: Int32s, partition_count: int) -> tuple[Int64s, Int64s]:
        if len(partitions) and not 0 <= partitions.min() <= partitions.max() < partition_count:
            raise IndexError(f"a row's partition is not one of the {partition_count}")
        starts = np.zeros(partition_count + 1, np.int64)
        np.cumsum(np.bincount(partitions, minlength=partition_count), out=starts[1:])
        return np.argsort(partitions, kind="stable").astype(np.int64), starts

    def prepare(self, source: ColumnSource) -> tuple["_Rows", Int64s]:
        """The rows, and what each takes in any batch: all but its length and its two deltas."""
        content = 1 + _field_sizes(source.keys, source.count) + _field_sizes(source.values, source.count)
        lists = source.headers.lists
        if len(lists):
            entries = max(len(source.headers.keys.offsets), len(source.headers.values.offsets), 1) - 1
            sizes = _field_sizes(source.headers.keys, entries) + _field_sizes(source.headers.values, entries)
            before = np.concatenate(([0], np.cumsum(sizes)))
            content += _varint_sizes(lists[:, 1] - lists[:, 0]) + before[lists[:, 1]] - before[lists[:, 0]]
        else:
            content += 1
        too_large = np.flatnonzero(content > _MAX_BODY)
        if len(too_large):
            row = too_large[0]
            raise OverflowError(f"row {row} has {content[row]} bytes, more than a record can have")
        return _Rows.of(source), content

    def encode(self, prepared: tuple["_Rows", Int64s], rows: Int64s, bounds: Int64s, room: int) -> list[Encoded]:
        source, content = prepared
        found = []
        for first, bound in pairwise((0, *bounds.tolist())):
            group = rows[first:bound]
            for start, end in pairwise((0, *_ends(group, content, source.timestamps, room))):
                found.append(source.encode(group[start:end].tolist()))
        return found

    def decode(self, sections: list[Section], first: int, end: int, with_headers: bool) -> Rows:
        records: list[Record] = []
        kinds: list[int] = []
        for index, section in enumerate(sections):
            try:
                records += parse_records(section.header, section.data)
            except InvalidRecord as error:
                raise Damaged(index) from error
            kinds += [int(section.header.is_log_append_time)] * section.header.count
        offsets = _int64s([record.offset for record in records])
        wanted = (offsets >= first) & (offsets < end)
        timestamp_types = np.array(kinds, np.int32)
        if not wanted.all():
            records = list(compress(records, wanted.tolist()))
            offsets, timestamp_types = offsets[wanted], timestamp_types[wanted]
        timestamps = _int64s([record.timestamp for record in records])
        return Rows(
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            offsets,
            # The nearest that 64 bits of microseconds can say.
            np.clip(timestamps, -_MAX_MILLIS, _MAX_MILLIS) * 1000,
            timestamp_types,
            _headers([record.headers for record in records]) if with_headers else None,
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows as objects."""

    keys: list[bytes | None] | None
    values: list[bytes | None]
    headers: list[list[RecordHeader]] | None
    timestamps: Int64s

    @classmethod
    def of(cls, source: ColumnSource) -> "_Rows":
        headers = None
        if len(source.headers.lists):
            entries = int(source.headers.lists.max())
            keys = [str(key or b"", "utf-8", "surrogateescape") for key in source.headers.keys.to_list(entries)]
            pairs = list(zip(keys, source.headers.values.to_list(len(keys)), strict=True))
            headers = [pairs[first:end] for first, end in source.headers.lists.tolist()]
        has_keys = len(source.keys.offsets) > 0
        return cls(
            source.keys.to_list(source.count) if has_keys else None,
            source.values.to_list(source.count),
            headers,
            source.timestamps,
        )

    def encode(self, rows: list[int]) -> Encoded:
        keys = None if self.keys is None else [self.keys[row] for row in rows]
        values = [self.values[row] for row in rows]
        times = self.timestamps[rows if len(self.timestamps) > 1 else [0] * len(rows)].tolist()
        if len(self.timestamps) == 1 and self.headers is None and len(rows) <= MAX_RECORDS:
            return Encoded(encode(keys, values), len(rows), times[0], times[0])
        builder = BatchBuilder()
        for index, row in enumerate(rows):
            headers = () if self.headers is None else self.headers[row]
            builder.add(None if keys is None else keys[index], values[index], times[index], headers)
        return Encoded(bytearray(builder.build()), len(rows), times[0], max(times))


def _field_sizes(column: BytesColumn, count: int) -> Int64s:
    """Of a key or a value with its length in front."""
    if not len(column.offsets):
        return np.ones(count, np.int64)
    sizes = np.diff(column.offsets)
    sizes += _varint_sizes(sizes)
    if len(column.valid):
        sizes[column.valid == 0] = 1
    return sizes


def _varint_sizes(values: Int64s) -> Int64s:
    raw = ((values << 1) ^ (values >> 63)).view(np.uint64)
    sizes: Int64s = 1 + np.searchsorted(_THRESHOLDS, raw, side="right")
    return sizes


def _ends(rows: Int64s, content: Int64s, timestamps: Int64s, room: int) -> list[int]:
    """Where batches of at most `room` bytes, or of one record, end."""
    ends: list[int] = []
    start = 0
    before = np.cumsum(content[rows])
    while start < len(rows):
        # No record is smaller than its content: what is behind this does not fit.
        behind = int(np.searchsorted(before, (before[start - 1] if start else 0) + room, side="right"))
        window = rows[start : max(behind, start + 1)]
        body = content[window] + _varint_sizes(np.arange(len(window)))
        fits = len(window)
        if len(timestamps) == 1:
            body += 1
        else:
            times = timestamps[window]
            deltas = times - times[0]
            too_far = np.flatnonzero((times ^ times[0]) & (times ^ deltas) < 0)
            fits = int(too_far[0]) if len(too_far) else fits
            body += _varint_sizes(deltas)
        used = np.cumsum(body + _varint_sizes(body))
        start += max(1, min(fits, int(np.searchsorted(used, room, side="right"))))
        ends.append(start)
    return ends


def _int64s(numbers: list[int]) -> Int64s:
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        # The sum wraps at 64 bits, as in the kernels. Only a damaged or forged batch has a larger sum.
        return np.array([(number + 2**63 & 2**64 - 1) - 2**63 for number in numbers], np.int64)


def _headers(headers: list[tuple[RecordHeader, ...]]) -> Any:
    entries = [entry for row in headers for entry in row]
    ends = np.zeros(len(headers) + 1, np.int32)
    np.cumsum([len(row) for row in headers], out=ends[1:])
    keys = pa.array([key.encode("utf-8", "surrogateescape") for key, _ in entries], pa.binary())
    return headers_array(ends, keys, pa.array([value for _, value in entries], pa.binary()))
