"""The bytes of `__consumer_offsets`: as Apache Kafka 4.3.1 wrote them, all versions, and damage."""

import contextlib
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.coordinator.group.records import (
    OTHER_TYPES,
    GroupRecord,
    GroupValue,
    MemberValue,
    OffsetRecord,
    OffsetValue,
    UnknownRecordType,
    decode,
    decode_group_value,
    decode_offset_value,
    encode_group_value,
    encode_key,
    encode_offset_value,
    encode_value,
)
from twofold.machine.schema import MalformedRecord
from twofold.types import ProducerEpoch, ProducerId

TOPIC_ID = UUID("eb642d80-0f0c-48cb-ac1b-dcb65de58b54")
KEY = bytes.fromhex("00010002673100017400000000")

# Read from the log of Apache Kafka 4.3.1.
OFFSETS = {
    "with expiry": (
        "0001000000000000000500016d000001a1df054fdc000001a1df063a3c",
        OffsetValue(5, -1, "m", 1794743029724, 1794743089724),
    ),
    "without a leader epoch": (
        "00040000000000000006ffffffff026d000001a1df055026010010eb642d800f0c48cbac1bdcb65de58b54",
        OffsetValue(6, -1, "m", 1794743029798, topic_id=TOPIC_ID),
    ),
    "without metadata": (
        "000400000000000000070000000301000001a1df05503f010010eb642d800f0c48cbac1bdcb65de58b54",
        OffsetValue(7, 3, "", 1794743029823, topic_id=TOPIC_ID),
    ),
}
MEMBER_ID = "differential-ab61b3ba-0334-4375-806a-1fc0681254b9"
SUBSCRIPTION = bytes.fromhex("000000000001000174ffffffff")
GROUPS = {
    "new": ("0003000000000000ffffffff000001a1df05522500000000", GroupValue("", 0, None, None, 1794743030309)),
    "empty": (
        "00030008636f6e73756d657200000002ffffffff000001a1df05522500000000",
        GroupValue("consumer", 2, None, None, 1794743030309),
    ),
    "stable": (
        "00030008636f6e73756d657200000001000572616e67650031646966666572656e7469616c2d61623631623362612d303333342d3433"
        "37352d383036612d316663303638313235346239000001a1df0551ae000000010031646966666572656e7469616c2d61623631623362"
        "612d303333342d343337352d383036612d316663303638313235346239ffff000c646966666572656e7469616c000a2f3132372e302e"
        "302e3100004e20000027100000000d000000000001000174ffffffff0000000378797a",
        GroupValue(
            "consumer",
            1,
            "range",
            MEMBER_ID,
            1794743030190,
            (MemberValue(MEMBER_ID, None, "differential", "/127.0.0.1", 20000, 10000, SUBSCRIPTION, b"xyz"),),
        ),
    ),
}


@pytest.mark.parametrize(("raw", "value"), OFFSETS.values(), ids=OFFSETS)
def test_offsets_are_written_and_read_as_kafka_does(raw: str, value: OffsetValue) -> None:
    assert encode_offset_value(value).hex() == raw
    assert decode_offset_value(bytes.fromhex(raw)) == value
    assert decode_offset_value(b"12345678" + bytes.fromhex(raw), 8) == value


@pytest.mark.parametrize(("raw", "value"), GROUPS.values(), ids=GROUPS)
def test_groups_are_written_and_read_as_kafka_does(raw: str, value: GroupValue) -> None:
    assert encode_group_value(value).hex() == raw
    assert decode_group_value(bytes.fromhex(raw)) == value


def test_keys_are_written_and_read_as_kafka_does() -> None:
    assert encode_key(OffsetRecord("g1", "t", 0, None)) == KEY
    assert decode(KEY, None) == OffsetRecord("g1", "t", 0, None)
    pair = ProducerId(7), ProducerEpoch(1)
    assert decode(KEY, None, *pair) == OffsetRecord("g1", "t", 0, None, *pair)
    assert encode_key(GroupRecord("g1", None)).hex() == "000200026731"
    assert decode(bytes.fromhex("000200026731"), None) == GroupRecord("g1", None)


def test_the_old_type_of_offset_keys_is_read() -> None:
    assert decode(b"\0\0" + KEY[2:], None) == OffsetRecord("g1", "t", 0, None)


def test_a_topic_without_an_id_has_no_tagged_field() -> None:
    assert encode_offset_value(OffsetValue(1, 2, "", 3)).hex() == "000400000000000000010000000201" + (
        "000000000000000300"
    )


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_an_offset_is_read(version: int) -> None:
    raw = struct.pack(">hq", version, 9)
    if version >= 3:
        raw += struct.pack(">i", 4)
    raw += b"\x03hi" if version == 4 else b"\0\x02hi"
    raw += struct.pack(">q", 77)
    if version == 1:
        raw += struct.pack(">q", 88)
    if version == 4:
        raw += b"\x02" + b"\x05\x01x" + b"\x00\x10" + TOPIC_ID.bytes  # an unknown tag before the known one
    value = decode_offset_value(raw)
    assert value == OffsetValue(
        9, 4 if version >= 3 else -1, "hi", 77, 88 if version == 1 else -1, TOPIC_ID if version == 4 else None
    )


def old_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else struct.pack(">h", len(text)) + text.encode()


def compact_string(text: str | None) -> bytes:
    return b"\0" if text is None else bytes([len(text) + 1]) + text.encode()


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_is_read(version: int) -> None:
    flexible = version >= 4
    string = compact_string if flexible else old_string
    raw = struct.pack(">h", version) + string("consumer") + struct.pack(">i", 3) + string("range") + string("m")
    if version >= 2:
        raw += struct.pack(">q", 55)
    raw += b"\x02" if flexible else struct.pack(">i", 1)
    raw += string("m")
    if version >= 3:
        raw += string("i")
    raw += string("c") + string("/h")
    if version >= 1:
        raw += struct.pack(">i", 30)
    raw += struct.pack(">i", 10)
    raw += b"\x02s\x02a\x00\x00" if flexible else struct.pack(">i", 1) + b"s" + struct.pack(">i", 1) + b"a"
    member = MemberValue("m", "i" if version >= 3 else None, "c", "/h", 30 if version >= 1 else 10, 10, b"s", b"a")
    assert decode_group_value(raw) == GroupValue("consumer", 3, "range", "m", 55 if version >= 2 else -1, (member,))


texts = st.text(st.characters(codec="utf-8"), max_size=30)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
members = st.builds(
    MemberValue, texts, st.none() | texts, texts, texts, st.integers(0, 2**31 - 1), int32s, st.binary(), st.binary()
)


@given(st.builds(OffsetValue, int64s, int32s, texts, int64s, st.just(-1), st.none() | st.uuids()))
def test_an_offset_is_read_as_it_was_written(value: OffsetValue) -> None:
    assert decode_offset_value(encode_offset_value(value)) == value


@given(
    texts,
    texts,
    int32s,
    st.builds(GroupValue, texts, int32s, st.none() | texts, st.none() | texts, int64s, st.tuples(members, members)),
)
def test_records_are_read_as_they_were_written(group: str, topic: str, partition: int, value: GroupValue) -> None:
    for record in (
        OffsetRecord(group, topic, partition, encode_offset_value(OffsetValue(1))),
        OffsetRecord(group, topic, partition, None),
        GroupRecord(group, value),
        GroupRecord(group, None),
    ):
        assert decode(encode_key(record), encode_value(record)) == record


@given(st.binary(max_size=60), st.none() | st.binary(max_size=80))
def test_damage_is_malformed_and_nothing_else(key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(MalformedRecord, UnknownRecordType):
        decode(key, value)


@pytest.mark.parametrize("raw", [raw for raw, _ in (*OFFSETS.values(), *GROUPS.values())])
def test_a_value_that_breaks_off_anywhere_is_malformed(raw: str) -> None:
    data = bytes.fromhex(raw)
    read = decode_offset_value if data[1] != 3 else decode_group_value
    for size in range(len(data)):
        with pytest.raises(MalformedRecord):
            read(data[:size])


@pytest.mark.parametrize("version", [-1, 5, 99])
def test_a_value_of_an_unknown_version_is_malformed(version: int) -> None:
    value = struct.pack(">h", version) + bytes(40)
    for key in (KEY, bytes.fromhex("000200026731")):
        with pytest.raises(MalformedRecord):
            decode(key, value)


@pytest.mark.parametrize("kind", sorted(OTHER_TYPES))
def test_records_of_other_kinds_of_groups_are_passed_over(kind: int) -> None:
    assert decode(struct.pack(">h", kind) + b"anything", b"at all") is None


@pytest.mark.parametrize("kind", [-1, 9, 18, 24, 1000])
def test_records_of_unknown_types_are_reported(kind: int) -> None:
    with pytest.raises(UnknownRecordType):
        decode(struct.pack(">h", kind), b"")


def test_a_record_without_a_key_is_malformed() -> None:
    with pytest.raises(MalformedRecord):
        decode(None, b"")
