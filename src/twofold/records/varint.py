"""Variable-length integers as records use them: little-endian groups of seven bits, signed ones zigzag-encoded.

Encoding small numbers is a table look-up, because a record holds at least six of them. Decoding refuses what no encoder
writes (more than five bytes for 32 bits, more than ten for 64) instead of wrapping silently.
"""

from collections.abc import Sequence
from typing import TypeAlias

from twofold.wire.errors import InvalidRecord

# Anything that is indexed by int and gives ints; `memoryview` is not a Sequence[int] for every type checker.
Bytes: TypeAlias = bytes | bytearray | memoryview | Sequence[int]

_TABLE_SIZE = 1 << 13  # every zigzag varint of one or two bytes that is not negative


def encode_uvarint(value: int) -> bytes:
    """An unsigned varint; the caller keeps `value` within 64 bits."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_varint(value: int) -> bytes:
    """A zigzag varint of up to 64 bits (the encoding of Kafka's varint and varlong is the same)."""
    if 0 <= value < _TABLE_SIZE:
        return ENCODED[value]
    return encode_uvarint(((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF)


# ENCODED[n] is the zigzag varint of n, for the hot loop of the builder: one byte for raw values below 128, then two.
# Written out, as DECODED below, because every process pays for these tables when it starts.
ENCODED: tuple[bytes, ...] = (
    *[bytes((raw,)) for raw in range(0, 128, 2)],
    *[bytes((raw & 127 | 128, raw >> 7)) for raw in range(128, 2 * _TABLE_SIZE, 2)],
)
NULL_LENGTH = encode_uvarint(1)  # -1, the length of a null key or value


# DECODED[n] is the signed number of the raw (unsigned) varint n, for every raw value of one or two bytes.
_decoded = [0] * (2 * _TABLE_SIZE)
_decoded[0::2] = range(_TABLE_SIZE)
_decoded[1::2] = range(-1, -_TABLE_SIZE - 1, -1)
DECODED: tuple[int, ...] = tuple(_decoded)
del _decoded


def decode_uvarint(data: Bytes, position: int, *, bits: int = 32) -> tuple[int, int]:
    """The unsigned varint at `position` and the position after it. IndexError when the data end inside it."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    result = byte & 0x7F
    shift = 7
    while True:
        position += 1
        byte = data[position]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise InvalidRecord(f"varint at byte {position} is longer than {bits} bits allow")
    if result >> bits:
        raise InvalidRecord(f"varint ending at byte {position} does not fit {bits} bits")
    return result, position + 1


def decode_varint(data: Bytes, position: int, *, bits: int = 32) -> tuple[int, int]:
    """The zigzag varint at `position` and the position after it. IndexError when the data end inside it."""
    raw, position = decode_uvarint(data, position, bits=bits)
    return (raw >> 1) ^ -(raw & 1), position
