"""The columnar codec without compiled kernels: the same results from numpy and the parser of single records.

A record costs about a microsecond. That is the way where numba is not installed, and everywhere for the first records
of a process, which would be done before the kernels were loaded.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from twofold.records.batch import BatchBuilder, parse_records
from twofold.records.column_batch import MAX_RECORDS, encode
from twofold.records.columnar_arrays import (
    BytesColumn,
    Damaged,
    Encoded,
    Int32s,
    Int64s,
    Rows,
    Section,
    Source,
    headers_array,
)
from twofold.records.key_hash import partition_for_key
from twofold.wire.errors import InvalidRecord

_MAX_BODY = 2**31 - 16  # a record's length is an int32, and its deltas are not counted yet
_MAX_MILLIS = (2**63 - 1) // 1000
_THRESHOLDS = np.array([1 << shift for shift in range(7, 64, 7)], np.uint64)  # from here a varint has one byte more


class Plain:
    def partitions(self, keys: BytesColumn, partition_count: int, out: Int32s) -> None:
        for row in range(len(out)):
            key = keys.at(row)
            if key is not None:
                out[row] = partition_for_key(key, partition_count)

    def sort_rows(self, partitions: Int32s, partition_count: int) -> tuple[Int64s, Int64s]:
        if len(partitions) and not 0 <= partitions.min() <= partitions.max() < partition_count:
            raise IndexError(f"a row's partition is not one of the {partition_count}")
        starts = np.zeros(partition_count + 1, np.int64)
        np.cumsum(np.bincount(partitions, minlength=partition_count), out=starts[1:])
        return np.argsort(partitions, kind="stable").astype(np.int64), starts

    def content_sizes(self, source: Source) -> Int64s:
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
        return content

    def encode(self, source: Source, content: Int64s, rows: Int64s, room: int) -> list[Encoded]:
        found = []
        start = 0
        for end in _ends(rows, content, source.timestamps, room):
            found.append(_encode_batch(source, rows[start:end].tolist()))
            start = end
        return found

    def decode(self, sections: list[Section], first: int, end: int, with_headers: bool) -> Rows:
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        offsets: list[int] = []
        timestamps: list[int] = []
        kinds: list[int] = []
        headers: list[tuple[tuple[str, bytes | None], ...]] = []
        for index, section in enumerate(sections):
            kind = int(section.header.is_log_append_time)
            try:
                for record in parse_records(section.header, section.data):
                    offset = _wrapped(record.offset)
                    if first <= offset < end:
                        keys.append(record.key)
                        values.append(record.value)
                        offsets.append(offset)
                        timestamps.append(_micros(record.timestamp))
                        kinds.append(kind)
                        headers.append(record.headers)
            except InvalidRecord as error:
                raise Damaged(index) from error
        return Rows(
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            np.array(offsets, np.int64),
            np.array(timestamps, np.int64),
            np.array(kinds, np.int32),
            _headers(headers) if with_headers else None,
        )


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


def _encode_batch(source: Source, rows: list[int]) -> Encoded:
    times = source.timestamps
    if len(times) == 1 and not len(source.headers.lists) and len(rows) <= MAX_RECORDS:
        keys = [source.keys.at(row) for row in rows] if len(source.keys.offsets) else None
        batch = encode(keys, [source.values.at(row) for row in rows])
        return Encoded(batch, len(rows), int(times[0]), int(times[0]))
    builder = BatchBuilder()
    chosen = [int(times[0 if len(times) == 1 else row]) for row in rows]
    for row, time in zip(rows, chosen, strict=True):
        headers = source.headers.at(row) if len(source.headers.lists) else []
        texts = [(str(key, "utf-8", "surrogateescape"), value) for key, value in headers]
        builder.add(source.keys.at(row), source.values.at(row), time, texts)
    return Encoded(bytearray(builder.build()), len(rows), chosen[0], max(chosen))


def _wrapped(number: int) -> int:
    """As 64 bits have it: nobody writes sums beyond them but to see what happens."""
    return (number + 2**63 & 2**64 - 1) - 2**63


def _micros(millis: int) -> int:
    """The nearest that 64 bits of microseconds can say."""
    return min(max(_wrapped(millis), -_MAX_MILLIS), _MAX_MILLIS) * 1000


def _headers(headers: list[tuple[tuple[str, bytes | None], ...]]) -> Any:
    entries = [entry for row in headers for entry in row]
    ends = np.zeros(len(headers) + 1, np.int32)
    np.cumsum([len(row) for row in headers], out=ends[1:])
    keys = pa.array([key.encode("utf-8", "surrogateescape") for key, _ in entries], pa.binary())
    return headers_array(ends, keys, pa.array([value for _, value in entries], pa.binary()))
