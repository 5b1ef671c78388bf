"""Two-phase transactions on a whole broker: under random faults, one run for each seed, and with a power cut at every
single change of its disk.

`TWOFOLD_SEEDS=2000 pytest tests/sim -k two_phase_seed` runs many, `TWOFOLD_SEED=123 ...` one again. What is checked is
in `sim_two_phase_watch` (at every append) and, with the database for the truth, in `sim_txn_check` (at the end).
"""

import dataclasses
import os
from typing import Any

import pytest

from kits.wire.driver import NO_IDENTITY, Abortable, Identity
from kits.wire.two_phase import prepared_state
from sim.broker.watch import Violation
from sim.frame import points
from sim.transactions.clients import BOOTSTRAP
from sim.transactions.history import Outcome, Txn
from sim.transactions.stage import ID, Player, Stage, play
from sim.two_phase.plan import LAST_EPOCH, make_two_phase_plan
from sim.two_phase.world import Database, SimTwoPhaseDriver, TwoPhaseOutcome, simulate_two_phase

DEFAULT_SEEDS = 16
QUICK_SEEDS = 8

outcomes: list[TwoPhaseOutcome] = []


def seeds() -> list[int]:
    if "TWOFOLD_SEED" in os.environ:
        return [int(os.environ["TWOFOLD_SEED"])]
    return list(range(int(os.environ.get("TWOFOLD_SEEDS", DEFAULT_SEEDS))))


@pytest.mark.parametrize(
    "two_phase_seed",
    [pytest.param(seed, marks=[pytest.mark.slow] * (at >= QUICK_SEEDS)) for at, seed in enumerate(seeds())],
)
def test_two_phase_seed(two_phase_seed: int) -> None:
    outcomes.append(simulate_two_phase(two_phase_seed))


def test_the_same_seed_gives_the_same_two_phase_run() -> None:
    first = [simulate_two_phase(seed) for seed in (2, 3)]
    again = [simulate_two_phase(seed) for seed in (3, 2)]
    assert first == again[::-1]
    assert first[0].digest != first[1].digest


@pytest.mark.slow
def test_the_two_phase_runs_are_worth_their_time() -> None:
    """Seeds in which nothing happens would pass whatever the broker did."""
    while len(outcomes) < 12:
        outcomes.append(simulate_two_phase(1000 + len(outcomes)))
    number = len(outcomes)
    assert sum(outcome.prepared for outcome in outcomes) > 8 * number
    assert sum(outcome.recovered for outcome in outcomes) > 2 * number
    assert sum(outcome.deaths for outcome in outcomes) > 4 * number
    assert sum(outcome.committed for outcome in outcomes) > 4 * number
    assert sum(outcome.aborted for outcome in outcomes) > 4 * number
    assert sum(outcome.starts for outcome in outcomes) > 2 * number
    assert sum(outcome.decided for outcome in outcomes) > 8 * number, "by the database, and checked when it happened"
    assert sum(outcome.remembered for outcome in outcomes) > 8 * number
    assert any(outcome.repeated for outcome in outcomes), "requests that come twice"
    assert any(outcome.rotated > 1 for outcome in outcomes), "epochs that ran out"


def test_recoveries_in_a_loop_pass_the_epoch_limit_and_change_nothing() -> None:
    """Every instance dies while it recovers, until the last one is left alone."""
    for seed in range(3):
        plan = make_two_phase_plan(seed)
        apps = tuple(dataclasses.replace(app, dies=0.6, vows=True) for app in plan.writers)
        faults = ("kill", "power", "clock")
        outcome = simulate_two_phase(
            seed, dataclasses.replace(plan, writers=apps, faults=faults, first_epoch=LAST_EPOCH - 1)
        )
        assert outcome.deaths > 3
        assert outcome.rotated > 1


def test_a_broker_that_decides_by_itself_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exemption from timeouts is taken away: the watch must see it."""
    from twofold.coordinator.transaction.coordinator import Coordinator

    monkeypatch.setattr(Coordinator, "is_timed_out", lambda self, entry, age_ms: age_ms > 300)
    found = ""
    for seed in range(12):
        plan = dataclasses.replace(make_two_phase_plan(seed), faults=("clock", "client kill"), duration_s=2.0)
        try:
            simulate_two_phase(seed, plan)
        except Violation as violation:
            found = str(violation)
            break
    assert "nobody asked" in found or "the outside says" in found


# One story, and a power cut at every change of the disk


class Keeper(Player):
    """An instance of an application with a database, which does what the story says."""

    _driver: SimTwoPhaseDriver

    def vow(self) -> None:
        self._driver = SimTwoPhaseDriver(
            self._runtime,
            BOOTSTRAP,
            self.plan.transactional_id,
            patience_ms=4000,
            request_timeout_ms=500,
            client_id=self.instance,
        )

    async def recover(self, database: Database, known: dict[Identity, Txn]) -> int:
        """Ends what it finds as the database says; returns who may write to the database now."""
        found = Identity(*await self._insist(self._driver.recover))
        self._given()
        owner, state = database.take_over(ID)
        if found != NO_IDENTITY:
            await self.finish(known[found], commit=state == prepared_state(found))
        return owner

    async def prepare(self, known: dict[Identity, Txn]) -> Txn:
        while True:
            txn = self.begin()
            known[Identity(*txn.identity)] = txn
            try:
                await self.write(txn)
            except Abortable:
                await self._insist(self._driver.abort)
                txn.told = Outcome.ABORTED
                self._given()
                continue
            return txn

    async def finish(self, txn: Txn, *, commit: bool) -> None:
        await self._insist(lambda: self._driver.finish(commit))
        self._scene.watch.check_told(txn.identity, True, commit)
        txn.told = Outcome.COMMITTED if commit else Outcome.ABORTED
        txn.ended_s = self._scene.now_s
        self._given()


def keeper(stage: Stage, node: str) -> Keeper:
    player = stage.player(node)
    player.__class__ = Keeper
    assert isinstance(player, Keeper)
    player.vow()
    return player


async def two_recoveries(stage: Stage) -> None:
    """One instance prepares and dies; the next one commits for it, prepares, and dies; the last one aborts that."""
    database = Database()
    known: dict[Any, Any] = {}
    first = keeper(stage, "first")
    owner = await first.recover(database, known)
    txn = await first.prepare(known)
    assert database.commit(ID, owner, prepared_state(Identity(*txn.identity)), txn.label)
    txn.commit_sent_s = stage.now_s
    second = keeper(stage, "second")
    await second.recover(database, known)
    assert txn.told is Outcome.COMMITTED
    undecided = await second.prepare(known)
    third = keeper(stage, "third")
    owner = await third.recover(database, known)
    assert undecided.told is Outcome.ABORTED
    last = await third.prepare(known)
    assert database.commit(ID, owner, prepared_state(Identity(*last.identity)), last.label)
    last.commit_sent_s = stage.now_s
    await third.finish(last, commit=True)


def crash_everywhere(share: int, *, power_cut: bool, again: bool = False) -> int:
    """How many changes there were; the last run is the one that it survived."""
    for operations in points(share, 3):
        crashes = 0

        async def told(stage: Stage, operations: int = operations) -> None:
            nonlocal crashes
            before = stage.sim.disk("broker").crashes
            stage.crash_after(operations, power_cut=power_cut)
            if again:
                # Once more while it recovers, a little later each time.
                stage.on_started = lambda: stage.crash_after(operations % 11, power_cut=power_cut)
            await two_recoveries(stage)
            crashes = stage.sim.disk("broker").crashes - before

        play(told, seed=operations, settings={"transaction.two.phase.commit.enable": "true"})
        if not crashes:
            return operations
    raise AssertionError("unreachable")


@pytest.mark.slow
def test_a_power_cut_at_any_change_of_the_disk_and_the_outside_decides() -> None:
    """Nothing is flushed by any setting: what is vowed is on disk for its own sake."""
    assert crash_everywhere(0, power_cut=True) > 40


@pytest.mark.slow
def test_a_kill_at_any_change_of_the_disk_and_the_outside_decides() -> None:
    assert crash_everywhere(1, power_cut=False) > 40


@pytest.mark.slow
def test_a_power_cut_at_any_change_of_the_disk_and_again_while_it_recovers() -> None:
    assert crash_everywhere(2, power_cut=True, again=True) > 40
