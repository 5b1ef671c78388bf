"""Short stories of transactions in which the broker dies at every single change of its disk, one after the other.

Whatever it had done by then, it comes back, the clients go on as they would, and at the end everything that was told is
true. What is watched and checked is what the seeds of `test_sim_transactions` are checked for.
"""

from collections.abc import Awaitable, Callable

import pytest

from kits.wire.driver import TV1, TV2, Fenced, Versions
from sim.frame import points
from sim.transactions.history import Outcome
from sim.transactions.stage import Stage, play
from twofold.coordinator.transaction.states import State

pytestmark = pytest.mark.slow

Story = Callable[[Stage, Versions], Awaitable[None]]
SYNCED = {"log.flush.interval.messages": "1"}
TIMEOUT_MS = 300


async def commit(stage: Stage, versions: Versions) -> None:
    player = stage.player(versions=versions)
    await player.init()
    await player.insist()
    await player.insist()


async def abort(stage: Stage, versions: Versions) -> None:
    player = stage.player(versions=versions)
    await player.init()
    await player.insist(commit=False)
    await player.insist()


async def fence(stage: Stage, versions: Versions) -> None:
    """A second instance takes the id over in the middle of the first one's transaction."""
    first, second = stage.player("first", versions=versions), stage.player("second", versions=versions)
    await first.init()
    txn = first.begin()
    await first.write(txn)
    await second.init()
    await second.insist()
    with pytest.raises(Fenced):
        await first.end(txn)
    txn.told = Outcome.ABORTED  # whatever became of an answer: it asked after it was fenced
    await second.insist()


async def timeout(stage: Stage, versions: Versions) -> None:
    player = stage.player(versions=versions, timeout_ms=TIMEOUT_MS)
    await player.init()
    txn = player.begin()
    await player.write(txn)
    await stage.until(lambda: stage.state_of() is State.COMPLETE_ABORT, "the timeout")
    if versions is TV2:
        assert not await player.end(txn, commit=False), "its own abort is taken for a retry"
    else:
        with pytest.raises(Fenced):
            await player.end(txn)
        await player.init()
    await player.insist()


def crash_everywhere(story: Story, versions: Versions, *, power_cut: bool, again: bool = False) -> int:
    """How many changes there were; the last run is the one that it survived."""
    for operations in points([TV1, TV2].index(versions), 2):
        crashes = 0

        async def told(stage: Stage, operations: int = operations) -> None:
            nonlocal crashes
            before = stage.sim.disk("broker").crashes
            stage.crash_after(operations, power_cut=power_cut)
            if again:
                # Once more while it recovers, a little later each time.
                stage.on_started = lambda: stage.crash_after(operations % 11, power_cut=power_cut)
            await story(stage, versions)
            crashes = stage.sim.disk("broker").crashes - before

        play(told, seed=operations, settings=SYNCED if power_cut else {})
        if not crashes:
            return operations
    raise AssertionError("unreachable")


@pytest.mark.parametrize("versions", [TV1, TV2], ids=["tv1", "tv2"])
@pytest.mark.parametrize("story", [commit, abort, fence, timeout])
def test_a_broker_that_is_killed_at_any_write(story: Story, versions: Versions) -> None:
    assert crash_everywhere(story, versions, power_cut=False) > 10


@pytest.mark.parametrize("story", [commit, abort, fence, timeout])
def test_a_broker_that_is_killed_at_any_write_and_again_while_it_recovers(story: Story) -> None:
    assert crash_everywhere(story, TV2, power_cut=False, again=True) > 10


@pytest.mark.parametrize("versions", [TV1, TV2], ids=["tv1", "tv2"])
@pytest.mark.parametrize("story", [commit, fence])
def test_a_machine_without_power_at_any_change_of_its_disk(story: Story, versions: Versions) -> None:
    assert crash_everywhere(story, versions, power_cut=True) > 20
