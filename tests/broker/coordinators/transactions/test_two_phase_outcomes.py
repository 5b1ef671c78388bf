"""How a two-phase transaction ended is told afterwards; a vow stays; and nobody vows below transaction.version 2."""

from typing import Any

import pytest

from kits.node.two_phase_node import NONE, Given, TwoPhaseNode, exact, two_phase
from kits.node.txn_node import Pair
from twofold.config.internal_topics import TRANSACTION_STATE
from twofold.coordinator.transaction.records import NEVER_MS
from twofold.types import Ending
from twofold.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

HOUR_S = 3_600
VERBS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
UNSUPPORTED_VERSION, INVALID_UPDATE_VERSION, COORDINATOR_NOT_AVAILABLE = 35, 95, 15


def bumped(pair: Pair, by: int = 1) -> Pair:
    return pair[0], pair[1] + by


async def told(node: TwoPhaseNode, name: str = "x") -> tuple[Pair, int]:
    row = await node.describe(name)
    return (row["last_two_phase_producer_id"], row["last_two_phase_epoch"]), row["last_two_phase_ending"]


# --- how it ended ---


@VERBS
@two_phase()
async def test_how_it_ended_is_told_through_inits_restarts_and_other_transactions(
    node: TwoPhaseNode, commit: bool
) -> None:
    pair = await node.prepared()
    assert await told(node) == (NONE, 0), "it is not decided"
    given = await node.keep()
    assert await told(node) == (NONE, 0)
    await node.end(given.pair, commit, version=5)
    expected = (pair, Ending.COMMITTED if commit else Ending.ABORTED)
    assert await told(node) == expected
    await node.settled()
    for step in (node.keep, node.kill, node.vow, node.cut_power, lambda: node.vow(two_phase=False)):
        last = await step()
        assert await told(node) == expected
    assert isinstance(last, Given)
    assert await node.produce(last.pair, version=12) == 0
    assert await told(node) == expected
    await node.end(last.pair, version=5)
    await node.settled()
    assert await told(node) == expected, "that one was no two-phase transaction"


@two_phase()
async def test_a_transaction_terminated_by_force_has_that_as_its_cause(node: TwoPhaseNode) -> None:
    for keeps in (False, True):
        pair = await node.prepared()
        if keeps:
            await node.keep()
        await node.vow(two_phase=False)
        assert await told(node) == (pair, Ending.TERMINATED)
        await node.kill()
        assert await told(node) == (pair, Ending.TERMINATED)


@two_phase()
async def test_only_the_last_one_is_told(node: TwoPhaseNode) -> None:
    first = await node.prepared()
    await node.end(first, version=5)
    await node.settled()
    second = await node.prepared()
    assert await told(node) == (first, Ending.COMMITTED)
    await node.end(second, False, version=5)
    assert await told(node) == (second, Ending.ABORTED)


@two_phase()
async def test_how_it_ended_outlives_compaction_and_goes_with_the_id(node: TwoPhaseNode) -> None:
    pair = await node.prepared()
    await node.end(pair, version=5)
    await node.settled()
    await node.vow(two_phase=False)
    log = node.log(TRANSACTION_STATE, node.shard().index)
    before = log.size_bytes
    log.roll()
    assert await node.broker.logs.cleaner.clean(log)
    assert log.size_bytes < before / 3, "the last record is left"
    await node.kill()
    assert await told(node) == (pair, Ending.COMMITTED)
    node.jump(8 * 24 * HOUR_S * 1000)
    await node.sleep(3 * HOUR_S)
    assert await node.state() == 105


# --- the vow ---


@exact(transaction_abort_timed_out_transaction_cleanup_interval_ms=1000)
async def test_keeping_never_takes_a_vow_away_also_over_a_restart(node: TwoPhaseNode) -> None:
    pair = await node.prepared()
    await node.sleep(HOUR_S)
    given = await node.keep(two_phase=False, timeout=30_000)
    assert given == Given(bumped(pair), pair)
    await node.sleep(HOUR_S)
    await node.cut_power()
    await node.sleep(HOUR_S)
    assert await node.state() == "Ongoing"
    assert (await node.describe())["transaction_timeout"] == NEVER_MS
    fresh = await node.end(given.pair, version=5)
    assert await node.settled() == "CompleteCommit"
    assert (await node.describe())["transaction_timeout"] == 30_000, "from now on the new producer's own"
    assert await node.produce(fresh, version=12) == 0
    await node.sleep(35)
    assert await node.settled() == "CompleteAbort"


@exact(transaction_abort_timed_out_transaction_cleanup_interval_ms=1000)
async def test_the_vow_can_be_taken_later_and_is_not_taken_back_by_keeping(node: TwoPhaseNode) -> None:
    pair = (await node.vow(two_phase=False, timeout=30_000)).pair
    assert await node.produce(pair, version=12) == 0
    assert await node.keep() == Given(bumped(pair), pair)
    assert node.entry().timeout_ms == NEVER_MS
    await node.sleep(HOUR_S)
    assert await node.state() == "Ongoing"
    assert await node.keep(two_phase=False, timeout=30_000) == Given(bumped(pair, 2), pair)
    await node.sleep(HOUR_S)
    assert await node.state() == "Ongoing"
    await node.vow(two_phase=False, timeout=30_000)
    assert await told(node) == (pair, Ending.TERMINATED), "only who ends it by force takes it back"


@exact(transaction_heartbeat_enable="true")
async def test_silence_does_not_end_what_a_producer_with_heartbeats_keeps(node: TwoPhaseNode) -> None:
    pair = await node.prepared()
    given = await node.vow7("x", 60_000, 1_000, two_phase=False, keep=True)
    assert given == Given(bumped(pair), pair)
    await node.sleep(60)
    assert await node.state() == "Ongoing"
    fresh = await node.end(given.pair, version=5)
    await node.settled()
    assert await node.produce(fresh, version=12) == 0
    await node.sleep(10)
    assert await node.settled() == "CompleteAbort", "the next one has the heartbeats"


# --- transaction.version ---


async def lower(node: TwoPhaseNode, level: int = 1, **more: Any) -> tuple[int, str]:
    rows = [{"feature": "transaction.version", "max_version_level": level, "upgrade_type": 3}]
    answer = await node.ask("UpdateFeatures", 1, feature_updates=rows, **{"validate_only": False, **more})
    return answer["error_code"], answer["error_message"] or ""


async def as_before(node: TwoPhaseNode, level: int = 1) -> None:
    """What an earlier version allowed: the cluster goes down although a two-phase transaction is open."""
    update = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=3)
    await node.broker.controller.update_features(UpdateFeaturesRequest(feature_updates=[update]))


@pytest.mark.parametrize("level", [0, 1])
@two_phase()
async def test_two_phase_commit_is_refused_below_transaction_version_2(node: TwoPhaseNode, level: int) -> None:
    vowed = (await node.vow("before")).pair
    assert await lower(node, level) == (0, "")
    assert await node.vow() == await node.keep() == UNSUPPORTED_VERSION
    assert await node.state() == 105, "nothing was written"
    assert await node.add(vowed, 0, name="before") == [UNSUPPORTED_VERSION], "nor does an id begin that vowed before"
    assert isinstance(await node.vow(two_phase=False), Given)


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("keeps", [False, True])
@two_phase()
async def test_the_feature_does_not_go_down_while_a_two_phase_transaction_is_open(
    node: TwoPhaseNode, level: int, keeps: bool
) -> None:
    pair = await node.prepared()
    other = await node.prepared("another")
    if keeps:
        pair = (await node.keep()).pair
    for validate_only in (True, False):
        code, message = await lower(node, level, validate_only=validate_only)
        assert code == INVALID_UPDATE_VERSION
        assert "2 two-phase transactions are open, 'another'" in message and "txn list --two-phase" in message
    assert await lower(node, 2) == (0, ""), "where it is, it may stay"
    await node.end(other, version=5, name="another")
    assert "a two-phase transaction is open, 'x'" in (await lower(node, level))[1]
    await node.kill()
    assert (await lower(node, level))[0] == INVALID_UPDATE_VERSION
    await node.end(pair, version=5)
    assert await lower(node, level) == (0, ""), "decided is enough"


@exact()
async def test_no_two_phase_transaction_begins_while_the_feature_goes_down(node: TwoPhaseNode) -> None:
    vowed = (await node.vow("vowed")).pair
    lowering = node.send(
        "UpdateFeatures",
        1,
        feature_updates=[{"feature": "transaction.version", "max_version_level": 1, "upgrade_type": 3}],
        validate_only=False,
    )
    while not node.broker.transactions._going_down:
        await node.sleep(0)
    assert not lowering.is_answered()
    assert await node.add(vowed, 0, name="vowed") == [COORDINATOR_NOT_AVAILABLE], "which a client repeats"
    assert await node.vow("new") == COORDINATOR_NOT_AVAILABLE
    assert (await lowering())["error_code"] == 0
    assert await node.add(vowed, 0, name="vowed") == [UNSUPPORTED_VERSION]


@VERBS
@exact()
async def test_what_was_opened_before_the_cluster_went_back_can_still_be_ended(
    node: TwoPhaseNode, commit: bool
) -> None:
    pair = await node.prepared(offset=7)
    given = await node.keep()
    await as_before(node)
    await node.cut_power()
    assert await node.state() == "Ongoing"
    assert node.identities() == (pair, given.pair)
    assert await node.keep() == UNSUPPORTED_VERSION
    assert await node.end(given.pair, commit, version=5) == bumped(given.pair)
    assert await node.settled() == ("CompleteCommit" if commit else "CompleteAbort")
    assert await node.offset() == (7 if commit else -1)
    assert await told(node) == (pair, Ending.COMMITTED if commit else Ending.ABORTED)
