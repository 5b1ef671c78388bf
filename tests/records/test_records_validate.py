"""What a client's batch is refused for, with which error, and in which order.

The codes were compared with the answers of Apache Kafka 4.3.1 to the same bytes.
"""

import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from twofold.records import client_batch_checks as validate
from twofold.records.batch import (
    HEADER_SIZE,
    BatchBuilder,
    assemble,
    crc_is_valid,
    iter_records,
    read_header,
    stamp,
)
from twofold.records.client_batch_checks import TimestampsRejected, recompress, validate_client_batch
from twofold.records.compression import Codec
from twofold.types import TopicPartition
from twofold.wire.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    UnsupportedCompressionType,
)

NOW = 1_700_000_000_000
HOUR = 3_600_000


def check(buf, **changes):
    settings: dict[str, Any] = {
        "max_message_bytes": 1_048_588,
        "compacted": False,
        "now_ms": NOW,
        "timestamp_type": "CreateTime",
        "before_max_ms": 2**63 - 1,
        "after_max_ms": HOUR,
    }
    return validate_client_batch(buf, **(settings | changes))


def build(records=((b"k", b"v", NOW),), codec=Codec.NONE, **fields):
    builder = BatchBuilder(codec, **fields)
    for record in records:
        builder.add(*record)
    return builder.build()


def with_fields(batch, **fields):
    return assemble(read_header(batch)._replace(**fields), batch[HEADER_SIZE:])


def wrong_crc(batch):
    return batch[:17] + bytes([batch[17] ^ 1]) + batch[18:]


def old_message(magic):
    return struct.pack(">qiIbb", 0, 22, 0, magic, 0) + bytes(16)


GOOD = build()


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_good_batches_pass_and_give_their_header(codec, compacted, wrap):
    batch = build([(b"k", b"v" * 100, NOW)] * 3, codec, producer_id=4, producer_epoch=0, base_sequence=0)
    assert check(wrap(batch), compacted=compacted) == read_header(batch)


@pytest.mark.parametrize(
    "fields",
    [
        {"producer_id": 5, "producer_epoch": -1, "base_sequence": 0},
        {"producer_id": -2, "base_sequence": 0},
        {"producer_id": 5, "producer_epoch": 1, "base_sequence": 0, "attributes": 0x10},
        {"base_sequence": 3},
        {"attributes": 0x08},
        {"attributes": 0x7FC0},
        {"attributes": -0x8000},
        {"leader_epoch": 99},
    ],
)
def test_what_kafka_lets_pass_passes(fields):
    assert check(with_fields(GOOD, **fields)).count == 1


# -- framing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 11, 12, 16, 17, 60, 61, len(GOOD) - 1])
def test_nothing_complete_is_not_exactly_one_batch(size):
    with pytest.raises(InvalidRecord, match="exactly one"):
        check(GOOD[:size])


@pytest.mark.parametrize("second", [GOOD, old_message(1), build(codec=Codec.GZIP)])
def test_more_than_one_batch_is_refused(second):
    with pytest.raises(InvalidRecord, match="more than one"):
        check(GOOD + second)


@pytest.mark.parametrize(
    "tail", [bytes(1), bytes(11), struct.pack(">qi", 0, 100), struct.pack(">qiib", 0, 100, 0, 2), GOOD[:-1], GOOD[:30]]
)
def test_a_tail_that_is_no_complete_batch_is_ignored_and_not_part_of_the_batch(tail):
    assert check(GOOD + tail).size == len(GOOD)


@pytest.mark.parametrize("tail", [bytes(12), bytes(16), bytes(17), struct.pack(">qiib", 0, 100, 0, 3)])
def test_a_tail_that_cannot_be_a_batch_is_corrupt(tail):
    with pytest.raises(CorruptMessage):
        check(GOOD + tail)


@pytest.mark.parametrize("length", [-1, 0, 13, 14, 48, 49, len(GOOD) - 13])
def test_a_length_below_the_real_one_is_corrupt(length):
    with pytest.raises(CorruptMessage):
        check(GOOD[:8] + struct.pack(">i", length) + GOOD[12:])


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_invalid_records(magic):
    with pytest.raises(InvalidRecord, match="magic 2"):
        check(old_message(magic))
    with pytest.raises(InvalidRecord, match="magic 2"):
        check(GOOD[:16] + bytes([magic]) + GOOD[17:])


@pytest.mark.parametrize("magic", [3, 127, 255])
def test_unknown_magic_is_corrupt(magic):
    with pytest.raises(CorruptMessage, match="magic"):
        check(GOOD[:16] + bytes([magic]) + GOOD[17:])


def test_zstd_is_refused_where_the_request_version_does_not_know_it():
    with pytest.raises(UnsupportedCompressionType):
        check(build(codec=Codec.ZSTD), allow_zstd=False)
    with pytest.raises(UnsupportedCompressionType):
        check(build(codec=Codec.ZSTD) + GOOD, allow_zstd=False)
    assert check(build(codec=Codec.LZ4), allow_zstd=False).codec == Codec.LZ4


# -- header fields ----------------------------------------------------------------------------------------------------


def test_a_wrong_crc_is_corrupt():
    with pytest.raises(CorruptMessage, match="CRC"):
        check(wrong_crc(GOOD))


@pytest.mark.parametrize("position", range(21, len(GOOD)))
def test_any_byte_flipped_under_the_crc_is_corrupt(position):
    with pytest.raises(CorruptMessage):
        check(GOOD[:position] + bytes([GOOD[position] ^ 0x20]) + GOOD[position + 1 :])


def test_size_is_bounded_by_max_message_bytes():
    assert check(GOOD, max_message_bytes=len(GOOD)).size == len(GOOD)
    with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes"):
        check(GOOD, max_message_bytes=len(GOOD) - 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": 5},
        {"count": 0},
        {"count": -1},
        {"count": 2},
        {"last_offset_delta": 5},
        {"last_offset_delta": -1},
        {"last_offset_delta": -1, "count": 0},
        {"last_offset_delta": 2**31 - 1, "count": -(2**31)},
        {"attributes": 0x20},
        {"attributes": 0x30, "producer_id": 5, "producer_epoch": 0},
        {"producer_id": 5, "producer_epoch": 0},
        {"producer_id": 5, "producer_epoch": 0, "base_sequence": -2},
        {"attributes": 0x10},
        {"attributes": 0x10, "base_sequence": 0},
        {"attributes": 5},
        {"attributes": 7},
    ],
)
def test_header_fields_that_no_client_may_write(fields):
    with pytest.raises(InvalidRecord):
        check(with_fields(GOOD, **fields))


def test_a_count_that_the_bytes_cannot_hold_would_burn_offsets():
    with pytest.raises(InvalidRecord, match="can hold"):
        check(with_fields(GOOD, count=2_000_000_000, last_offset_delta=1_999_999_999))


@pytest.mark.parametrize(
    ("buf", "settings", "error"),
    [
        (wrong_crc(GOOD) + GOOD, {}, InvalidRecord),
        (wrong_crc(with_fields(GOOD, base_offset=5)), {}, InvalidRecord),
        (with_fields(GOOD, base_offset=5), {"max_message_bytes": 10}, InvalidRecord),
        (wrong_crc(GOOD), {"max_message_bytes": 10}, MessageTooLarge),
        (wrong_crc(with_fields(GOOD, attributes=0x20)), {}, CorruptMessage),
        (wrong_crc(with_fields(GOOD, attributes=7)), {}, CorruptMessage),
        (with_fields(GOOD, attributes=0x20, max_timestamp=NOW + 9 * HOUR), {}, InvalidRecord),
    ],
)
def test_of_two_faults_the_one_that_kafka_finds_first_is_answered(buf, settings, error):
    with pytest.raises(error):
        check(buf, **settings)


# -- timestamps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("timestamp", [-1, -2, 0, NOW - 10**12, NOW, NOW + HOUR])
def test_timestamps_inside_the_default_window(timestamp, compacted):
    assert check(build([(b"k", b"v", timestamp)]), compacted=compacted).base_timestamp == timestamp


@pytest.mark.parametrize("compacted", [False, True])
def test_a_timestamp_outside_the_window_names_its_record(compacted):
    for timestamp, settings in ((NOW + HOUR + 1, {}), (NOW - 11, {"before_max_ms": 10}), (0, {"before_max_ms": 10})):
        with pytest.raises(TimestampsRejected) as caught:
            check(build([(b"k", b"v", timestamp)]), compacted=compacted, **settings)
        ((index, message),) = caught.value.record_errors
        assert index == 0
        assert f"record 0 has the timestamp {timestamp}" in message


def test_no_timestamp_is_taken_whatever_the_window():
    for compacted in (False, True):
        assert check(build([(b"k", b"v", -1)]), compacted=compacted, before_max_ms=10).max_timestamp == -1


@pytest.mark.parametrize("compacted", [False, True])
def test_a_batch_that_is_refused_for_its_times_is_unpacked_to_name_its_records(compacted):
    batch = build([(b"k", b"v", NOW), (b"k", b"v", NOW + 2 * HOUR), (b"k", b"v", NOW)])
    with pytest.raises(TimestampsRejected) as caught:
        check(batch, compacted=compacted)
    assert [index for index, _ in caught.value.record_errors] == [1]
    assert "message.timestamp.after.max.ms" in caught.value.record_errors[0][1]


def test_on_an_opaque_batch_the_header_speaks_for_all_records():
    batch = bytearray(build([(b"k", b"v", NOW), (b"k", b"v", NOW)]))
    stamp(batch, 0, base_offset=0, leader_epoch=-1, max_timestamp=NOW + 2 * HOUR)
    with pytest.raises(TimestampsRejected, match=r"message\.timestamp\.after\.max\.ms") as caught:
        check(bytes(batch))
    assert caught.value.record_errors == ()


def test_with_log_append_time_the_clients_timestamps_do_not_matter():
    for compacted in (False, True):
        batch = build([(b"k", b"v", NOW + 100 * HOUR)])
        assert check(batch, timestamp_type="LogAppendTime", before_max_ms=1, compacted=compacted).count == 1


# -- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
def test_a_compacted_topic_reports_every_record_without_a_key(codec):
    batch = build([(None, b"v", NOW), (b"k", b"v", NOW), (None, None, NOW), (b"", b"v", NOW)], codec)
    assert check(batch).count == 4
    with pytest.raises(InvalidRecord) as caught:
        check(batch, compacted=True, topic_partition=TopicPartition("orders", 3))
    message = "a compacted topic takes no record without a key (orders-3)"
    assert list(caught.value.record_errors) == [(0, message), (2, message)]


def test_a_missing_key_and_a_bad_timestamp_together_are_an_invalid_timestamp():
    batch = build([(None, b"v", NOW + 2 * HOUR), (b"k", b"v", NOW + 2 * HOUR)])
    with pytest.raises(TimestampsRejected) as caught:
        check(batch, compacted=True)
    assert [index for index, _ in caught.value.record_errors] == [0, 1]
    assert "without a key" in caught.value.record_errors[0][1]


DAMAGED_INSIDE = {
    "garbage": assemble(read_header(GOOD), b"\xff" * 20),
    "garbage in gzip": assemble(read_header(build(codec=Codec.GZIP)), b"garbage"),
    "bytes after the last record": assemble(read_header(GOOD), GOOD[HEADER_SIZE:] + b"\x00"),
    "one record too few": with_fields(build([(b"k", b"v" * 20, NOW)]), count=2, last_offset_delta=1),
    "one record too many": with_fields(build([(b"k", b"v", NOW)] * 2), count=1, last_offset_delta=0),
}


@pytest.mark.parametrize("name", DAMAGED_INSIDE)
def test_damage_inside_is_found_where_records_are_walked(name):
    with pytest.raises(InvalidRecord):
        check(DAMAGED_INSIDE[name], compacted=True)
    with pytest.raises(InvalidRecord):
        recompress(DAMAGED_INSIDE[name], Codec.ZSTD)


def test_offset_deltas_that_are_not_consecutive_are_found_where_records_are_walked():
    builder = BatchBuilder()
    builder.add(b"k", b"v", NOW)
    builder.add(b"k", b"v", NOW, offset_delta=5)
    batch = with_fields(builder.build(), last_offset_delta=1)
    assert check(batch).count == 2
    with pytest.raises(InvalidRecord, match="offset delta 5"):
        check(batch, compacted=True)
    with pytest.raises(InvalidRecord, match="offset delta 5"):
        recompress(batch, Codec.GZIP)


def test_a_bomb_on_a_compacted_topic_is_an_invalid_record():
    batch = build([(b"k", bytes(1_000_000), NOW)], Codec.ZSTD)
    with pytest.raises(InvalidRecord, match="within 100000 bytes"):
        check(batch, compacted=True, limit=100_000)


def test_a_batch_for_a_delete_topic_is_never_unpacked(monkeypatch):
    def unpack(*_, **__):
        raise AssertionError("unpacked")

    monkeypatch.setattr(validate, "records_section", unpack)
    monkeypatch.setattr(validate, "parse_records", unpack)
    for name, batch in DAMAGED_INSIDE.items():
        assert check(batch).size == len(batch), name


@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=4), st.booleans(), st.booleans()
)
def test_damaged_headers_raise_errors_of_the_protocol_and_no_others(changes, compacted, repair):
    batch = bytearray(GOOD)
    for position, value in changes:
        batch[position] = value
    if repair:  # so that what lies behind the CRC check is reached
        batch[17:21] = struct.pack(">I", fitting_crc(batch))
    try:
        header = check(batch, compacted=compacted)
    except KafkaError as error:
        allowed = (CorruptMessage, InvalidRecord, InvalidTimestamp)
        if not isinstance(error, allowed):
            raise
    else:
        assert header.size <= len(batch)


def fitting_crc(batch):
    size = struct.unpack_from(">i", batch, 8)[0] + 12
    return crc32c(bytes(batch[21 : max(21, size)]))


# -- recompression ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", Codec)
@pytest.mark.parametrize("target", Codec)
def test_recompression_keeps_everything_but_the_codec(source, target):
    records = [(b"%d" % i, None if i % 3 else b"v" * i, NOW + i, (("h", b"%d" % i),)) for i in range(300)]
    fields = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 40, "transactional": True, "leader_epoch": 7}
    before = build(records, source, **fields)
    after = recompress(before, target)
    assert crc_is_valid(after, 0, read_header(after))
    assert read_header(after).codec == target
    assert list(iter_records(after)) == list(iter_records(before))
    same: dict[str, Any] = {"batch_length": 0, "crc": 0, "attributes": 0}
    assert read_header(after)._replace(**same) == read_header(before)._replace(**same)
    assert read_header(after).attributes & ~7 == read_header(before).attributes & ~7
    assert recompress(after, source) == before


def test_recompression_ignores_what_follows_the_batch():
    assert recompress(GOOD + b"tail", Codec.NONE) == GOOD


def test_recompression_takes_a_level():
    batch = build([(b"k", b"".join(b"user %d, " % i for i in range(3000)), NOW)])
    assert recompress(batch, Codec.ZSTD, level=19) != recompress(batch, Codec.ZSTD, level=1)
