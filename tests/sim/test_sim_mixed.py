"""Everything at once on a whole broker under random faults, one run for each seed.

`TWOFOLD_SEEDS=2000 pytest tests/sim -k mixed_seed` runs many, `TWOFOLD_SEED=123 ...` one again; `make sim` runs them on
all cores. What is checked is what the other worlds check, and `sim_mixed_check`.
"""

import os

import pytest

from sim.broker.watch import Violation
from sim.mixed.check import check_deleted, check_trimmed
from sim.mixed.world import MixedOutcome, simulate_mixed
from sim.transactions.history import TABLE, History, Txn, Value
from sim.transactions.log import LogTruth
from twofold.records.batch import BatchBuilder
from twofold.types import TopicPartition

DEFAULT_SEEDS = 20
QUICK_SEEDS = 2
# A topic was deleted while a Produce for it waited for a sync: the answer failed, and the deletion with it.
FOUND_BEFORE = (1018,)
SHORT_0, TABLE_0, MORTAL_0 = TopicPartition("short", 0), TopicPartition(TABLE, 0), TopicPartition("mortal", 0)

outcomes: list[MixedOutcome] = []


def seeds() -> list[int]:
    if "TWOFOLD_SEED" in os.environ:
        return [int(os.environ["TWOFOLD_SEED"])]
    return [*range(int(os.environ.get("TWOFOLD_SEEDS", DEFAULT_SEEDS))), *FOUND_BEFORE]


@pytest.mark.parametrize(
    "mixed_seed",
    [pytest.param(seed, marks=[pytest.mark.slow] * (at >= QUICK_SEEDS)) for at, seed in enumerate(seeds())],
)
def test_mixed_seed(mixed_seed: int) -> None:
    outcomes.append(simulate_mixed(mixed_seed))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_mixed_run() -> None:
    first, again = simulate_mixed(2), simulate_mixed(2)
    assert first == again
    assert first.digest != simulate_mixed(3).digest


@pytest.mark.slow
def test_the_mixed_runs_are_worth_their_time() -> None:
    """Seeds in which nothing happens would pass whatever the broker did."""
    while len(outcomes) < 12:
        outcomes.append(simulate_mixed(1000 + len(outcomes)))
    count = len(outcomes)
    assert sum(outcome.starts for outcome in outcomes) > 2 * count
    assert sum(outcome.committed for outcome in outcomes) > 10 * count
    assert sum(outcome.aborted for outcome in outcomes) > 5 * count
    assert sum(outcome.prepared for outcome in outcomes) > 3 * count, "two-phase transactions"
    assert sum(outcome.copied for outcome in outcomes) > 5 * count
    assert sum(outcome.acknowledged for outcome in outcomes) > 50 * count
    assert sum(outcome.group_commits for outcome in outcomes) > 50 * count
    assert sum(outcome.deleted for outcome in outcomes) > count, "topics that are deleted under the feet of writers"
    assert sum(outcome.reached for outcome in outcomes) > count, "transactions that write to them"
    assert sum(outcome.expired for outcome in outcomes) > count, "ids that expire"
    assert sum(outcome.trimmed for outcome in outcomes) > 5 * count, "what retention and the cleaner take"
    assert sum(outcome.generations for outcome in outcomes) > 2 * count
    assert any(outcome.group_refused for outcome in outcomes), "commits that a generation refuses"
    assert any(outcome.altered for outcome in outcomes)


# The checkers of what only this world has


def batch(base_offset: int, *values: bytes) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.add(b"key", value, 0)
    data = bytearray(builder.build())
    data[:8] = base_offset.to_bytes(8, "big")
    return bytes(data)


def truth(tp: TopicPartition) -> LogTruth:
    log = LogTruth(tp)
    for number in range(6):
        log.write(-1, -1, [Value("w/1.0", number).encode()])
    return log


def stored(*numbers: int) -> list[bytes]:
    return [batch(number, Value("w/1.0", number).encode()) for number in numbers]


def test_retention_may_take_the_beginning_and_nothing_else() -> None:
    assert check_trimmed(truth(SHORT_0), stored(3, 4, 5)) == 3
    with pytest.raises(Violation, match="older ones are there"):
        check_trimmed(truth(SHORT_0), stored(2, 4, 5))


def test_the_cleaner_may_take_what_has_a_newer_record_and_nothing_else() -> None:
    assert check_trimmed(truth(TABLE_0), stored(3, 4, 5)) == 3  # three keys, each twice
    with pytest.raises(Violation, match="newest records of some keys are gone"):
        check_trimmed(truth(TABLE_0), stored(0, 1, 2, 3, 4))


def test_nothing_is_changed_or_moved_by_retention_or_the_cleaner() -> None:
    with pytest.raises(Violation, match="was appended there"):
        check_trimmed(truth(SHORT_0), [batch(4, Value("w/1.0", 5).encode())])


def deleted_and_made_again(*, commit: bool) -> tuple[History, LogTruth, dict[str, list[bytes]]]:
    txn = Txn("w/1.0", "w", "w/1", 0, identity=(7, 3))  # aborted: nobody asked for a commit
    log = LogTruth(MORTAL_0)
    value = Value(txn.label, 0).encode()
    log.write(7, 3, [value])
    log.mark(7, 4, commit)
    return History(txns=[txn]), log, {txn.label: [value]}


def test_what_is_in_a_topic_that_was_made_again_has_the_fate_of_its_transaction() -> None:
    history, log, written = deleted_and_made_again(commit=False)
    check_deleted(history, {MORTAL_0: log}, written)
    history, log, written = deleted_and_made_again(commit=True)
    with pytest.raises(Violation, match="torn"):
        check_deleted(history, {MORTAL_0: log}, written)


def test_a_topic_that_was_made_again_holds_nothing_that_is_open() -> None:
    history, log, written = deleted_and_made_again(commit=False)
    log.write(7, 5, [b"w/1.0|1|0|"])
    with pytest.raises(Violation, match="still open"):
        check_deleted(history, {MORTAL_0: log}, written)
