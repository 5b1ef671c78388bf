"""Codecs: what Kafka's clients write is read, what is written is theirs, and no input exhausts the memory."""

import contextlib
import gzip
import struct
import tracemalloc
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.records.batch import BatchBuilder, crc_is_valid, iter_records, read_header
from twofold.records.compression import Codec, compress, decompress
from twofold.wire.errors import InvalidRecord

MIB = 1024 * 1024
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
PAYLOADS = st.one_of(
    st.binary(max_size=2000),
    st.tuples(st.binary(min_size=1, max_size=20), st.integers(0, 20_000)).map(lambda pair: pair[0] * pair[1]),
)

# Three records, produced uncompressed to Apache Kafka 4.3.1 and fetched from topics with each compression.type.
WRITTEN_BY_KAFKA = {
    Codec.GZIP: bytes.fromhex(
        "00000000000000000000007a0000000002fc2acccc00010000000200000174876e800000000174876e8007ffffffffffffffffff"
        "ffffffffff000000031f8b08000000000000ffeb6061606060cb4ead7cc05c529e9f969f93a230526816a60ca60a8ebcd29c1cc6"
        "77cc0c7c4c8c232f08184418d85838d2f3f3521919004b7174550a020000"
    ),
    Codec.SNAPPY: bytes.fromhex(
        "0000000000000000000000920000000002ac727c8f00020000000200000174876e800000000174876e8007ffffffffffffffffff"
        "ffffffffff0000000382534e415050590000000001000000010000004d8a04488804000000066b6579e00374776f666f6c6420fe"
        "0800fe0800fe08009e0800400402680278086e756c6c01ee03000e0201fe0301fe0301fe0301c603012c001400060408676f6e65"
        "0100"
    ),
    Codec.LZ4: bytes.fromhex(
        "00000000000000000000007b00000000022d4ef1aa00030000000200000174876e800000000174876e8007ffffffffffffffffff"
        "ffffffffff0000000304224d186040823b000000ff048804000000066b6579e00374776f666f6c64200800d5ff02040268027808"
        "6e756c6c01ee03000e02010301dfc0001400060408676f6e65010000000000"
    ),
    Codec.ZSTD: bytes.fromhex(
        "0000000000000000000000790000000002d5551b2a00040000000200000174876e800000000174876e8007ffffffffffffffffff"
        "ffffffffff0000000328b52ffd0058e4010004038804000000066b6579e00374776f666f6c64200402680278086e756c6c01ee03"
        "000e0201001400060408676f6e6501000200df068b5acba34a18010000"
    ),
}
RECORDS = [
    (b"key", b"twofold " * 30, 1_600_000_000_000, (("h", b"x"), ("null", None))),
    (None, b"twofold " * 30, 1_600_000_000_007, ()),
    (b"gone", None, 1_600_000_000_003, ()),
]


@pytest.mark.parametrize("codec", COMPRESSED)
def test_batches_that_kafka_compressed_are_read(codec):
    batch = WRITTEN_BY_KAFKA[codec]
    assert read_header(batch).codec == codec
    assert crc_is_valid(batch, 0, read_header(batch))
    assert [(record.key, record.value, record.timestamp, record.headers) for record in iter_records(batch)] == RECORDS


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4])
def test_snappy_and_lz4_are_written_as_kafka_does_to_the_byte(codec):
    builder = BatchBuilder(codec, leader_epoch=0)
    for record in RECORDS:
        builder.add(*record)
    assert builder.build() == WRITTEN_BY_KAFKA[codec]


@pytest.mark.parametrize("codec", Codec)
@given(PAYLOADS)
def test_every_codec_round_trips_within_a_limit_that_just_fits(codec, data):
    packed = compress(codec, data)
    for view in (packed, bytearray(packed), memoryview(b"-" + packed + b"-")[1:-1]):
        assert decompress(codec, view, limit=len(data)) == data
    if data:
        with pytest.raises(InvalidRecord):
            decompress(codec, packed, limit=len(data) - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_large_payloads_span_many_blocks(codec):
    data = b"".join(b"%d " % (i * i % 1009) for i in range(300_000))
    assert decompress(codec, compress(codec, memoryview(data)), limit=2 * MIB) == data
    noise = bytes(zlib.crc32(b"%d" % i) & 0xFF for i in range(200_000))  # does not compress: stored blocks
    assert decompress(codec, compress(codec, noise), limit=len(noise)) == noise


@pytest.mark.parametrize(
    ("codec", "level"), [(Codec.GZIP, 1), (Codec.GZIP, 9), (Codec.LZ4, 12), (Codec.LZ4, 1), (Codec.ZSTD, 10)]
)
def test_levels_change_the_effort_and_not_the_content(codec, level):
    data = b"".join(b"user %d, name %d; " % (i, i * 7) for i in range(5000))
    packed = compress(codec, data, level=level)
    assert packed == compress(codec, bytearray(data), level=level) == compress(codec, memoryview(data), level=level)
    assert packed != compress(codec, data)
    assert decompress(codec, packed) == data


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, -1), (Codec.LZ4, 9), (Codec.ZSTD, 3)])
def test_the_defaults_of_the_level_settings_are_the_defaults_here(codec, level):
    data = b"".join(b"user %d, name %d; " % (i, i * 7) for i in range(5000))
    assert compress(codec, data, level=level) == compress(codec, data)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_invalid_records(codec):
    with pytest.raises(InvalidRecord, match=str(codec)):
        decompress(codec, b"")


# -- what other writers may legally send ------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY])
def test_concatenated_streams_are_one_content(codec):
    packed = compress(codec, b"one" * 50) + compress(codec, b"two" * 50)
    assert decompress(codec, packed, limit=300) == b"one" * 50 + b"two" * 50
    with pytest.raises(InvalidRecord):
        decompress(codec, packed, limit=299)


def test_gzip_of_the_standard_library():
    assert decompress(Codec.GZIP, gzip.compress(b"x" * 1000)) == b"x" * 1000


def test_raw_snappy_is_read_as_well_as_xerial():
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"raw" * 100)), limit=300) == b"raw" * 100


def test_a_xerial_header_with_a_little_endian_version_is_read():
    packed = compress(Codec.SNAPPY, b"x" * 100)
    odd = packed[:8] + struct.pack("<ii", 1, 1) + packed[16:]
    assert decompress(Codec.SNAPPY, odd) == b"x" * 100


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("checksum", [False, True])
def test_lz4_frames_with_linked_blocks_and_checksums(linked, checksum):
    compressor = cramjam.lz4.Compressor(level=3, content_checksum=checksum, block_linked=linked)
    data = b"".join(b"%d " % (i % 977) for i in range(100_000))
    compressor.compress(data)
    assert decompress(Codec.LZ4, bytes(compressor.finish()), limit=len(data)) == data


def test_lz4_frames_with_content_size_as_librdkafka_writes_them():
    block = bytes(cramjam.lz4.compress_block(b"a" * 1000, store_size=False))
    head = bytes([0x68, 0x40]) + (1000).to_bytes(8, "little")
    frame = struct.pack("<I", 0x184D2204) + head + bytes([xxh32(head) >> 8 & 0xFF])
    frame += struct.pack("<I", len(block)) + block + bytes(4)
    assert decompress(Codec.LZ4, frame, limit=1000) == b"a" * 1000


def test_skippable_frames_are_skipped():
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"12345"
    for codec in (Codec.LZ4, Codec.ZSTD):
        assert decompress(codec, skippable + compress(codec, b"x" * 99), limit=99) == b"x" * 99


def test_zstd_without_a_content_size_as_java_streams_it():
    section = WRITTEN_BY_KAFKA[Codec.ZSTD][61:]
    assert section[4] >> 6 == 0 and not section[4] & 0x20  # no content size in the frame header
    assert len(decompress(Codec.ZSTD, section, limit=522)) == 522


def xxh32(data):
    """The checksum of lz4 frame headers, for inputs shorter than 16 bytes."""
    prime1, prime2, prime3, prime4, prime5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF

    def rotate(value, bits):
        return (value << bits | value >> (32 - bits)) & mask

    total = prime5 + len(data)
    while len(data) >= 4:
        total = rotate((total + int.from_bytes(data[:4], "little") * prime3) & mask, 17) * prime4 & mask
        data = data[4:]
    for byte in data:
        total = rotate((total + byte * prime5) & mask, 11) * prime1 & mask
    total = (total ^ total >> 15) * prime2 & mask
    total = (total ^ total >> 13) * prime3 & mask
    return total ^ total >> 16


# -- bombs and damage -------------------------------------------------------------------------------------------------


def zstd_bomb(size):
    """Runs of one byte, 128 KiB each in four bytes."""

    def run(last):
        return ((128 * 1024) << 3 | 1 << 1 | last).to_bytes(3, "little") + b"A"

    frame = struct.pack("<I", 0xFD2FB528) + bytes([0x00, 0x58])
    return frame + run(0) * (size // (128 * 1024) - 1) + run(1)


def snappy_bomb(size):
    """A length that promises gigabytes, and nothing behind it."""
    out = bytearray()
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(out) + bytes([size]) + b"\x00A"


BOMBS = {
    "gzip": (Codec.GZIP, lambda: gzip.compress(bytes(64 * MIB), 1)),
    "zstd": (Codec.ZSTD, lambda: zstd_bomb(4096 * MIB)),
    "zstd frames": (Codec.ZSTD, lambda: zstd_bomb(64 * MIB) * 64),
    "lz4": (Codec.LZ4, lambda: compress(Codec.LZ4, bytes(64 * MIB)) * 8),
    "snappy raw": (Codec.SNAPPY, lambda: snappy_bomb(2**32 - 1)),
    "snappy xerial": (Codec.SNAPPY, lambda: compress(Codec.SNAPPY, bytes(64 * MIB)) * 8),
    "snappy lie below the limit": (Codec.SNAPPY, lambda: snappy_bomb(7 * MIB)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_without_being_unpacked(name):
    codec, make = BOMBS[name]
    bomb = make()
    limit = 8 * MIB
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecord):
            decompress(codec, bomb, limit=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 3 * limit + len(bomb)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_the_bomb_builders_build_what_they_claim(codec):
    if codec is Codec.ZSTD:
        assert decompress(codec, zstd_bomb(MIB), limit=MIB) == b"A" * MIB
    else:
        assert decompress(codec, compress(codec, bytes(MIB)) * 2, limit=2 * MIB) == bytes(2 * MIB)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_cut_off_stream_never_passes_for_the_whole(codec):
    data = b"".join(b"%d," % i for i in range(500))
    packed = compress(codec, data)
    for size in range(len(packed)):
        try:
            part = decompress(codec, packed[:size], limit=10_000)
        except InvalidRecord:
            continue
        # A xerial stream may end after any block: the records inside tell that bytes are missing.
        assert codec is Codec.SNAPPY and len(part) < len(data)


@pytest.mark.parametrize("codec", COMPRESSED)
@given(st.data())
def test_damaged_streams_raise_invalid_record_or_nothing(codec, data):
    packed = bytearray(compress(codec, b"".join(b"%d," % (i % 77) for i in range(300))))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidRecord):
        assert len(decompress(codec, packed, limit=MIB)) <= MIB


@pytest.mark.parametrize("codec", COMPRESSED)
@given(st.binary(max_size=200))
def test_garbage_raises_invalid_record_or_nothing(codec, garbage):
    magics = {Codec.GZIP: b"\x1f\x8b\x08", Codec.SNAPPY: b"\x82SNAPPY\x00", Codec.LZ4: b"\x04\x22\x4d\x18"}
    for prefix in (b"", magics.get(codec, b"\x28\xb5\x2f\xfd")):
        with contextlib.suppress(InvalidRecord):
            assert len(decompress(codec, prefix + garbage, limit=MIB)) <= MIB
