"""Columns become the bytes that the same records have one by one."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.records.batch import HEADER_SIZE, BatchBuilder, iter_records, read_header
from twofold.records.column_batch import MAX_RECORDS, RECORD_OVERHEAD, ColumnBatch, encode, shape_of, split
from twofold.records.compression import Codec

ANY = st.none() | st.binary(max_size=200) | st.integers(8_000, 9_000).map(bytes)


def one_by_one(keys: Any, values: Any, **fields: Any) -> bytes:
    builder = BatchBuilder(**fields)
    for index, value in enumerate(values):
        builder.add(None if keys is None else keys[index], value, 1_000)
    return builder.build()


def as_column(keys: Any, values: Any, codec: Codec = Codec.NONE, **fields: Any) -> bytes:
    batch = ColumnBatch(keys, values, 1_000, codec, shape=shape_of(keys, values))
    assert batch.build() == ColumnBatch(keys, values, 1_000, codec).build()
    for name, value in fields.items():
        setattr(batch, name, value)
    return bytes(batch.build())


@given(rows=st.lists(st.tuples(ANY, ANY), min_size=1, max_size=100), keyed=st.booleans(), codec=st.sampled_from(Codec))
@settings(deadline=None)
def test_any_columns_are_encoded_as_their_records(rows: Any, keyed: bool, codec: Codec) -> None:
    keys = [key for key, _ in rows] if keyed else None
    values = [value for _, value in rows]
    assert as_column(keys, values, codec) == one_by_one(keys, values, codec=codec)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 100, 1_024, 8_127, 8_128, 8_192, 20_000])
@pytest.mark.parametrize("key_size", [None, 0, 8, 64, 8_200])
@pytest.mark.parametrize("count", [1, 64, 65, 200])
def test_columns_of_one_size_are_encoded_as_their_records(size: int, key_size: int | None, count: int) -> None:
    values = [bytes([index % 256]) * size for index in range(count)]
    keys = None if key_size is None else [bytes([index % 256]) * key_size for index in range(count)]
    expected = one_by_one(keys, values)
    for _ in range(3):  # the second time there may be a table for the size
        assert as_column(keys, values) == expected


@pytest.mark.parametrize("count", [8_191, 8_192, 8_193, MAX_RECORDS])
def test_offsets_of_three_bytes_are_written_too(count: int) -> None:
    same = [b"x"] * count
    mixed = [b"x" * (index % 3) for index in range(count)]
    for values in (same, same, mixed):
        assert as_column(None, values) == one_by_one(None, values)


def test_more_records_than_a_batch_may_have_are_refused() -> None:
    with pytest.raises(ValueError, match="split them first"):
        encode(None, [b""] * (MAX_RECORDS + 1))


def test_columns_may_be_views_into_one_buffer() -> None:
    data = memoryview(bytes(range(200)))
    values = [data[index : index + 7] for index in range(0, 190, 7)]
    assert as_column(values, values) == one_by_one([bytes(v) for v in values], [bytes(v) for v in values])


def test_a_batch_is_built_anew_with_another_identity() -> None:
    batch = ColumnBatch(None, [b"a", b"b"], 1_000)
    batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.transactional = 7, 3, 40, True
    first = bytes(batch.build())
    assert first == one_by_one(
        None, [b"a", b"b"], producer_id=7, producer_epoch=3, base_sequence=40, transactional=True
    )
    batch.producer_epoch, batch.base_sequence = 4, 0
    header = read_header(batch.build())
    assert (header.producer_epoch, header.base_sequence, header.is_transactional) == (4, 0, True)
    assert [record.value for record in iter_records(batch.build())] == [b"a", b"b"]


@given(sizes=st.lists(st.integers(0, 400), max_size=200), limit=st.integers(100, 3_000), keyed=st.booleans())
@settings(deadline=None)
def test_split_fills_batches_up_to_the_limit_and_no_further(sizes: list[int], limit: int, keyed: bool) -> None:
    values = [bytes(size) for size in sizes]
    keys = [b"key"] * len(sizes) if keyed else None
    ends = split(keys, values, limit)
    assert ends[0] == 0 and ends[-1] == len(values)
    assert split(keys, values, limit, shape_of(keys, values)) == ends
    per_record = RECORD_OVERHEAD + (3 if keyed else 0)
    for start, end in pairwise(ends):
        assert start < end
        chosen = None if keys is None else keys[start:end]
        assert len(encode(chosen, values[start:end])) <= limit or end - start == 1
        if end < len(values):
            # One more record would have been too much, by the bound that is known before encoding.
            assert HEADER_SIZE + sum(sizes[start : end + 1]) + per_record * (end + 1 - start) > limit


def test_columns_of_one_size_have_a_shape_and_others_have_none() -> None:
    assert shape_of(None, [b"aa", b"bb"]) == (-1, 2)
    assert shape_of([b"", b""], [b"aa", memoryview(b"bb")]) == (0, 2)
    assert shape_of([b"k", b"kk"], [b"a", b"b"]) is None
    assert shape_of(None, [b"a", None]) is None
    assert shape_of(None, [None]) is None
    assert shape_of(None, []) is None


def test_split_of_nothing_is_nothing() -> None:
    assert split(None, [], 1_000) == [0]


def test_split_bounds_the_number_of_records() -> None:
    ends = split(None, [b""] * (MAX_RECORDS + 1), 1 << 30)
    assert ends == [0, MAX_RECORDS, MAX_RECORDS + 1]
    mixed = [b"", b"x"] * (MAX_RECORDS // 2 + 1)
    assert split(None, mixed, 1 << 30) == [0, MAX_RECORDS, MAX_RECORDS + 2]
