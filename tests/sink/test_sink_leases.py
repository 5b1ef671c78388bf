"""PrefixLeases: a prefix has one write at a time, and there are no more prefixes than writes at a time."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from twofold.sink.leases import PrefixLeases, WriteHolder, started_at
from twofold.sink.names import ONCE, check_prefix


def me(write: str) -> WriteHolder:
    return WriteHolder(os.getpid(), started_at(os.getpid()), write)


@pytest.fixture
def leases(tmp_path: Path) -> PrefixLeases:
    return PrefixLeases(tmp_path / "host" / "once")


def test_writes_at_a_time_have_prefixes_of_their_own_and_later_ones_use_them_again(leases: PrefixLeases) -> None:
    first, second = leases.take(me("a")), leases.take(me("b"))
    assert first != second
    assert all(check_prefix(prefix).startswith(f"{ONCE}-") for prefix in (first, second))
    leases.give_back(first, me("a"))
    assert leases.take(me("c")) == first
    assert leases.take(me("d")) not in (first, second)


def test_a_write_gives_back_what_it_has_and_nothing_else(leases: PrefixLeases) -> None:
    first = leases.take(me("a"))
    leases.give_back(first, me("another"))
    assert leases.take(me("b")) != first
    leases.give_back(first, me("a"))
    leases.give_back(first, me("a"))
    assert leases.take(me("c")) == first


def test_the_prefix_of_a_program_that_was_killed_is_taken_by_the_next_write(leases: PrefixLeases) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = WriteHolder(process.pid, started_at(process.pid), "a")
    first = leases.take(holder)
    process.send_signal(signal.SIGSTOP)  # it wakes up some time: the prefix stays its own
    assert leases.take(me("b")) != first
    process.kill()
    process.communicate()
    assert not holder.is_alive
    assert leases.take(me("c")) == first


def test_a_later_program_with_the_number_of_a_dead_one_has_not_its_lease(leases: PrefixLeases) -> None:
    first = leases.take(WriteHolder(os.getpid(), "another start", "a"))
    assert leases.take(me("b")) == first


def test_hosts_of_one_name_have_prefixes_of_their_own(tmp_path: Path) -> None:
    assert PrefixLeases(tmp_path / "a" / "once").take(me("w")) != PrefixLeases(tmp_path / "b" / "once").take(me("w"))


def test_a_lease_that_was_written_in_part_is_free(leases: PrefixLeases, tmp_path: Path) -> None:
    first = leases.take(me("a"))
    (tmp_path / "host" / "once" / "lease.0").write_text("{")
    assert leases.take(me("b")) == first


def test_many_at_once_have_one_each(leases: PrefixLeases) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: leases.take(me(f"w{number}")), range(40)))
    assert len(set(found)) == 40
