"""Varints: what the protocol guide's encoding says, and nothing longer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.records.varint import decode_uvarint, decode_varint, encode_uvarint, encode_varint
from twofold.wire.errors import InvalidRecord

SIGNED_VECTORS = {
    0: "00",
    -1: "01",
    1: "02",
    -2: "03",
    63: "7e",
    -64: "7f",
    64: "8001",
    -65: "8101",
    8191: "fe7f",
    8192: "808001",
    -8193: "818001",
    2**31 - 1: "feffffff0f",
    -(2**31): "ffffffff0f",
    2**63 - 1: "feffffffffffffffff01",
    -(2**63): "ffffffffffffffffff01",
}


@pytest.mark.parametrize(("value", "encoded"), SIGNED_VECTORS.items())
def test_signed_vectors(value, encoded):
    assert encode_varint(value).hex() == encoded
    assert decode_varint(bytes.fromhex(encoded), 0, bits=64) == (value, len(encoded) // 2)


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_signed_round_trip_anywhere_in_a_buffer(value, before, after):
    encoded = encode_varint(value)
    assert decode_varint(before + encoded + after, len(before), bits=64) == (value, len(before) + len(encoded))


@given(st.integers(0, 2**32 - 1))
def test_unsigned_round_trip(value):
    encoded = encode_uvarint(value)
    assert decode_uvarint(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize("encoded", ["808080808000", "ffffffff10", "ffffffffff01"])
def test_more_than_32_bits_are_refused(encoded):
    with pytest.raises(InvalidRecord):
        decode_varint(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", ["80808080808080808080" + "00", "ffffffffffffffffff02"])
def test_more_than_64_bits_are_refused(encoded):
    with pytest.raises(InvalidRecord):
        decode_varint(bytes.fromhex(encoded), 0, bits=64)


def test_a_varint_that_the_data_cut_off_is_an_index_error_for_the_caller_to_name():
    with pytest.raises(IndexError):
        decode_varint(b"\x80\x80", 0)
