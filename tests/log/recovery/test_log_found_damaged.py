"""A data directory that was left in a bad state: each file that may be damaged, missing or left over."""

import asyncio
from uuid import UUID

import pytest

from kits.log.cleaning import CleanKit
from kits.log.partition import DATA, NOW, TP, Kit, data_batch, headers
from twofold.log.api import Bound
from twofold.types import TopicPartition
from twofold.wire.errors import CorruptMessage, KafkaStorageError

FIRST = f"{DATA}/{TP}/00000000000000000000"


def overwrite(kit: Kit, path: str, data: bytes) -> None:
    file = kit.disk.open(path, create=True)
    file.truncate(0)
    file.write(0, data)
    file.close()


def patch(kit: Kit, path: str, position: int, data: bytes) -> None:
    file = kit.disk.open(path)
    file.write(position, data)
    file.close()


def filled(segments: int = 3) -> Kit:
    """Ten batches a segment."""
    kit = Kit(index_interval_bytes=100)
    for segment in range(segments):
        if segment:
            kit.log.roll()
        for number in range(10):
            kit.data(timestamp=NOW + segment * 10 + number)
    return kit


def offsets(kit: Kit) -> list[int]:
    found: list[int] = []
    offset = kit.log.log_start_offset
    while offset < kit.log.log_end_offset:
        read = headers(kit.log.read(offset, 300, Bound.LOG_END).records)
        found += [header.base_offset for header in read]
        offset = read[-1].next_offset
    return found


# Indexes


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex"])
@pytest.mark.parametrize("damage", [b"", b"\x00" * 7, b"\xff" * 64, None])
def test_an_index_that_is_truncated_or_garbage_or_missing_is_built_again(
    clean: bool, suffix: str, damage: bytes | None
) -> None:
    kit = filled()
    kit.stop()
    for base in (0, 10, 20):
        path = f"{DATA}/{TP}/{base:020d}{suffix}"
        if damage is not None:
            overwrite(kit, path, damage)
        elif kit.disk.exists(path):
            kit.disk.remove(path)
    if not clean:
        kit.disk.remove(f"{DATA}/.kafka_cleanshutdown")
    kit.start()
    assert offsets(kit) == list(range(30))
    found = kit.log.offset_for_timestamp(NOW + 17, Bound.LOG_END)
    assert found is not None and found.offset == 17
    assert kit.data() == 30


def test_an_index_that_leads_nowhere_is_built_again_while_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    """Its entries increase, as they should, and point between two batches."""
    kit = filled()
    kit.stop()
    path = f"{FIRST}.index"
    size = kit.disk.file_size(path)
    entries = b"".join((1 + at).to_bytes(4, "big") + (100 + 7 * at).to_bytes(4, "big") for at in range(size // 8))
    overwrite(kit, path, entries)
    kit.start()
    assert offsets(kit) == list(range(30))
    assert f"{path}: it leads to no batch" in caplog.text
    kit.restart()
    assert offsets(kit) == list(range(30)), "and it is right on disk"


# Segments


def test_a_damaged_segment_below_the_recovery_point_is_found_by_its_readers_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kit = filled()
    size = kit.log._segments.all[0].size // 10
    kit.stop()
    patch(kit, f"{FIRST}.log", 4 * size, b"\xff" * size)
    kit.start()
    assert len(headers(kit.log.read(0, size, Bound.LOG_END).records)) == 1
    with pytest.raises(CorruptMessage):
        kit.log.read(4, size, Bound.LOG_END)
    assert f"{FIRST}.log cannot be read at 4" in caplog.text
    assert [header.base_offset for header in headers(kit.log.read(10, 10_000, Bound.LOG_END).records)] == list(
        range(10, 20)
    )
    assert kit.data() == 30


def test_a_damaged_segment_whose_index_is_lost_too_serves_what_lies_before_the_damage() -> None:
    kit = filled()
    size = kit.log._segments.all[0].size // 10
    kit.stop()
    patch(kit, f"{FIRST}.log", 4 * size, b"\xff" * size)
    kit.disk.remove(f"{FIRST}.index")
    kit.start()
    assert kit.log.read(3, size, Bound.LOG_END).records
    with pytest.raises(CorruptMessage):
        kit.log.read(5, size, Bound.LOG_END)
    assert kit.log.read(10, size, Bound.LOG_END).records
    kit.restart()
    assert kit.log.size_bytes == 30 * size, "it is no shorter for that"


def test_a_damaged_segment_beyond_the_recovery_point_is_cut_and_named(caplog: pytest.LogCaptureFixture) -> None:
    kit = filled(1)
    size = kit.log._segments.all[0].size // 10
    patch(kit, f"{FIRST}.log", 4 * size + 30, b"\xff")
    kit.crash(power_cut=False)
    assert kit.log.log_end_offset == 4
    assert f"{FIRST}.log: position {4 * size}" in caplog.text
    assert f"cutting {6 * size} bytes at offset 4" in caplog.text


# Files that were left over


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", [".log.cleaned", ".index.cleaned", ".log.deleted", ".snapshot.deleted", ".log.tmp"])
def test_leftovers_of_what_was_interrupted_go(name: str, clean: bool) -> None:
    kit = filled(2)
    kit.stop()
    overwrite(kit, FIRST + name, b"left over")
    if not clean:
        kit.disk.remove(f"{DATA}/.kafka_cleanshutdown")
    kit.start()
    assert offsets(kit) == list(range(20))
    assert not kit.disk.exists(FIRST + name)


def test_a_swap_that_was_interrupted_is_completed(caplog: pytest.LogCaptureFixture) -> None:
    """The new segment was complete before it got that name; the old ones it was made of go."""
    kit = CleanKit()
    for number in range(4):
        kit.put((f"k{number % 2}", str(number)), roll=True)
    kit.put(("k9", "active"))
    kit.stop()
    content = kit.disk.open(f"{FIRST}.log").read(0, 1 << 20)
    overwrite(kit, f"{FIRST}.log.swap", content)
    kit.disk.remove(f"{DATA}/.kafka_cleanshutdown")
    kit.start()
    assert kit.log.log_end_offset == 5
    assert not [name for name in kit.disk.list(f"{DATA}/{TP}") if name.endswith(".swap")]
    assert f"{FIRST}.log: completing an interrupted compaction" in caplog.text


# Directories


def test_a_second_directory_of_a_partition_is_left_alone_and_named(caplog: pytest.LogCaptureFixture) -> None:
    kit = filled(1)
    kit.stop()
    for name in ("events-00", "events-0²", "events-+0", "events-x"):
        kit.disk.make_dirs(f"{DATA}/{name}")
        overwrite(kit, f"{DATA}/{name}/00000000000000000000.log", data_batch(1))
    kit.start()
    assert [known.topic_partition for known in kit.manager.logs()] == [TP]
    assert offsets(kit) == list(range(10))
    for name in ("events-00", "events-0²", "events-+0", "events-x"):
        assert f"{DATA}/{name} is not used" in caplog.text
        assert kit.disk.exists(f"{DATA}/{name}/00000000000000000000.log")


def test_a_file_with_the_name_of_a_partition_is_none() -> None:
    kit = filled(1)
    kit.stop()
    overwrite(kit, f"{DATA}/events-1", b"a file")
    kit.start()
    assert kit.manager.get(TopicPartition("events", 1)) is None
    assert offsets(kit) == list(range(10))


def test_a_partition_metadata_that_is_garbage_is_written_anew() -> None:
    kit = filled(1)
    topic_id = UUID(int=7)
    kit.manager.get_or_create(TP, topic_id, kit.config)
    kit.stop()
    overwrite(kit, f"{DATA}/{TP}/partition.metadata", b"\xff garbage " * 40)
    kit.start()
    kit.log = kit.manager.get_or_create(TP, topic_id, kit.config)
    assert offsets(kit) == list(range(10)), "the name says whose it is"
    kit.stop()
    kit.start()
    kit.log = kit.manager.get_or_create(TP, UUID(int=8), kit.config)
    assert kit.log.log_end_offset == 0, "another topic of the name does not get them"
    assert any(name.endswith("-stray") for name in kit.disk.list(DATA))


# Checkpoints and snapshots


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
        f"{TP}/leader-epoch-checkpoint",
    ],
)
@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"0\n1\nevents 0 -4\n", b"0\n2\nevents 0 5\n"])
def test_a_checkpoint_that_is_garbage_costs_time_and_no_records(
    name: str, clean: bool, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    kit = filled()
    kit.stop()
    overwrite(kit, f"{DATA}/{name}", content)
    if not clean:
        kit.disk.remove(f"{DATA}/.kafka_cleanshutdown")
    kit.start()
    assert offsets(kit) == list(range(30))
    assert kit.data() == 30
    assert f"{DATA}/{name}" in caplog.text or not content, "Apache Kafka leaves empty ones, too"


def test_a_cleaner_checkpoint_beyond_the_log_does_not_end_compaction(caplog: pytest.LogCaptureFixture) -> None:
    kit = CleanKit()
    for number in range(4):
        kit.put(("k", str(number)), roll=True)
    kit.stop()
    overwrite(kit, f"{DATA}/cleaner-offset-checkpoint", b"0\n1\nevents 0 4711\n")
    kit.start()
    kit.log.ensure_open()
    assert "4711" in caplog.text
    assert kit.clean()
    assert kit.log.cleaned_offset == 4


@pytest.mark.parametrize("content", [b"", b"\x00\x01garbage", b"\xff" * 200])
def test_a_snapshot_that_is_garbage_is_replaced_by_an_older_one_and_the_log(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    kit = Kit()
    for sequence in range(8):
        kit.data(7, sequence)
        if sequence == 3:
            kit.log.roll()
    kit.stop()
    path = f"{DATA}/{TP}/{8:020d}.snapshot"
    overwrite(kit, path, content)
    kit.start()
    for sequence in range(3, 8):
        assert kit.append(data_batch(1, pid=7, seq=sequence)).duplicate
    assert kit.data(7, 8) == 8
    assert path in caplog.text


def test_a_log_that_fails_while_it_is_mended_stays_where_it_was() -> None:
    kit = filled(1)
    kit.disk.fail_syncs(1, match=".log", lose=True)
    with pytest.raises(Exception, match="cannot be synced"):
        kit.log.flush()
    for match in (".log.tmp", f"/{TP}", "00.log"):
        kit.disk.fail_syncs(1, match=match)
        with pytest.raises((OSError, KafkaStorageError), match="Input/output error"):
            asyncio.run(kit.manager.mend(kit.log))
        assert kit.manager.get(TP) is kit.log
    kit.log = asyncio.run(kit.manager.mend(kit.log))
    assert offsets(kit) == list(range(10))
    kit.crash()
    assert offsets(kit) == list(range(10)), "not one was only in memory"
