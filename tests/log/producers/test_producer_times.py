"""When producers wrote, by the broker's clock: how old their transactions are, and when they are forgotten."""

import asyncio
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kits.log.partition import DATA, NOW, TP, FakeClock, Kit, make_runtime
from twofold.log.log import PartitionLog
from twofold.log.manager import LogManager
from twofold.log.producers.times import (
    FILE,
    CorruptTimes,
    ProducerState,
    ProducerTime,
    decode_times,
    encode_times,
)
from twofold.runtime.files import read_file
from twofold.runtime.real import RealDisk
from twofold.types import ProducerId, TopicPartition

P = 7
YEAR_MS = 365 * 86_400_000
PATH = f"{DATA}/{TP}/{FILE}"
FIXTURES = Path(__file__).parent.parent.parent / "fixtures"

VECTOR = bytes.fromhex(
    "0001 924cae38 00000001 0000000000000007 0001 0000000000000068 0000018bcfe56800 0000000000000064"
    "0000018bcfe57000 0000018bcfe56c00 01"
)
TIMES = {7: ProducerTime(ProducerState(1, 104, NOW, 100), NOW + 2048, NOW + 1024, True)}

Restart = Callable[[Kit], object]


def clean(kit: Kit) -> None:
    kit.restart()
    kit.log.ensure_open()


def killed(kit: Kit) -> None:
    """A minute after the last write."""
    kit.keep_times()
    kit.crash(power_cut=False)


both_ends = pytest.mark.parametrize("restart", [clean, killed])


def expiration_ms(kit: Kit) -> int:
    return kit.options.producer_id_expiration_ms


def ids(kit: Kit) -> list[int]:
    kit.log.ensure_open()
    return [found.producer_id for found in kit.log.producers()]


def expire(kit: Kit) -> int:
    return kit.log.expire_producers(kit.clock.now_ms)


# Expiry


@both_ends
def test_a_producer_that_works_with_old_timestamps_is_never_forgotten(restart: Restart) -> None:
    kit = Kit()
    offsets = []
    for sequence in range(4):
        offsets.append(kit.data(P, sequence, timestamp=NOW - YEAR_MS))
        kit.clock.now_ms += expiration_ms(kit) - 1
        assert expire(kit) == 0
    assert kit.data(P, 3, timestamp=NOW - YEAR_MS) == offsets[-1], "a retry is a duplicate"
    restart(kit)
    assert expire(kit) == 0
    assert [kit.data(P, sequence, timestamp=NOW - YEAR_MS) for sequence in range(4)] == offsets
    assert kit.log.log_end_offset == len(offsets), "a retry is stored once"


@both_ends
@pytest.mark.parametrize("timestamp", [NOW - YEAR_MS, NOW, NOW + 10 * YEAR_MS])
def test_a_producer_is_forgotten_its_time_after_its_last_append(timestamp: int, restart: Restart) -> None:
    kit = Kit(message_timestamp_after_max_ms=20 * YEAR_MS)
    kit.data(P, 0, timestamp=timestamp)
    kit.clock.now_ms += 1000
    kit.mark(P, epoch=1)
    kit.data(8, 0, timestamp=timestamp)
    kit.clock.now_ms += expiration_ms(kit) - 1
    assert (expire(kit), ids(kit)) == (0, [P, 8])
    restart(kit)
    assert (expire(kit), ids(kit)) == (0, [P, 8])
    kit.clock.now_ms += 1
    assert (expire(kit), ids(kit)) == (2, [])


def test_producers_that_are_due_at_a_start_are_not_loaded() -> None:
    kit = Kit()
    kit.data(P, 0, timestamp=NOW + 1000)
    kit.data(8, 0, txn=True)
    kit.clock.now_ms += expiration_ms(kit)
    clean(kit)
    assert ids(kit) == [8], "an open transaction keeps its producer"


def test_what_the_clock_calls_the_future_counts_from_now() -> None:
    """A clock that was set back keeps nobody for ever."""
    kit = Kit()
    kit.clock.now_ms += YEAR_MS
    kit.data(P, 0)
    kit.data(8, 0, txn=True)
    kit.stop()
    kit.clock.now_ms = NOW
    kit.start()
    kit.log.ensure_open()
    assert kit.log.oldest_open_transaction() == (1, 8, 0, NOW, True)
    kit.clock.now_ms += expiration_ms(kit)
    assert expire(kit) == 1


# What is not known


def unknown_killed(kit: Kit) -> None:
    kit.crash(power_cut=False)


def unknown_lost(kit: Kit) -> None:
    """As a folder of Apache Kafka, or of the version before: there is no such file."""
    kit.stop()
    kit.disk.remove(PATH)
    kit.start()
    kit.log.ensure_open()


def unknown_torn(kit: Kit) -> None:
    kit.stop()
    kit.disk.open(PATH).truncate(40)
    kit.start()
    kit.log.ensure_open()


@pytest.mark.parametrize("restart", [unknown_killed, unknown_lost, unknown_torn])
def test_what_is_not_known_counts_from_the_restart_and_says_so(restart: Restart) -> None:
    kit = Kit()
    kit.data(P, 0, txn=True, timestamp=NOW - YEAR_MS)
    kit.data(8, 0, timestamp=NOW - YEAR_MS)
    kit.clock.now_ms += expiration_ms(kit) - 1
    restart(kit)
    restarted = kit.clock.now_ms
    assert kit.log.oldest_open_transaction() == (0, P, 0, restarted, False)
    kit.clock.now_ms += expiration_ms(kit) - 1
    assert expire(kit) == 0
    clean(kit)
    assert kit.log.oldest_open_transaction() == (0, P, 0, restarted, False), "a bound is kept as a bound"
    kit.clock.now_ms += 1
    assert expire(kit) == 1, "and so is the time of the restart"


def test_only_the_state_that_was_kept_is_believed() -> None:
    kit = Kit()
    kit.data(P, 0)
    kit.data(8, 0)
    kit.data(9, 0, txn=True)
    kit.keep_times()
    kit.clock.now_ms += 1000
    kit.data(P, 1)
    kit.data(9, 1, txn=True)
    kit.data(10, 0, txn=True)
    kit.clock.now_ms += 1000
    kit.crash(power_cut=False)
    appended = {pid: entry.appended_ms for pid, entry in kit.log._producers.table.entries.items()}
    assert appended == {P: NOW + 2000, 8: NOW, 9: NOW + 2000, 10: NOW + 2000}
    assert kit.log.open_transactions() == [(2, 9, 0, NOW, True), (5, 10, 0, NOW + 2000, False)]


def test_the_file_goes_when_the_log_is_cut() -> None:
    """The same batch may come again, at another time."""
    kit = Kit()
    kit.data(8, 0)
    kit.log.flush()
    kit.data(P, 0)
    kit.keep_times()
    kit.disk.open(f"{DATA}/{TP}/{0:020d}.log").truncate(100)
    kit.clock.now_ms += 1000
    kit.crash(power_cut=False)
    assert ids(kit) == [8]
    assert kit.data(P, 0) == 1
    assert not kit.disk.exists(PATH)
    kit.crash(power_cut=False)
    assert kit.log._producers.table.entries[ProducerId(P)].appended_ms == kit.clock.now_ms


def test_a_cut_keeps_what_is_known_of_the_rest() -> None:
    kit = Kit()
    kit.data(P, 0, txn=True)
    kit.data(8, 0)
    kit.keep_times()
    kit.clock.now_ms += 1000
    kit.data(P, 1, txn=True)
    kit.data(8, 1)
    kit.log.truncate_to(2)
    assert kit.log.oldest_open_transaction() == (0, P, 0, NOW, True)
    appended = {pid: entry.appended_ms for pid, entry in kit.log._producers.table.entries.items()}
    assert appended == {P: NOW + 1000, 8: NOW + 1000}, "never too early"
    assert not kit.disk.exists(PATH)


@pytest.mark.parametrize("maker", ["folder-twofold-0.1.0", "folder-kafka-4.3.1"])
def test_producers_of_a_folder_without_the_file_count_from_its_first_start(maker: str, tmp_path: Path) -> None:
    """Folders that the version before and Apache Kafka left, with transactions that are open and prepared."""
    with tarfile.open(FIXTURES / f"{maker}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    clock = FakeClock(int(time.time() * 1000))

    def opened() -> PartitionLog:
        manager = LogManager(make_runtime(RealDisk(), clock), str(tmp_path / "data"))
        manager.load()
        found = manager.get(TopicPartition("mixed", 0))
        assert found is not None
        found.ensure_open()
        managers.append(manager)
        return found

    managers: list[LogManager] = []
    first = opened()
    started = clock.now_ms
    assert first.producers() and first.open_transactions()
    assert all((one.since_ms, one.is_exact) == (started, False) for one in first.open_transactions())
    day_ms = managers[0].options.producer_id_expiration_ms
    assert first.expire_producers(started + day_ms - 1) == 0
    asyncio.run(managers[0].close())
    clock.now_ms += day_ms - 1
    second = opened()
    assert all((one.since_ms, one.is_exact) == (started, False) for one in second.open_transactions())
    silent = len(second.producers()) - len(second.open_transactions())
    assert second.expire_producers(clock.now_ms) == 0
    assert second.expire_producers(clock.now_ms + 1) == silent > 0
    asyncio.run(managers[1].close())


# What clients are told


@both_ends
def test_the_timestamp_of_the_last_batch_stays_the_clients(restart: Restart) -> None:
    kit = Kit()
    kit.data(P, 0, timestamp=NOW - YEAR_MS)
    restart(kit)
    (row,) = kit.log.producers()
    assert row.last_timestamp == NOW - YEAR_MS


# The file


def test_the_file_has_these_bytes() -> None:
    assert encode_times(TIMES) == VECTOR
    assert decode_times(VECTOR) == TIMES


@pytest.mark.parametrize("data", [VECTOR[:size] for size in range(len(VECTOR))] + [b"\0\2" + VECTOR[2:]])
def test_a_torn_file_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptTimes):
        decode_times(data)


def test_a_file_that_says_it_all_is_not_written_again() -> None:
    kit = Kit()
    kit.data()
    kit.keep_times()
    assert not kit.disk.exists(PATH), "nobody to remember"
    kit.data(P, 0)
    kit.keep_times()
    before = kit.disk.modified_ms(PATH)
    kit.clock.now_ms += 1000
    kit.keep_times()
    clean(kit)
    kit.keep_times()
    kit.stop()
    assert kit.disk.modified_ms(PATH) == before
    assert decode_times(read_file(kit.disk, PATH)).keys() == {P}
