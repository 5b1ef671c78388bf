"""The simulated disk loses at a power cut what a real one may lose, and nothing that was synced."""

import errno
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.runtime.api import File
from twofold.runtime.files import read_file, write_atomically
from twofold.runtime.sim import CutMode, PowerCut, SimDisk

MODES = pytest.mark.parametrize("mode", list(CutMode))


def new_disk(seed: int = 0, mode: CutMode = CutMode.ORDERED) -> SimDisk:
    return SimDisk(Random(seed), cut_mode=mode)


def durable_file(disk: SimDisk, path: str = "f", content: bytes = b"") -> File:
    file = disk.open(path, create=True)
    file.write(0, content)
    file.sync()
    disk.sync_dir(".")
    return file


offsets = st.integers(0, 40)
writes = st.tuples(st.just("write"), offsets, st.binary(min_size=1, max_size=12))
truncates = st.tuples(st.just("truncate"), offsets, st.just(b""))
changes = st.lists(st.one_of(writes, writes, truncates), max_size=12)
seeds = st.integers(0, 2**32)


def apply(file: File, change: tuple[str, int, bytes]) -> None:
    kind, offset, data = change
    if kind == "write":
        file.write(offset, data)
    else:
        file.truncate(offset)


def model(content: bytes, change: tuple[str, int, bytes]) -> bytes:
    kind, offset, data = change
    padded = content.ljust(offset, b"\0")
    return padded[:offset] + (data + padded[offset + len(data) :] if kind == "write" else b"")


@given(seeds, changes)
def test_writes_and_truncates_are_visible_at_once(seed: int, steps: list[tuple[str, int, bytes]]) -> None:
    file = new_disk(seed).open("f", create=True)
    expected = b""
    for step in steps:
        apply(file, step)
        expected = model(expected, step)
        assert file.read(0, 1000) == expected
        assert file.size() == len(expected)


@MODES
@given(seeds, changes, changes)
def test_rule_1_synced_content_survives_and_only_later_changes_are_at_stake(
    mode: CutMode, seed: int, before: list[tuple[str, int, bytes]], after: list[tuple[str, int, bytes]]
) -> None:
    disk = new_disk(seed, mode)
    file = durable_file(disk)
    for step in before:
        apply(file, step)
    file.sync()
    synced = file.read(0, 1000)
    for step in after:
        apply(file, step)
    disk.crash()
    found = read_file(disk, "f")
    if not after:
        assert found == synced
    touched = set[int]()
    for kind, offset, data in after:
        touched.update(range(offset, offset + len(data)) if kind == "write" else range(offset, 1000))
    untouched = [i for i in range(len(synced)) if i not in touched]
    assert [found[i] for i in untouched] == [synced[i] for i in untouched]


@given(seeds, st.lists(writes | truncates, max_size=12))
def test_ordered_cut_leaves_a_prefix_of_the_changes_with_at_most_the_next_write_torn(
    seed: int, steps: list[tuple[str, int, bytes]]
) -> None:
    disk = new_disk(seed)
    file = durable_file(disk, content=b"synced")
    possible = {b"synced"}
    content = b"synced"
    for kind, offset, data in steps:
        possible.update(model(content, (kind, offset, data[:n])) for n in range(1, len(data)))
        apply(file, (kind, offset, data))
        content = model(content, (kind, offset, data))
        possible.add(content)
    disk.crash()
    assert read_file(disk, "f") in possible


@MODES
@given(seeds, changes)
def test_what_is_read_after_a_crash_survives_the_next_one(
    mode: CutMode, seed: int, steps: list[tuple[str, int, bytes]]
) -> None:
    disk = new_disk(seed, mode)
    file = disk.open("f", create=True)
    for step in steps:
        apply(file, step)
    disk.crash()
    names = disk.list(".")
    found = read_file(disk, "f") if names else b""
    disk.crash()
    assert disk.list(".") == names
    assert not names or read_file(disk, "f") == found


name_changes = st.lists(
    st.tuples(st.sampled_from(["create", "rename", "remove"]), st.sampled_from("abcd"), st.sampled_from("abcd")),
    max_size=12,
)


def change_name(disk: SimDisk, step: tuple[str, str, str]) -> None:
    kind, source, target = step
    if kind == "create" and not disk.exists(f"d/{source}"):
        file = disk.open(f"d/{source}", create=True)
        file.write(0, source.encode())
        file.sync()
    elif kind == "rename" and disk.exists(f"d/{source}"):
        disk.rename(f"d/{source}", f"d/{target}")
    elif kind == "remove" and disk.exists(f"d/{source}"):
        disk.remove(f"d/{source}")


def listing(disk: SimDisk) -> dict[str, bytes]:
    return {name: read_file(disk, f"d/{name}") for name in disk.list("d")}


@MODES
@given(seeds, name_changes, name_changes)
def test_rule_2_synced_names_survive_and_unsynced_changes_are_kept_or_lost(
    mode: CutMode, seed: int, before: list[tuple[str, str, str]], after: list[tuple[str, str, str]]
) -> None:
    disk = new_disk(seed, mode)
    disk.make_dirs("d")
    disk.sync_dir(".")
    for step in before:
        change_name(disk, step)
    disk.sync_dir("d")
    synced = listing(disk)
    states = [synced]
    for step in after:
        change_name(disk, step)
        states.append(listing(disk))
    disk.crash()
    found = listing(disk)
    touched = {name for _, *names in after for name in names}
    assert {n: c for n, c in found.items() if n not in touched} == {n: c for n, c in synced.items() if n not in touched}
    if mode is CutMode.ORDERED:
        assert found in states


@MODES
def test_every_outcome_that_a_power_cut_may_have_occurs(mode: CutMode) -> None:
    outcomes = set[str]()
    for seed in range(300):
        disk = new_disk(seed, mode)
        file = durable_file(disk, content=b"....")
        file.write(4, b"AAAA")
        file.write(8, b"BBBB")
        disk.open("new", create=True).close()
        disk.rename("f", "g")
        disk.crash()
        name = "g" if disk.exists("g") else "f"
        found = read_file(disk, name)
        outcomes.add(name)
        outcomes.add("new" if disk.exists("new") else "no new")
        if found == b"....":
            outcomes.add("all lost")
        elif found == b"....AAAABBBB":
            outcomes.add("all kept")
        elif found == b"....AAAA":
            outcomes.add("second lost")
        elif found == b"....\0\0\0\0BBBB":
            outcomes.add("zeros in the middle")
        elif found.startswith(b"....AAAAB"):
            outcomes.add("second torn")
        elif len(found) < 8:
            outcomes.add("first torn")
    always = {"f", "g", "new", "no new", "all lost", "all kept", "second lost", "second torn", "first torn"}
    assert outcomes == (always if mode is CutMode.ORDERED else always | {"zeros in the middle"})


@MODES
@pytest.mark.parametrize("cut_after", range(12))
def test_write_atomically_leaves_the_old_or_the_new_content_at_every_power_cut(mode: CutMode, cut_after: int) -> None:
    for seed in range(40):
        disk = new_disk(seed, mode)
        disk.make_dirs("data")
        disk.sync_dir("/")
        write_atomically(disk, "data/checkpoint", b"the old content")
        disk.cut_power_after(cut_after)
        finished = False
        try:
            write_atomically(disk, "data/checkpoint", b"new")
            finished = True
        except PowerCut:
            pass
        disk.crash()
        found = read_file(disk, "data/checkpoint")
        assert found in ((b"new",) if finished else (b"the old content", b"new"))


def test_power_stays_off_until_the_crash_and_comes_back_after_it() -> None:
    disk = new_disk()
    file = disk.open("f", create=True)
    disk.cut_power_after(1)
    file.write(0, b"x")
    for _ in range(2):
        with pytest.raises(PowerCut):
            file.write(0, b"y")
    with pytest.raises(PowerCut):
        disk.remove("f")
    disk.crash()
    disk.open("g", create=True).write(0, b"z")


@pytest.mark.parametrize("power_cut", [True, False])
def test_handles_and_locks_from_before_a_crash_are_dead(power_cut: bool) -> None:
    disk = new_disk()
    file = durable_file(disk, content=b"abc")
    lock = disk.lock(".lock")
    disk.crash(power_cut=power_cut)
    for use in (lambda: file.read(0, 1), lambda: file.write(0, b"x"), file.sync, file.size, lambda: file.truncate(0)):
        with pytest.raises(OSError, match="before the crash"):
            use()
    file.close()
    fresh = disk.lock(".lock")
    lock.release()
    with pytest.raises(BlockingIOError):
        disk.lock(".lock")
    fresh.release()
    disk.lock(".lock")


def test_killed_process_loses_nothing_that_was_written() -> None:
    disk = new_disk()
    disk.make_dirs("a")
    disk.open("a/f", create=True).write(0, b"unsynced")
    disk.crash(power_cut=False)
    assert read_file(disk, "a/f") == b"unsynced"


def test_full_disk_takes_what_fits_and_then_says_so() -> None:
    disk = new_disk()
    file = disk.open("f", create=True)
    file.write(0, b"0123")
    disk.set_free_bytes(3)
    assert disk.free_bytes("/") == 3
    with pytest.raises(OSError) as raised:
        file.write(4, b"45678")
    assert raised.value.errno == errno.ENOSPC
    assert file.read(0, 100) == b"0123456"
    file.write(0, b"abcd")
    file.truncate(2)
    file.write(2, b"cdefg")
    disk.remove("f")
    assert disk.free_bytes("/") == 7


def test_injected_write_fault_hits_only_matching_paths_and_so_many_times() -> None:
    disk = new_disk()
    log, other = disk.open("x.log", create=True), disk.open("other", create=True)
    disk.fail_writes(2, match=".log")
    for _ in range(2):
        other.write(0, b"fine")
        with pytest.raises(OSError) as raised:
            log.write(0, b"abcdef")
        assert raised.value.errno == errno.EIO
        assert b"abcdef".startswith(log.read(0, 100))
    log.write(0, b"abcdef")
    assert log.read(0, 100) == b"abcdef"


def test_failed_sync_makes_nothing_durable_until_one_succeeds() -> None:
    lost = 0
    for seed in range(20):
        disk = new_disk(seed)
        file = durable_file(disk)
        file.write(0, b"data")
        disk.fail_syncs()
        with pytest.raises(OSError):
            file.sync()
        if seed % 2:
            file.sync()
        disk.crash()
        lost += read_file(disk, "f") != b"data"
        assert not seed % 2 or read_file(disk, "f") == b"data"
    assert lost > 0


def test_failed_sync_that_drops_pages_lies_from_then_on() -> None:
    found = set[bytes]()
    for seed in range(20):
        disk = new_disk(seed)
        file = durable_file(disk)
        file.write(0, b"data")
        disk.fail_syncs(lose=True)
        with pytest.raises(OSError):
            file.sync()
        file.sync()
        assert file.read(0, 4) == b"data"
        disk.crash()
        found.add(read_file(disk, "f"))
    assert {b"", b"data"} <= found


def test_failed_sync_of_a_directory_makes_no_name_durable() -> None:
    kept = set[bool]()
    for seed in range(20):
        disk = new_disk(seed)
        disk.open("f", create=True).sync()
        disk.fail_syncs()
        with pytest.raises(OSError):
            disk.sync_dir(".")
        disk.crash()
        kept.add(disk.exists("f"))
    assert kept == {True, False}


def test_read_only_disk_refuses_every_change_and_still_reads() -> None:
    disk = new_disk()
    file = durable_file(disk, content=b"abc")
    disk.read_only = True
    for change in (
        lambda: file.write(0, b"x"),
        lambda: file.truncate(0),
        lambda: disk.open("new", create=True),
        lambda: disk.remove("f"),
        lambda: disk.rename("f", "g"),
        lambda: disk.make_dirs("d"),
    ):
        with pytest.raises(OSError) as raised:
            change()
        assert raised.value.errno == errno.EROFS
    assert read_file(disk, "f") == b"abc"
    disk.clear_faults()
    file.write(0, b"x")


def test_read_fault_is_raised_once() -> None:
    disk = new_disk()
    file = durable_file(disk, content=b"abc")
    disk.fail_reads()
    with pytest.raises(OSError):
        file.read(0, 3)
    assert file.read(0, 3) == b"abc"


def test_directories_behave_like_posix() -> None:
    disk = new_disk()
    with pytest.raises(FileNotFoundError):
        disk.open("no/f", create=True)
    with pytest.raises(FileNotFoundError):
        disk.list("no")
    disk.make_dirs("/a/b/c")
    disk.open("a/b/f", create=True).write(0, b"1")
    handle = disk.open("/a/b/f")
    with pytest.raises(IsADirectoryError):
        disk.open("a/b")
    with pytest.raises(IsADirectoryError):
        disk.remove("a/b")
    with pytest.raises(NotADirectoryError):
        disk.list("a/b/f")
    with pytest.raises(OSError):
        disk.rename("a/b/f", "a/b/c")
    with pytest.raises(FileExistsError):
        disk.make_dirs("a/b/f")
    disk.rename("a/b", "a/b-delete")
    assert disk.list("a") == ["b-delete"] and disk.list("a/b-delete") == ["c", "f"]
    disk.remove_tree("a/b-delete")
    assert disk.list("a") == []
    assert handle.read(0, 1) == b"1"  # an open file outlives its name


def test_modification_time_comes_from_the_given_clock() -> None:
    times = iter([100, 100, 250])
    disk = SimDisk(Random(0), now_ms=lambda: next(times))
    file = disk.open("f", create=True)
    file.write(0, b"x")
    assert disk.modified_ms("f") == 250


def test_same_seed_leaves_the_same_disk() -> None:
    def after(seed: int) -> tuple[bytes, list[str]]:
        disk = new_disk(seed, CutMode.REORDERED)
        file = durable_file(disk)
        for n in range(20):
            file.write(n * 7, bytes([n]) * 9)
            disk.open(f"n{n}", create=True).close()
        disk.crash()
        return read_file(disk, "f"), disk.list(".")

    assert after(7) == after(7)
    assert len({after(seed)[0] for seed in range(10)}) > 5
