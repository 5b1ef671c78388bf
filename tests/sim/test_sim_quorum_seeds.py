"""Controllers under random requests and faults, one run for each seed.

`TWOFOLD_SEEDS=2000 pytest tests/sim -k metadata_seed` runs many, `TWOFOLD_SEED=123 ...` one again; `make sim` runs them
on all cores.
"""

import dataclasses
import os

import pytest

from sim.metadata.plan import FILES, QUORUM, make_metadata_plan
from sim.metadata.world import MetadataOutcome, simulate_metadata
from sim.worlds import KINDS, changed, parts

pytestmark = pytest.mark.slow  # it enumerates

DEFAULT_SEEDS = 30
QUICK_SEEDS = 12

outcomes: list[MetadataOutcome] = []


def seeds() -> list[int]:
    if "TWOFOLD_SEED" in os.environ:
        return [int(os.environ["TWOFOLD_SEED"])]
    return list(range(int(os.environ.get("TWOFOLD_SEEDS", DEFAULT_SEEDS))))


@pytest.mark.parametrize(
    "metadata_seed",
    [pytest.param(seed, marks=[pytest.mark.slow] * (at >= QUICK_SEEDS)) for at, seed in enumerate(seeds())],
)
def test_metadata_seed(metadata_seed: int) -> None:
    outcomes.append(simulate_metadata(metadata_seed))


def test_the_same_seed_gives_the_same_metadata_run() -> None:
    by_variant = {make_metadata_plan(seed).variant: seed for seed in range(12)}
    assert set(by_variant) == {QUORUM, FILES}
    first = [simulate_metadata(seed) for seed in by_variant.values()]
    assert first == [simulate_metadata(seed) for seed in by_variant.values()]
    assert len({outcome.digest for outcome in first}) == 2


def test_the_metadata_runs_are_worth_their_time() -> None:
    """Seeds in which nothing happens would pass whatever a controller did."""
    while len(outcomes) < 12:
        outcomes.append(simulate_metadata(1000 + len(outcomes)))
    number = len(outcomes)
    assert sum(outcome.answered for outcome in outcomes) > 20 * number
    assert sum(outcome.refused for outcome in outcomes) > number
    assert sum(outcome.transactions for outcome in outcomes) > 10 * number
    assert sum(outcome.failovers for outcome in outcomes) > number / 2
    assert sum(outcome.moves for outcome in outcomes) > 2 * number
    assert sum(outcome.lost for outcome in outcomes) > number
    assert any(outcome.aborted > outcome.failovers for outcome in outcomes), "a leader that aborts its own"
    assert {outcome.variant for outcome in outcomes} == {QUORUM, FILES}


def test_a_metadata_plan_can_be_made_smaller() -> None:
    assert KINDS["metadata"].share / sum(kind.share for kind in KINDS.values()) >= 0.1, "1,000 of 10,000 seeds"
    plan = make_metadata_plan(1)
    assert {"admins", "brokers", "faults", "duration_s"} <= set(parts(plan))
    smaller = changed(plan, ("admins=0", "brokers=0", "faults=", "duration_s=0.1"))
    assert smaller == dataclasses.replace(
        plan, admins=plan.admins[:1], brokers=plan.brokers[:1], faults=(), duration_s=0.1
    )
    simulate_metadata(1, smaller)
