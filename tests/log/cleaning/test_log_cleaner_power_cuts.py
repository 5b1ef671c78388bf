"""Power cuts at the disk operations of a compaction, and of the opening that follows.

After a cut the log holds what it held, or less by records that compaction may take: no committed value is lost or comes
back, no offset moves, producers are known as before, and more passes end where undisturbed ones do. A seed that
fails prints how to run it alone: `TWOFOLD_SEED=<seed> pytest tests/log/cleaning/test_log_cleaner_power_cuts.py`.
"""

import asyncio
import copy
import os
from contextlib import suppress
from random import Random

import pytest

from kits.log.cleaning import COMPACTED, CleanKit, Pair, committed_view, pairs
from kits.log.partition import DATA, NOW, TP
from kits.log.replay import assert_entries, stored_batches
from twofold.log.api import ProducerRow
from twofold.log.options import CleanerOptions, LogOptions
from twofold.records.compression import Codec
from twofold.runtime.sim.disk import CutMode, PowerCut

SEEDS = (
    [int(os.environ["TWOFOLD_SEED"])]
    if "TWOFOLD_SEED" in os.environ
    else range(120 if "TWOFOLD_SEEDS" in os.environ else 40)
)
CUTS = 3
KEYS = 12


class History:
    """A compacted log with all kinds of batches, part of it compacted before."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        mode = self.random.choice((CutMode.ORDERED, CutMode.REORDERED))
        self.kit = CleanKit(
            seed=seed,
            mode=mode,
            segment_bytes=self.random.choice((400, 1000, 3000)),
            delete_retention_ms=self.random.choice((0, 0, 1000)),
            options=LogOptions(
                transaction_verification_enabled=False,
                cleaner=CleanerOptions(dedupe_buffer_bytes=self.random.choice((1000, 10_000, 1 << 20))),
            ),
        )
        self.opened: dict[int, int] = {}
        for _ in range(self.random.choice((0, 1, 2))):
            self.append(self.random.randint(1, 60))
            self.kit.log.roll()
            self.kit.clean()
            self.kit.clock.now_ms += self.random.choice((0, 2000))
        self.append(self.random.randint(5, 60))
        self.kit.log.roll()
        if self.random.random() < 0.7:
            self.append(self.random.randint(1, 5))
        self.kit.log.flush()

    def append(self, count: int) -> None:
        for _ in range(count):
            self.random.choice((self.plain, self.plain, self.idempotent, self.transactional, self.end))()
        while self.opened:
            self.end()

    def some(self) -> list[Pair]:
        return [
            (f"key-{self.random.randrange(KEYS)}", None if self.random.random() < 0.2 else f"{self.random.random()}")
            for _ in range(self.random.randint(1, 3))
        ]

    def put(self, pid: int = -1, *, txn: bool = False) -> None:
        rows: dict[int, ProducerRow] = {row.producer_id: row for row in self.kit.log.producers()}
        seq = rows[pid].last_sequence + 1 if pid in rows else 0
        epoch = rows[pid].producer_epoch if pid in rows else 0
        codec = self.random.choice((Codec.NONE, Codec.NONE, Codec.GZIP))
        timestamp = NOW - self.random.randrange(1000)
        self.kit.put(*self.some(), pid=pid, seq=seq, epoch=epoch, txn=txn, codec=codec, timestamp=timestamp)

    def plain(self) -> None:
        self.put()

    def idempotent(self) -> None:
        self.put(self.random.randrange(3))

    def transactional(self) -> None:
        pid = 10 + self.random.randrange(3)
        self.put(pid, txn=True)
        rows: dict[int, ProducerRow] = {row.producer_id: row for row in self.kit.log.producers()}
        self.opened[pid] = rows[pid].producer_epoch

    def end(self) -> None:
        if self.opened:
            pid, epoch = self.opened.popitem()
            bump = self.random.random() < 0.5
            self.kit.mark(pid, epoch + bump, commit=self.random.random() < 0.6, tv=2 if bump else 0, ce=1)


class Life:
    """A copy of the history's disk, whose power goes."""

    def __init__(self, history: History, expected: CleanKit) -> None:
        self.before = history.kit
        self.expected = expected
        self.kit = copy_of(history.kit)

    def run(self, random: Random, operations: int) -> None:
        cut = random.randrange(operations + 1)
        self.kit.disk.cut_power_after(cut)
        with suppress(PowerCut):
            self.kit.clean()
        self.kit.disk.crash()
        while random.random() < 0.3:
            self.kit.disk.cut_power_after(random.randrange(12))
            with suppress(PowerCut):
                self.kit.start()
            self.kit.disk.crash()
        self.kit.start()
        self.check()
        if random.random() < 0.7:
            return
        settle(self.kit)
        assert pairs(self.kit.log) == pairs(self.expected.log), "more passes end where undisturbed ones do"
        self.kit.restart()
        assert pairs(self.kit.log) == pairs(self.expected.log)
        assert producers(self.kit) == producers(self.before)

    def check(self) -> None:
        log, before = self.kit.log, self.before.log
        log.ensure_open()
        log.advance_high_watermark(log.log_end_offset)
        assert log.failure is None
        assert (log.log_start_offset, log.log_end_offset) == (before.log_start_offset, before.log_end_offset)
        assert log.last_stable_offset == before.last_stable_offset
        stored_batches(log)
        for segment in log._segments.all:
            assert_entries(log, segment)  # an index that was lost is built again, with fewer entries
        names = self.kit.disk.list(f"{DATA}/{TP}")
        assert not [name for name in names if name.endswith((".swap", ".cleaned"))]
        assert set(pairs(self.expected.log)) <= set(pairs(log)) <= set(pairs(before))
        assert committed_view(log) == committed_view(before)
        assert producers(self.kit) == producers(self.before)


def copy_of(kit: CleanKit) -> CleanKit:
    """The same disk after the death of the process."""
    twin = CleanKit.__new__(CleanKit)
    twin.clock, twin.config, twin.options = copy.copy(kit.clock), kit.config, kit.options
    kit.disk._now_ms = kit.disk._guard = None  # type: ignore[assignment]
    twin.disk = copy.deepcopy(kit.disk)
    kit.disk._now_ms, twin.disk._now_ms = kit.clock.wall_ms, twin.clock.wall_ms
    twin.disk.crash(power_cut=False)
    twin.start()
    twin.log.ensure_open()
    twin.log.advance_high_watermark(twin.log.log_end_offset)
    twin.log.flush()
    return twin


def settle(kit: CleanKit) -> None:
    """Clean until nothing more goes: a marker takes up to three passes, and few keys fit into one."""
    for _ in range(4):
        kit.log.cleaned_offset = 0
        while kit.clean():
            pass


def producers(kit: CleanKit) -> list[tuple[int, ...]]:
    return sorted((row.producer_id, row.producer_epoch, row.last_sequence) for row in kit.log.producers())


@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_power_cut_nothing_is_lost_and_nothing_comes_back(seed: int) -> None:
    history = History(seed)
    expected = copy_of(history.kit)
    before = expected.disk.operations
    expected.clean()
    operations = expected.disk.operations - before
    settle(expected)
    for cut in range(CUTS):
        try:
            Life(history, expected).run(Random(seed * 1000 + cut), operations)
        except Exception as error:
            error.add_note(f"cut {cut}; run it alone: TWOFOLD_SEED={seed} pytest {__file__}")
            raise


def test_every_operation_of_a_pass_is_interrupted_in_turn() -> None:
    for mode in CutMode:
        history = History(7)
        history.kit.disk.cut_mode = mode
        expected = copy_of(history.kit)
        before = expected.disk.operations
        expected.clean()
        operations = expected.disk.operations - before
        settle(expected)
        assert operations > 20

        class InTurn(Random):
            def __init__(self, cut: int) -> None:
                super().__init__(cut)
                self.cut = cut

            def randrange(self, *args: int) -> int:  # type: ignore[override]
                return self.cut if args == (operations + 1,) else super().randrange(*args)  # noqa: B023

        for cut in range(operations + 1):
            Life(history, expected).run(InTurn(cut), operations)


def test_the_pass_is_repeatable() -> None:
    """The same history gives the same bytes: the checks above compare copies."""
    first, second = (copy_of(History(3).kit) for _ in range(2))
    first.clean()
    asyncio.run(second.manager.cleaner.clean(second.log))
    assert stored_batches(first.log) == stored_batches(second.log)
    assert COMPACTED["cleanup_policy"] <= first.log.config.cleanup_policy
