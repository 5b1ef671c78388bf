"""Record batches straight from Arrow columns and straight into them, without an object for any record.

1. What is encoded are the bytes that `BatchBuilder` writes for the same records; a batch has at most `limit` bytes
   before it is compressed, unless a single record is larger.
2. What is decoded has the schema that Spark's Kafka source has. Batches of aborted transactions and control batches
   are left out; headers are null where a record has none; a timestamp that 64 bits of microseconds cannot say is the
   nearest that they can.
3. Bytes that lie about themselves raise CorruptMessage, whatever they say, and nothing outside of them is read.
4. With numba the work is done by compiled kernels, without it more slowly (`columnar_loading`), with the same results.

`python -m twofold.records.columnar` compiles the kernels ahead of their first use, for images of executors.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from twofold.records.batch import HEADER_SIZE, Buffer, Header, crc_is_valid, increment_sequence, parse_records
from twofold.records.column_batch import EncodedBatch
from twofold.records.columnar_arrays import (
    HEADERS_TYPE,
    NO_HEADERS,
    NULLS,
    TIMESTAMP_TYPE,
    Backend,
    ColumnSource,
    Damaged,
    Int32s,
    Int64s,
    Section,
    bytes_column,
    headers_column,
    timestamps_of,
)
from twofold.records.columnar_loading import backend_for, load, warm_up
from twofold.records.compression import MAX_DECOMPRESSED_BYTES, Codec, decompress
from twofold.records.filtering import visible_batches
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from twofold.wire.errors import CorruptMessage, InvalidRecord

__all__ = ["Columns", "Decoded", "Decoder", "NO_KEY", "load", "schema", "warm_up"]

NO_KEY = -1
DEFAULT_LIMIT = 1 << 20
CHUNK_BYTES = 1 << 20
LAST_OFFSET = 2**63 - 1
_MOST_BYTES = 2**31 - 1  # what the offsets of a binary column reach
_SMALLEST_RECORD = 7


# -- encoding ---------------------------------------------------------------------------------------------------------


class Columns:
    """Rows to be sent: keys and values are Arrow arrays of binary or text (None: no key, no value), headers are lists
    of (key, value), timestamps are milliseconds, one for all rows or an array of them."""

    def __init__(
        self,
        keys: Any | None,
        values: Any | None,
        timestamps: Any,
        headers: Any | None = None,
        *,
        backend: Backend | None = None,
    ) -> None:
        given = [column for column in (keys, values, headers) if column is not None]
        if not given:
            raise ValueError("neither keys nor values are given")
        count = len(given[0])
        if any(len(column) != count for column in given):
            raise ValueError(f"columns of {', '.join(str(len(column)) for column in given)} rows do not go together")
        self.count = count
        self._backend = backend or backend_for(count)
        self._source = ColumnSource(
            count,
            NULLS if keys is None else bytes_column(keys, "keys"),
            NULLS if values is None else bytes_column(values, "values"),
            NO_HEADERS if headers is None else headers_column(headers),
            timestamps_of(timestamps, count),
        )
        self._prepared: Any = None

    def partitions(self, partition_count: int, without_key: int | Sequence[int] = NO_KEY) -> Int32s:
        """The partition of each row, by its key. Rows that have none go to the partition `without_key`, or to several
        in turn."""
        if partition_count < 1:
            raise ValueError(f"{partition_count} partitions have no room for a row")
        out = np.full(self.count, NO_KEY, np.int32)
        self._backend.partitions(self._source.keys, partition_count, out)
        keyless = np.flatnonzero(out == NO_KEY)
        if len(keyless):
            out[keyless] = np.resize(np.atleast_1d(np.asarray(without_key, np.int32)), len(keyless))
        return out

    def encode(
        self,
        rows: Any | None = None,
        *,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        limit: int = DEFAULT_LIMIT,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
    ) -> list[EncodedBatch]:
        """These rows, or all, in their order, in as many batches as they need. A batch with a sequence number goes on
        where the one before ended."""
        chosen = np.arange(self.count) if rows is None else np.ascontiguousarray(rows, np.int64)
        if rows is not None and len(chosen) and not 0 <= chosen.min() <= chosen.max() < self.count:
            raise IndexError(f"rows {chosen.min()} to {chosen.max()} are not all among {self.count}")
        batches = self._encode(chosen, np.array([len(chosen)], np.int64), codec, level, limit)
        for batch in batches:
            batch.producer_id, batch.producer_epoch = producer_id, producer_epoch
            batch.base_sequence, batch.transactional = base_sequence, transactional
            if base_sequence != NO_SEQUENCE:
                base_sequence = increment_sequence(base_sequence, batch.count)
        return batches

    def encode_by_partition(
        self,
        partitions: Int32s,
        partition_count: int,
        *,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> dict[int, list[EncodedBatch]]:
        """The batches of each partition that gets some, its rows in their order; `partitions` has that of each row.
        IndexError for a number that is none of a partition."""
        if len(partitions) != self.count:
            raise ValueError(f"{len(partitions)} partitions do not go with {self.count} rows")
        rows, starts = self._backend.sort_rows(np.ascontiguousarray(partitions, np.int32), partition_count)
        batches = iter(self._encode(rows, starts[1:], codec, level, limit))
        found: dict[int, list[EncodedBatch]] = {}
        for partition, (start, end) in enumerate(pairwise(starts.tolist())):
            while start < end:
                batch = next(batches)
                found.setdefault(partition, []).append(batch)
                start += batch.count
        return found

    def _encode(self, rows: Int64s, bounds: Int64s, codec: Codec, level: int | None, limit: int) -> list[EncodedBatch]:
        if self._prepared is None:
            self._prepared = self._backend.prepare(self._source)
        room = min(limit, _MOST_BYTES) - HEADER_SIZE
        return [
            EncodedBatch(*encoded, codec, level, limit=limit)
            for encoded in self._backend.encode(self._prepared, rows, bounds, room)
        ]


# -- decoding ---------------------------------------------------------------------------------------------------------


class Decoded(NamedTuple):
    """Rows, and the offset to go on from after them."""

    rows: Any
    next_offset: int


def schema(*, include_headers: bool = False) -> Any:
    """The schema of Spark's Kafka source."""
    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP_TYPE),
        ("timestampType", pa.int32()),
    ]
    return pa.schema([*fields, ("headers", HEADERS_TYPE)] if include_headers else fields)


class Decoder:
    """Decodes what is fetched from one partition."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        include_headers: bool = False,
        check_crcs: bool = True,
        limit: int = MAX_DECOMPRESSED_BYTES,
        chunk_bytes: int = CHUNK_BYTES,
        backend: Backend | None = None,
    ) -> None:
        """`limit`: what a batch may decompress to. `chunk_bytes`: about the size of what is decoded at a time."""
        self.schema = schema(include_headers=include_headers)
        self._topic = topic
        self._partition = partition
        self._include_headers = include_headers
        self._check_crcs = check_crcs
        self._limit = min(limit, _MOST_BYTES)
        self._chunk_bytes = min(chunk_bytes, _MOST_BYTES)
        self._backend = backend
        self._names: list[Any] = [pa.array([], pa.string()), pa.array([], pa.int32())]

    def decode(
        self,
        buf: Buffer,
        *,
        aborted: Iterable[tuple[int, int]] | None = None,
        start_offset: int = 0,
        end_offset: int = LAST_OFFSET,
    ) -> Iterator[Decoded]:
        """The rows from `start_offset` up to `end_offset` in the complete batches of `buf`; nothing where there is no
        complete one. `aborted` holds (first offset, producer id) of aborted transactions, None to see everything. The
        last that comes may have no rows, for the sake of its next offset."""
        sections: list[Section] = []
        size = 0
        reached = given = start_offset
        try:
            for position, header, visible in visible_batches(buf, aborted):
                if header.base_offset >= end_offset:
                    reached = max(reached, end_offset)
                    break
                if header.last_offset_delta < 0:
                    raise InvalidRecord(f"its last offset delta is {header.last_offset_delta}")
                if header.last_offset < start_offset:
                    continue
                if self._check_crcs and (visible or header.is_control) and not crc_is_valid(buf, position, header):
                    raise InvalidRecord(f"the CRC-32C of the batch is not the stored {header.crc:#010x}")
                section = self._section(buf, position, header) if visible and header.count else None
                if section is not None:
                    if sections and size + section.end - section.start > self._chunk_bytes:
                        given = reached
                        yield Decoded(self._rows(sections, start_offset, end_offset), given)
                        sections, size = [], 0
                    sections.append(section)
                    size += section.end - section.start
                reached = max(reached, min(header.next_offset, end_offset))
        except InvalidRecord as error:
            raise CorruptMessage(f"{self._topic}-{self._partition} after offset {reached}: {error.message}") from error
        if sections or reached > given:
            yield Decoded(self._rows(sections, start_offset, end_offset), reached)

    def _section(self, buf: Buffer, position: int, header: Header) -> Section:
        start, end = position + HEADER_SIZE, position + header.size
        if header.codec != Codec.NONE:
            buf = decompress(header.codec, memoryview(buf)[start:end], limit=self._limit)
            start, end = 0, len(buf)
        if not 0 <= header.count <= (end - start) // _SMALLEST_RECORD:
            raise InvalidRecord(f"{end - start} bytes of records cannot be the {header.count} that the batch declares")
        return Section(header, buf, start, end)

    def _rows(self, sections: list[Section], start_offset: int, end_offset: int) -> Any:
        backend = self._backend or backend_for(sum(section.header.count for section in sections))
        try:
            found = backend.decode(sections, start_offset, end_offset, self._include_headers)
        except Damaged as error:
            raise self._corrupt(sections[error.index]) from error
        count = len(found.keys)
        arrays = [
            found.keys,
            found.values,
            *self._constants(count),
            _plain_array(pa.int64(), found.offsets),
            _plain_array(TIMESTAMP_TYPE, found.timestamps),
            _plain_array(pa.int32(), found.timestamp_types),
        ]
        if self._include_headers:
            arrays.append(found.headers)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _constants(self, count: int) -> list[Any]:
        """Topic and partition, which are the same in all rows: made once for as many as there ever were."""
        if len(self._names[0]) < count:
            self._names = [
                pa.repeat(pa.scalar(self._topic, pa.string()), count),
                pa.repeat(pa.scalar(self._partition, pa.int32()), count),
            ]
        return [array.slice(0, count) for array in self._names]

    def _corrupt(self, section: Section) -> CorruptMessage:
        """The parser of single records knows what is wrong."""
        reason = "its records are damaged"
        try:
            for _ in parse_records(section.header, section.data):
                pass
        except InvalidRecord as error:
            reason = error.message
        where = f"{self._topic}-{self._partition}"
        return CorruptMessage(f"{where}: the batch at offset {section.header.base_offset} is corrupt: {reason}")


def _plain_array(kind: Any, numbers: Any) -> Any:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)], 0)


if __name__ == "__main__":
    print(warm_up())
