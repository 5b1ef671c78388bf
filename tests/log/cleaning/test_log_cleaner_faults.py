"""Compaction and the rest of the broker: a disk that fails in the middle, records that were deleted, work in slices."""

import asyncio
from dataclasses import replace

import pytest

from kits.log.cleaning import COMPACTED, CleanKit, Pair, keyed, pairs
from kits.log.partition import NOW, TP
from twofold.log.cleaning.rewriting import BATCH_COST, SLICE_COST, CleaningPass
from twofold.wire.errors import KafkaStorageError

BOTH = frozenset({"compact", "delete"})


def filled(kit: CleanKit) -> list[Pair]:
    """Five sealed segments; returns the newest of each key."""
    for number in range(5):
        kit.put((f"k{number % 2}", f"{number}"), (f"own{number}", "x"), roll=True)
    kit.put(("last", "active"))
    return [("own0", "x"), ("own1", "x"), ("own2", "x"), ("k1", "3"), ("own3", "x"), ("k0", "4"), ("own4", "x"),
            ("last", "active")]  # fmt: skip


def values(kit: CleanKit) -> list[Pair]:
    return [(key, value) for _, key, value in pairs(kit.log)]


@pytest.mark.parametrize("power_cut", [None, False, True])
@pytest.mark.parametrize("spared", range(12))
@pytest.mark.parametrize("match", [".cleaned", f"/{TP}", ".log"])
def test_a_sync_that_fails_in_the_middle_of_a_pass_loses_no_key(
    match: str, spared: int, power_cut: bool | None
) -> None:
    kit = CleanKit(segment_bytes=200)
    newest = filled(kit)
    kit.log.flush()
    kit.manager.checkpoint()
    sync_dir, synced = kit.disk.sync_dir, 0

    def counted(path: str) -> None:
        nonlocal synced
        synced += 1
        if synced == spared:
            kit.disk.fail_syncs(1, match=match, lose=True)
        sync_dir(path)

    if spared == 0:
        kit.disk.fail_syncs(1, match=match, lose=True)
    kit.disk.sync_dir = counted
    kit.clean()
    kit.disk.sync_dir = sync_dir
    kit.disk.clear_faults()
    if power_cut is not None:
        kit.crash(power_cut=power_cut)
    elif kit.log.failure is not None:
        kit.log = asyncio.run(kit.manager.mend(kit.log))
    assert dict(values(kit)) == dict(newest), "whatever of the pass is left, the newest of each key is"
    kit.clean()
    assert dict(values(kit)) == dict(newest)
    kit.put(("after", "1"))
    assert values(kit)[-1] == ("after", "1")
    kit.crash()
    assert dict(newest).items() <= dict(values(kit)).items()


@pytest.mark.parametrize("start", range(1, 11))
def test_records_that_were_deleted_do_not_come_back_by_compaction(start: int) -> None:
    """`compact,delete` lets clients delete records: the log start may lie anywhere in a segment."""

    def left() -> list[tuple[int, str, str | None]]:
        """A reader gets whole batches, and drops what lies before the offset that it asked for."""
        return [row for row in pairs(kit.log) if row[0] >= start]

    kit = CleanKit(cleanup_policy=BOTH, retention_ms=-1)
    filled(kit)
    kit.log.advance_log_start(start)
    kit.clean()
    found = left()
    newest = {key: value for _, key, value in found}
    assert newest.get("k0") == ("4" if start <= 8 else None)
    assert newest["last"] == "active"
    kit.restart()
    assert left() == found
    kit.put(("k0", "new"), roll=True)
    kit.put(("end", "1"))
    kit.clean()
    assert [value for _, key, value in left() if key == "k0"] == ["new"]


def test_an_open_transaction_holds_compaction_and_retention_of_what_follows_it() -> None:
    kit = CleanKit(cleanup_policy=BOTH, retention_ms=1000)
    kit.put(("a", "1"), roll=True)
    kit.append(keyed(("a", "2"), pid=7, txn=True))
    kit.log.roll()
    kit.put(("a", "3"), roll=True)
    kit.put(("b", "1"))
    kit.clean()
    assert [value for key, value in values(kit) if key == "a"] == ["1", "2", "3"]
    kit.log.apply_retention(NOW + 100_000)
    assert kit.log.log_start_offset == 1, "what the transaction wrote stays, and so does all after it"
    kit.mark(7, commit=True)
    kit.log.apply_retention(NOW + 100_000)
    assert kit.log.log_start_offset > 1


def test_a_pass_works_in_slices_of_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that holds the interpreter for longer would hold up every client."""
    kit = CleanKit(segment_bytes=100_000)
    costs: list[int] = []
    largest = 0
    rest = CleaningPass._slice

    def noted(self: CleaningPass) -> int:
        costs.append(self._cost)
        return rest(self)

    monkeypatch.setattr(CleaningPass, "_slice", noted)
    for number in range(200):
        batch = [(f"k{(number * 7 + index) % 900}", "x" * 50) for index in range(number % 60 + 1)]
        kit.put(*batch)
        largest = max(largest, len(batch) + (len(keyed(*batch)) >> 9) + BATCH_COST)
    kit.log.update_config(replace(kit.log.config, **COMPACTED))
    kit.roll_and_clean()
    assert len(costs) > 10
    assert max(costs) < SLICE_COST + largest


def test_a_full_disk_in_the_middle_of_a_pass_leaves_the_log_as_it_was() -> None:
    kit = CleanKit()
    newest = filled(kit)
    kit.log.flush()
    before = values(kit)
    kit.disk.set_free_bytes(0)
    assert not kit.clean()
    assert kit.log.failure is None
    assert values(kit) == before
    assert not [name for name in kit.disk.list(kit.log.directory) if name.endswith((".cleaned", ".swap"))]
    with pytest.raises(KafkaStorageError):
        kit.put(("x", "refused" * 100))
    kit.disk.clear_faults()
    assert kit.clean()
    assert dict(values(kit)) == dict(newest)
