"""What a controller writes first, whatever its predecessor left: every row of the table in `activation.py`."""

import pytest

from kits.metadata.controller import fold
from twofold.controller.activation import activate, activation_problem
from twofold.controller.features import initial_levels
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    Config,
    EndTransaction,
    FeatureLevel,
    MetadataRecord,
    encode_all,
)
from twofold.metadata_log.errors import UnusableMetadata

MV, ELR = "metadata.version", "eligible.leader.replicas.version"
FAILOVER = AbortTransaction("Controller failover")
BOOTSTRAP = BeginTransaction("Bootstrap records")
X = Config(2, "a", "x", "1")


def formatted(level: int) -> list[MetadataRecord]:
    """As `kafka-storage.sh format` prepares a directory."""
    return [FeatureLevel(MV, level), FeatureLevel("group.version", 1)]


@pytest.mark.parametrize("level", [13, 17, 30])
def test_an_empty_log_gets_its_first_records_in_a_transaction(level: int):
    records = activate(fold([]), formatted(level)).records
    assert records == [BOOTSTRAP, *formatted(level), EndTransaction()]
    assert fold(records).image.features[MV] == level


def test_without_bootstrap_records_a_log_begins_with_the_levels_of_a_new_cluster():
    assert activate(fold([])).records == [BOOTSTRAP, *initial_levels(), EndTransaction()]


@pytest.mark.parametrize("level", [7, 12])
def test_an_empty_log_at_a_level_without_transactions_gets_one_batch(level: int):
    records = activate(fold([]), formatted(level)).records
    assert records == formatted(level)
    assert len(encode_all(records, 30)) == 2, "all of them can be written at their level"


@pytest.mark.parametrize("done", [0, 1, 2])
def test_half_a_bootstrap_is_aborted_and_begun_again(done: int):
    state = fold([BOOTSTRAP, *formatted(30)[:done]])
    records = activate(state, formatted(25)).records
    assert records == [FAILOVER, BOOTSTRAP, *formatted(25), EndTransaction()]
    assert fold(records, state).image.features[MV] == 25


def test_an_open_bootstrap_at_a_level_without_transactions_is_fatal():
    state = fold([BOOTSTRAP, FeatureLevel(MV, 30)])
    with pytest.raises(UnusableMetadata) as error:
        activate(state, formatted(12))
    for part in ("offset 0", "12 (3.6-IV0)", "13 (3.6-IV1)", "format"):
        assert part in str(error.value)
    assert activation_problem(state, formatted(12)) == str(error.value)


@pytest.mark.parametrize("level", [13, 30])
def test_an_open_transaction_is_aborted(level: int):
    state = fold([FeatureLevel(MV, level), BeginTransaction("x"), X])
    records = activate(state).records
    assert records == [FAILOVER]
    after = fold(records, state)
    assert after.transaction is None and not after.image.configs


@pytest.mark.parametrize("level", [7, 12])
def test_an_open_transaction_at_a_level_without_them_is_fatal(level: int):
    state = fold([FeatureLevel(MV, level), X, BeginTransaction("x"), X])
    with pytest.raises(UnusableMetadata, match=rf"offset 2 .* {level} \(3\..*let the software that wrote"):
        activate(state)


def test_the_level_that_counts_is_the_one_before_the_open_transaction():
    state = fold([FeatureLevel(MV, 12), BeginTransaction("x"), FeatureLevel(MV, 30)])
    assert activation_problem(state) is not None
    state = fold([FeatureLevel(MV, 30), BeginTransaction("x"), FeatureLevel(MV, 12)])
    assert activate(state).records == [FAILOVER]


@pytest.mark.parametrize("level", [7, 12, 13, 30])
def test_a_log_with_nothing_open_gets_nothing(level: int):
    assert activate(fold([FeatureLevel(MV, level)]), formatted(30)).records == []


@pytest.mark.parametrize("level", [23, 30])
def test_eligible_leader_replicas_come_with_a_cluster_wide_minimum_in_sync(level: int):
    bootstrap = [*formatted(level), FeatureLevel(ELR, 1)]
    minimum = Config(4, "", "min.insync.replicas", "2")
    records = activate(fold([]), bootstrap, min_insync_replicas=2).records
    assert records == [BOOTSTRAP, *bootstrap, minimum, EndTransaction()]
    off = [*formatted(level), FeatureLevel(ELR, 0)]
    assert minimum not in activate(fold([]), off, min_insync_replicas=2).records


def test_bootstrap_records_without_a_level_are_refused():
    problem = activation_problem(fold([]), [FeatureLevel("group.version", 1)])
    assert problem is not None and "name no metadata.version" in problem
