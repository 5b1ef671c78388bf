"""The quick way and the general way leave the same log. Beside each quick way stands what it gains."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.log.partition import DATA, TP, Kit, data_batch, marker_of
from twofold.log.api import Origin
from twofold.log.appending.stamping import StoredBatch
from twofold.log.appending.writer import BatchWriter
from twofold.log.segments.scan import find_batch, iter_headers, read_producer_fields
from twofold.runtime.files import read_file


def leave(kit: Kit) -> dict[str, bytes]:
    """All bytes that a clean shutdown leaves."""
    kit.stop()
    directory = f"{DATA}/{TP}"
    return {name: read_file(kit.disk, f"{directory}/{name}") for name in kit.disk.list(directory)}


def write_as_list(writer: BatchWriter, data: Any, header: Any, offset: int, change: Any, *rest: Any) -> Any:
    return writer.write(data, [StoredBatch(0, header, offset, change)], *rest)


def produce(kit: Kit) -> list[Any]:
    results: list[Any] = []
    for sequence in range(40):
        kit.clock.now_ms += 7
        time_ms = kit.clock.now_ms - 5 * (sequence % 3)
        results.append(
            kit.append(data_batch(2, pid=7, seq=2 * sequence, timestamp=time_ms), leader_epoch=sequence // 9)
        )
        results.append(kit.append(data_batch(pid=8, seq=sequence, txn=True, timestamp=time_ms)))
        results.append(kit.log.append_record(b"key", b"value" * sequence, leader_epoch=sequence // 9))
        if sequence % 4 == 3:
            marker = marker_of(8, 0, 0, sequence % 8 == 3, version=0)
            results.append(kit.log.append_markers([marker], leader_epoch=sequence // 9))
            kit.log.advance_high_watermark(kit.log.log_end_offset)
    bounds = kit.log._bounds
    return [*results, bounds.log_end_offset, bounds.high_watermark, bounds.last_stable_offset, kit.log.producers()]


CONFIGS = [
    {"segment_bytes": 2500, "index_interval_bytes": 300},
    {"message_timestamp_type": "LogAppendTime", "flush_messages": 3},
    {"flush_ms": 100, "index_interval_bytes": 0},
]


@pytest.mark.parametrize("config", CONFIGS)
def test_one_batch_is_written_as_a_list_of_one_is(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    quick, general = Kit(**config), Kit(**config)
    expected = produce(quick)
    monkeypatch.setattr(BatchWriter, "write_one", write_as_list)
    assert produce(general) == expected
    assert leave(general) == leave(quick)


@pytest.mark.parametrize("config", CONFIGS)
def test_one_marker_is_written_as_one_of_several_is(config: dict[str, Any]) -> None:
    """The general way takes a list; a second marker that is refused leaves no trace in it."""
    quick, general = Kit(**config), Kit(**config)
    refused = marker_of(9, 0, 0, True, version=0)
    for kit in (quick, general):
        kit.data(pid=9, epoch=5)
    for at, commit in enumerate((True, False, True)):
        marker = marker_of(1, 0, at, commit, version=0)
        for kit in (quick, general):
            kit.data(pid=1, seq=at, txn=True)
        one = quick.log.append_markers([marker], leader_epoch=0)
        two = general.log.append_markers([marker, refused], leader_epoch=0)
        assert (one.outcomes, one.appended) == (two.outcomes[:1], two.appended)
    assert leave(general) == leave(quick)


def test_a_refused_marker_is_refused_alike_alone_and_among_others() -> None:
    kit = Kit()
    kit.data(pid=9, epoch=5)
    refused = marker_of(9, 0, 0, True, version=0)
    alone = kit.log.append_markers([refused], leader_epoch=0)
    among = kit.log.append_markers([refused, refused], leader_epoch=0)
    assert alone.appended is among.appended is None
    assert [str(error) for error in alone.outcomes * 2] == [str(error) for error in among.outcomes]


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(1, 6), min_size=1, max_size=60), value=st.sampled_from([5, 700, 9000]))
def test_headers_are_found_alike_by_all_walks(counts: list[int], value: int) -> None:
    kit = Kit()
    sequence = 0
    for count in counts:
        kit.append(data_batch(count, pid=3, seq=sequence, value=b"x" * value), origin=Origin.CLIENT)
        sequence += count
    segment = kit.log._segments.all[0]
    file = kit.disk.open(segment.log_path)
    walked = list(iter_headers(file, 0, segment.size))
    for offset in range(kit.log.log_end_offset + 2):
        slow = next((at for at, header in walked if header.last_offset >= offset), segment.size)
        assert find_batch(file, 0, segment.size, offset) == slow
    fields: Callable[[Any], tuple[int, ...]] = lambda one: (  # noqa: E731
        one.base_offset, one.batch_length, one.attributes, one.last_offset_delta,
        one.max_timestamp, one.producer_id, one.producer_epoch, one.base_sequence,
    )  # fmt: skip
    for before in (0, 1, kit.log.log_end_offset // 2, kit.log.log_end_offset):
        slow_fields = [fields(header) for _, header in walked if header.base_offset < before]
        assert read_producer_fields(file, 0, segment.size, before) == slow_fields
