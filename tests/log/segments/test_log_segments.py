"""Segments: when they roll, what stands in their files, how a reader finds its way."""

import struct

import pytest

from kits.log.partition import DATA, NOW, TP, Kit, data_batch, headers, marker
from twofold.log.api import Bound, Origin
from twofold.log.indexes.offset_index import CorruptIndex, OffsetIndex
from twofold.log.indexes.time_index import TimeIndex
from twofold.log.indexes.txn_index import TxnIndex
from twofold.records.batch import crc_is_valid, iter_records, stamp
from twofold.records.compression import Codec
from twofold.runtime.files import read_file
from twofold.wire.errors import CorruptMessage, InvalidRecord, InvalidTimestamp, MessageTooLarge

HOUR_MS = 3_600_000


def files(kit: Kit, suffix: str = "") -> list[str]:
    return [name for name in kit.disk.list(f"{DATA}/{TP}") if name.endswith(suffix)]


def content(kit: Kit, name: str) -> bytes:
    return read_file(kit.disk, f"{DATA}/{TP}/{name}")


def bases(kit: Kit) -> list[int]:
    return [int(name[:20]) for name in files(kit, ".log")]


# Rolling


def test_a_segment_rolls_before_it_would_exceed_segment_bytes() -> None:
    size = len(data_batch(value=b"x" * 100))
    kit = Kit(segment_bytes=3 * size)
    for _ in range(7):
        kit.data(value=b"x" * 100)
    assert bases(kit) == [0, 3, 6]


def test_a_batch_larger_than_a_segment_gets_one_of_its_own() -> None:
    kit = Kit(segment_bytes=200)
    for _ in range(3):
        kit.data(value=b"x" * 500)
    assert bases(kit) == [0, 1, 2]


def test_a_segment_rolls_by_the_age_of_its_records() -> None:
    kit = Kit(segment_ms=HOUR_MS, message_timestamp_after_max_ms=10 * HOUR_MS)
    kit.data(timestamp=NOW)
    kit.data(timestamp=NOW + HOUR_MS)
    kit.data(timestamp=NOW + HOUR_MS + 1)
    assert bases(kit) == [0, 2]


def test_without_timestamps_a_segment_rolls_by_the_clock() -> None:
    kit = Kit(segment_ms=HOUR_MS)
    kit.data(timestamp=-1)
    kit.clock.now_ms += HOUR_MS
    kit.data(timestamp=-1)
    kit.clock.now_ms += 1
    kit.data(timestamp=-1)
    assert bases(kit) == [0, 2]


def test_jitter_shortens_the_life_of_a_segment() -> None:
    kit = Kit(segment_ms=HOUR_MS, segment_jitter_ms=HOUR_MS)
    kit.data(timestamp=-1)
    jitter = kit.log._segments.all[0].jitter_ms
    assert 0 < jitter < HOUR_MS
    kit.clock.now_ms += HOUR_MS - jitter + 1
    kit.data(timestamp=-1)
    assert bases(kit) == [0, 1]


@pytest.mark.parametrize(("index_bytes", "expected"), [(48, [0, 4, 8]), (80, [0, 6])])
def test_a_full_index_begins_a_new_segment(index_bytes: int, expected: list[int]) -> None:
    kit = Kit(index_interval_bytes=0, segment_index_bytes=index_bytes)
    for index in range(10):
        kit.data(timestamp=NOW + index)
    assert bases(kit) == expected


def test_offsets_that_do_not_fit_the_index_begin_a_new_segment() -> None:
    kit = Kit()
    kit.log.truncate_fully_and_start_at(5)
    kit.log.append_replicated(data_batch(base_offset=7))
    kit.log.append_replicated(data_batch(base_offset=2**31 + 4))
    assert bases(kit) == [5]
    kit.log.append_replicated(data_batch(base_offset=2**31 + 5))
    assert bases(kit) == [5, 2**31 + 5]
    kit.log.append_replicated(data_batch(base_offset=2**33))
    assert bases(kit) == [5, 2**31 + 5, 2**33]
    kit.crash(power_cut=False)
    assert kit.log.log_end_offset == 2**33 + 1
    assert headers(kit.log.read(2**31 + 6, 10, Bound.LOG_END).records)[0].base_offset == 2**33


def test_rolling_an_empty_segment_changes_nothing() -> None:
    kit = Kit()
    kit.log.roll()
    assert not kit.disk.exists(f"{DATA}/{TP}")
    kit.data()
    kit.log.roll()
    kit.log.roll()
    assert bases(kit) == [0, 1]


# Files


def test_index_files_have_the_bytes_of_kafka() -> None:
    kit = Kit(index_interval_bytes=0)
    sizes = [len(data_batch(count)) for count in (2, 3, 1)]
    for count, timestamp in ((2, NOW), (3, NOW + 5), (1, NOW + 3)):
        kit.data(count=count, timestamp=timestamp)
    kit.stop()
    assert content(kit, f"{0:020d}.index") == struct.pack(">4i", 4, sizes[0], 5, sizes[0] + sizes[1])
    assert content(kit, f"{0:020d}.timeindex") == struct.pack(">qi", NOW + 5, 4)
    assert content(kit, "leader-epoch-checkpoint") == b"0\n1\n0 0\n"
    assert files(kit) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000006.snapshot",
        "leader-epoch-checkpoint",
    ]


def test_a_segment_without_records_of_a_greater_time_has_one_entry_for_the_greatest() -> None:
    index = TimeIndex(100)
    for timestamp, offset in ((5, 101), (5, 102), (4, 103), (9, 104)):
        index.maybe_append(timestamp, offset)
    assert index.encode() == struct.pack(">qiqi", 5, 1, 9, 4)
    assert TimeIndex.parse(100, index.encode()).last() == (9, 104)
    assert [index.lookup(timestamp) for timestamp in (4, 5, 8, 9, 10)] == [100, 101, 101, 104, 104]


def test_offset_index_finds_the_last_entry_at_or_below() -> None:
    index = OffsetIndex(1000)
    for offset, position in ((1004, 50), (1009, 120)):
        index.append(offset, position)
    assert [index.lookup(offset) for offset in (1000, 1003, 1004, 1008, 1009, 2**40)] == [
        (999, 0),
        (999, 0),
        (1004, 50),
        (1004, 50),
        (1009, 120),
        (1009, 120),
    ]
    assert [index.floor_position(position) for position in (0, 49, 50, 119, 120, 2**40)] == [0, 0, 50, 50, 120, 120]
    assert OffsetIndex.parse(1000, index.encode(), 121).encode() == index.encode()
    assert index.encode(1) == struct.pack(">2i", 9, 120)


@pytest.mark.parametrize(
    "data", [b"\x00", struct.pack(">4i", 5, 10, 5, 20), struct.pack(">4i", 5, 20, 6, 10), struct.pack(">2i", 5, 200)]
)
def test_an_impossible_offset_index_is_noticed(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        OffsetIndex.parse(0, data, 200)


@pytest.mark.parametrize("data", [b"\x00", struct.pack(">qiqi", 5, 1, 5, 2), struct.pack(">qiqi", 5, 2, 6, 1)])
def test_an_impossible_time_index_is_noticed(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        TimeIndex.parse(0, data)


@pytest.mark.parametrize(
    "data", [b"\x00", struct.pack(">hqqqq", 1, 7, 0, 5, 6), struct.pack(">hqqqq", 0, 7, 0, 5, 6) * 2]
)
def test_an_impossible_transaction_index_is_noticed(data: bytes) -> None:
    with pytest.raises(CorruptIndex):
        TxnIndex.parse(data, 0)


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".index", None),
        (".index", b"\x01"),
        (".index", b"\xff" * 24),
        (".index", b""),  # small, but true: it only has no entries
        (".timeindex", None),
        (".timeindex", b"\x01"),
        (".timeindex", b"\xff" * 24),
    ],
)
def test_a_lost_or_damaged_index_is_built_again_when_it_is_needed(suffix: str, damage: bytes | None) -> None:
    kit = Kit(segment_bytes=600, index_interval_bytes=0)
    for index in range(20):
        kit.data(timestamp=NOW + index)
    kit.stop()
    for name in files(kit, suffix):
        kit.disk.remove(f"{DATA}/{TP}/{name}")
        if damage is not None:
            kit.disk.open(f"{DATA}/{TP}/{name}", create=True).write(0, damage)
    kit.start()
    for offset in range(20):
        assert headers(kit.log.read(offset, 1, Bound.LOG_END).records)[0].base_offset == offset
        found = kit.log.offset_for_timestamp(NOW + offset, Bound.LOG_END)
        assert found is not None
        assert found.offset == offset
    assert kit.data() == 20


def test_a_damaged_transaction_index_is_built_again_when_it_is_needed() -> None:
    kit = Kit()
    kit.data(7, 0, txn=True)
    kit.log.roll()
    kit.data(8, 0, txn=True)
    kit.mark(7, commit=False)
    kit.mark(8, commit=False)
    kit.log.roll()
    kit.data()
    kit.stop()
    name = f"{DATA}/{TP}/{1:020d}.txnindex"
    expected = read_file(kit.disk, name)
    assert len(expected) == 68
    kit.disk.open(name).truncate(50)
    kit.start()
    assert kit.log.read(0, 1000, Bound.LAST_STABLE).aborted == ((7, 0),)
    assert kit.log.read(1, 1000, Bound.LAST_STABLE).aborted == ((7, 0), (8, 1))
    kit.stop()
    assert read_file(kit.disk, name) == expected


# What is stored


def test_log_append_time_replaces_the_timestamps() -> None:
    kit = Kit(message_timestamp_type="LogAppendTime")
    result = kit.append(data_batch(2, timestamp=NOW - 999))
    assert result.log_append_time_ms == NOW
    records = kit.log.read(0, 1000, Bound.LOG_END).records
    header = headers(records)[0]
    assert header.is_log_append_time
    assert crc_is_valid(records, 0, header)
    assert [record.timestamp for record in iter_records(records)] == [NOW, NOW]
    assert kit.log.offset_for_timestamp(NOW, Bound.LOG_END) == (0, NOW, 0)


def test_a_batch_that_is_compressed_anew_is_found_by_its_log_append_time() -> None:
    kit = Kit(message_timestamp_type="LogAppendTime", compression_type="gzip", index_interval_bytes=0)
    for _ in range(3):
        kit.append(data_batch(20, timestamp=NOW - 999, value=b"abc" * 30))
    assert kit.log.offset_for_timestamp(NOW, Bound.LOG_END) == (0, NOW, 0)
    assert kit.log.offset_of_max_timestamp(Bound.LOG_END) == (0, NOW, 0)


def test_a_client_does_not_choose_log_append_time() -> None:
    kit = Kit()
    batch = bytearray(data_batch(timestamp=NOW - 5))
    stamp(batch, 0, base_offset=0, leader_epoch=-1, log_append_time=True)
    kit.append(bytes(batch))
    records = kit.log.read(0, 1000, Bound.LOG_END).records
    assert not headers(records)[0].is_log_append_time
    assert crc_is_valid(records, 0, headers(records)[0])


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("wanted", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_stored_under_the_codec_of_the_topic(codec: Codec, wanted: str) -> None:
    kit = Kit(compression_type=wanted)
    kit.append(data_batch(20, pid=7, seq=0, codec=codec, value=b"abc" * 30, step_ms=3))
    records = kit.log.read(0, 100_000, Bound.LOG_END).records
    header = headers(records)[0]
    names = {"producer": codec, "uncompressed": Codec.NONE}
    assert header.codec == names.get(wanted, None if wanted in names else Codec[wanted.upper()])
    assert crc_is_valid(records, 0, header)
    stored = [(record.offset, record.timestamp, record.value) for record in iter_records(records)]
    assert stored == [(index, NOW + 3 * index, b"abc" * 30) for index in range(20)]
    assert kit.append(data_batch(20, pid=7, seq=0, codec=codec, value=b"abc" * 30, step_ms=3)).duplicate
    kit.crash(power_cut=False)
    assert kit.log.log_end_offset == 20


def test_bad_batches_are_refused_and_leave_nothing() -> None:
    kit = Kit(max_message_bytes=300)
    good = data_batch(value=b"v" * 20)
    flipped = good[:-1] + bytes([good[-1] ^ 1])
    for batch, error in (
        (flipped, CorruptMessage),
        (data_batch(value=b"v" * 400), MessageTooLarge),
        (marker(7), InvalidRecord),
        (good + good, InvalidRecord),
        (good[:30], InvalidRecord),
        (data_batch(timestamp=NOW + 2 * HOUR_MS), InvalidTimestamp),
    ):
        with pytest.raises(error):
            kit.append(batch)
    assert kit.log.log_end_offset == 0
    assert not kit.disk.exists(f"{DATA}/{TP}")


def test_compacted_topics_need_keys() -> None:
    kit = Kit(cleanup_policy=frozenset({"compact"}))
    with pytest.raises(InvalidRecord):
        kit.data()
    assert kit.data(key=b"k") == 0


def test_coordinators_append_several_batches_at_once_or_none() -> None:
    kit = Kit()
    kit.append(data_batch(2) + data_batch(3, pid=7, seq=9) + data_batch(1), origin=Origin.COORDINATOR)
    assert [header.base_offset for header in headers(kit.log.read(0, 10_000, Bound.LOG_END).records)] == [0, 2, 5]
    with pytest.raises(CorruptMessage):
        kit.append(data_batch(2) + data_batch(1)[:-1] + b"?", origin=Origin.COORDINATOR)
    assert kit.log.log_end_offset == 6


def test_a_replica_takes_whole_batches_in_order_only() -> None:
    kit = Kit()
    second = data_batch(2, base_offset=3, leader_epoch=4)
    kit.log.append_replicated(data_batch(3, leader_epoch=4) + second + second[:40])
    assert kit.log.log_end_offset == 5
    assert kit.log.leader_epoch == 4
    with pytest.raises(CorruptMessage):
        kit.log.append_replicated(second)
    with pytest.raises(CorruptMessage):
        kit.log.append_replicated(data_batch(base_offset=5)[:-1] + b"?")
    kit.log.append_replicated(b"")
    assert kit.log.log_end_offset == 5


# Reading


def test_reads_give_whole_batches_within_the_limit() -> None:
    kit = Kit(index_interval_bytes=300, segment_bytes=5000)
    sizes = [len(data_batch(value=b"x" * length)) for length in (10, 300, 50, 120) * 30]
    for length in (10, 300, 50, 120) * 30:
        kit.data(value=b"x" * length)
    segments = kit.log._segments.bases
    for offset in range(120):
        for max_bytes in (1, 100, 500, 2000, 100_000):
            records = kit.log.read(offset, max_bytes, Bound.LOG_END).records
            found = headers(records)
            assert sum(header.size for header in found) == len(records)
            assert [header.base_offset for header in found] == list(range(offset, offset + len(found)))
            assert len(records) <= max(max_bytes, sizes[offset])
            end = min([base for base in segments if base > offset] + [120])
            left = sum(sizes[offset:end])
            assert len(records) >= min(left, max_bytes - 300 - 2 * max(sizes)), "about as much as fits"
            assert offset + len(found) <= end, "never across segments"


def test_without_at_least_one_a_batch_that_does_not_fit_is_left_out() -> None:
    kit = Kit()
    kit.data(value=b"x" * 100)
    kit.data(value=b"x" * 100)
    assert kit.log.read(0, 50, Bound.LOG_END, at_least_one=False).records == b""
    assert len(headers(kit.log.read(0, 50, Bound.LOG_END).records)) == 1
    assert kit.log.read(0, 0, Bound.LOG_END, at_least_one=False).records == b""


def test_no_reader_sees_what_lies_at_or_beyond_its_bound() -> None:
    kit = Kit(segment_bytes=400, index_interval_bytes=0)
    for index in range(12):
        kit.log.append(data_batch(pid=7, seq=index, txn=index >= 7), leader_epoch=0)
    for high_watermark in range(13):
        kit.log.advance_high_watermark(high_watermark)
        result = kit.log.read(0, 10_000, Bound.LOG_END)
        assert result.high_watermark == high_watermark
        for bound, upper in ((Bound.HIGH_WATERMARK, high_watermark), (Bound.LAST_STABLE, min(7, high_watermark))):
            offset = 0
            while found := headers(kit.log.read(offset, 10_000, bound).records):
                offset = found[-1].next_offset
            assert offset == upper


def test_the_memory_of_indexes_of_old_segments_is_bounded() -> None:
    kit = Kit(segment_bytes=400, index_interval_bytes=0)
    kit.manager.environment.indexes._capacity = 4000
    for _ in range(100):
        kit.data()
    for offset in range(100):
        kit.log.read(offset, 1, Bound.LOG_END)
    assert kit.log.segment_count > 10
    assert sum(segment.is_loaded for segment in kit.log._segments.all) <= 5
    assert kit.manager.environment.indexes.used_bytes <= 4000


# Looking up by time


def test_a_time_finds_the_first_record_from_it_on() -> None:
    kit = Kit(segment_bytes=500, index_interval_bytes=100)
    for index in range(0, 60, 3):
        kit.append(data_batch(3, timestamp=NOW + index * 10, step_ms=10))
    for index in range(60):
        for delta in (-9, 0):
            found = kit.log.offset_for_timestamp(NOW + index * 10 + delta, Bound.LOG_END)
            assert found == (index, NOW + index * 10, 0)
    assert kit.log.offset_for_timestamp(NOW + 591, Bound.LOG_END) is None
    assert kit.log.offset_of_max_timestamp(Bound.LOG_END) == (59, NOW + 590, 0)


def test_times_that_jump_back_are_found_too() -> None:
    times = [5, 9, 2, 7, 30, 1, 12, 30, 31, 4]
    kit = Kit(segment_bytes=250, index_interval_bytes=0)
    for offset in times:
        kit.data(timestamp=NOW + offset)
    for wanted in range(33):
        expected = next((offset for offset, time in enumerate(times) if time >= wanted), None)
        found = kit.log.offset_for_timestamp(NOW + wanted, Bound.LOG_END)
        assert (found.offset if found else None) == expected
    assert kit.log.offset_of_max_timestamp(Bound.LOG_END) == (8, NOW + 31, 0)
    assert kit.log.offset_of_max_timestamp(Bound.HIGH_WATERMARK) == (8, NOW + 31, 0)


def test_the_first_of_several_records_with_the_greatest_time_is_found() -> None:
    kit = Kit()
    kit.data(timestamp=NOW)
    kit.data(count=3, timestamp=NOW + 5)
    kit.data(timestamp=NOW + 5)
    assert kit.log.offset_of_max_timestamp(Bound.LOG_END) == (1, NOW + 5, 0)


def test_control_batches_have_no_time() -> None:
    kit = Kit()
    kit.data(7, 0, txn=True, timestamp=NOW)
    kit.mark(7, timestamp=NOW + 50)
    assert kit.log.offset_for_timestamp(NOW + 1, Bound.LOG_END) is None
    assert kit.log.offset_of_max_timestamp(Bound.LOG_END) == (0, NOW, 0)
    kit.data(timestamp=NOW + 60)
    assert kit.log.offset_for_timestamp(NOW + 1, Bound.LOG_END) == (2, NOW + 60, 0)
    kit.restart()
    assert kit.log.offset_for_timestamp(NOW + 1, Bound.LOG_END) == (2, NOW + 60, 0)


def test_time_indexes_of_brokers_that_count_control_batches_are_understood() -> None:
    kit = Kit()
    kit.data(7, 0, txn=True, timestamp=NOW)
    kit.data(7, 1, txn=True, timestamp=NOW - 7)
    kit.mark(7, timestamp=NOW + 50)
    kit.stop()
    name = f"{DATA}/{TP}/{0:020d}.timeindex"
    kit.disk.open(name).write(0, struct.pack(">qi", NOW + 50, 2))
    kit.start()
    assert kit.log.offset_of_max_timestamp(Bound.LOG_END) == (0, NOW, 0)
    assert kit.log.offset_for_timestamp(NOW + 1, Bound.LOG_END) is None


def test_a_time_below_the_log_start_finds_what_is_left() -> None:
    kit = Kit()
    kit.data(count=5, step_ms=10)
    kit.log.advance_log_start(3)
    assert kit.log.offset_for_timestamp(NOW, Bound.LOG_END) == (3, NOW + 30, 0)


def test_an_empty_log_has_no_times() -> None:
    kit = Kit()
    assert kit.log.offset_for_timestamp(0, Bound.LOG_END) is None
    assert kit.log.offset_of_max_timestamp(Bound.LOG_END) is None
