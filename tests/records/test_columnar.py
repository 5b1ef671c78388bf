"""Arrow columns become the batches that a builder makes of the same records, and batches become columns."""

import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.columnar import (
    BACKENDS,
    Row,
    arrow,
    damaged_logs,
    in_log,
    one_by_one,
    outcome,
    records_of,
    rows_of,
    some_batch,
)
from twofold.records.batch import HEADER_SIZE, SEQUENCE_MAX, BatchBuilder, iter_records
from twofold.records.columnar import NO_KEY, Columns, Decoder, schema
from twofold.records.columnar_arrays import HEADERS_TYPE, Backend
from twofold.records.compression import Codec
from twofold.records.control import end_transaction_marker
from twofold.records.key_hash import murmur2, partition_for_key
from twofold.records.varint import encode_varint
from twofold.wire.errors import CorruptMessage

DATA = st.none() | st.binary(max_size=80) | st.integers(8_100, 8_300).map(bytes)
TIMES = st.integers(0, 2**42) | st.integers(-(2**63), 2**63 - 1)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3).map(tuple)
ROWS = st.lists(st.tuples(DATA, DATA, TIMES, HEADERS), max_size=40)
LIMITS = st.sampled_from([100, 1_000, 20_000, 1 << 20])


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]


def parts(batches: list[Any]) -> Iterator[tuple[Any, int, int]]:
    start = 0
    for batch in batches:
        yield batch, start, start + batch.count
        start += batch.count


# -- encoding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
@given(rows=ROWS, limit=LIMITS, codec=st.sampled_from(Codec))
@settings(deadline=None, max_examples=100)
def test_columns_are_encoded_as_a_builder_does(name: str, rows: list[Row], limit: int, codec: Codec) -> None:
    columns = Columns(**arrow(rows), backend=BACKENDS[name])
    batches = columns.encode(codec=codec, limit=limit, producer_id=7, producer_epoch=2, base_sequence=40)
    assert sum(batch.count for batch in batches) == len(rows)
    for batch, start, end in parts(batches):
        fields = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 40 + start}
        assert batch.build() == one_by_one(rows[start:end], codec=batch.codec, **fields)
        assert batch.codec == codec or len(one_by_one(rows[start:end], codec=codec)) > limit


@given(rows=ROWS, limit=LIMITS)
@settings(deadline=None, max_examples=100)
def test_a_batch_is_as_full_as_the_limit_allows(rows: list[Row], limit: int) -> None:
    found = [list(parts(Columns(**arrow(rows), backend=backend).encode(limit=limit))) for backend in BACKENDS.values()]
    ends = [[end for _, _, end in batches] for batches in found]
    assert ends[0] == ends[1]
    for _, start, end in found[0]:
        assert end - start == 1 or len(one_by_one(rows[start:end])) <= limit
        if end < len(rows):
            with_next = [*rows[start:end], rows[end]]
            if abs(rows[end][2] - rows[start][2]) < 2**63:
                assert len(one_by_one(with_next)) > limit


@pytest.mark.parametrize("codec", Codec)
def test_one_timestamp_for_all_rows_and_no_headers(backend: Backend, codec: Codec) -> None:
    keys = [None if index % 7 == 0 else b"key-%d" % index for index in range(9_000)]
    values = [None if index % 11 == 0 else b"x" * (index % 300) for index in range(9_000)]
    columns = Columns(pa.array(keys, pa.binary()), pa.array(values, pa.binary()), 1_700_000_000_000, backend=backend)
    rows: list[Row] = [(key, value, 1_700_000_000_000, ()) for key, value in zip(keys, values, strict=True)]
    (batch,) = columns.encode(limit=1 << 22, codec=codec, transactional=True, producer_id=1, producer_epoch=0)
    assert batch.build() == one_by_one(rows, codec=codec, transactional=True, producer_id=1, producer_epoch=0)


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.string(),
        pa.large_binary(),
        pa.large_string(),
        pa.binary(4),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ],
    ids=str,
)
def test_every_layout_of_bytes_and_text_is_taken(backend: Backend, kind: Any) -> None:
    texts = ["abcd", None, "efgh", "abcd", "ijkl", None, "mnop"]
    data = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
    array = data.cast(pa.string()).dictionary_encode() if pa.types.is_dictionary(kind) else data.cast(kind)
    for start, count in ((0, 7), (1, 5), (3, 2), (7, 0)):
        columns = Columns(array.slice(start, count), array.slice(start, count), 5, backend=backend)
        chosen = [None if text is None else text.encode() for text in texts[start : start + count]]
        found = [record for batch in columns.encode() for record in iter_records(batch.build())]
        assert [(record.key, record.value) for record in found] == [(item, item) for item in chosen]


def test_chunks_nulls_and_missing_columns(backend: Backend) -> None:
    chunked = pa.chunked_array([pa.array([b"a", None]), pa.array([], pa.binary()), pa.array([b"c"])])
    for keys, expected in ((None, None), (pa.nulls(3), None), (chunked, b"a")):
        (batch,) = Columns(keys, chunked, 5, backend=backend).encode()
        found = list(iter_records(batch.build()))
        assert found[0].key == expected
        assert [record.value for record in found] == [b"a", None, b"c"]
    (batch,) = Columns(chunked, None, 5, backend=backend).encode()
    assert [(record.key, record.value) for record in iter_records(batch.build())] == [
        (b"a", None), (None, None), (b"c", None),
    ]  # fmt: skip


def test_rows_are_encoded_in_the_order_that_is_asked_for(backend: Backend) -> None:
    values = pa.array([b"%d" % index for index in range(10)])
    columns = Columns(None, values, pa.array(range(10), pa.int64()), backend=backend)
    (batch,) = columns.encode([7, 3, 3, 9])
    found = [(record.value, record.timestamp) for record in iter_records(batch.build())]
    assert found == [(b"7", 7), (b"3", 3), (b"3", 3), (b"9", 9)]
    assert columns.encode([]) == []
    with pytest.raises(IndexError, match="among 10"):
        columns.encode([10])
    with pytest.raises(IndexError, match="among 10"):
        columns.encode([-1])


def test_timestamps_too_far_apart_for_one_batch_get_two(backend: Backend) -> None:
    times = pa.array([-(2**63), -1, 0, 2**63 - 1], pa.int64())
    batches = Columns(None, pa.array([b"x"] * 4), times, backend=backend).encode()
    assert [batch.count for batch in batches] == [2, 2]
    assert [r.timestamp for batch in batches for r in iter_records(batch.build())] == times.to_pylist()


def test_sequence_numbers_go_on_from_batch_to_batch_and_wrap(backend: Backend) -> None:
    columns = Columns(None, pa.array([b"x" * 50] * 9), 5, backend=backend)
    batches = columns.encode(limit=250, base_sequence=SEQUENCE_MAX - 3, producer_id=1, producer_epoch=0)
    assert [batch.count for batch in batches] == [3, 3, 3]
    assert [batch.base_sequence for batch in batches] == [SEQUENCE_MAX - 3, SEQUENCE_MAX, 2]


def test_what_a_codec_would_make_too_large_stays_uncompressed(backend: Backend) -> None:
    noise = random.Random(1).randbytes(5_000)
    limit = HEADER_SIZE + len(noise) + 11
    columns = Columns(None, pa.array([noise]), 5, backend=backend)
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        (batch,) = columns.encode(codec=codec, limit=limit)
        assert len(batch.build()) <= limit
        assert next(iter_records(batch.build())).value == noise


def test_a_record_of_ten_megabytes_goes_both_ways(backend: Backend) -> None:
    large = random.Random(2).randbytes(10_000_000)
    columns = Columns(pa.array([b"k1", b"k2", b"k3"]), pa.array([b"a", large, b"b"]), 5, backend=backend)
    batches = columns.encode()
    assert [batch.count for batch in batches] == [1, 1, 1]
    log = in_log(*(batch.build() for batch in batches))
    found = [value for rows, _ in Decoder("t", 0, backend=backend).decode(log) for value in rows["value"].to_pylist()]
    assert found == [b"a", large, b"b"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"values": pa.array([1, 2])}, "values is of type int64: only binary and string"),
        ({"values": [b"a"]}, "values is a list: an Arrow array is needed"),
        ({"values": pa.array([b"a"]), "headers": pa.array(["x"])}, "headers is of type string"),
        ({"values": pa.array([b"a"]), "keys": pa.array([b"a", b"b"])}, "columns of 2, 1 rows do not go together"),
        ({"values": pa.array([b"a"]), "timestamps": pa.array([1, 2])}, "2 timestamps do not go with 1 rows"),
        ({"values": pa.array([b"a"]), "timestamps": pa.array([None], pa.int64())}, "a timestamp is null"),
        ({"values": pa.array([b"a"]), "timestamps": pa.array([1.5])}, "timestamps is of type double"),
        ({}, "neither keys nor values"),
    ],
)
def test_columns_that_cannot_be_sent_are_named(columns: dict[str, Any], message: str) -> None:
    given = {"keys": None, "values": None, "timestamps": 5} | columns
    with pytest.raises((TypeError, ValueError), match=message):
        Columns(**given)


def test_offsets_that_leave_their_data_are_refused() -> None:
    offsets = pa.py_buffer(np.array([0, 2_000_000, 5], np.int32))
    array = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"short")])
    with pytest.raises(ValueError, match="its offsets leave its data"):
        Columns(None, array, 5)


def test_timestamps_may_be_of_any_unit(backend: Backend) -> None:
    times = pa.array([1_000_123_456, -1], pa.timestamp("us", tz="UTC"))
    (batch,) = Columns(None, pa.array([b"a", b"b"]), times, backend=backend).encode()
    assert [record.timestamp for record in iter_records(batch.build())] == [1_000_123, 0]


# -- headers ----------------------------------------------------------------------------------------------------------


def test_headers_are_taken_from_slices_and_large_lists(backend: Backend) -> None:
    entries = [
        [{"key": "a", "value": b"1"}],
        None,
        [],
        [{"key": "é", "value": None}, {"key": "", "value": b""}],
        [{"key": "z", "value": b"9"}],
    ]
    expected = [(("a", b"1"),), (), (), (("é", None), ("", b"")), (("z", b"9"),)]
    for kind in (HEADERS_TYPE, pa.large_list(HEADERS_TYPE.value_type)):
        for start, count in ((0, 5), (1, 3), (3, 2)):
            array = pa.array(entries, kind).slice(start, count)
            columns = Columns(None, pa.array([b"v"] * count), 5, array, backend=backend)
            (batch,) = columns.encode()
            assert [r.headers for r in iter_records(batch.build())] == expected[start : start + count]


def test_a_header_without_a_key_is_refused_unless_no_row_has_it(backend: Backend) -> None:
    entries = pa.array([{"key": "a", "value": b"1"}, {"key": None, "value": b"2"}, None], HEADERS_TYPE.value_type)
    values = pa.array([b"x"])
    for start, end in ((0, 2), (2, 3)):
        array = pa.ListArray.from_arrays(pa.array([start, end], pa.int32()), entries)
        with pytest.raises(ValueError, match="row 0 has a header without a key"):
            Columns(None, values, 5, array, backend=backend)
    array = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), entries)
    (batch,) = Columns(None, values, 5, array, backend=backend).encode()
    assert next(iter_records(batch.build())).headers == (("a", b"1"),)


def test_a_record_without_headers_has_null_and_not_an_empty_list(backend: Backend) -> None:
    log = in_log(one_by_one([(None, b"a", 5, ()), (None, b"b", 5, (("k", b"v"),))]))
    ((rows, _),) = Decoder("t", 0, include_headers=True, backend=backend).decode(log)
    assert rows["headers"].to_pylist() == [None, [{"key": "k", "value": b"v"}]]


def test_header_keys_that_are_not_text_are_replaced_as_java_does(backend: Backend) -> None:
    keys = [b"ok", b"\xff\xfea", "\u20ac".encode()[:2] + b"x"]
    builder = BatchBuilder()
    builder.add(None, b"v", 5, [(key.decode("utf-8", "surrogateescape"), b"1") for key in keys])
    ((rows, _),) = Decoder("t", 0, include_headers=True, backend=backend).decode(in_log(builder.build()))
    found = [header["key"] for header in rows["headers"].to_pylist()[0]]
    assert found == ["ok", "\ufffd\ufffda", "\ufffdx"]


# -- partitions -------------------------------------------------------------------------------------------------------

JAVA_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
    (b"", 275646681),
]


def test_keys_hash_as_with_the_java_client(backend: Backend) -> None:
    most = 2**31 - 1
    columns = Columns(pa.array([key for key, _ in JAVA_VECTORS]), None, 5, backend=backend)
    assert columns.partitions(most).tolist() == [(number & 0x7FFFFFFF) % most for _, number in JAVA_VECTORS]


@given(keys=st.lists(st.binary(max_size=40), max_size=50), count=st.integers(1, 1000))
@settings(deadline=None, max_examples=50)
def test_keys_go_where_single_records_go(keys: list[bytes], count: int) -> None:
    for backend in BACKENDS.values():
        found = Columns(pa.array(keys, pa.binary()), None, 5, backend=backend).partitions(count)
        assert found.tolist() == [partition_for_key(key, count) for key in keys]


def test_rows_without_a_key_go_to_one_partition_or_to_several_in_turn(backend: Backend) -> None:
    columns = Columns(pa.array([None, b"k", None, None, b""], pa.binary()), None, 5, backend=backend)
    k, empty = (murmur2(key) % 2**31 % 9 for key in (b"k", b""))
    assert columns.partitions(9).tolist() == [NO_KEY, k, NO_KEY, NO_KEY, empty]
    assert columns.partitions(9, 4).tolist() == [4, k, 4, 4, empty]
    assert columns.partitions(9, [5, 6]).tolist() == [5, k, 6, 5, empty]
    unkeyed = Columns(None, pa.array([b"v"] * 5), 5, backend=backend)
    assert unkeyed.partitions(9, [1, 2, 3]).tolist() == [1, 2, 3, 1, 2]


@given(partitions=st.lists(st.integers(0, 6), max_size=60), limit=st.sampled_from([100, 1 << 20]))
@settings(deadline=None, max_examples=50)
def test_rows_of_a_partition_keep_their_order(partitions: list[int], limit: int) -> None:
    values = [b"%d" % row for row in range(len(partitions))]
    for backend in BACKENDS.values():
        columns = Columns(None, pa.array(values, pa.binary()), 5, backend=backend)
        found = columns.encode_by_partition(np.array(partitions, np.int32), 7, limit=limit)
        assert list(found) == sorted(set(partitions))
        for partition, batches in found.items():
            rows = [row for row, mine in enumerate(partitions) if mine == partition]
            assert [batch.build() for batch in batches] == [b.build() for b in columns.encode(rows, limit=limit)]
            records = [record.value for batch in batches for record in iter_records(batch.build())]
            assert records == [values[row] for row in rows]


def test_partitions_that_do_not_fit_are_refused(backend: Backend) -> None:
    columns = Columns(None, pa.array([b"a", b"b"]), 5, backend=backend)
    for partition in (-1, 3):
        with pytest.raises(IndexError, match="not one of the 3"):
            columns.encode_by_partition(np.array([0, partition], np.int32), 3)
    with pytest.raises(ValueError, match="1 partitions do not go with 2 rows"):
        columns.encode_by_partition(np.array([0], np.int32), 3)


# -- decoding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
@given(
    batches=st.lists(st.tuples(ROWS.filter(len), st.sampled_from(Codec)), max_size=3),
    chunk=st.sampled_from([100, 1_000_000]),
)
@settings(deadline=None, max_examples=60)
def test_batches_are_decoded_as_their_records(name: str, batches: list[tuple[list[Row], Codec]], chunk: int) -> None:
    built = []
    for rows, codec in batches:
        near = [row for row in rows if abs(row[2] - rows[0][2]) < 2**63 and abs(row[2]) < 2**52]
        if near:
            built.append(one_by_one(near, codec=codec))
    log = in_log(*built, base_offset=1_000)
    decoder = Decoder("orders", 3, include_headers=True, chunk_bytes=chunk, backend=BACKENDS[name])
    decoded = list(decoder.decode(log))
    assert [row for rows, _ in decoded for row in rows_of(rows)] == records_of(log)
    assert all(rows.schema.equals(schema(include_headers=True), check_metadata=True) for rows, _ in decoded)
    for rows, _ in decoded:
        rows.validate(full=True)
        assert set(rows["topic"].to_pylist()) <= {"orders"} and set(rows["partition"].to_pylist()) <= {3}
        assert set(rows["timestampType"].to_pylist()) <= {0}
    if log:
        assert decoded[-1].next_offset == records_of(log)[-1].offset + 1


def test_schema_is_that_of_sparks_kafka_source() -> None:
    assert [(field.name, str(field.type), field.nullable) for field in schema(include_headers=True)] == [
        ("key", "binary", True),
        ("value", "binary", True),
        ("topic", "string", True),
        ("partition", "int32", True),
        ("offset", "int64", True),
        ("timestamp", "timestamp[us, tz=UTC]", True),
        ("timestampType", "int32", True),
        ("headers", "list<element: struct<key: string, value: binary>>", True),
    ]
    assert schema().names == schema(include_headers=True).names[:-1]


def test_offsets_are_trimmed_at_both_ends(backend: Backend) -> None:
    log = in_log(*(one_by_one([(None, b"%d" % index, 5, ()) for index in range(4)]) for _ in range(5)))
    decoder = Decoder("t", 0, backend=backend, chunk_bytes=1)
    for start, end in ((0, 20), (3, 17), (4, 8), (5, 6), (9, 9), (19, 40), (20, 30), (7, 2**63 - 1)):
        decoded = list(decoder.decode(log, start_offset=start, end_offset=end))
        found = [offset for rows, _ in decoded for offset in rows["offset"].to_pylist()]
        assert found == list(range(start, min(end, 20)))
        if start < 20 and end > start:
            assert decoded[-1].next_offset == min(end, 20)


def test_aborted_transactions_and_markers_are_left_out(backend: Backend) -> None:
    def data(producer_id: int, text: bytes, transactional: bool = True) -> bytes:
        fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        return one_by_one([(None, text, 5, ()), (None, text, 5, ())], transactional=transactional, **fields)

    def marker(producer_id: int, commit: bool) -> bytes:
        return end_transaction_marker(
            commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5
        )

    log = in_log(
        data(1, b"aborted"), data(2, b"committed"), data(3, b"plain", transactional=False), marker(1, False),
        data(1, b"next"), marker(2, True), marker(1, True), data(4, b"aborted too"), marker(4, False),
    )  # fmt: skip
    decoder = Decoder("t", 0, backend=backend)
    ((rows, next_offset),) = decoder.decode(log, aborted=[(11, 4), (0, 1)])
    assert rows["value"].to_pylist() == [b"committed"] * 2 + [b"plain"] * 2 + [b"next"] * 2
    assert rows["offset"].to_pylist() == [2, 3, 4, 5, 7, 8]
    assert next_offset == 14
    ((everything, _),) = decoder.decode(log)
    assert len(everything) == 10
    # Where nothing is left, the reader still learns where to go on.
    ((nothing, next_offset),) = decoder.decode(in_log(data(1, b"x"), marker(1, False)), aborted=[(0, 1)])
    assert (len(nothing), next_offset) == (0, 3)


def test_log_append_time_is_the_batchs_and_says_so(backend: Backend) -> None:
    log = in_log(one_by_one([(None, b"a", 7, ()), (None, b"b", 9, ())], log_append_time=True))
    ((rows, _),) = Decoder("t", 0, backend=backend).decode(log)
    assert rows["timestampType"].to_pylist() == [1, 1]
    assert rows["timestamp"].view(pa.int64()).to_pylist() == [9_000, 9_000]


def test_timestamps_beyond_microseconds_are_the_nearest(backend: Backend) -> None:
    most = (2**63 - 1) // 1000 * 1000
    times = [-1, -(2**62), 2**62, 2**53]
    log = in_log(one_by_one([(None, b"", time, ()) for time in times]))
    ((rows, _),) = Decoder("t", 0, backend=backend).decode(log)
    assert rows["timestamp"].view(pa.int64()).to_pylist() == [-1_000, -most, most, 2**53 * 1_000]


def test_numbers_may_be_as_long_as_their_bits_allow(backend: Backend) -> None:
    def long(value: int, size: int) -> bytes:
        """A varint that takes `size` bytes though fewer would do."""
        raw = bytearray(encode_varint(value))
        while len(raw) < size:
            raw[-1] |= 0x80
            raw.append(0)
        return bytes(raw)

    def log_of(*fields: bytes) -> bytes:
        body = b"\0" + b"".join(fields)
        builder = BatchBuilder()
        builder.add(None, None, 5)
        batch = bytearray(builder.build()[:HEADER_SIZE] + long(len(body), 5) + body)
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        return bytes(batch)

    key, value, header = long(1, 5) + b"k", long(1, 4) + b"v", long(1, 5) + long(1, 3) + b"h" + long(-1, 5)
    log = log_of(long(1, 10), long(2**31 - 1, 5), key, value, header)
    decoded = outcome(log, backend, end_offset=2**40)
    assert isinstance(decoded, list)
    rows = decoded[0][0]
    assert (rows["offset"], rows["key"], rows["value"]) == ([2**31 - 1], [b"k"], [b"v"])
    assert rows["headers"] == [[{"key": "h", "value": None}]]
    for fields in (
        (long(1, 11), b"\0", key, value, b"\0"),  # more than ten bytes
        (b"\xff" * 9 + b"\x02", b"\0", key, value, b"\0"),  # more than 64 bits
        (b"\0", long(1, 6), key, value, b"\0"),
        (b"\0", b"\xff" * 4 + b"\x10", key, value, b"\0"),  # more than 32 bits
        (b"\0", b"\0", long(2, 5) + b"k", value, b"\0"),
        (b"\0", b"\0", key, value, long(2**31 - 1, 5)),
        (b"\0", b"\0", key, value, long(-1, 1)),
        (b"\0", b"\0", long(2**31 - 1, 5) + b"k", value, b"\0"),
        (b"\0", b"\0", key, long(2**31 - 1, 5) + b"v", b"\0"),
    ):
        assert outcome(log_of(*fields), backend) == "corrupt"


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch(backend: Backend) -> None:
    batch = one_by_one([(None, b"a", 5, ())])
    log = in_log(batch, batch)
    decoder = Decoder("t", 0, backend=backend)
    for cut in (1, len(batch) - 1):
        ((rows, next_offset),) = decoder.decode(log[:-cut])
        assert (len(rows), next_offset) == (1, 1)
    assert list(decoder.decode(log[: len(batch) - 1])) == []
    assert list(decoder.decode(b"")) == []


@pytest.mark.parametrize("codec", Codec)
def test_a_changed_bit_is_noticed(backend: Backend, codec: Codec) -> None:
    log = bytearray(in_log(one_by_one([(b"key", b"value" * 20, 5, ())], codec=codec)))
    log[-3] ^= 4
    with pytest.raises(CorruptMessage, match=r"orders-3.*CRC"):
        list(Decoder("orders", 3, backend=backend).decode(bytes(log)))


def test_damage_is_named_with_its_batch(backend: Backend) -> None:
    good = one_by_one([(b"key", b"value", 5, ())])
    bad = bytearray(good)
    bad[HEADER_SIZE] += 2  # the record says that it is one byte longer
    decoder = Decoder("orders", 3, check_crcs=False, backend=backend)
    with pytest.raises(CorruptMessage, match="orders-3: the batch at offset 1 is corrupt: a record ends 1 bytes after"):
        list(decoder.decode(in_log(good, bad)))


def test_counts_and_sizes_that_lie_are_refused_before_anything_is_allocated(backend: Backend) -> None:
    lying = bytearray(one_by_one([(b"key", b"value", 5, ())]))
    lying[57:61] = (2**31 - 1).to_bytes(4, "big")
    assert outcome(bytes(lying), backend) == "corrupt"
    bomb = one_by_one([(None, bytes(10_000_000), 5, ())], codec=Codec.ZSTD)
    with pytest.raises(CorruptMessage, match=r"limit is 1000000|within 1000000"):
        list(Decoder("t", 0, limit=1_000_000, backend=backend).decode(bomb))
    unknown = bytearray(one_by_one([(b"key", b"value", 5, ())]))
    unknown[22] |= 7
    assert outcome(bytes(unknown), backend) == "corrupt"


def test_an_empty_batch_that_compaction_left_moves_the_reader_on(backend: Backend) -> None:
    empty = bytearray(one_by_one([(None, b"", 5, ())])[:HEADER_SIZE])
    empty[8:12] = (HEADER_SIZE - 12).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    ((rows, next_offset),) = Decoder("t", 0, check_crcs=False, backend=backend).decode(bytes(empty))
    assert (len(rows), next_offset) == (0, 1)


def test_both_ways_judge_damaged_batches_alike() -> None:
    refused = 0
    for log in damaged_logs(seed=11, count=1_500):
        first, second = (outcome(log, backend) for backend in BACKENDS.values())
        assert first == second
        refused += first == "corrupt"
    assert 500 < refused < 1_480


def test_damaged_batches_are_never_read_beyond_their_end() -> None:
    script = Path(__file__).parent.parent / "kits" / "columnar.py"
    done = subprocess.run([sys.executable, script, "12", "4000"], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert "survived 4000" in done.stdout


def test_chunks_are_about_as_large_as_asked_for(backend: Backend) -> None:
    chance = random.Random(3)
    batches = [some_batch(chance, Codec(index % 5)) for index in range(20)]
    log = in_log(*batches)
    sizes = {}
    for chunk in (1, 2_000, 1 << 20):
        decoded = list(Decoder("t", 0, chunk_bytes=chunk, backend=backend).decode(log))
        assert [row for rows, _ in decoded for row in rows["offset"].to_pylist()] == [r.offset for r in records_of(log)]
        assert all(earlier.next_offset < later.next_offset for earlier, later in pairwise(decoded))
        sizes[chunk] = len(decoded)
    assert sizes[1] == 20 > sizes[2_000] > sizes[1 << 20] == 1
