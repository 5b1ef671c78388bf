"""A consumer group on a whole broker under random faults, one run for each seed.

`TWOFOLD_SEEDS=2000 pytest tests/sim -k group_seed` runs many, `TWOFOLD_SEED=123 ...` one again. What is checked is in
`sim_group_check` (whenever somebody is told something) and `sim_groups` (at the end).
"""

import os
from dataclasses import replace

import pytest

from sim.broker.watch import Violation
from sim.groups.world import GroupOutcome, make_group_plan, simulate_group
from twofold.coordinator.group.classic import ClassicGroup
from twofold.coordinator.group.offsets import Offsets

DEFAULT_SEEDS = 20
QUICK_SEEDS = 8

outcomes: list[GroupOutcome] = []


def seeds() -> list[int]:
    if "TWOFOLD_SEED" in os.environ:
        return [int(os.environ["TWOFOLD_SEED"])]
    return list(range(int(os.environ.get("TWOFOLD_SEEDS", DEFAULT_SEEDS))))


@pytest.mark.parametrize(
    "group_seed",
    [pytest.param(seed, marks=[pytest.mark.slow] * (at >= QUICK_SEEDS)) for at, seed in enumerate(seeds())],
)
def test_group_seed(group_seed: int) -> None:
    outcomes.append(simulate_group(group_seed))


def test_the_same_seed_gives_the_same_run_of_a_group() -> None:
    first = [simulate_group(seed) for seed in (2, 7)]
    again = [simulate_group(seed) for seed in (7, 2)]
    assert first == again[::-1]
    assert first[0].digest != first[1].digest


def test_clocks_that_jump_start_no_rebalance() -> None:
    for seed in range(3):
        plan = make_group_plan(seed)
        members = tuple(replace(member, rejoins_when_cut_off=False) for member in plan.members)
        settings = plan.settings | {"group.initial.rebalance.delay.ms": "300"}
        outcome = simulate_group(seed, replace(plan, faults=("clock",), members=members, settings=settings, late=0))
        assert (outcome.generations, outcome.expired) == (1, 0)


@pytest.mark.slow
def test_the_runs_of_groups_are_worth_their_time() -> None:
    while len(outcomes) < 12:
        outcomes.append(simulate_group(1000 + len(outcomes)))
    count = len(outcomes)
    assert sum(outcome.loads for outcome in outcomes) > 4 * count
    assert sum(outcome.generations for outcome in outcomes) > 2 * count
    assert sum(outcome.acknowledged for outcome in outcomes) > 100 * count
    assert sum(outcome.reads for outcome in outcomes) > 10 * count
    assert sum(outcome.expired > 0 for outcome in outcomes) > count / 20, "sessions that end"


def found() -> str:
    for seed in range(5000, 5030):
        plan = make_group_plan(seed)
        try:
            simulate_group(seed, replace(plan, faults=("partition", "delay", "client kill")))
        except Violation as violation:
            if not any(f"TWOFOLD_SEED={seed} " in note for note in violation.__notes__):
                raise  # nobody is told how to see it again
            return str(violation)
    raise AssertionError("nothing was noticed in 30 seeds")


@pytest.mark.slow
def test_a_coordinator_that_takes_commits_of_old_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Offsets, "_check", lambda *args, **options: None)
    text = found()
    assert "was accepted after" in text or "was committed" in text


@pytest.mark.slow
def test_a_coordinator_that_begins_its_generations_again(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ClassicGroup.next_generation

    def next_generation(self: ClassicGroup, now_ms: int) -> None:
        original(self, now_ms)
        self.generation = 1 + self.generation % 2

    monkeypatch.setattr(ClassicGroup, "next_generation", next_generation)
    assert "generation" in found()
