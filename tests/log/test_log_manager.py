"""A data directory: identity, lock, checkpoints, lazy opening, deletion, work in the background."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, NoReturn

import pytest

from kits.log.partition import DATA, NOW, TP, FakeClock, Kit, data_batch, headers, make_runtime
from twofold.config.settings import Settings
from twofold.config.topic import LogConfig
from twofold.log.api import Bound
from twofold.log.manager import DataDirectoryError, LogManager, LogOptions
from twofold.log.recovery.checkpoints import (
    CheckpointWriter,
    decode_offsets,
    decode_uuid,
    encode_offsets,
    encode_uuid,
    read_offsets,
    read_topic_id,
)
from twofold.log.recovery.epochs import CorruptCheckpoint, EpochCache
from twofold.log.segments.files import FilePool, pool_size
from twofold.runtime.files import read_file
from twofold.runtime.sim.disk import SimDisk
from twofold.types import TopicPartition

TOPIC_ID = uuid.UUID("12345678-1234-4321-8765-123456789abc")


def content(kit: Kit, name: str) -> bytes:
    return read_file(kit.disk, f"{DATA}/{name}")


# The directory


def test_a_directory_belongs_to_one_process() -> None:
    kit = Kit()
    with pytest.raises(DataDirectoryError, match="in use"):
        LogManager(make_runtime(kit.disk), DATA).load()
    kit.stop()
    LogManager(make_runtime(kit.disk), DATA).load()


def test_ids_are_written_as_kafka_writes_them() -> None:
    value = uuid.UUID("fedcba98-7654-3210-fedc-ba9876543210")
    assert encode_uuid(value) == "_ty6mHZUMhD-3LqYdlQyEA"
    assert decode_uuid("_ty6mHZUMhD-3LqYdlQyEA") == value


def test_the_small_files_have_the_bytes_of_kafka() -> None:
    kit = Kit()
    kit.log.set_topic_id(TOPIC_ID)
    for _ in range(3):
        kit.data(count=2)
    kit.log.advance_log_start(2)
    kit.stop()
    assert content(kit, ".kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":-1}'
    assert content(kit, "recovery-point-offset-checkpoint") == b"0\n1\nevents 0 6\n"
    assert content(kit, "replication-offset-checkpoint") == b"0\n1\nevents 0 6\n"
    assert content(kit, "log-start-offset-checkpoint") == b"0\n1\nevents 0 2\n"
    assert content(kit, f"{TP}/partition.metadata") == b"version: 0\ntopic_id: EjRWeBI0QyGHZRI0VniavA"
    assert read_topic_id(kit.disk, f"{DATA}/{TP}") == TOPIC_ID


@pytest.mark.parametrize("data", [b"", b"1\n0\n", b"0\n2\nt 0 5\n", b"0\n1\nt 0\n", b"0\n1\nt x 5\n", b"\xff"])
def test_a_checkpoint_that_makes_no_sense_counts_as_empty(data: bytes) -> None:
    disk = SimDisk(Random(0))
    disk.open("/checkpoint", create=True).write(0, data)
    assert read_offsets(disk, "/checkpoint") == {}
    with pytest.raises(CorruptCheckpoint):
        decode_offsets(data)


@pytest.mark.parametrize("data", [b"", b"1\n0\n", b"0\n2\n0 5\n", b"0\n2\n1 5\n1 6\n", b"0\n2\n1 5\n2 5\n"])
def test_an_epoch_checkpoint_that_makes_no_sense_is_noticed(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        EpochCache.decode(data)


def test_a_write_that_was_overtaken_is_left_out() -> None:
    disk = SimDisk(Random(0))
    writer = CheckpointWriter(disk, "")
    slow, fast = writer.ticket(), writer.ticket()
    writer.write("points", encode_offsets({TP: 3}), fast)
    writer.write("points", encode_offsets({TP: 9}), slow)
    assert decode_offsets(read_file(disk, "/points")) == {TP: 3}


# Starting


class CountingDisk(SimDisk):
    opened: int = 0

    def open(self, path: str, *, create: bool = False) -> Any:
        if path.endswith((".log", ".index", ".timeindex", ".txnindex", ".snapshot")):
            self.opened += 1
        return super().open(path, create=create)


def test_a_clean_start_opens_no_segment_and_reads_no_snapshot() -> None:
    disk = CountingDisk(Random(0))
    manager = LogManager(make_runtime(disk), DATA)
    manager.load()
    for index in range(50):
        created = manager.get_or_create(TopicPartition("t", index), None, LogConfig())
        created.append(data_batch(2, pid=7, seq=0), leader_epoch=0)
        created.advance_high_watermark(2)
    asyncio.run(manager.close())
    disk.opened = 0
    manager = LogManager(make_runtime(disk), DATA)
    manager.load()
    assert disk.opened == 0
    assert len(manager.logs()) == 50
    assert all(not known.is_open for known in manager.logs())
    assert {(known.log_start_offset, known.log_end_offset, known.high_watermark) for known in manager.logs()} == {
        (0, 2, 2)
    }
    asyncio.run(manager.close())
    assert disk.opened == 0, "what was not touched needs no closing"
    manager = LogManager(make_runtime(disk), DATA)
    manager.load()
    one = manager.logs()[0]
    assert one.append(data_batch(2, pid=7, seq=0), leader_epoch=0).duplicate
    assert sum(known.is_open for known in manager.logs()) == 1


def test_the_mark_of_a_clean_shutdown_holds_for_one_start() -> None:
    kit = Kit()
    kit.data()
    kit.restart()
    assert not kit.log.is_open
    kit.crash()
    assert kit.log.is_open
    assert kit.log.log_end_offset == 1


def test_thousands_of_partitions_need_no_files_before_they_are_written() -> None:
    kit = Kit()
    for index in range(2000):
        kit.manager.get_or_create(TopicPartition("wide", index), TOPIC_ID, kit.config)
    assert kit.disk.list(DATA) == [".lock"]
    assert len(kit.manager.environment.files) == 0


@pytest.mark.parametrize(("limit", "size"), [(20, 16), (256, 128), (1024, 512), (20_000, 8192), (1 << 20, 8192)])
def test_half_of_the_open_file_limit_is_left_to_connections(limit: int, size: int) -> None:
    assert pool_size(limit) == size


def test_open_files_are_bounded_however_many_partitions_are_used() -> None:
    kit = Kit(options=LogOptions(open_files=10))
    logs = [kit.manager.get_or_create(TopicPartition("wide", index), None, kit.config) for index in range(100)]
    for _ in range(3):
        for known in logs:
            known.append(data_batch(), leader_epoch=0)
            assert len(kit.manager.environment.files) <= 10
    for known in logs:
        known.flush()
        assert [header.base_offset for header in headers(known.read(0, 1000, Bound.LOG_END).records)] == [0, 1, 2]
        assert len(kit.manager.environment.files) <= 10


def test_a_pinned_file_outlives_eviction_and_removal() -> None:
    disk = SimDisk(Random(0))
    pool = FilePool(disk, 2)
    for name in ("a", "b", "c"):
        pool.get(f"/{name}", create=True)
    assert len(pool) == 2
    pinned = pool.pin("/b")
    pool.get("/a")
    pool.get("/c")
    pinned.file.sync()
    pool.forget("/b")
    pinned.file.sync()
    pool.unpin(pinned)
    with pytest.raises(OSError, match="closed"):
        pinned.file.sync()
    everything = [pool.pin(f"/{name}") for name in ("a", "b", "c")]
    assert len(pool) == 3, "more than it may hold, while all are in use"
    for entry in everything:
        pool.unpin(entry)
    assert len(pool) == 2
    with pytest.raises(ValueError, match="at least 1"):
        FilePool(disk, 0)


# Partitions come and go


def test_a_deleted_log_is_gone_at_once_and_its_files_later() -> None:
    kit = Kit(file_delete_delay_ms=1000)
    kit.data(count=5)
    kit.manager.delete(TP)
    assert kit.manager.get(TP) is None
    (moved,) = [name for name in kit.disk.list(DATA) if name.endswith("-delete")]
    assert moved.startswith(f"{TP}.")
    asyncio.run(kit.manager._remove_doomed())
    assert kit.disk.exists(f"{DATA}/{moved}")
    kit.clock.now_ms += 1000
    asyncio.run(kit.manager._remove_doomed())
    assert not kit.disk.exists(f"{DATA}/{moved}")


def test_deleted_directories_that_were_left_over_go_after_a_start() -> None:
    kit = Kit()
    kit.data()
    kit.manager.delete(TP)
    kit.restart()
    asyncio.run(kit.manager._remove_doomed())
    assert [name for name in kit.disk.list(DATA) if name.startswith("events")] == []


@pytest.mark.parametrize("seed", range(20))
def test_a_log_is_not_taken_for_a_deleted_one_of_the_same_name(seed: int) -> None:
    kit = Kit(seed=seed)
    kit.data(count=50)
    kit.log.advance_log_start(40)
    kit.log.flush()
    kit.manager.checkpoint()
    kit.manager.delete(TP)
    kit.log = kit.manager.get_or_create(TP, None, kit.config)
    assert kit.data(count=3) == 0
    kit.log.flush()
    kit.crash()
    assert (kit.log.log_start_offset, kit.log.log_end_offset) == (0, 3)


def test_a_log_of_another_topic_with_the_same_name_is_moved_aside() -> None:
    kit = Kit()
    kit.log.set_topic_id(TOPIC_ID)
    kit.data()
    kit.restart()
    assert kit.manager.get_or_create(TP, TOPIC_ID, kit.config).log_end_offset == 1
    other = kit.manager.get_or_create(TP, uuid.UUID(int=5), kit.config)
    assert other.log_end_offset == 0
    assert len([name for name in kit.disk.list(DATA) if name.endswith("-stray")]) == 1
    other.append(data_batch(), leader_epoch=0)
    assert read_topic_id(kit.disk, other.directory) == uuid.UUID(int=5)


def test_a_topic_id_that_was_lost_in_a_crash_is_written_again() -> None:
    kit = Kit()
    kit.data()
    assert read_topic_id(kit.disk, kit.log.directory) is None
    kit.manager.get_or_create(TP, TOPIC_ID, kit.config)
    kit.log.flush()
    kit.crash()
    assert read_topic_id(kit.disk, kit.log.directory) == TOPIC_ID


def test_the_directory_of_the_metadata_log_is_left_alone() -> None:
    kit = Kit()
    kit.disk.make_dirs(f"{DATA}/__cluster_metadata-0")
    kit.disk.make_dirs(f"{DATA}/notes")
    kit.restart()
    assert [known.topic_partition for known in kit.manager.logs()] == [TP]


def test_a_changed_configuration_counts_from_the_next_append() -> None:
    kit = Kit()
    kit.data()
    kit.manager.get_or_create(TP, None, replace(kit.config, segment_bytes=1))
    kit.data()
    assert kit.log.segment_count == 2


# Syncing


def test_flush_messages_syncs_before_the_append_returns() -> None:
    kit = Kit(flush_messages=3)
    kit.data(count=2)
    assert kit.log.recovery_point == 0
    kit.data()
    assert kit.log.recovery_point == 3
    assert kit.append(data_batch(5), defer_flush=True).flush_due
    assert kit.log.recovery_point == 3
    asyncio.run(kit.log.sync())
    assert kit.log.recovery_point == 8


def test_flush_ms_syncs_within_its_time() -> None:
    kit = Kit(flush_ms=200)

    async def work() -> None:
        timers = kit.manager._runtime.timers
        for expected in (1, 3):
            kit.data(count=expected)
            kit.data()
            ((delay_s, fire),) = timers.pending  # type: ignore[attr-defined]
            assert delay_s == 0.2
            timers.pending.clear()  # type: ignore[attr-defined]
            fire()
            await asyncio.sleep(0.01)
            assert kit.log.recovery_point == kit.log.log_end_offset

    asyncio.run(work())


class SlowDisk:
    """`Runtime.blocking` that a test lets go on when it likes."""

    def __init__(self) -> None:
        self.started = 0
        self.gate = asyncio.Event()

    async def __call__(self, function: Any, *args: Any) -> Any:
        self.started += 1
        await self.gate.wait()
        return function(*args)


def test_waiting_callers_share_the_next_sync() -> None:
    kit = Kit()

    async def work() -> None:
        slow = SlowDisk()
        kit.manager.environment.blocking = slow
        kit.data()
        first = asyncio.create_task(kit.log.sync())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert slow.started == 1
        kit.data()
        later = [asyncio.create_task(kit.log.sync()) for _ in range(5)]
        kit.data()
        later += [asyncio.create_task(kit.log.sync()) for _ in range(5)]
        await asyncio.sleep(0)
        assert slow.started == 1, "one at a time"
        slow.gate.set()
        await asyncio.gather(first, *later)
        assert slow.started == 2
        assert kit.log.recovery_point == 3
        await kit.log.sync()
        assert slow.started == 2, "nothing to do"

    asyncio.run(work())


def test_every_waiting_caller_hears_of_a_failed_sync() -> None:
    kit = Kit()

    async def work() -> None:
        kit.data()
        kit.disk.fail_syncs(match=".log")
        results = await asyncio.gather(*(kit.log.sync() for _ in range(3)), return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["KafkaStorageError"] * 3

    asyncio.run(work())


def test_a_sync_that_was_under_way_does_not_vouch_for_what_was_cut_and_written_again() -> None:
    kit = Kit()

    async def work() -> None:
        slow = SlowDisk()
        kit.manager.environment.blocking = slow
        kit.data(count=5)
        waiting = asyncio.create_task(kit.log.sync())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        kit.log.truncate_to(0)
        kit.data(count=5)
        slow.gate.set()
        await waiting
        assert kit.log.recovery_point == 0

    asyncio.run(work())


def test_a_log_can_be_cut_while_it_is_being_synced() -> None:
    kit = Kit(segment_bytes=100)

    async def work() -> None:
        slow = SlowDisk()
        kit.manager.environment.blocking = slow
        for _ in range(5):
            kit.data()
        waiting = asyncio.create_task(kit.log.sync())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        kit.log.truncate_to(1)
        slow.gate.set()
        await waiting
        assert kit.log.failure is None
        assert kit.data() == 1
        await kit.log.sync()
        assert kit.log.recovery_point == 2

    asyncio.run(work())


def test_a_log_can_go_while_it_is_being_synced() -> None:
    kit = Kit()

    async def work() -> None:
        slow = SlowDisk()
        kit.manager.environment.blocking = slow
        kit.data()
        waiting = asyncio.create_task(kit.log.sync())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        kit.manager.delete(TP)
        slow.gate.set()
        await asyncio.gather(waiting, return_exceptions=True)
        assert len(kit.manager.environment.files) == 0

    asyncio.run(work())


def test_a_rolled_segment_is_synced_in_the_background() -> None:
    kit = Kit(segment_bytes=200)

    async def work() -> None:
        for _ in range(5):
            kit.data(value=b"x" * 100)
        await asyncio.sleep(0.01)
        assert kit.log.recovery_point >= 4

    asyncio.run(work())


# In the background


class Alarm:
    """Timers that let time pass only when all sleep."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> NoReturn:
        raise AssertionError("not used here")

    async def sleep(self, delay_s: float) -> None:
        if delay_s == 0:
            await asyncio.sleep(0)
            return
        waiter = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.clock.now_ms + round(delay_s * 1000), waiter))
        await waiter

    async def pass_ms(self, ms: int) -> None:
        end = self.clock.now_ms + ms
        while True:
            for _ in range(50):
                await asyncio.sleep(0)
            due = sorted((at for at, waiter in self.sleepers if at <= end and not waiter.done()))
            if not due:
                break
            self.clock.now_ms = due[0]
            for at, waiter in self.sleepers:
                if at <= due[0] and not waiter.done():
                    waiter.set_result(None)
            self.sleepers = [(at, waiter) for at, waiter in self.sleepers if not waiter.done()]
        self.clock.now_ms = end


@pytest.mark.slow
def test_background_work_runs_at_its_intervals_and_survives_failures() -> None:
    clock = FakeClock()
    disk = SimDisk(Random(0), now_ms=clock.wall_ms)
    alarm = Alarm(clock)
    runtime = replace(make_runtime(disk, clock), timers=alarm)
    config = LogConfig(segment_bytes=300, retention_ms=3_600_000, file_delete_delay_ms=60_000)

    async def work() -> None:
        manager = LogManager(runtime, DATA)
        manager.load()
        known = manager.get_or_create(TP, None, config)
        task = asyncio.create_task(manager.run_background())
        for seq in range(10):
            known.append(data_batch(pid=7, seq=seq), leader_epoch=0)
        known.advance_high_watermark(10)
        await alarm.pass_ms(5_000)
        assert read_offsets(disk, f"{DATA}/replication-offset-checkpoint") == {TP: 10}
        assert read_offsets(disk, f"{DATA}/recovery-point-offset-checkpoint") == {}
        disk.fail_syncs(match="replication-offset")
        await alarm.pass_ms(55_000)
        assert read_offsets(disk, f"{DATA}/recovery-point-offset-checkpoint") == {TP: known.recovery_point}
        await alarm.pass_ms(3_600_000 + 300_000)
        assert known.log_start_offset == 10
        assert read_offsets(disk, f"{DATA}/log-start-offset-checkpoint") == {TP: 10}
        await alarm.pass_ms(120_000)
        assert [name for name in disk.list(known.directory) if name.endswith(".deleted")] == []
        assert known.producers() != []
        await alarm.pass_ms(86_400_000)
        assert known.producers() == []
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await manager.close()

    asyncio.run(work())
    assert clock.now_ms > NOW


def test_options_come_from_the_settings_of_the_broker() -> None:
    settings = Settings.from_mapping(
        {
            "log.retention.check.interval.ms": "1000",
            "producer.id.expiration.ms": "5000",
            "transaction.partition.verification.enable": "false",
            "log.reserve.bytes": "0",
        }
    )
    options = LogOptions.from_settings(settings)
    assert options == LogOptions(
        retention_check_interval_ms=1000, producer_id_expiration_ms=5000, transaction_verification_enabled=False
    )
    assert LogOptions.from_settings(Settings()) == LogOptions(reserve_bytes=16 << 20)
    kit = Kit()
    kit.manager.apply_settings(settings)
    assert kit.manager.environment.producer_id_expiration_ms == 5000


def test_the_cleaner_takes_over_new_settings_but_whether_it_runs_is_decided_at_the_start() -> None:
    kit = Kit()
    before = kit.manager.cleaner.options
    kit.manager.apply_settings(
        Settings.from_mapping({"log.cleaner.enable": "false", "log.cleaner.dedupe.buffer.size": "2097152"})
    )
    assert kit.manager.cleaner.options == replace(before, dedupe_buffer_bytes=2_097_152)
    assert before.enabled and kit.manager.options.cleaner == before


def test_a_close_that_cannot_sync_claims_nothing() -> None:
    kit = Kit()
    kit.data(count=3)
    kit.disk.fail_syncs(1, match=".log")
    kit.stop()
    assert kit.log.recovery_point == 0
