"""Slots: an id has one process at a time, and what may still end another's transaction is never given out again."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from twofold.sink.slots import OLD_S, Slot, Slots, Use

TAKES_ONE = """
import sys
from pathlib import Path
from twofold.sink.slots import Slots, Use

slots = Slots("p", Path(sys.argv[1]))
for line in sys.stdin:
    run_id, batch_id, is_known = line.split()
    slot = slots.take(Use(run_id, int(batch_id)))
    if is_known == "True":
        slot.known()
    print(slot.transactional_id, flush=True)
"""


class Worker:
    """A process of its own that takes slots when it is told to."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", TAKES_ONE, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def take(self, run_id: str, batch_id: int, *, known: bool = True) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{run_id} {batch_id} {known}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "slots"


@pytest.fixture
def worker(directory: Path) -> Iterator[Callable[[], Worker]]:
    started: list[Worker] = []

    def start() -> Worker:
        started.append(Worker(directory))
        return started[-1]

    yield start
    for process in started:
        process.kill()


def take(slots: Slots, run_id: str, batch_id: int) -> Slot:
    slot = slots.take(Use(run_id, batch_id))
    slot.known()
    return slot


def test_processes_that_live_at_the_same_time_never_share_an_id(worker: Callable[[], Worker]) -> None:
    processes = [worker() for _ in range(3)]
    taken = [process.take("run", batch) for batch in range(3) for process in processes]
    assert len(set(taken)) == 3, "each its own, for all batches"
    assert taken[:3] == taken[3:6] == taken[6:]


def test_the_id_of_a_process_that_was_killed_is_free_for_a_later_batch(worker: Callable[[], Worker]) -> None:
    first, second = worker(), worker()
    name = first.take("run", 0)
    assert second.take("run", 1) != name
    first.kill()
    third = worker()
    assert third.take("run", 1) == name
    assert worker().take("run", 2) != name, "it lives"


def test_the_id_of_a_process_that_died_in_the_same_batch_is_not_used_again_in_it(worker: Callable[[], Worker]) -> None:
    first = worker()
    name = first.take("run", 3)
    first.kill()
    assert worker().take("run", 3) != name


def test_what_another_run_used_is_never_used_again(worker: Callable[[], Worker]) -> None:
    first = worker()
    name = first.take("run", 0)
    first.kill()
    assert worker().take("other", 1) != name


def test_an_id_whose_process_died_while_it_took_it_is_given_up(directory: Path, worker: Callable[[], Worker]) -> None:
    """Its request may still be on its way."""
    first = worker()
    name = first.take("run", 0, known=False)
    first.kill()
    assert worker().take("run", 1) != name
    assert not (directory / name.split("|", 1)[1].replace("|", ".")).exists()


def test_within_a_process_a_slot_is_used_once_in_a_batch_and_again_in_the_next(directory: Path) -> None:
    slots = Slots("p", directory)
    first = [take(slots, "run", 0).transactional_id for _ in range(3)]
    assert len(set(first)) == 3
    second = [take(slots, "run", 1).transactional_id for _ in range(3)]
    assert sorted(second) == sorted(first)


def test_the_slot_that_was_not_used_for_longest_comes_first(directory: Path) -> None:
    """Its transaction before is over for longest."""
    slots = Slots("p", directory)
    old, new = take(slots, "run", 0), take(slots, "run", 0)
    slots.take(Use("run", 1))
    assert slots.take(Use("run", 2)) is new
    assert slots.take(Use("run", 2)) is old


def test_an_earlier_batch_of_the_same_run_gets_another_slot(directory: Path) -> None:
    """A task of batch 3 that starts late, while batch 4 runs."""
    slots = Slots("p", directory)
    assert take(slots, "run", 4) is not take(slots, "run", 3)


def test_a_burnt_id_is_gone(directory: Path) -> None:
    slots, others = Slots("p", directory), Slots("p", directory)
    slot = slots.take(Use("run", 0))
    slots.burn(slot)
    assert slots.take(Use("run", 1)).transactional_id != slot.transactional_id
    assert others.take(Use("run", 1)).transactional_id != slot.transactional_id


def test_a_slot_that_is_burnt_while_another_process_looks_at_it_is_not_taken(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots, others = Slots("p", directory), Slots("p", directory)
    slot = take(slots, "run", 0)
    opened = os.open

    def open_too_early(path: Path, *args: int) -> int:
        file = opened(path, *args)
        if slot in slots._held and path.name.startswith(slots._process):
            slots.burn(slot)
        return file

    monkeypatch.setattr(os, "open", open_too_early)
    assert others.take(Use("run", 1)).transactional_id != slot.transactional_id


def test_a_slot_that_is_burnt_before_another_process_opens_it_is_no_error(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots, others = Slots("p", directory), Slots("p", directory)
    slot = take(slots, "run", 0)
    opened = os.open

    def open_too_late(path: Path, *args: int) -> int:
        if slot in slots._held and path.name.startswith(slots._process):
            slots.burn(slot)
        return opened(path, *args)

    monkeypatch.setattr(os, "open", open_too_late)
    assert others.take(Use("run", 1)).transactional_id != slot.transactional_id


def test_a_thousand_batches_in_a_new_process_each_need_as_many_ids_as_tasks(directory: Path) -> None:
    taken = set()
    for batch in range(1000):
        processes = [Slots("p", directory) for _ in range(2)]
        taken |= {take(slots, "run", batch).transactional_id for slots in processes for _ in range(2)}
        for slots in processes:
            slots.close()  # as the kernel does with the files of a dead process
    assert len(taken) == 4
    assert len(list(directory.glob("*.*"))) == 4


def test_processes_that_die_while_they_take_an_id_leave_no_files(directory: Path) -> None:
    for batch in range(50):
        slots = Slots("p", directory)
        slots.take(Use("run", batch))
        slots.close()
    assert len(list(directory.glob("*.*"))) == 1


def test_files_of_runs_that_are_long_over_are_removed(directory: Path) -> None:
    old, young, living = Slots("p", directory), Slots("p", directory), Slots("p", directory)
    names = [
        take(slots, "run", 0).transactional_id.split("|", 1)[1].replace("|", ".") for slots in (old, young, living)
    ]
    for name in (names[0], names[2]):
        os.utime(directory / name, (0, 0))
    old.close()
    young.close()
    take(Slots("p", directory), "other", 0)
    assert [(directory / name).exists() for name in names] == [False, True, True], f"older than {OLD_S} s and free"


def test_a_directory_of_another_user_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: os.stat(directory.parent).st_uid + 1)
    with pytest.raises(PermissionError, match="TMPDIR"):
        Slots("p", directory).take(Use("run", 0))


def test_a_foreign_file_is_not_a_slot(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    for name, text in (("0000000a.0", b""), ("0000000b.0", b'["run", 0]'), ("0000000c.0", b"[1,2,3,4]")):
        (directory / name).write_bytes(text)
    taken = take(Slots("p", directory, process="deadbeef"), "run", 5)
    assert taken.transactional_id == "p|deadbeef|0"


def test_where_writes_come_one_by_one_an_id_of_a_write_that_is_over_is_free(directory: Path) -> None:
    slots = Slots("p", directory, one_by_one=True)
    found = set()
    for number in range(5):
        slot = slots.take(Use(f"write-{number}", 0))
        slot.known()
        found.add(slot.transactional_id)
    assert len(found) == 1
    other = slots.take(Use("write-4", 0))  # a second task of the same write
    other.known()
    assert other.transactional_id not in found
    slots.close()
    again = Slots("p", directory, one_by_one=True)
    assert again.take(Use("write-5", 0)).transactional_id in {*found, other.transactional_id}
    again.close()
