"""Bytes from anywhere: a reader of batches reads them, or raises CorruptMessage or InvalidRecord; nothing else."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.records.batch import (
    HEADER_SIZE,
    BatchBuilder,
    Record,
    assemble,
    crc_is_valid,
    iter_headers,
    iter_records,
    read_header,
)
from twofold.records.client_batch_checks import recompress
from twofold.records.compression import Codec
from twofold.records.control import end_transaction_marker, read_control_type, read_end_marker
from twofold.wire.errors import CorruptMessage, InvalidRecord

LIMIT = 1 << 20
SOUND = {}
for _codec in Codec:
    _builder = BatchBuilder(_codec, producer_id=1, producer_epoch=0, base_sequence=0)
    for _i in range(6):
        _builder.add(b"key" * _i or None, b"value" * 20, 1_600_000_000_000 + _i, (("h", b"x"), ("n", None)))
    SOUND[_codec] = _builder.build()

CHANGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6)


def read_everything(data):
    """All that a reader may be asked about a run of bytes; the errors that it may raise count as answers."""
    answers: list[object] = []
    for ask in (
        lambda: read_header(data),
        lambda: [header for _, header in iter_headers(data)],
        lambda: list(iter_records(data, limit=LIMIT)),
        lambda: read_end_marker(data),
        lambda: read_control_type(data),
        lambda: recompress(data, Codec.LZ4, limit=LIMIT),
    ):
        try:
            answers.append(ask())
        except (CorruptMessage, InvalidRecord) as error:
            answers.append(error)
    return answers


@given(st.binary(max_size=300))
def test_arbitrary_bytes(data):
    assert isinstance(read_everything(data)[0], (CorruptMessage, InvalidRecord))


@given(st.binary(max_size=200), st.integers(0, 7), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_arbitrary_records_under_a_sound_header(section, codec, count, last_offset_delta):
    header = read_header(SOUND[Codec.NONE])._replace(attributes=codec, count=count, last_offset_delta=last_offset_delta)
    batch = assemble(header, section)
    assert read_everything(batch)[0].count == count


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=200)
@given(CHANGES)
def test_changed_bytes_anywhere(codec, changes):
    batch = bytearray(SOUND[codec])
    for position, value in changes:
        batch[position % len(batch)] = value
    read_everything(batch)


@pytest.mark.parametrize("codec", Codec)
@settings(max_examples=200)
@given(CHANGES)
def test_changed_bytes_in_the_records(codec, changes):
    batch = bytearray(SOUND[codec])
    for position, value in changes:
        batch[HEADER_SIZE + position % (len(batch) - HEADER_SIZE)] = value
    records = read_everything(batch)[2]
    if isinstance(records, list):
        assert len(records) == 6
        assert all(type(record) is Record for record in records)


@pytest.mark.parametrize("codec", Codec)
def test_every_flipped_bit(codec):
    sound = SOUND[codec]
    for position in range(len(sound)):
        for bit in range(8):
            batch = bytearray(sound)
            batch[position] ^= 1 << bit
            answers = read_everything(batch)
            if position >= 21:
                assert not crc_is_valid(batch, 0, answers[0])


@pytest.mark.parametrize("codec", Codec)
def test_every_truncation_with_and_without_a_length_that_admits_it(codec):
    sound = SOUND[codec]
    for size in range(len(sound)):
        cut = bytearray(sound[:size])
        assert isinstance(read_everything(cut)[0], (CorruptMessage, InvalidRecord))
        if size >= HEADER_SIZE:
            cut[8:12] = struct.pack(">i", size - 12)
            assert isinstance(read_everything(cut)[2], InvalidRecord)


@given(st.lists(st.tuples(st.integers(0, 77), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_bytes_in_a_marker(changes):
    marker = bytearray(
        end_transaction_marker(commit=True, producer_id=7, producer_epoch=1, coordinator_epoch=3, timestamp_ms=0)
    )
    for position, value in changes:
        marker[position] = value
    read_everything(marker)
