"""A coordinator's record, written without being built as a batch first, is what it would have been."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.log.partition import NOW, Kit
from twofold.log.api import Bound, Origin
from twofold.records.batch import BatchBuilder, crc_is_valid, read_header, single_record_batch


def built(key: bytes, value: bytes | None, **options: object) -> bytes:
    builder = BatchBuilder(**options)  # type: ignore[arg-type]
    builder.add(key, value, NOW)
    return builder.build()


@settings(max_examples=200)
@given(
    key=st.binary(max_size=300) | st.just(b"k" * 9000),
    value=st.none() | st.binary(max_size=300) | st.just(b"v" * 20_000),
    offset=st.integers(0, 2**40),
    epoch=st.integers(0, 2**31 - 1),
    log_append_time=st.booleans(),
)
def test_a_single_record_batch_is_what_the_builder_builds(
    key: bytes, value: bytes | None, offset: int, epoch: int, log_append_time: bool
) -> None:
    header, data = single_record_batch(key, value, NOW, offset, epoch, log_append_time)
    assert data == built(key, value, base_offset=offset, leader_epoch=epoch, log_append_time=log_append_time)
    assert header == read_header(data)
    assert crc_is_valid(data, 0, header)


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_record_and_the_batch_with_it_leave_the_same_log(timestamp_type: str) -> None:
    rows = [(b"a", b"1"), (b"b", None), (b"a", b"x" * 500)] * 20
    kits = [Kit(message_timestamp_type=timestamp_type, segment_bytes=2000, index_interval_bytes=300) for _ in range(2)]
    for key, value in rows:
        one = kits[0].log.append_record(key, value, leader_epoch=3)
        other = kits[1].log.append(built(key, value), origin=Origin.COORDINATOR, leader_epoch=3)
        assert one == other
    for kit in kits:
        kit.log.advance_high_watermark(kit.log.log_end_offset)
    first, second = kits[0].log, kits[1].log
    assert first.segment_count == second.segment_count > 3
    for offset in range(first.log_end_offset):
        bounds = (offset, 1, Bound.LAST_STABLE)
        assert first.read(*bounds) == second.read(*bounds)
    assert kits[0].crash(power_cut=False).log_end_offset == len(rows)
