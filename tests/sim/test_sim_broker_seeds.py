"""A whole broker and its clients under random faults, one run for each seed.

`TWOFOLD_SEEDS=2000 pytest tests/sim -k broker_seed` runs many, `TWOFOLD_SEED=123 ...` one again. What is checked is in
`sim_watch` (at every append and every start) and `sim_check` (at the end).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sim.broker.run import Outcome, simulate

TESTS = Path(__file__).parent.parent
DIGEST = "import sys; from sim.broker.run import simulate; print(simulate(int(sys.argv[1])).digest)"


outcomes: list[Outcome] = []


def test_broker_seed(broker_seed: int) -> None:
    outcomes.append(simulate(broker_seed))


def test_the_same_seed_gives_the_same_run_of_everything() -> None:
    first = [simulate(seed) for seed in (3, 7)]
    again = [simulate(seed) for seed in (7, 3)]
    assert first == again[::-1]
    assert first[0].digest != first[1].digest


def test_the_same_seed_gives_the_same_run_in_another_process_with_other_hashes() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST, "4"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert digests == {simulate(4).digest}


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
