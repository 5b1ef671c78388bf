"""Whole columns of keys and values as record batches, without a call for each record.

A record is a few varints around a key and a value. Written for a column at a time those varints are table look-ups
that `map` makes, and the records are one `join`: about 60 ns per record when all have the same size, and 300 ns when
not. Adding them one by one takes a microsecond per record.

1. All records of a batch have the same timestamp, no headers and offsets without gaps; for more there is BatchBuilder.
2. The bytes are those that `BatchBuilder` would write.
3. Columns are sequences of bytes-like objects and None; nothing here keeps or changes them.
"""

from collections.abc import Sequence
from itertools import accumulate, chain
from operator import add
from typing import TypeAlias

from twofold.records.batch import HEADER_SIZE, MAGIC, TRANSACTIONAL, Header, seal
from twofold.records.compression import Codec, compress
from twofold.records.varint import ENCODED, NULL_LENGTH, encode_varint
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

Data: TypeAlias = bytes | bytearray | memoryview
Column: TypeAlias = Sequence[Data | None]
Shape: TypeAlias = tuple[int, int]

MAX_RECORDS = 1 << 15
"""Per batch. More records would need longer tables, and records are hardly ever so small that a batch holds more."""
RECORD_OVERHEAD = 21
"""At most what a record takes besides its key and value: five varints and one byte of attributes."""
_ONE_BYTE, _TWO_BYTES = 64, 8192  # below these, a number's varint has one byte, two bytes
_FIXED = 3  # attributes, timestamp delta and number of headers: a zero each
_TABLE = _TWO_BYTES - 64  # keys and values below this have their sizes, and those of their records, in the tables
_KEPT_PREFIXES = 16

# _FULL[n]: a key or value of n bytes with its length in front.
_FULL = [size + (1 if size < _ONE_BYTE else 2) for size in range(_TABLE)]
# A record begins with its length and two zeros. The zero in front of it ends the record before: it has no headers.
_STARTS: list[bytes] = []
_OFFSETS: list[bytes] = []
_prefixes: dict[tuple[int, int], list[bytes]] = {}
_seen: dict[tuple[int, int], int] = {}


def shape_of(keys: Column | None, values: Column) -> Shape | None:
    """The size that all keys have (-1 for no keys) and that of all values; None where sizes differ or one is null."""
    value_size = _one_size(values)
    key_size = -1 if keys is None else _one_size(keys)
    return None if value_size is None or key_size is None else (key_size, value_size)


def _one_size(column: Column) -> int | None:
    try:
        sizes = set(map(len, column))  # type: ignore[arg-type]
    except TypeError:  # None has no length
        return None
    return sizes.pop() if len(sizes) == 1 else None


def split(keys: Column | None, values: Column, limit: int, shape: Shape | None = None) -> list[int]:
    """Where batches of at most `limit` bytes begin, and the end. A record that is larger has a batch to itself."""
    count = len(values)
    overhead = RECORD_OVERHEAD
    room = limit - HEADER_SIZE
    ends = [0]
    if shape is not None:
        step = max(1, min(MAX_RECORDS, room // (max(0, shape[0]) + shape[1] + overhead)))
        return [*range(0, count, step), count]
    sizes = _sizes(values) if keys is None else list(map(add, _sizes(values), _sizes(keys)))
    totals = list(accumulate(size + overhead for size in sizes))
    while ends[-1] < count:
        start = ends[-1]
        before = totals[start - 1] if start else 0
        end = _position_above(totals, before + room, start + 1, min(count, start + MAX_RECORDS))
        ends.append(end)
    return ends


def _position_above(totals: list[int], bound: int, low: int, high: int) -> int:
    """The largest end, from `low` to `high`, up to which everything fits; `low` if nothing does."""
    while low < high:
        middle = (low + high + 1) // 2
        if totals[middle - 1] <= bound:
            low = middle
        else:
            high = middle - 1
    return low


def _sizes(column: Column) -> list[int]:
    if None in column:
        return [0 if item is None else len(item) for item in column]
    return list(map(len, column))  # type: ignore[arg-type]


def encode(keys: Column | None, values: Column, shape: Shape | None = None) -> bytearray:
    """The records after HEADER_SIZE bytes that are left for the header. A caller that knows the `shape` of the columns
    gives it: records of one size take a third of the time."""
    count = len(values)
    if count > MAX_RECORDS:
        raise ValueError(f"{count} records are above {MAX_RECORDS}: split them first")
    if shape is not None and max(shape) < _TABLE:
        prefixes = _uniform_prefixes(shape, count)
        if prefixes is not None:
            return _encode_uniform(prefixes, shape, keys, values)
    value_sizes = _sizes(values)
    key_sizes = [] if keys is None else _sizes(keys)
    if max(value_sizes) >= _TABLE or (key_sizes and max(key_sizes) >= _TABLE):
        return _encode_large(keys, values)
    return _encode_any(keys, values, key_sizes, value_sizes)


def _encode_uniform(prefixes: list[bytes], shape: Shape, keys: Column | None, values: Column) -> bytearray:
    count = len(values)
    if keys is None:
        parts: list[Data] = [b""] * (2 * count)
        parts[0::2] = prefixes[:count]
        parts[1::2] = values  # type: ignore[assignment]
    else:
        parts = [ENCODED[shape[1]]] * (4 * count)
        parts[0::4] = prefixes[:count]
        parts[1::4] = keys  # type: ignore[assignment]
        parts[3::4] = values  # type: ignore[assignment]
    return _joined(parts)


def _uniform_prefixes(shape: Shape, count: int) -> list[bytes] | None:
    """What stands before each of `count` keys (values, when there are no keys) that all have the same size; None for a
    size that came only once: the table would cost more than it gives."""
    known = _prefixes.get(shape)
    if known is None or len(known) < count:
        if known is None and _seen.get(shape, 0) < count:
            if len(_seen) > 1_000:
                _seen.clear()
            _seen[shape] = count
            return None
        if len(_prefixes) >= _KEPT_PREFIXES and known is None:
            _prefixes.pop(next(iter(_prefixes)))
        known = _prefixes[shape] = _make_prefixes(shape, count)
    return known


def _make_prefixes(shape: Shape, count: int) -> list[bytes]:
    key_size, value_size = shape
    last = ENCODED[value_size] if key_size < 0 else ENCODED[key_size]
    starts, offsets = _tables(count)
    size = _FIXED + _FULL[value_size] + (1 if key_size < 0 else _FULL[key_size])
    if key_size < 0:
        last = NULL_LENGTH + last
    return [starts[size + len(offset)] + offset + last for offset in offsets[:count]]


def _encode_any(keys: Column | None, values: Column, key_sizes: list[int], value_sizes: list[int]) -> bytearray:
    count = len(values)
    starts, offsets = _tables(count)
    value_full = map(_FULL.__getitem__, value_sizes)
    # 1 for the length of a key that is null
    full = (
        [1 + size for size in value_full]
        if keys is None
        else list(map(add, value_full, map(_FULL.__getitem__, key_sizes)))
    )
    shifts = ((0, _ONE_BYTE, 1), (_ONE_BYTE, _TWO_BYTES, 2), (_TWO_BYTES, count, 3))
    lengths = chain.from_iterable(
        [starts[size + extra] for size in full[start:end]]
        for start, end, width in shifts
        if start < count
        for extra in (_FIXED + width,)
    )
    value_lengths = _lengths(values, value_sizes)
    if keys is None:
        parts: list[Data] = [NULL_LENGTH] * (5 * count)
        parts[0::5] = lengths
        parts[1::5] = offsets[:count]
        parts[3::5] = value_lengths
        parts[4::5] = _without_nulls(values)
    else:
        parts = [b""] * (6 * count)
        parts[0::6] = lengths
        parts[1::6] = offsets[:count]
        parts[2::6] = _lengths(keys, key_sizes)
        parts[3::6] = _without_nulls(keys)
        parts[4::6] = value_lengths
        parts[5::6] = _without_nulls(values)
    return _joined(parts)


def _lengths(column: Column, sizes: list[int]) -> list[bytes]:
    if None in column:
        return [NULL_LENGTH if item is None else ENCODED[size] for item, size in zip(column, sizes, strict=True)]
    return list(map(ENCODED.__getitem__, sizes))


def _without_nulls(column: Column) -> Sequence[Data]:
    if None in column:
        return [b"" if item is None else item for item in column]
    return column  # type: ignore[return-value]


def _encode_large(keys: Column | None, values: Column) -> bytearray:
    """For keys or values of kilobytes: a call per record costs little beside them."""
    parts: list[Data] = []
    _, offsets = _tables(len(values))
    for index, value in enumerate(values):
        key = None if keys is None else keys[index]
        key_length = NULL_LENGTH if key is None else encode_varint(len(key))
        value_length = NULL_LENGTH if value is None else encode_varint(len(value))
        key, value = key or b"", value or b""
        size = _FIXED + len(offsets[index]) + len(key_length) + len(key) + len(value_length) + len(value)
        parts += (b"\0" + encode_varint(size) + b"\0\0", offsets[index], key_length, key, value_length, value)
    return _joined(parts)


def _tables(count: int) -> tuple[list[bytes], list[bytes]]:
    if not _STARTS:
        _STARTS.extend(b"\0" + encode_varint(size) + b"\0\0" for size in range(2 * _TWO_BYTES + 64))
    if len(_OFFSETS) < count:
        _OFFSETS.extend(encode_varint(offset) for offset in range(len(_OFFSETS), count))
    return _STARTS, _OFFSETS


def _joined(parts: list[Data]) -> bytearray:
    # Each record begins with the zero that ends the one before: the first has none to end, the last is ended here.
    first = parts[0]
    assert isinstance(first, bytes)
    parts[0] = bytes(HEADER_SIZE) + first[1:]
    parts.append(b"\0")
    return bytearray().join(parts)


class EncodedBatch:
    """Records that are encoded; the producer's fields enter the header until `build`, as with a BatchBuilder."""

    __slots__ = (
        "base_sequence",
        "codec",
        "count",
        "level",
        "producer_epoch",
        "producer_id",
        "size_estimate",
        "transactional",
        "_base_timestamp",
        "_batch",
        "_max_timestamp",
    )

    def __init__(
        self,
        batch: bytearray,
        count: int,
        base_timestamp: int,
        max_timestamp: int,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        *,
        limit: int | None = None,
    ) -> None:
        """`batch` has the records, not compressed, after HEADER_SIZE bytes of any content. Where the codec would only
        make it larger, and larger than `limit`, it stays as it is."""
        self.size_estimate = len(batch)
        if codec != Codec.NONE:
            packed = compress(codec, memoryview(batch)[HEADER_SIZE:], level=level)
            if limit is not None and HEADER_SIZE + len(packed) > max(limit, len(batch)):
                codec = Codec.NONE
            else:
                batch = bytearray(HEADER_SIZE)
                batch += packed
        self.count = count
        self.codec = codec
        self.level = level
        self.producer_id: int = NO_PRODUCER_ID
        self.producer_epoch: int = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE
        self.transactional = False
        self._batch = batch
        self._base_timestamp = base_timestamp
        self._max_timestamp = max_timestamp

    def build(self) -> bytearray:
        """The batch, in place: it is the same object every time."""
        attributes = self.codec | (TRANSACTIONAL if self.transactional else 0)
        header = Header(
            0,
            0,
            -1,
            MAGIC,
            0,
            attributes,
            self.count - 1,
            self._base_timestamp,
            self._max_timestamp,
            self.producer_id,  # type: ignore[arg-type]  # as in BatchBuilder
            self.producer_epoch,  # type: ignore[arg-type]
            self.base_sequence,
            self.count,
        )
        seal(self._batch, header)
        return self._batch


class ColumnBatch(EncodedBatch):
    """Keys and values of one batch, encoded."""

    __slots__ = ()

    def __init__(
        self,
        keys: Column | None,
        values: Column,
        timestamp: int,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        shape: Shape | None = None,
    ) -> None:
        super().__init__(encode(keys, values, shape), len(values), timestamp, timestamp, codec, level)
