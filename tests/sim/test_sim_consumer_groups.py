"""Groups of the new protocol, and mixed ones, on a whole broker under random faults, one run for each seed.

`TWOFOLD_SEEDS=2000 pytest tests/sim -k consumer_group_seed` runs many, `TWOFOLD_SEED=123 ...` one again. What is
checked is in `consumer_groups.check` (at every write and answer) and `consumer_groups.world` (at the end).
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sim.broker.watch import Violation
from sim.consumer_groups.plan import MODERN, SeatPlan, make_consumer_group_plan
from sim.consumer_groups.world import ConsumerGroupOutcome, simulate_consumer_group
from twofold.coordinator.group import offsets
from twofold.coordinator.group.consumer import draft, reconciliation
from twofold.coordinator.group.consumer.groups import ConsumerGroups

DEFAULT_SEEDS = 20
QUICK_SEEDS = 8

outcomes: list[ConsumerGroupOutcome] = []


def seeds() -> list[int]:
    if "TWOFOLD_SEED" in os.environ:
        return [int(os.environ["TWOFOLD_SEED"])]
    return list(range(int(os.environ.get("TWOFOLD_SEEDS", DEFAULT_SEEDS))))


@pytest.mark.parametrize(
    "consumer_group_seed",
    [pytest.param(seed, marks=[pytest.mark.slow] * (at >= QUICK_SEEDS)) for at, seed in enumerate(seeds())],
)
def test_consumer_group_seed(consumer_group_seed: int) -> None:
    outcomes.append(simulate_consumer_group(consumer_group_seed))


def test_the_same_seed_gives_the_same_run_of_a_consumer_group() -> None:
    first = [simulate_consumer_group(seed) for seed in (2, 7)]
    again = [simulate_consumer_group(seed) for seed in (7, 2)]
    assert first == again[::-1]
    assert first[0].digest != first[1].digest


def test_clocks_that_jump_and_a_broker_that_restarts_move_no_partition() -> None:
    """No session and no revocation ends, and nothing is given to another member."""
    for seed in range(4):
        plan = make_consumer_group_plan(seed)
        calm: dict[str, Any] = {"protocol": MODERN, "rejoins_when_cut_off": False, "switches": False, "pattern": ""}
        members = tuple(replace(member, **calm) for member in plan.members if isinstance(member, SeatPlan))
        settings = plan.settings | {"group.consumer.assignment.interval.ms": "0"}
        faults = ("clock", "kill", "restart")
        before = simulate_consumer_group(seed, replace(plan, faults=(), members=members, settings=settings, late=0))
        after = simulate_consumer_group(seed, replace(plan, faults=faults, members=members, settings=settings, late=0))
        assert after.loads > before.loads
        assert after.ended == 0


@pytest.mark.slow
def test_the_runs_of_consumer_groups_are_worth_their_time() -> None:
    while len(outcomes) < 30:
        outcomes.append(simulate_consumer_group(1000 + len(outcomes)))
    count = len(outcomes)
    assert sum(outcome.loads for outcome in outcomes) > 4 * count
    assert sum(outcome.grants for outcome in outcomes) > 5 * count
    assert sum(outcome.looks for outcome in outcomes) > 20 * count
    assert sum(outcome.acknowledged for outcome in outcomes) > 100 * count
    assert sum(outcome.ended > 0 for outcome in outcomes) > count / 20, "sessions and revocations that end"
    assert sum(outcome.upgrades > 0 for outcome in outcomes) > count / 20
    assert sum(outcome.downgrades for outcome in outcomes) > 0


def found() -> str:
    for seed in range(5000, 5040):
        plan = make_consumer_group_plan(seed)
        faults = ("partition", "delay", "pause", "client kill", "kill")
        try:
            simulate_consumer_group(seed, replace(plan, faults=faults))
        except Violation as violation:
            if not any(f"TWOFOLD_SEED={seed} " in note for note in violation.__notes__):
                raise  # nobody is told how to see it again
            return str(violation)
    raise AssertionError("nothing was noticed in 40 seeds")


@pytest.mark.slow
def test_a_revocation_that_is_not_waited_for_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = reconciliation.step

    def step(current: Any, aim: Any) -> Any:
        return original(current._replace(pending={}) if current.pending else current, aim._replace(owned={}))

    monkeypatch.setattr(draft, "step", step)
    assert "the coordinator took it away" in found()


@pytest.mark.slow
def test_a_commit_of_an_old_owner_that_is_taken_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "check_commit", lambda *args, **options: None)
    text = found()
    assert "was accepted" in text or "was committed" in text


@pytest.mark.slow
def test_sessions_that_are_forgotten_at_a_restart_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., None] = ConsumerGroups.load

    def load(self: ConsumerGroups, state: Any, now: Any) -> None:
        original(self, state, now)
        self.deadlines.clear()

    monkeypatch.setattr(ConsumerGroups, "load", load)
    assert "not stable" in found()
