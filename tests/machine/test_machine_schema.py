"""The record encoding of `twofold.machine.schema`."""

from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.machine.schema import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UINT16,
    UUID_,
    MalformedRecord,
    Schema,
    array,
    nested,
    since,
    tagged,
)


class Inner(NamedTuple):
    name: str
    port: int


class Everything(NamedTuple):
    flag: bool
    tiny: int
    small: int
    medium: int
    large: int
    ratio: float
    text: str
    maybe_text: str | None
    data: bytes
    topic_id: UUID
    numbers: tuple[int, ...]
    maybe_numbers: tuple[int, ...] | None
    inners: tuple[Inner, ...]
    later: int = 7
    note: str | None = None
    ids: tuple[UUID, ...] | None = None


EVERYTHING = Schema(
    Everything,
    flag=BOOL,
    tiny=INT8,
    small=INT16,
    medium=INT32,
    large=INT64,
    ratio=FLOAT64,
    text=STRING,
    maybe_text=NULLABLE_STRING,
    data=BYTES,
    topic_id=UUID_,
    numbers=array(INT32),
    maybe_numbers=array(INT32, nullable=True),
    inners=array(nested(Inner, name=STRING, port=UINT16)),
    later=since(2, INT16),
    note=tagged(0, NULLABLE_STRING),
    ids=tagged(5, array(UUID_, nullable=True), since=1),
)


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


NUMBERS = st.lists(signed(32), max_size=200).map(tuple)
ROWS = st.builds(
    Everything,
    flag=st.booleans(),
    tiny=signed(8),
    small=signed(16),
    medium=signed(32),
    large=signed(64),
    ratio=st.floats(allow_nan=False),
    text=st.text(max_size=200),
    maybe_text=maybe(st.text()),
    data=st.binary(),
    topic_id=st.uuids(),
    numbers=NUMBERS,
    maybe_numbers=maybe(NUMBERS),
    inners=st.lists(st.builds(Inner, st.text(), st.integers(0, 65535)), max_size=3).map(tuple),
    later=signed(16),
    note=maybe(st.text()),
    ids=maybe(st.lists(st.uuids(), max_size=3).map(tuple)),
)


def written(value: Everything, version: int = 2) -> bytes:
    out = bytearray()
    EVERYTHING.write(out, value, version)
    return bytes(out)


@given(ROWS)
def test_what_is_written_is_read_back(value: Everything):
    data = written(value)
    assert EVERYTHING.read(data, 0, 2) == (value, len(data))
    assert EVERYTHING.read(b"xyz" + data + b"rest", 3, 2) == (value, 3 + len(data))


@given(ROWS)
def test_a_field_that_a_version_lacks_reads_as_its_default(value: Everything):
    data = written(value, 0)
    assert EVERYTHING.read(data, 0, 0)[0] == value._replace(later=7, ids=None)


@given(ROWS, st.data())
def test_damaged_bytes_raise_only_malformed_record(value: Everything, data: st.DataObject):
    whole = written(value)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(MalformedRecord):
        EVERYTHING.read(cut, 0, 2)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_malformed(data: bytes):
    try:
        value, end = EVERYTHING.read(data, 0, 2)
    except MalformedRecord:
        return
    assert isinstance(value, Everything)
    assert 0 < end <= len(data)


class Tagged(NamedTuple):
    a: int = -1
    b: tuple[int, ...] | None = None


TAGGED = Schema(Tagged, a=tagged(3, INT8), b=tagged(1, array(INT8, nullable=True)))


def test_tags_are_written_in_order_and_only_where_they_differ_from_the_default():
    def encoded(value: Tagged) -> bytes:
        out = bytearray()
        TAGGED.write(out, value, 0)
        return bytes(out)

    assert encoded(Tagged()) == b"\x00"
    assert encoded(Tagged(5, (6, 7))) == bytes([2, 1, 3, 3, 6, 7, 3, 1, 5])
    assert encoded(Tagged(b=())) == bytes([1, 1, 1, 1]), "an empty list is not the same as none"


def test_unknown_tags_are_skipped():
    data = bytes([3, 0, 2, 9, 9, 3, 1, 5, 100, 1, 0])
    assert TAGGED.read(data, 0, 0) == (Tagged(a=5), len(data))


def test_a_tag_that_lies_about_its_size_is_malformed():
    with pytest.raises(MalformedRecord, match="tag 3"):
        TAGGED.read(bytes([1, 3, 2, 5, 5]), 0, 0)


def test_null_where_none_is_allowed_is_malformed():
    class Named(NamedTuple):
        name: str

    with pytest.raises(MalformedRecord, match="null"):
        Schema(Named, name=STRING).read(b"\x00\x00", 0, 0)


def test_a_schema_has_exactly_the_fields_of_its_class():
    with pytest.raises(TypeError, match="Tagged"):
        Schema(Tagged, a=INT8)


def test_lengths_of_more_than_one_byte():
    class Text(NamedTuple):
        text: str

    schema = Schema(Text, text=STRING)
    for size in (126, 127, 128, 16383, 16384):
        out = bytearray()
        schema.write(out, Text("x" * size), 0)
        assert schema.read(bytes(out), 0, 0)[0].text == "x" * size
    with pytest.raises(MalformedRecord, match="32 bits"):
        schema.read(b"\xff\xff\xff\xff\xff\x01", 0, 0)
