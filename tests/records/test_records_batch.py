"""Batches: header view, stamping, records, builder, sequence arithmetic."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twofold.records.batch import (
    HEADER_SIZE,
    SEQUENCE_MAX,
    BatchBuilder,
    Header,
    Record,
    assemble,
    crc_is_valid,
    decrement_sequence,
    increment_sequence,
    iter_headers,
    iter_records,
    read_header,
    stamp,
)
from twofold.records.compression import Codec
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.errors import CorruptMessage, InvalidRecord

T0 = 1_600_000_000_000
MILLIS = st.integers(-(2**63), 2**63 - 1)
BLOBS = st.none() | st.binary(max_size=100)
HEADERS = st.lists(st.tuples(st.text(max_size=20), BLOBS), max_size=4).map(tuple)
RECORDS = st.lists(st.tuples(BLOBS, BLOBS, MILLIS, HEADERS), min_size=1, max_size=20)


def build(records=((b"k", b"v", T0),), codec=Codec.NONE, **fields):
    builder = BatchBuilder(codec, **fields)
    for record in records:
        builder.add(*record)
    return builder.build()


def with_fields(batch, **fields):
    """The batch with other header fields and a CRC that fits them."""
    return assemble(read_header(batch)._replace(**fields), batch[HEADER_SIZE:])


# -- header -----------------------------------------------------------------------------------------------------------


def test_header_fields_are_read_from_their_places():
    batch = bytes.fromhex(
        "0000000000000102"  # base offset
        "00000031"  # length
        "00000003"  # leader epoch
        "02"
        "a1b2c3d4"  # crc
        "007c"  # zstd, log append time, transactional, control, delete horizon
        "00000004"
        "0000000000000005"
        "0000000000000006"
        "0000000000000007"
        "0008"
        "00000009"
        "0000000a"
    )
    header = read_header(b"zz" + batch, 2)
    assert header == Header(0x102, 49, 3, 2, 0xA1B2C3D4, 0x7C, 4, 5, 6, ProducerId(7), ProducerEpoch(8), 9, 10)
    assert (header.size, header.last_offset, header.next_offset, header.last_sequence) == (61, 0x106, 0x107, 13)
    assert header.codec == Codec.ZSTD
    assert header.is_log_append_time
    assert header.is_transactional
    assert header.is_control
    assert header.has_delete_horizon
    assert header.has_producer_id


@pytest.mark.parametrize("name", ["is_log_append_time", "is_transactional", "is_control", "has_delete_horizon"])
def test_each_attribute_bit_stands_alone(name):
    bits = {"is_log_append_time": 8, "is_transactional": 16, "is_control": 32, "has_delete_horizon": 64}
    header = read_header(with_fields(build(), attributes=bits[name]))
    assert {other for other in bits if getattr(header, other)} == {name}
    assert header.codec == Codec.NONE


def test_every_truncation_of_a_batch_is_corrupt():
    batch = build()
    for size in range(len(batch)):
        with pytest.raises((CorruptMessage, InvalidRecord)):
            read_header(batch[:size])
    assert read_header(batch).size == len(batch)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13, 48, 10_000, 2**31 - 1])
def test_a_length_that_lies_is_corrupt(length):
    batch = bytearray(build())
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptMessage, match=str(length + 12)):
        read_header(batch)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused_as_invalid_records(magic):
    batch = bytearray(build())
    batch[16] = magic
    for data in (batch, batch[:20]):
        with pytest.raises(InvalidRecord, match=f"v{magic}"):
            read_header(data)
    with pytest.raises(InvalidRecord):
        list(iter_headers(batch))


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_unknown_magic_is_corrupt(magic):
    batch = bytearray(build())
    batch[16] = magic
    with pytest.raises(CorruptMessage, match="magic"):
        read_header(batch)
    with pytest.raises(CorruptMessage):
        list(iter_headers(batch))


def test_headers_are_walked_up_to_the_batch_that_is_cut_off():
    first, second = build(base_offset=10), build([(b"k", b"v" * 50, T0)] * 3, base_offset=11)
    data = first + second
    positions = [0, len(first)]
    for cut in range(len(data) + 1):
        whole = [(position, header.base_offset) for position, header in iter_headers(data[:cut])]
        assert whole == [(0, 10), (len(first), 11)][: (cut >= len(first)) + (cut >= len(data))]
        assert list(iter_headers(data, 0, cut)) == list(iter_headers(data[:cut]))
    assert [position for position, _ in iter_headers(b"abc" + data, 3)] == [position + 3 for position in positions]


def test_a_walk_never_loops_on_a_length_that_lies():
    batch = bytearray(build())
    batch[8:12] = (-12).to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptMessage):
        list(iter_headers(batch * 2))


# -- CRC and stamping -------------------------------------------------------------------------------------------------


def test_the_crc_notices_every_byte_that_it_covers():
    batch = build(codec=Codec.LZ4)
    for position in range(21, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 0x10
        header = read_header(batch)._replace(crc=read_header(batch).crc)
        assert not crc_is_valid(damaged, 0, header)
    assert crc_is_valid(b"__" + batch + b"__", 2, read_header(batch))


def test_offset_and_epoch_are_stamped_without_touching_the_crc():
    batch = bytearray(b"__" + build() + b"__")
    before = bytes(batch)
    stamp(batch, 2, base_offset=2**40, leader_epoch=7)
    header = read_header(batch, 2)
    assert (header.base_offset, header.leader_epoch) == (2**40, 7)
    assert crc_is_valid(batch, 2, header)
    assert [batch[:2], batch[10:14], batch[18:]] == [before[:2], before[10:14], before[18:]]


def test_log_append_time_sets_bit_and_max_timestamp_and_a_new_crc():
    batch = bytearray(build([(b"k", b"v", T0), (b"k", b"v", T0 + 5)], codec=Codec.GZIP, transactional=True))
    stamp(batch, 0, base_offset=3, leader_epoch=1, max_timestamp=T0 + 1000, log_append_time=True)
    header = read_header(batch)
    assert crc_is_valid(batch, 0, header)
    assert header.is_log_append_time
    assert header.is_transactional
    assert header.codec == Codec.GZIP
    assert (header.base_timestamp, header.max_timestamp) == (T0, T0 + 1000)
    assert [record.timestamp for record in iter_records(batch)] == [T0 + 1000] * 2


def test_a_clients_log_append_time_bit_is_cleared_on_a_create_time_topic():
    batch = bytearray(build(log_append_time=True))
    stamp(batch, 0, base_offset=3, leader_epoch=1, log_append_time=False)
    header = read_header(batch)
    assert not header.is_log_append_time
    assert crc_is_valid(batch, 0, header)


def test_a_stamp_that_changes_nothing_covered_leaves_even_a_wrong_crc_alone():
    batch = bytearray(with_fields(build(), max_timestamp=T0))
    batch[17:21] = b"\x01\x02\x03\x04"
    stamp(batch, 0, base_offset=3, leader_epoch=1, max_timestamp=T0, log_append_time=False)
    assert batch[17:21] == b"\x01\x02\x03\x04"


def test_stamping_works_through_a_memoryview():
    batch = bytearray(build())
    stamp(memoryview(batch), 0, base_offset=9, leader_epoch=2, max_timestamp=1, log_append_time=True)
    assert crc_is_valid(batch, 0, read_header(batch))
    assert read_header(batch).base_offset == 9


# -- records ----------------------------------------------------------------------------------------------------------


def add_what_fits(builder, records):
    """Add the records, as far as their timestamps fit beside the first one's; returns those."""
    taken: list[Any] = []
    for record in records:
        apart = record[2] - (taken or records)[0][2]
        if -(2**63) <= apart < 2**63:
            builder.add(*record)
            taken.append(record)
        else:
            with pytest.raises(ValueError, match=f"{taken[0][2]} and {record[2]} ") as refused:
                builder.add(*record)
            assert "int64" in str(refused.value)
    return taken


@pytest.mark.parametrize("codec", Codec)
@given(RECORDS)
@example([(None, b"a", -(2**62), ()), (None, b"b", 2**62, ()), (None, b"c", 2**62 - 1, ())])
@example([(None, b"a", 2**63 - 1, ()), (None, b"b", -1, ()), (None, b"c", 0, ())])
def test_records_round_trip_in_every_codec(codec, records):
    builder = BatchBuilder(codec, base_offset=1000)
    records = add_what_fits(builder, records)
    batch = builder.build()
    assert batch == build(records, codec, base_offset=1000)
    expected = [Record(1000 + i, time, key, value, headers) for i, (key, value, time, headers) in enumerate(records)]
    assert list(iter_records(batch)) == expected
    header = read_header(batch)
    assert crc_is_valid(batch, 0, header)
    assert (header.size, header.count, header.last_offset_delta) == (len(batch), len(records), len(records) - 1)
    assert (header.base_timestamp, header.max_timestamp) == (records[0][2], max(record[2] for record in records))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 70_000, 1_200_000])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_keys_and_values_of_any_size_from_any_buffer(size, wrap):
    blob = bytes(range(256)) * (size // 256) + bytes(size % 256)
    batch = wrap(b"___" + build([(blob, blob, T0, (("h" * min(size, 9000), blob),))]))
    (record,) = iter_records(batch, 3)
    assert (record.key, record.value, record.headers) == (blob, blob, (("h" * min(size, 9000), blob),))
    assert type(record.key) is bytes
    assert type(record.value) is bytes


def test_ten_thousand_records_keep_offsets_and_timestamps():
    batch = build([(None, b"%d" % i, T0 - i * 977) for i in range(10_000)], base_offset=5)
    rows = [(record.offset, record.timestamp, record.value) for record in iter_records(batch)]
    assert rows == [(5 + i, T0 - i * 977, b"%d" % i) for i in range(10_000)]


def test_header_keys_that_are_not_utf8_survive_a_rewrite():
    raw = build([(b"k", b"v", T0, (("ab", b"x"),))])
    odd = raw.replace(b"\x04ab", b"\x04\xff\xfe")
    odd = assemble(read_header(odd), odd[HEADER_SIZE:])
    (record,) = iter_records(odd)
    assert record.headers[0][0].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert build([(record.key, record.value, record.timestamp, record.headers)]) == odd


def test_negative_lengths_other_than_minus_one_are_null_as_in_kafka():
    (record,) = iter_records(assemble(read_header(build()), bytes.fromhex("0c000000090900")))
    assert (record.key, record.value) == (None, None)


def test_an_empty_batch_left_by_compaction_has_no_records():
    header = read_header(build())._replace(count=0)
    assert list(iter_records(assemble(header, b""))) == []


@pytest.mark.parametrize("count", [-1, 0, 1, 3, 2**31 - 1])
def test_a_count_that_lies_is_an_invalid_record(count):
    batch = with_fields(build([(b"k", b"v", T0)] * 2), count=count)
    with pytest.raises(InvalidRecord):
        list(iter_records(batch))


def test_a_truncated_records_section_is_an_invalid_record_at_every_byte():
    section = build([(b"key", b"value", T0, (("a", b"b"), ("c", None)))] * 2)[HEADER_SIZE:]
    header = read_header(build())._replace(count=2)
    for size in range(len(section)):
        with pytest.raises(InvalidRecord):
            list(iter_records(assemble(header, section[:size])))
    assert len(list(iter_records(assemble(header, section)))) == 2


@pytest.mark.parametrize(
    "section",
    [
        "0e" + "000000" + "026b" + "0276" + "02",  # one header declared, none there
        "0e" + "000000" + "026b" + "0276" + "01",  # -1 headers
        "14" + "000000" + "026b" + "0276" + "02" + "01" + "0000",  # a header key of length -1
        "10" + "000000" + "026b" + "0276" + "00" + "00",  # the record is longer than its fields
        "0c" + "000000" + "026b" + "0276" + "00",  # and shorter
        "01" + "000000" + "026b" + "0276" + "00",  # length -1
        "0e" + "000000" + "fe7f" + "0276" + "00",  # a key far longer than the record
        "ffffffffff7f" + "000000" + "026b" + "0276" + "00",  # an overlong varint
        "0e" + "000000" + "026b" + "feffffff0f" + "00",  # a value of 2 GiB
    ],
)
def test_fields_that_do_not_fit_their_record_are_invalid(section):
    with pytest.raises(InvalidRecord):
        list(iter_records(assemble(read_header(build()), bytes.fromhex(section))))


# -- builder ----------------------------------------------------------------------------------------------------------


def test_a_known_batch_is_built_byte_for_byte():
    batch = build(
        [(b"k", None, T0, (("h", b"1"),)), (None, b"v", T0 - 1)], producer_id=5, producer_epoch=2, base_sequence=9
    )
    assert (
        batch[HEADER_SIZE:].hex()
        == "16000000" + "026b" + "01" + "02" + "0268" + "0231" + "0e" + "000102" + "01" + "0276" + "00"
    )
    assert batch[21:61].hex() == (
        "0000"
        + "00000001"
        + "00000174876e8000"
        + "00000174876e8000"
        + "0000000000000005"
        + "0002"
        + "00000009"
        + "00000002"
    )


def test_producer_fields_may_be_set_until_the_batch_is_built():
    builder = BatchBuilder(transactional=True)
    builder.add(b"k", b"v", T0)
    builder.producer_id, builder.producer_epoch, builder.base_sequence = 77, 3, 1234
    header = read_header(builder.build())
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 1234)
    assert header.is_transactional


def test_offset_deltas_may_leave_gaps_but_never_go_back():
    builder = BatchBuilder(base_offset=100)
    builder.add(b"a", b"", T0, offset_delta=3)
    builder.add(b"b", b"", T0)
    builder.add(b"c", b"", T0, offset_delta=9000)
    batch = builder.build()
    assert [record.offset for record in iter_records(batch)] == [103, 104, 9100]
    assert (read_header(batch).last_offset, read_header(batch).count) == (9100, 3)
    with pytest.raises(ValueError, match="9000"):
        builder.add(b"d", b"", T0, offset_delta=9000)
    assert builder.build() == batch


def test_the_size_estimate_of_an_uncompressed_batch_is_exact():
    builder = BatchBuilder()
    assert builder.size_estimate == HEADER_SIZE
    for i in range(100):
        builder.add(b"k" * i, b"v" * i * 10, T0 + i, (("h", None),))
        assert builder.size_estimate == len(builder.build())
    assert builder.count == 100


def test_an_empty_builder_builds_nothing():
    with pytest.raises(ValueError, match="at least one record"):
        BatchBuilder().build()


# -- sequences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequence", "by", "result"),
    [
        (0, 1, 1),
        (SEQUENCE_MAX - 1, 1, SEQUENCE_MAX),
        (SEQUENCE_MAX, 1, 0),
        (SEQUENCE_MAX, 2, 1),
        (SEQUENCE_MAX - 9, 19, 9),
        (SEQUENCE_MAX, SEQUENCE_MAX, SEQUENCE_MAX - 1),
    ],
)
def test_sequences_wrap_from_the_maximum_to_zero(sequence, by, result):
    assert increment_sequence(sequence, by) == result
    assert decrement_sequence(result, by) == sequence


@given(st.integers(0, SEQUENCE_MAX), st.integers(0, SEQUENCE_MAX))
def test_incrementing_is_addition_modulo_two_to_the_31(sequence, by):
    assert increment_sequence(sequence, by) == (sequence + by) % 2**31
    assert decrement_sequence(sequence, by) == (sequence - by) % 2**31


def test_the_last_sequence_of_a_batch_wraps():
    records = [(b"k", b"v", T0)] * 20
    header = read_header(build(records, producer_id=1, producer_epoch=0, base_sequence=SEQUENCE_MAX - 9))
    assert header.last_sequence == 9
    assert read_header(build(records)).last_sequence == -1
