"""Control records, byte for byte."""

from typing import Any

import pytest

from twofold.records.batch import BatchBuilder, Header, assemble, crc_is_valid, read_header
from twofold.records.control import (
    END_MARKER_SIZE,
    ControlType,
    EndMarker,
    control_key,
    end_transaction_marker,
    parse_control_key,
    read_control_type,
    read_end_marker,
)
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.errors import InvalidRecord

COMMIT = bytes.fromhex(
    "000000000000000000000042ffffffff02f49faf310030000000000000018bcfe568000000018bcfe568000000000000000007"
    "0001ffffffff000000012000000008000000010c00000000000300"
)
ABORT = bytes.fromhex(
    "000000000000000000000042ffffffff0200a179790030000000000000018bcfe568000000018bcfe568000000000000000007"
    "0001ffffffff000000012000000008000000000c00000000000300"
)
MARKER: dict[str, Any] = {
    "producer_id": 7,
    "producer_epoch": 1,
    "coordinator_epoch": 3,
    "timestamp_ms": 1_700_000_000_000,
}


@pytest.mark.parametrize(("commit", "vector"), [(True, COMMIT), (False, ABORT)])
def test_markers_equal_the_reference_vectors(commit, vector):
    marker = end_transaction_marker(commit=commit, **MARKER)
    assert marker == vector
    assert len(marker) == END_MARKER_SIZE
    assert crc_is_valid(vector, 0, read_header(vector))


@pytest.mark.parametrize(
    ("vector", "control_type", "commit"), [(COMMIT, ControlType.COMMIT, True), (ABORT, ControlType.ABORT, False)]
)
def test_a_marker_reads_back_at_any_position(vector, control_type, commit):
    marker = read_end_marker(b"xxx" + vector + b"yyy", 3)
    assert marker == EndMarker(control_type, 3)
    assert marker.commit is commit
    assert read_control_type(vector) is control_type


def test_a_marker_is_a_transactional_control_batch_without_a_sequence():
    header = read_header(end_transaction_marker(commit=True, **MARKER, base_offset=99, leader_epoch=4))
    assert header.is_control
    assert header.is_transactional
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (99, 100, 4)
    assert (header.base_sequence, header.last_sequence, header.count) == (-1, -1, 1)


def control_batch(key, value=None):
    builder = BatchBuilder(control=True)
    builder.add(key, value, 5)
    return builder.build()


def test_higher_versions_are_read_and_bytes_after_the_known_fields_ignored():
    batch = control_batch(bytes.fromhex("00050001ff"), bytes.fromhex("00090000000cffff"))
    assert read_end_marker(batch) == EndMarker(ControlType.COMMIT, 12)


def test_other_types_are_no_end_markers():
    assert read_end_marker(control_batch(control_key(ControlType.LEADER_CHANGE), b"...")) is None
    assert read_control_type(control_batch(control_key(ControlType.LEADER_CHANGE), b"...")) is ControlType.LEADER_CHANGE


def test_unknown_types_are_none_so_that_readers_skip_them():
    assert parse_control_key(bytes.fromhex("00000063")) is None
    assert read_end_marker(control_batch(bytes.fromhex("00000063"))) is None


def test_a_control_batch_that_compaction_emptied_has_no_effect():
    empty = assemble(Header(5, 0, 0, 2, 0, 0x30, 0, 0, 0, ProducerId(7), ProducerEpoch(1), -1, 0), b"")
    assert read_end_marker(empty) is None
    assert read_control_type(empty) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\x00" * 6),
        (b"\x00\x00\x00", b"\x00" * 6),
        (b"\xff\xff\x00\x01", b"\x00" * 6),
        (b"\x00\x00\x00\x01", None),
        (b"\x00\x00\x00\x01", b"\x00" * 5),
        (b"\x00\x00\x00\x01", b"\xff\xff\x00\x00\x00\x00"),
    ],
)
def test_damaged_markers_are_invalid_records(key, value):
    with pytest.raises(InvalidRecord):
        read_end_marker(control_batch(key, value))


def test_a_data_batch_is_not_a_marker():
    builder = BatchBuilder()
    builder.add(b"\x00\x00\x00\x01", b"\x00" * 6, 5)
    for reader in (read_end_marker, read_control_type):
        with pytest.raises(InvalidRecord, match="not a control batch"):
            reader(builder.build())


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("coordinator_epoch", [-1, 0, 2**31 - 1])
def test_a_marker_is_the_same_read_at_once_and_by_parsing_its_record(
    commit: bool, coordinator_epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = end_transaction_marker(commit=commit, **{**MARKER, "coordinator_epoch": coordinator_epoch})
    quick = read_end_marker(vector)
    monkeypatch.setattr("twofold.records.control._usual_end_marker", lambda buf, position: None)
    assert read_end_marker(vector) == quick
    assert quick == EndMarker(ControlType.COMMIT if commit else ControlType.ABORT, coordinator_epoch)
