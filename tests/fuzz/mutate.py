"""Small changes of bytes, from a random source: what a fuzzer without coverage does."""

import struct
from collections.abc import Sequence
from random import Random

NUMBERS = [0, 1, -1, 0x7F, 0x80, 0xFF, 0x7FFF, -0x8000, 0x7FFFFFFF, -0x80000000, 2**63 - 1, -(2**63)]


def mutated(data: bytes, source: Random, others: Sequence[bytes] = ()) -> bytes:
    """A copy with one to five changes: bits, bytes, numbers, pieces cut out, doubled, or taken from another input."""
    out = bytearray(data)
    for _ in range(source.choice((1, 1, 1, 2, 3, 5))):
        _change(out, source, others)
    return bytes(out)


def _change(out: bytearray, source: Random, others: Sequence[bytes]) -> None:
    if not out:
        out += source.randbytes(source.randint(1, 8))
        return
    at = source.randrange(len(out))
    match source.randrange(9):
        case 0:
            out[at] ^= 1 << source.randrange(8)
        case 1:
            out[at] = source.randrange(256)
        case 2:
            out[at] = source.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))
        case 3:
            size = source.choice((1, 2, 4, 8))
            out[at : at + size] = struct.pack(">q", source.choice(NUMBERS))[8 - size :]
        case 4:
            del out[at:]
        case 5:
            del out[at : at + source.randint(1, 16)]
        case 6:
            out[at:at] = source.randbytes(source.randint(1, 16))
        case 7:
            out[at:at] = out[at : at + source.randint(1, 64)]
        case 8:
            other = source.choice(others) if others else bytes(out)
            begin = source.randrange(len(other) + 1)
            out[at:at] = other[begin : begin + source.randint(1, 64)]
