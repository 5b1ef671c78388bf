"""Damage, failing disks and unclean ends: what the log does about them."""

import asyncio
import errno

import pytest

from kits.log.partition import DATA, NOW, TP, Kit, data_batch, headers
from kits.log.replay import assert_derived_state_is_a_replay, stored_batches
from twofold.log.api import Bound
from twofold.log.recovery.checkpoints import RECOVERY_POINTS, decode_offsets, encode_offsets
from twofold.records.batch import iter_records
from twofold.runtime.files import read_file
from twofold.runtime.sim.disk import CutMode
from twofold.wire.errors import KafkaStorageError, OffsetOutOfRange

LOG = f"{DATA}/{TP}/{0:020d}.log"


def batch_size() -> int:
    return len(data_batch())


def fill(kit: Kit, count: int) -> None:
    for _ in range(count):
        kit.data()


# Unclean ends


@pytest.mark.parametrize("lost", [1, 30, 61, 67])
def test_a_torn_last_batch_is_cut(lost: int) -> None:
    kit = Kit()
    fill(kit, 5)
    kit.disk.open(LOG).truncate(5 * batch_size() - lost)
    kit.crash(power_cut=False)
    assert kit.log.log_end_offset == 4
    assert kit.disk.file_size(LOG) == 4 * batch_size()
    assert kit.data() == 4


@pytest.mark.parametrize("position", [3, 10, 16, 18, 40, 66])
def test_everything_from_the_first_damaged_batch_on_is_cut(position: int) -> None:
    kit = Kit(segment_bytes=3 * batch_size())
    fill(kit, 8)
    file = kit.disk.open(LOG)
    at = batch_size() + position
    file.write(at, bytes([file.read(at, 1)[0] ^ 0x55]))
    kit.crash(power_cut=False)
    assert kit.log.log_end_offset == 1
    assert [name for name in kit.disk.list(f"{DATA}/{TP}") if name.endswith(".log")] == [f"{0:020d}.log"]


def test_zeros_behind_the_last_batch_are_cut() -> None:
    kit = Kit()
    fill(kit, 3)
    kit.disk.open(LOG).write(3 * batch_size(), bytes(5000))
    kit.crash(power_cut=False)
    assert (kit.log.log_end_offset, kit.log.size_bytes) == (3, 3 * batch_size())


def test_batches_behind_a_missing_segment_are_removed() -> None:
    kit = Kit(segment_bytes=2 * batch_size())
    fill(kit, 8)
    kit.disk.remove(f"{DATA}/{TP}/{4:020d}.log")
    kit.crash(power_cut=False)
    assert kit.log.log_end_offset == 4
    assert kit.data() == 4


def test_recovery_starts_at_the_recovery_point() -> None:
    kit = Kit(segment_bytes=2 * batch_size())
    fill(kit, 9)
    kit.log.flush(7)
    kit.manager.checkpoint()
    assert decode_offsets(read_file(kit.disk, f"{DATA}/{RECOVERY_POINTS}")) == {TP: 7}
    file = kit.disk.open(LOG)
    file.write(70, b"damage that nobody looks at")
    kit.crash(power_cut=False)
    assert kit.log.log_end_offset == 9
    assert kit.log.recovery_point == 7


def test_recovery_is_the_same_a_second_time() -> None:
    kit = Kit(segment_bytes=300, index_interval_bytes=50)
    for seq in range(10):
        kit.data(7, seq, txn=True)
    kit.mark(7, commit=False)
    kit.crash(power_cut=False)
    first = (kit.log.producers(), kit.log.last_stable_offset, stored_batches(kit.log))
    assert_derived_state_is_a_replay(kit.log, stored_batches(kit.log))
    kit.crash(power_cut=False)
    assert (kit.log.producers(), kit.log.last_stable_offset, stored_batches(kit.log)) == first


def test_a_log_that_ends_before_its_start_begins_anew_there() -> None:
    kit = Kit()
    fill(kit, 5)
    kit.log.flush()
    kit.stop()
    for name in (RECOVERY_POINTS, "log-start-offset-checkpoint"):
        file = kit.disk.open(f"{DATA}/{name}", create=True)
        file.truncate(0)
        file.write(0, encode_offsets({TP: 9}))
    kit.disk.remove(f"{DATA}/.kafka_cleanshutdown")
    kit.start()
    assert (kit.log.log_start_offset, kit.log.log_end_offset) == (9, 9)
    assert kit.data() == 9


def test_a_clean_shutdown_is_trusted_but_a_torn_batch_is_still_noticed() -> None:
    kit = Kit()
    fill(kit, 5)
    kit.stop()
    kit.disk.open(LOG).truncate(5 * batch_size() - 1)
    kit.start()
    assert kit.data() == 4
    assert [header.base_offset for header in headers(kit.log.read(0, 10_000, Bound.LOG_END).records)] == [0, 1, 2, 3, 4]


def test_more_batches_than_the_checkpoint_says_are_found() -> None:
    kit = Kit()
    fill(kit, 5)
    kit.stop()
    file = kit.disk.open(f"{DATA}/{RECOVERY_POINTS}")
    file.truncate(0)
    file.write(0, encode_offsets({TP: 3}))
    kit.start()
    assert kit.log.log_end_offset == 5


def test_producers_that_expired_are_not_loaded() -> None:
    kit = Kit()
    kit.data(7, 0)
    kit.data(8, 0, txn=True)
    kit.stop()
    kit.clock.now_ms += kit.options.producer_id_expiration_ms
    kit.start()
    assert [row.producer_id for row in kit.log.producers()] == [8]


def test_a_leader_epoch_that_falls_is_damage() -> None:
    kit = Kit()
    for epoch in (3, 3, 5):
        kit.append(data_batch(), leader_epoch=epoch)
    kit.disk.open(LOG).write(batch_size() + 12, (2).to_bytes(4, "big"))
    kit.crash(power_cut=False)
    assert kit.log.log_end_offset == 1


def test_a_snapshot_whose_segments_are_gone_counts_for_nothing() -> None:
    kit = Kit()
    kit.data(7, 0)
    kit.stop()
    for suffix in (".log", ".index", ".timeindex"):
        kit.disk.remove(f"{DATA}/{TP}/{0:020d}{suffix}")
    for name in (RECOVERY_POINTS, "log-start-offset-checkpoint"):
        kit.disk.open(f"{DATA}/{name}", create=True).write(0, encode_offsets({TP: 5}))
    kit.disk.remove(f"{DATA}/.kafka_cleanshutdown")
    kit.start()
    assert kit.data(8, 0) == 5
    kit.crash(power_cut=False)
    assert [row.producer_id for row in kit.log.producers()] == [8]


@pytest.mark.parametrize("seed", range(40))
def test_what_recovery_cut_does_not_come_back_behind_new_batches(seed: int) -> None:
    kit = Kit(seed=seed, mode=CutMode.REORDERED)
    for value in (b"first", b"lost.", b"stale"):
        kit.data(value=value)
    kit.log.flush(1)
    kit.manager.checkpoint()
    file = kit.disk.open(LOG)
    file.write(2 * len(data_batch(value=b"first")) - 1, b"?")
    file.sync()
    kit.crash(power_cut=False)
    assert kit.log.log_end_offset == 1
    kit.data(value=b"newer")
    kit.crash()
    values = [record.value for batch in stored_batches(kit.log) for record in iter_records(batch)]
    assert values in ([b"first"], [b"first", b"newer"])


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("roll_first", [True, False])
def test_producers_below_a_durable_log_start_survive(seed: int, roll_first: bool) -> None:
    """A segment below the log start is not looked at after a crash: what it says about producers must be elsewhere."""
    kit = Kit(seed=seed, mode=CutMode.REORDERED)
    kit.data(7, 0)
    kit.log.flush()
    if roll_first:
        kit.log.roll()
    kit.log.advance_log_start(1)
    kit.manager.checkpoint()
    kit.log.roll()
    kit.data()
    kit.crash()
    assert [row.producer_id for row in kit.log.producers()] == [7]


# Failing disks


def test_after_a_failed_write_nothing_is_appended_until_the_log_was_opened_again() -> None:
    kit = Kit()
    fill(kit, 3)
    kit.disk.fail_writes(match=".log")
    with pytest.raises(KafkaStorageError):
        kit.data()
    for _ in range(2):
        with pytest.raises(KafkaStorageError, match="opened again"):
            kit.data()
    assert kit.log.log_end_offset == 3
    assert len(headers(kit.log.read(0, 10_000, Bound.LOG_END).records)) == 3, "readers go on"
    kit.log = asyncio.run(kit.manager.mend(kit.log))
    assert kit.log.failure is None
    assert stored_batches(kit.log)[:3]
    assert kit.data() == kit.log.log_end_offset - 1


def test_a_full_disk_stops_the_log_and_loses_nothing() -> None:
    kit = Kit()
    fill(kit, 3)
    kit.disk.set_free_bytes(batch_size() // 2)
    with pytest.raises(KafkaStorageError):
        kit.data()
    kit.disk.clear_faults()
    kit.log = asyncio.run(kit.manager.mend(kit.log))
    assert kit.log.log_end_offset == 3
    assert kit.data() == 3


def test_after_a_failed_sync_nothing_is_appended_and_no_sync_succeeds() -> None:
    kit = Kit()
    fill(kit, 3)
    kit.disk.fail_syncs(match=".log", lose=True)
    with pytest.raises(KafkaStorageError):
        kit.log.flush()
    with pytest.raises(KafkaStorageError):
        kit.log.flush()
    with pytest.raises(KafkaStorageError):
        asyncio.run(kit.log.sync())
    with pytest.raises(KafkaStorageError):
        kit.data()
    assert kit.log.recovery_point == 0


def test_a_failed_log_prevents_the_mark_of_a_clean_shutdown() -> None:
    kit = Kit()
    fill(kit, 3)
    kit.disk.fail_writes(match=".log")
    with pytest.raises(KafkaStorageError):
        kit.data()
    kit.stop()
    assert not kit.disk.exists(f"{DATA}/.kafka_cleanshutdown")
    kit.start()
    assert kit.log.log_end_offset in (3, 4)


def test_a_failed_read_stops_only_the_reader() -> None:
    kit = Kit()
    fill(kit, 3)
    kit.disk.fail_reads(match=".log", error=errno.EIO)
    with pytest.raises(KafkaStorageError):
        kit.log.read(0, 1000, Bound.LOG_END)
    assert kit.data() == 3
    assert len(headers(kit.log.read(0, 1000, Bound.LOG_END).records)) == 4


def test_a_log_that_cannot_be_opened_does_not_stop_the_others() -> None:
    kit = Kit()
    fill(kit, 3)
    kit.disk.crash(power_cut=False)
    kit.disk.fail_reads(times=1, match=".log")
    kit.start()
    assert kit.log.failure is not None
    with pytest.raises(KafkaStorageError):
        kit.data()
    kit.log = asyncio.run(kit.manager.mend(kit.log))
    assert kit.data() == 3


# Truncating


@pytest.mark.parametrize("restart", [None, "clean", "crash"])
def test_truncating_removes_whole_batches_from_the_end(restart: str | None) -> None:
    kit = Kit(segment_bytes=300, index_interval_bytes=0)
    for index in range(10):
        kit.append(data_batch(3, timestamp=NOW + index), leader_epoch=index // 4)
    kit.log.truncate_to(100)
    assert kit.log.log_end_offset == 30
    kit.log.truncate_to(17)
    assert (kit.log.log_end_offset, kit.log.high_watermark) == (15, 15)
    if restart:
        kit.restart() if restart == "clean" else kit.crash(power_cut=False)
    assert kit.log.log_end_offset == 15
    assert kit.log.leader_epoch == 1
    assert kit.log.offset_of_max_timestamp(Bound.LOG_END) == (12, NOW + 4, 1)
    assert_derived_state_is_a_replay(kit.log, stored_batches(kit.log))
    with pytest.raises(OffsetOutOfRange):
        kit.log.read(16, 100, Bound.LOG_END)
    assert kit.append(data_batch(), leader_epoch=7).base_offset == 15
    assert headers(kit.log.read(15, 100, Bound.LOG_END).records)[0].leader_epoch == 7


def test_a_reader_after_a_truncation_finds_the_new_batches() -> None:
    kit = Kit()
    for _ in range(4):
        kit.data(value=b"long" * 50)
    offset = 0
    while found := headers(kit.log.read(offset, 1, Bound.LOG_END).records):
        offset = found[-1].next_offset
    kit.log.truncate_to(1)
    for _ in range(4):
        kit.data(value=b"short")
    assert [header.base_offset for header in headers(kit.log.read(3, 1000, Bound.LOG_END).records)] == [3, 4]


# Epochs


def test_end_offsets_of_leader_epochs() -> None:
    kit = Kit()
    for epoch, count in ((2, 3), (2, 1), (5, 2), (9, 4)):
        kit.append(data_batch(count), leader_epoch=epoch)
    expected = {
        -1: (-1, -1),
        0: (0, 0),
        1: (1, 0),
        2: (2, 4),
        3: (2, 4),
        5: (5, 6),
        8: (5, 6),
        9: (9, 10),
        10: (-1, -1),
    }
    for restart in (lambda: None, kit.restart, lambda: kit.crash(power_cut=False)):
        restart()
        assert {epoch: kit.log.end_offset_for_epoch(epoch) for epoch in expected} == expected
    assert [kit.log.epoch_for_offset(offset) for offset in (0, 3, 4, 5, 6, 9)] == [2, 2, 5, 5, 9, 9]


def test_an_epoch_without_records_gives_way_to_the_next() -> None:
    kit = Kit()
    kit.append(data_batch(3), leader_epoch=1)
    kit.log.assign_leader_epoch(2)
    assert kit.log.end_offset_for_epoch(1) == (1, 3)
    assert kit.log.end_offset_for_epoch(2) == (2, 3)
    kit.log.assign_leader_epoch(3)
    kit.append(data_batch(), leader_epoch=3)
    assert kit.log._epochs.entries() == [(1, 0), (3, 3)]
    kit.log.assign_leader_epoch(2)
    assert kit.log.leader_epoch == 3


def test_an_epoch_can_begin_before_the_log_is_opened() -> None:
    kit = Kit()
    kit.append(data_batch(3), leader_epoch=1)
    kit.restart()
    assert not kit.log.is_open
    kit.log.assign_leader_epoch(4)
    assert not kit.log.is_open
    assert kit.log.end_offset_for_epoch(1) == (1, 3)
    assert kit.log.leader_epoch == 4


def test_epochs_below_the_log_start_are_as_good_as_unknown() -> None:
    kit = Kit()
    for epoch in (1, 3, 5):
        kit.append(data_batch(4), leader_epoch=epoch)
    kit.log.advance_log_start(9)
    assert kit.log.end_offset_for_epoch(2) == (2, 9)
    assert kit.log.end_offset_for_epoch(3) == (3, 9)
    assert kit.log.end_offset_for_epoch(5) == (5, 12)
