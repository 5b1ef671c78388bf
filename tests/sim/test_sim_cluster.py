"""Three brokers and a controller under random faults, one run for each seed.

`TWOFOLD_SEEDS=200 pytest tests/sim -k cluster_seed` runs many, `TWOFOLD_SEED=123 ...` one again. What must hold at
every step is in `sim.cluster.watch`, what must hold at the end in `sim.cluster.world`. Bugs that are planted in the
brokers and the controller, and found here, are in `tests/mutants`.
"""

import os

import pytest

from sim.cluster.run import ClusterOutcome, simulate_cluster

DEFAULT_SEEDS = 12
QUICK_SEEDS = 3

outcomes: list[ClusterOutcome] = []


def seeds() -> list[int]:
    if "TWOFOLD_SEED" in os.environ:
        return [int(os.environ["TWOFOLD_SEED"])]
    return list(range(int(os.environ.get("TWOFOLD_SEEDS", DEFAULT_SEEDS))))


@pytest.mark.parametrize(
    "cluster_seed",
    [pytest.param(seed, marks=[pytest.mark.slow] * (at >= QUICK_SEEDS)) for at, seed in enumerate(seeds())],
)
def test_cluster_seed(cluster_seed: int) -> None:
    outcomes.append(simulate_cluster(cluster_seed))


def test_the_same_seed_gives_the_same_run_of_a_cluster() -> None:
    assert simulate_cluster(3) == simulate_cluster(3)


@pytest.mark.slow
def test_the_seeds_have_seen_what_they_are_for() -> None:
    if "TWOFOLD_SEED" in os.environ or len(outcomes) < DEFAULT_SEEDS:
        pytest.skip("one seed alone was asked for")
    assert sum(outcome.acknowledged for outcome in outcomes) > 1000
    assert sum(outcome.elections for outcome in outcomes) > 10
    assert sum(outcome.isr_changes for outcome in outcomes) > 10
    assert sum(outcome.read for outcome in outcomes) > 0
