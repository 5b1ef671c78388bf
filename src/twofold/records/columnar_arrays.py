"""Arrow columns as plain arrays, and back: what both ways of the columnar codec work on.

Nothing is copied but offsets (made 64 bits wide) and validity (made one byte per row).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from twofold.records.batch import Buffer, Header

Int64s: TypeAlias = NDArray[np.int64]
Int32s: TypeAlias = NDArray[np.int32]
Bytes: TypeAlias = NDArray[np.uint8]

NO_BYTES: Bytes = np.empty(0, np.uint8)
NO_OFFSETS: Int64s = np.empty(0, np.int64)
# "element" is what Spark calls the items of a list.
HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class BytesColumn:
    """Row i is data[offsets[i]:offsets[i + 1]], or null where there is a `valid` and valid[i] is 0. A column without
    offsets has nothing but nulls."""

    data: Bytes
    offsets: Int64s
    valid: Bytes

    @property
    def address(self) -> int:
        return address_of(self.data)

    def to_list(self, count: int) -> list[bytes | None]:
        if not len(self.offsets):
            return [None] * count
        first = int(self.offsets[0])
        data = self.data[first : self.offsets[-1]].tobytes()
        items: list[bytes | None] = [data[start:end] for start, end in pairwise((self.offsets - first).tolist())]
        for row in np.flatnonzero(self.valid == 0).tolist() if len(self.valid) else ():
            items[row] = None
        return items


NULLS = BytesColumn(NO_BYTES, NO_OFFSETS, NO_BYTES)


@dataclass(frozen=True, slots=True)
class HeadersColumn:
    """The headers of row i are the entries from lists[i, 0] up to lists[i, 1]."""

    lists: Int64s
    keys: BytesColumn
    values: BytesColumn


NO_HEADERS = HeadersColumn(np.empty((0, 2), np.int64), NULLS, NULLS)


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """What is to be encoded. `timestamps` has one entry for all rows or one for each."""

    count: int
    keys: BytesColumn
    values: BytesColumn
    headers: HeadersColumn
    timestamps: Int64s


class Encoded(NamedTuple):
    """The records of one batch after room for its header."""

    batch: bytearray
    row_count: int
    base_timestamp: int
    max_timestamp: int


class Section(NamedTuple):
    """The records of one batch, not compressed: where they are."""

    header: Header
    buffer: Buffer
    start: int
    end: int

    @property
    def data(self) -> bytes:
        return bytes(memoryview(self.buffer)[self.start : self.end])


class Damaged(Exception):
    """The section of this index holds bytes that are no records."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Rows(NamedTuple):
    """What sections were decoded to: Arrow arrays of one length. `timestamps` are microseconds."""

    keys: Any
    values: Any
    offsets: Any
    timestamps: Any
    timestamp_types: Any
    headers: Any


class Backend(Protocol):
    """One way of doing the work. Both give the same."""

    def partitions(self, keys: BytesColumn, partition_count: int, out: Int32s) -> None:
        """Write the partition of every key that is not null."""

    def sort_rows(self, partitions: Int32s, partition_count: int) -> tuple[Int64s, Int64s]:
        """The rows by partition, and where each partition's begin; IndexError for a number that is none of one."""

    def prepare(self, source: ColumnSource) -> Any:
        """What `encode` takes. OverflowError names a row that is larger than a record can be."""

    def encode(self, prepared: Any, rows: Int64s, bounds: Int64s, room: int) -> list[Encoded]:
        """`rows` in batches of at most `room` bytes of records, or of one record, none of which goes beyond one of
        `bounds`; the last of these is the number of rows."""

    def decode(self, sections: list[Section], first: int, end: int, with_headers: bool) -> Rows:
        """The records whose offsets are from `first` up to `end`."""


# -- from Arrow -------------------------------------------------------------------------------------------------------


def one_array(array: Any, name: str) -> Any:
    """A column that came in chunks as one array."""
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks == 1:
            return array.chunk(0)
        wide = pa.types.is_binary(array.type) or pa.types.is_string(array.type)
        return pa.concat_arrays((array.cast(pa.large_binary()) if wide else array).chunks or [pa.nulls(0, array.type)])
    if not isinstance(array, pa.Array):
        raise TypeError(f"{name} is a {type(array).__name__}: an Arrow array is needed")
    return array


def bytes_column(array: Any, name: str) -> BytesColumn:
    """Of binary or text, in any of Arrow's layouts."""
    array = one_array(array, name)
    kind = array.type
    if pa.types.is_null(kind):
        return NULLS
    if pa.types.is_fixed_size_binary(kind):
        offsets = kind.byte_width * np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64)
        data = array.buffers()[1]
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        offsets, data = _offsets(array, np.int32), array.buffers()[2]
    elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        offsets, data = _offsets(array, np.int64), array.buffers()[2]
    elif _is_bytes_in_another_layout(kind):
        return bytes_column(array.cast(pa.large_binary()), name)
    else:
        raise TypeError(f"{name} is of type {kind}: only binary and string can be sent, cast it to one of them")
    column = BytesColumn(_bytes(data), offsets, _validity(array))
    if offsets[0] < 0 or offsets[-1] > len(column.data) or bool((offsets[1:] < offsets[:-1]).any()):
        # The kernels follow the offsets without a check: an array with wrong offsets must not reach them.
        raise ValueError(f"{name} is not a valid Arrow array: its offsets leave its data")
    return column


def _is_bytes_in_another_layout(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        layouts = pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string
        return any(is_layout(kind.value_type) for is_layout in layouts)
    return bool(pa.types.is_binary_view(kind) or pa.types.is_string_view(kind))


def _offsets(array: Any, width: type[np.int32] | type[np.int64]) -> Int64s:
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(len(array) + 1, np.int64)
    start = array.offset * np.dtype(width).itemsize
    return np.frombuffer(buffer, width, len(array) + 1, start).astype(np.int64)


def _bytes(buffer: Any) -> Bytes:
    return NO_BYTES if buffer is None else np.frombuffer(buffer, np.uint8)


def _validity(array: Any) -> Bytes:
    buffer = array.buffers()[0]
    if buffer is None or not array.null_count:
        return NO_BYTES
    skipped = array.offset & 7
    bits = np.frombuffer(buffer, np.uint8, (skipped + len(array) + 7) >> 3, array.offset >> 3)
    return np.unpackbits(bits, bitorder="little")[skipped : skipped + len(array)]


def headers_column(array: Any) -> HeadersColumn:
    """Of lists of (key, value); a list that is null has no entries."""
    array = one_array(array, "headers")
    kind = array.type
    if pa.types.is_null(kind):
        return NO_HEADERS
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not _is_header(kind.value_type):
        raise TypeError(f"headers is of type {kind}: an array of struct<key: string, value: binary> is needed")
    entries = array.values
    ends = _offsets(array, np.int32 if pa.types.is_list(kind) else np.int64)
    lists = np.stack((ends[:-1], ends[1:]), axis=1)
    valid = _validity(array)
    if len(valid):
        lists[valid == 0] = 0
    if lists.size and (lists.min() < 0 or lists.max() > len(entries) or bool((lists[:, 1] < lists[:, 0]).any())):
        raise ValueError("headers is not a valid Arrow array: its offsets leave its entries")
    keys = bytes_column(entries.field(0), "the key of a header")
    values = bytes_column(entries.field(1), "the value of a header")
    _refuse_null_keys(entries, keys, lists)
    return HeadersColumn(np.ascontiguousarray(lists), keys, values)


def _is_header(kind: Any) -> bool:
    return pa.types.is_struct(kind) and [field.name for field in kind] == ["key", "value"]


def _refuse_null_keys(entries: Any, keys: BytesColumn, lists: Int64s) -> None:
    """Each header needs a key. Entries that no row refers to are not looked at."""
    missing = np.zeros(len(entries), bool)
    for valid in (_validity(entries), keys.valid):
        if len(valid):
            missing |= valid == 0
    if not len(keys.offsets):
        missing[:] = True
    before = np.concatenate(([0], np.cumsum(missing)))
    bad = np.flatnonzero(before[lists[:, 1]] > before[lists[:, 0]])
    if len(bad):
        raise ValueError(f"row {bad[0]} has a header without a key")


def timestamps_of(timestamps: Any, count: int) -> Int64s:
    """One number for all rows, or an Arrow array of them (milliseconds, or any of Arrow's timestamps)."""
    if isinstance(timestamps, int):
        return np.array([timestamps], np.int64)
    array = one_array(timestamps, "timestamps")
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False).view(pa.int64())
    if not pa.types.is_int64(array.type):
        raise TypeError(f"timestamps is of type {array.type}: int64 milliseconds or a timestamp is needed")
    if len(array) != count:
        raise ValueError(f"{len(array)} timestamps do not go with {count} rows")
    if array.null_count:
        raise ValueError("a timestamp is null: fill them in first")
    return np.frombuffer(array.buffers()[1], np.int64, count, array.offset * 8) if count else NO_OFFSETS


# -- to Arrow ---------------------------------------------------------------------------------------------------------


def address_of(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def binary_array(ends: Int32s, data: Any, valid: Bytes, kind: Any = None) -> Any:
    """A binary array (or another of that layout) of len(ends) - 1 rows."""
    count = len(ends) - 1
    nulls = count - int(np.count_nonzero(valid[:count]))
    bitmap = pa.py_buffer(np.packbits(valid[:count], bitorder="little")) if nulls else None
    buffers = [bitmap, pa.py_buffer(ends), data if isinstance(data, pa.Buffer) else pa.py_buffer(data)]
    return pa.Array.from_buffers(kind or pa.binary(), count, buffers, nulls)


def headers_array(ends: Int32s, keys: Any, values: Any) -> Any:
    """Lists of (key, value), null where a row has none."""
    count = len(ends) - 1
    valid = ends[1:] != ends[:-1]
    nulls = count - int(np.count_nonzero(valid))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    entries = pa.StructArray.from_arrays([_as_text(keys), values], names=["key", "value"])
    buffers = [bitmap, pa.py_buffer(ends)]
    return pa.Array.from_buffers(HEADERS_TYPE, count, buffers, nulls, children=[entries])


def _as_text(keys: Any) -> Any:
    """Keys as strings; what is not UTF-8 is replaced, as Java does."""
    text = keys.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
    return text
