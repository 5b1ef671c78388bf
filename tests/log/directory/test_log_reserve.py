"""Room that is kept for what must not fail."""

import logging

import pytest

from kits.log.partition import make_runtime
from twofold.config.topic import LogConfig
from twofold.log.api import Origin
from twofold.log.log import PartitionLog
from twofold.log.manager import LogManager, LogOptions
from twofold.records.batch import BatchBuilder
from twofold.runtime.sim.disk import SimDisk
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaStorageError

RESERVE = 1 << 20


class Machine:
    def __init__(self) -> None:
        from random import Random

        self.disk = SimDisk(Random(1))
        self.disk.make_dirs("/data")
        self.manager = LogManager(make_runtime(self.disk), "/data", LogOptions(reserve_bytes=RESERVE))
        self.manager.load()

    def log(self) -> PartitionLog:
        return self.manager.get_or_create(TopicPartition("t", 0), None, LogConfig())


def batch(size: int = 1000) -> bytes:
    builder = BatchBuilder()
    builder.add(b"k", b"v" * size, 0)
    return builder.build()


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_the_room_is_taken_at_the_start(machine: Machine) -> None:
    assert machine.disk.used_bytes >= RESERVE


def test_a_client_that_finds_the_disk_full_does_not_get_the_reserve(machine: Machine) -> None:
    log = machine.log()
    log.append(batch(), leader_epoch=0)
    machine.disk.set_free_bytes(500)
    with pytest.raises(KafkaStorageError, match="full"):
        log.append(batch(), leader_epoch=0)
    assert machine.manager.reserve.is_short
    assert machine.disk.used_bytes >= RESERVE
    with pytest.raises(KafkaStorageError, match=r"log\.reserve\.bytes"):
        machine.manager.reserve.check()


def test_a_full_disk_is_no_broken_log_and_nothing_of_the_batch_stays(machine: Machine) -> None:
    log = machine.log()
    log.append(batch(), leader_epoch=0)
    size = machine.disk.file_size(f"{log.directory}/{0:020d}.log")
    machine.disk.set_free_bytes(500)
    with pytest.raises(KafkaStorageError):
        log.append(batch(), leader_epoch=0)
    assert log.failure is None
    assert (log.log_end_offset, machine.disk.file_size(f"{log.directory}/{0:020d}.log")) == (1, size)
    machine.disk.set_free_bytes(1 << 20)
    assert log.append(batch(), leader_epoch=0).base_offset == 1


def test_what_a_coordinator_writes_gets_the_reserve_and_is_written(machine: Machine) -> None:
    log = machine.log()
    log.append(batch(), leader_epoch=0)
    machine.disk.set_free_bytes(0)
    for offset in range(1, 500):
        assert log.append(batch(), leader_epoch=0, origin=Origin.COORDINATOR).base_offset == offset
    assert machine.manager.reserve.is_short


def test_clients_write_again_when_there_is_room_beside_the_reserve(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    reserve = machine.manager.reserve
    log = machine.log()
    machine.disk.set_free_bytes(0)
    log.append(batch(), leader_epoch=0, origin=Origin.COORDINATOR)
    machine.disk.set_free_bytes(2 * RESERVE - 1)
    reserve.restore()
    assert reserve.is_short
    machine.disk.set_free_bytes(2 * RESERVE)
    with caplog.at_level(logging.WARNING, "twofold.log.directory.reserve"):
        reserve.restore()
    assert "room again" in caplog.text
    reserve.check()
    assert machine.disk.free_bytes("/data") == RESERVE


def test_a_start_without_room_for_the_reserve_serves_readers_only() -> None:
    from random import Random

    disk = SimDisk(Random(1))
    disk.make_dirs("/data")
    disk.set_free_bytes(RESERVE // 2)
    manager = LogManager(make_runtime(disk), "/data", LogOptions(reserve_bytes=RESERVE))
    manager.load()
    with pytest.raises(KafkaStorageError):
        manager.reserve.check()


def test_no_reserve_is_kept_where_none_is_wanted() -> None:
    from random import Random

    disk = SimDisk(Random(1))
    disk.make_dirs("/data")
    manager = LogManager(make_runtime(disk), "/data", LogOptions(reserve_bytes=0))
    manager.load()
    assert disk.used_bytes < 10_000
    manager.reserve.check()
