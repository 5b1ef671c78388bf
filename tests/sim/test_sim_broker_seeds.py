"""A whole broker and its clients under random faults, one run for each seed.

`TWOFOLD_SEEDS=2000 pytest tests/sim -k broker_seed` runs many, `TWOFOLD_SEED=123 ...` one again. What is checked is in
`sim_watch` (at every append and every start) and `sim_check` (at the end).
"""

import pytest

from sim.broker.run import Outcome, simulate

outcomes: list[Outcome] = []


def test_broker_seed(broker_seed: int) -> None:
    outcomes.append(simulate(broker_seed))


def test_the_same_seed_gives_the_same_run_of_everything() -> None:
    first = [simulate(seed) for seed in (3, 7)]
    again = [simulate(seed) for seed in (7, 3)]
    assert first == again[::-1]
    assert first[0].digest != first[1].digest


@pytest.mark.slow
def test_the_runs_are_worth_their_time() -> None:
    """Seeds whose faults hit nothing would pass whatever the broker did."""
    while len(outcomes) < 20:
        outcomes.append(simulate(1000 + len(outcomes)))
    count = len(outcomes)
    assert sum(outcome.starts for outcome in outcomes) > 4 * count
    assert sum(outcome.acknowledged for outcome in outcomes) > 100 * count
    assert sum(outcome.read for outcome in outcomes) > 100 * count
    assert sum(outcome.lost > 0 for outcome in outcomes) > count / 20, "power cuts that take something"
    assert sum(bool(outcome.failed) for outcome in outcomes) > count / 20, "records that are given up"
