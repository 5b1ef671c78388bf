"""The columnar codec on compiled kernels."""

from ctypes import addressof, c_char
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from twofold.records.batch import HEADER_SIZE
from twofold.records.columnar_arrays import (
    NO_OFFSETS,
    BytesColumn,
    ColumnSource,
    Damaged,
    Encoded,
    Int32s,
    Int64s,
    Rows,
    Section,
    address_of,
    binary_array,
    headers_array,
)


class Compiled:
    """`kernels` is `columnar_kernels`, which only `columnar_loading` knows how to import."""

    def __init__(self, kernels: ModuleType) -> None:
        self._kernels: Any = kernels

    def partitions(self, keys: BytesColumn, partition_count: int, out: Int32s) -> None:
        if len(keys.offsets):
            self._kernels.partitions(keys.address, keys.offsets, keys.valid, partition_count, out)

    def sort_rows(self, partitions: Int32s, partition_count: int) -> tuple[Int64s, Int64s]:
        rows = np.empty(len(partitions), np.int64)
        starts = np.zeros(partition_count + 1, np.int64)
        if not self._kernels.sort_rows(partitions, starts, rows):
            raise IndexError(f"a row's partition is not one of the {partition_count}")
        return rows, starts

    def prepare(self, source: ColumnSource) -> tuple[Any, ...]:
        """All that the kernels need to know of the rows: their sizes first, then the columns."""
        keys, values, headers = source.keys, source.values, source.headers
        of_headers = NO_OFFSETS
        if len(headers.lists):
            of_headers = np.empty(source.count, np.int64)
            inside = headers.keys.offsets, headers.values.offsets, headers.values.valid
            self._kernels.header_sizes(headers.lists, *inside, of_headers)
        content = np.empty(source.count, np.int64)
        too_large = self._kernels.content_sizes(
            keys.offsets, keys.valid, values.offsets, values.valid, of_headers, content
        )
        if too_large >= 0:
            raise OverflowError(f"row {too_large} has {content[too_large]} bytes, more than a record can have")
        return (
            content, source.timestamps,
            keys.address, keys.offsets, keys.valid, values.address, values.offsets, values.valid, headers.lists,
            headers.keys.address, headers.keys.offsets,
            headers.values.address, headers.values.offsets, headers.values.valid,
        )  # fmt: skip

    def encode(self, prepared: tuple[Any, ...], rows: Int64s, bounds: Int64s, room: int) -> list[Encoded]:
        if not len(rows):
            return []
        content, timestamps = prepared[:2]
        planned = np.empty((len(rows), 4), np.int64)
        count = self._kernels.plan(rows, bounds, content, timestamps, room, planned)
        facts = planned[:count].tolist()
        batches = [bytearray(HEADER_SIZE + size) for _, size, _, _ in facts]
        addresses = [addressof(c_char.from_buffer(batch)) + HEADER_SIZE for batch in batches]
        wrong = self._kernels.write(planned, np.array(addresses, np.int64), rows, *prepared)
        assert wrong < 0, f"batch {wrong} came out in another size than was planned"
        found = []
        start = 0
        for batch, (end, _, base, latest) in zip(batches, facts, strict=True):
            found.append(Encoded(batch, end - start, base, latest))
            start = end
        return found

    def decode(self, sections: list[Section], first: int, end: int, with_headers: bool) -> Rows:
        described = _described(sections)
        most = int(described[:, 2].sum())
        room = int(described[:, 1].sum())
        keys, values = pa.allocate_buffer(room), pa.allocate_buffer(room)
        offsets, timestamps = np.empty((2, most), np.int64)
        kinds = np.empty(most, np.int32)
        key_ends, value_ends = np.zeros((2, most + 1), np.int32)
        key_valid, value_valid = np.empty((2, most), np.uint8)
        header_sources = np.empty(most if with_headers else 0, np.int64)
        header_ends = np.zeros(most + 1 if with_headers else 0, np.int32)
        totals = np.zeros(4, np.int64)
        count = self._kernels.scan(
            described, first, end, offsets, timestamps, kinds, keys.address, key_ends, key_valid,
            values.address, value_ends, value_valid, header_sources, header_ends, totals,
        )  # fmt: skip
        if count < 0:
            raise Damaged(int(totals[3]))
        return Rows(
            binary_array(key_ends[: count + 1], _fitting(keys, int(key_ends[count])), key_valid),
            binary_array(value_ends[: count + 1], _fitting(values, int(value_ends[count])), value_valid),
            offsets[:count],
            timestamps[:count],
            kinds[:count],
            self._headers(header_sources, header_ends[: count + 1], totals) if with_headers else None,
        )

    def _headers(self, sources: Int64s, ends: Int32s, totals: Int64s) -> Any:
        entries, key_bytes, value_bytes, _ = totals.tolist()
        keys, values = pa.allocate_buffer(key_bytes), pa.allocate_buffer(value_bytes)
        key_ends, value_ends = np.zeros((2, entries + 1), np.int32)
        valid = np.empty(entries, np.uint8)
        self._kernels.gather_headers(sources, len(ends) - 1, key_ends, keys.address, value_ends, valid, values.address)
        every = np.ones(entries, np.uint8)
        return headers_array(ends, binary_array(key_ends, keys, every), binary_array(value_ends, values, valid))


def _fitting(buffer: Any, used: int) -> Any:
    """What is used of a buffer, without holding much more memory than that."""
    if 2 * used >= buffer.size:
        return buffer.slice(0, used)
    return pa.py_buffer(np.frombuffer(buffer, np.uint8)[:used].copy())


def _described(sections: list[Section]) -> Int64s:
    """What `scan` is to know of each."""
    rows = []
    buffer: object = None
    address = 0
    for section in sections:
        if section.buffer is not buffer:
            buffer = section.buffer
            address = address_of(np.frombuffer(section.buffer, np.uint8))
        header = section.header
        rows.append(
            (
                address + section.start, section.end - section.start, header.count, header.base_offset,
                header.base_timestamp, header.max_timestamp, header.is_log_append_time,
            )
        )  # fmt: skip
    return np.array(rows, np.int64).reshape(-1, 7)
