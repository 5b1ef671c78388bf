"""The five codecs of a record batch, bounded.

A compressed batch comes from a stranger: a few kilobytes may claim to be gigabytes. `decompress` therefore takes a
`limit` and never allocates more than that (plus the input), whatever the bytes say:

1. gzip is inflated by zlib with a maximum length;
2. snappy carries its length in front, which is checked before anything is allocated;
3. lz4 and zstd frames are walked block by block (headers only) for an upper bound of their content, and decoded into a
   buffer of that bound or of the limit, whichever is smaller. A decoder that runs out of buffer fails.

What is written is what Apache Kafka's own clients write, so every client reads it: xerial-framed snappy in blocks of
32 KiB, lz4 frames of independent 64 KiB blocks without checksums.
"""

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias

import cramjam

from twofold.wire.errors import InvalidRecord

Buffer: TypeAlias = bytes | bytearray | memoryview

# What one batch may unpack to where the caller names no limit. A batch of the default max.message.bytes stays below it
# up to a ratio of 1:128.
MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024


class Codec(IntEnum):
    """The compression in bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: int, data: Buffer, *, level: int | None = None) -> bytes:
    """`data` as the records section of a batch with this codec; `level` is the codec's own, None its default."""
    return _COMPRESSORS[Codec(codec)](data, level)


def decompress(codec: int, data: Buffer, *, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """The uncompressed bytes; InvalidRecord when they are damaged or would be more than `limit`."""
    try:
        decoder = _DECOMPRESSORS[codec]
    except KeyError:
        raise InvalidRecord(f"unknown compression codec {codec}: known are 0 (none) to 4 (zstd)") from None
    try:
        return decoder(data, limit)
    except (cramjam.DecompressionError, zlib.error, struct.error, IndexError) as error:
        name = Codec(codec).name.lower()
        raise InvalidRecord(
            f"{len(data)} bytes of {name} cannot be decompressed within {limit} bytes: {error}"
        ) from error


def _over_limit(size: int, limit: int) -> InvalidRecord:
    return InvalidRecord(f"a batch would decompress to at least {size} bytes, the limit is {limit}")


# -- none and gzip ----------------------------------------------------------------------------------------------------


def _copy(data: Buffer, level: int | None) -> bytes:
    return bytes(data)


def _read_plain(data: Buffer, limit: int) -> bytes:
    if len(data) > limit:
        raise _over_limit(len(data), limit)
    return bytes(data)


_GZIP_PIECE = 16 * 1024
_GZIP_DEFAULT_LEVEL = -1  # Kafka's default of compression.gzip.level: whatever the library prefers


def _write_gzip(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.gzip.compress(data, level=None if level == _GZIP_DEFAULT_LEVEL else level))


def _read_gzip(data: Buffer, limit: int) -> bytes:
    """All members, one after the other. The input goes in by pieces: what follows a member is copied, and very many
    small members must not copy the whole rest each time."""
    view = memoryview(data)
    parts = []
    total = position = 0
    while True:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            piece = member.unconsumed_tail or view[position : position + _GZIP_PIECE]
            if not piece:
                raise InvalidRecord(f"gzip data of {len(view)} bytes end before their trailer")
            if not member.unconsumed_tail:
                position += len(piece)
            part = member.decompress(piece, limit + 1 - total)
            total += len(part)
            if total > limit:
                raise _over_limit(total, limit)
            parts.append(part)
        position -= len(member.unused_data)
        if position == len(view):
            return parts[0] if len(parts) == 1 else b"".join(parts)


# -- snappy -----------------------------------------------------------------------------------------------------------

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, lowest compatible version
_XERIAL_BLOCK = 32 * 1024
_SNAPPY_MAX_RATIO = 22  # a three-byte copy element yields at most 64 bytes


def _write_snappy(data: Buffer, level: int | None) -> bytes:
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK])
        out += len(block).to_bytes(4, "big")
        out += memoryview(block)
    return bytes(out)


def _read_snappy(data: Buffer, limit: int) -> bytes:
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        return _read_raw_snappy(view, limit)
    parts = []
    total = 0
    position = 0
    end = len(view)
    while position < end:
        if view[position : position + 8] == _XERIAL_MAGIC:  # at the start, and where streams were concatenated
            position += len(_XERIAL_HEADER)
            if position > end:
                raise InvalidRecord(f"xerial header is cut off after {end} bytes")
            continue
        (size,) = struct.unpack_from(">i", view, position)
        position += 4
        if not 0 < size <= end - position:
            raise InvalidRecord(f"xerial block of {size} bytes where {end - position} are left")
        part = _read_raw_snappy(view[position : position + size], limit - total)
        total += len(part)
        parts.append(part)
        position += size
    return b"".join(parts)


def _read_raw_snappy(data: memoryview, limit: int) -> bytes:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > limit:
        raise _over_limit(size, limit)
    if size > len(data) * _SNAPPY_MAX_RATIO:
        raise InvalidRecord(f"{len(data)} bytes of snappy claim to hold {size}")
    return bytes(cramjam.snappy.decompress_raw(data))


# -- lz4 --------------------------------------------------------------------------------------------------------------

_LZ4_MAGIC = 0x184D2204
_LZ4_HEADER = bytes.fromhex(
    "04224d18604082"
)  # version 1, independent blocks, no checksums, 64 KiB blocks, header checksum
_LZ4_BLOCK = 64 * 1024
_LZ4_STORED = 0x80000000  # this bit of a block size: the block is not compressed
_LZ4_MAX_RATIO = 255
_LZ4_DEFAULT_LEVEL = 9  # Kafka's default of compression.lz4.level, for which it takes the fast compressor


def _write_lz4(data: Buffer, level: int | None) -> bytes:
    if level is not None and level != _LZ4_DEFAULT_LEVEL:
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))  # it takes no other buffer
        return bytes(frame.finish())
    view = memoryview(data)
    out = bytearray(_LZ4_HEADER)
    block_of = cramjam.lz4.compress_block
    for start in range(0, len(view), _LZ4_BLOCK):
        chunk = view[start : start + _LZ4_BLOCK]
        block = memoryview(block_of(chunk, store_size=False))
        if len(block) < len(chunk):
            out += len(block).to_bytes(4, "little")
            out += block
        else:
            out += (len(chunk) | _LZ4_STORED).to_bytes(4, "little")
            out += chunk
    out += b"\x00\x00\x00\x00"
    return bytes(out)


def _read_lz4(data: Buffer, limit: int) -> bytes:
    return _decode_into(cramjam.lz4.decompress_into, data, _bound("lz4", _LZ4_MAGIC, _lz4_frame, data), limit)


def _lz4_frame(view: memoryview, position: int) -> tuple[int, int]:
    """The most that the frame after its magic number can decode to, from its block headers, and where it ends."""
    bound = 0
    flags, descriptor = view[position], view[position + 1]
    largest = 1 << (8 + 2 * max(4, descriptor >> 4 & 7))  # 4..7 stand for 64 KiB to 4 MiB
    checksum = 4 if flags & 0x10 else 0
    position += 3 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    while True:
        (size,) = struct.unpack_from("<I", view, position)
        position += 4
        if size == 0:
            return bound, position + (4 if flags & 0x04 else 0)
        stored = size & ~_LZ4_STORED
        bound += min(largest, stored if size & _LZ4_STORED else stored * _LZ4_MAX_RATIO)
        position += stored + checksum


# -- zstd -------------------------------------------------------------------------------------------------------------

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK = 128 * 1024
_ZSTD_LEVEL = 3  # Kafka's default


def _write_zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))


def _read_zstd(data: Buffer, limit: int) -> bytes:
    return _decode_into(cramjam.zstd.decompress_into, data, _bound("zstd", _ZSTD_MAGIC, _zstd_frame, data), limit)


def _zstd_frame(view: memoryview, position: int) -> tuple[int, int]:
    """The most that the frame after its magic number can decode to, from its headers, and where it ends."""
    flags = view[position]
    single_segment = flags & 0x20
    position += 1 + (0 if single_segment else 1) + (0, 1, 2, 4)[flags & 3]
    size_bytes = (1 if single_segment else 0, 2, 4, 8)[flags >> 6]
    declared = int.from_bytes(view[position : position + size_bytes], "little") + (256 if size_bytes == 2 else 0)
    bound, position = _zstd_blocks(view, position + size_bytes)
    return (min(bound, declared) if size_bytes else bound), position + (4 if flags & 0x04 else 0)


def _zstd_blocks(view: memoryview, position: int) -> tuple[int, int]:
    """The bound of one frame's blocks and the position after the last of them."""
    bound = 0
    while True:
        block = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        size = block >> 3
        kind = block >> 1 & 3  # raw, run of one byte, compressed
        bound += size if kind < 2 else _ZSTD_BLOCK
        position += 3 + (1 if kind == 1 else size)
        if block & 1:
            return bound, position


# -- lz4 and zstd: how much room their frames need --------------------------------------------------------------------

_SKIPPABLE = 0x184D2A50  # the low four bits are free; both may have such frames


def _bound(name: str, magic: int, frame: Callable[[memoryview, int], tuple[int, int]], data: Buffer) -> int:
    """The most that these frames can decode to, from their headers. IndexError or struct.error when cut off."""
    view = memoryview(data)
    bound = 0
    position = 0
    while position < len(view):
        (found,) = struct.unpack_from("<I", view, position)
        if found & 0xFFFFFFF0 == _SKIPPABLE:
            position += 8 + int.from_bytes(view[position + 4 : position + 8], "little")
            continue
        if found != magic:
            raise InvalidRecord(f"{name} frame starts with {found:#010x} instead of {magic:#010x}")
        size, position = frame(view, position + 4)
        bound += size
    return bound


def _decode_into(decode: Callable[[Buffer, bytearray], int], data: Buffer, bound: int, limit: int) -> bytes:
    out = bytearray(min(bound, limit))
    size = decode(data, out)
    return bytes(memoryview(out)[:size])


_COMPRESSORS: dict[int, Callable[[Buffer, int | None], bytes]] = {
    Codec.NONE: _copy,
    Codec.GZIP: _write_gzip,
    Codec.SNAPPY: _write_snappy,
    Codec.LZ4: _write_lz4,
    Codec.ZSTD: _write_zstd,
}
_DECOMPRESSORS: dict[int, Callable[[Buffer, int], bytes]] = {
    Codec.NONE: _read_plain,
    Codec.GZIP: _read_gzip,
    Codec.SNAPPY: _read_snappy,
    Codec.LZ4: _read_lz4,
    Codec.ZSTD: _read_zstd,
}
