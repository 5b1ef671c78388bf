"""A controller on a simulated disk that dies after every record of its transactions, and in every disk operation.

Power cuts lose and tear what is not synced. What is checked is in `sim_quorum_files` (the log that the next life
reads), `sim_quorum_truth` (images) and `sim_quorum_requests` (answers, and whole or not at all).
"""

import asyncio
import gc
from itertools import count
from random import Random

import pytest

from sim.broker.world import ErrorLog
from sim.metadata.files import DATA, NODE, MetadataSimulation
from sim.metadata.plan import FILES, MetadataPlan
from sim.metadata.requests import Ask
from sim.metadata.stage import small_appends
from sim.metadata.world import FilesWorld
from twofold.log.recovery.rescue import has_sync_failed
from twofold.metadata_log.damage import TornTail, cut_tail
from twofold.runtime.sim import CutMode, SimDisk

pytestmark = pytest.mark.slow  # it enumerates


class Story(FilesWorld):
    """A broker and three topics, and then one request after the other while the controller dies once."""

    def __init__(self, seed: int, cut_mode: CutMode, records: int) -> None:
        plan = MetadataPlan(seed, 0.0, FILES, 1, records, ("power",), cut_mode, (), (), {})
        self.crashes = 0
        super().__init__(plan, MetadataSimulation(seed, cut_mode))
        self.draining = True  # nobody gives up

    async def tell(self, die_after: int, *, power_cut: bool, at_append: bool = False, again: bool = False) -> None:
        await self.start()
        await self._done(self.shelf.register(1, 1))
        await self._unfence()
        await self._done(self.shelf.create([2, 1, 2]))
        disk = self.sim.disk(NODE)
        before = disk.crashes
        if at_append:
            assert self.node.controller is not None
            self.node.controller.crash_in = die_after, power_cut
        else:
            self.sim.crash_after(NODE, die_after, power_cut=power_cut)

        def die_again() -> None:
            """Once more while it recovers, a little later each time."""
            self.node.on_started = lambda: None
            self.sim.crash_after(NODE, die_after % 13, power_cut=power_cut)

        if again:
            self.node.on_started = die_again
        shelf = self.shelf
        await self._done(shelf.create([2, 1]))
        await self._done(shelf.grow({"r1-0": 4, "r1-2": 4}))
        await self._done(shelf.alter(["r1-0", "r1-1", "r1-2"]))
        await self._done(shelf.delete(["r1-1", "r1-2"]))
        await asyncio.sleep(0.2)  # the session of the broker is over
        await self._done(shelf.register(1, 2))
        await self._unfence()
        self.crashes = disk.crashes - before
        disk.clear_faults()
        await self.finish()
        self.shelf.check_last(self.truth.image)

    async def _unfence(self) -> None:
        await self._done(self.shelf.beat(1, self.shelf.registered[1], self.truth.image.offset))

    async def _done(self, ask: Ask) -> None:
        await asyncio.wait_for(self.insist(ask, 1.0, 1), 30)
        self.check()


def die(
    after: int, *, power_cut: bool, mode: CutMode, records: int = 1, at_append: bool = False, again: bool = False
) -> Story:
    story = Story(after, mode, records)
    with story.sim, ErrorLog(story.plan) as errors, small_appends(records):
        story.sim.run(story.tell(after, power_cut=power_cut, at_append=at_append, again=again), timeout_s=600)
    if errors.unexpected:
        raise errors.unexpected[0]
    return story


@pytest.mark.parametrize(
    ("power_cut", "mode"),
    [(False, CutMode.ORDERED), (True, CutMode.ORDERED), (True, CutMode.REORDERED)],
    ids=["kill", "power cut", "power cut that reorders"],
)
def test_a_controller_that_dies_after_any_batch_of_its_transactions(power_cut: bool, mode: CutMode) -> None:
    """Batches of one record; right after the append, whatever of it is synced by then."""
    aborted = 0
    for after in count(1):
        story = die(after, power_cut=power_cut, mode=mode, at_append=True)
        aborted += sum(one.reason is not None for one in story.truth.transactions)
        if not story.crashes:
            break
    assert after > 25 and aborted >= (10 if not power_cut else 1)


@pytest.mark.parametrize("mode", CutMode, ids=lambda mode: mode.value)
def test_a_power_cut_at_any_change_of_the_disk(mode: CutMode) -> None:
    for after in count():
        if not die(after, power_cut=True, mode=mode).crashes:
            break
    assert after > 45


def test_a_kill_at_any_change_of_the_disk() -> None:
    for after in count():
        if not die(after, power_cut=False, mode=CutMode.ORDERED, records=2).crashes:
            break
    assert after > 40


@pytest.mark.slow
@pytest.mark.parametrize("mode", CutMode, ids=lambda mode: mode.value)
def test_a_power_cut_at_any_change_of_the_disk_and_again_while_it_recovers(mode: CutMode) -> None:
    for after in count():
        if not die(after, power_cut=True, mode=mode, again=True).crashes:
            break
    assert after > 45


def test_a_start_whose_first_sync_fails_leaves_nothing_behind_and_the_next_one_serves() -> None:
    """Nobody is told of the failure twice: what nobody fetches fails the run."""
    story = Story(1, CutMode.ORDERED, 1)
    story.node.disk_fails = True

    async def told() -> None:
        story.sim.disk(NODE).fail_syncs(1, match="00000.log")
        await story.start()
        await story._done(story.shelf.register(1, 1))

    with story.sim, small_appends(1):
        story.sim.run(told(), timeout_s=60)
        gc.collect()
        story.sim.run(asyncio.sleep(1))
        assert story.node.lives == 2


def test_a_torn_tail_that_cannot_be_synced_away_leaves_a_mark_that_its_file_is_not_to_be_trusted() -> None:
    """Otherwise the next start acknowledges on top of pages that the kernel takes for written: seed 583 once."""
    disk = SimDisk(Random(1))
    disk.make_dirs(DATA)
    path = f"{DATA}/{0:020d}.log"
    disk.open(path, create=True).write(0, b"whole, torn")
    disk.fail_syncs(1, match=".log", lose=True)
    with pytest.raises(OSError, match="Input/output"):
        cut_tail(disk, DATA, (0,), TornTail(path, 5, "torn"))
    assert has_sync_failed(disk, DATA)
