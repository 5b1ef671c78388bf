"""Transactions on a whole broker under random faults, one run for each seed.

`TWOFOLD_SEEDS=2000 pytest tests/sim -k txn_seed` runs many, `TWOFOLD_SEED=123 ...` one again. What is checked is in
`sim_txn_watch` (at every append and every load), `sim_txn_check` and `sim_txn_cycles` (at the end).
"""

import os

import pytest

from sim.transactions.world import TxnOutcome, simulate_txn

DEFAULT_SEEDS = 30
QUICK_SEEDS = 8

outcomes: list[TxnOutcome] = []


def seeds() -> list[int]:
    if "TWOFOLD_SEED" in os.environ:
        return [int(os.environ["TWOFOLD_SEED"])]
    return list(range(int(os.environ.get("TWOFOLD_SEEDS", DEFAULT_SEEDS))))


@pytest.mark.parametrize(
    "txn_seed",
    [pytest.param(seed, marks=[pytest.mark.slow] * (at >= QUICK_SEEDS)) for at, seed in enumerate(seeds())],
)
def test_txn_seed(txn_seed: int) -> None:
    outcomes.append(simulate_txn(txn_seed))


def test_the_same_seed_gives_the_same_run_of_transactions() -> None:
    first = [simulate_txn(seed) for seed in (4, 10)]
    again = [simulate_txn(seed) for seed in (10, 4)]
    assert first == again[::-1]
    assert first[0].digest != first[1].digest


@pytest.mark.slow
def test_the_runs_of_transactions_are_worth_their_time() -> None:
    """Seeds in which nothing happens would pass whatever the broker did."""
    while len(outcomes) < 12:
        outcomes.append(simulate_txn(1000 + len(outcomes)))
    count = len(outcomes)
    assert sum(outcome.starts for outcome in outcomes) > 2 * count
    assert sum(outcome.committed for outcome in outcomes) > 20 * count
    assert sum(outcome.aborted for outcome in outcomes) > 5 * count
    assert sum(outcome.read for outcome in outcomes) > 100 * count
    assert sum(outcome.copied for outcome in outcomes) > 10 * count
    assert sum(outcome.offset_reads for outcome in outcomes) > 10 * count
    assert any(outcome.fenced for outcome in outcomes), "two who fight for an id"
    assert any(outcome.repeated for outcome in outcomes), "requests that come twice"
    if count >= DEFAULT_SEEDS:
        assert sum(outcome.unknown > 0 for outcome in outcomes) > count / 20, "those who do not know how it ended"
