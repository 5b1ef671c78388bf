"""What the clock does to transactions and to unused ids, and what a client is told that comes too late."""

import pytest

from kits.coordinator.transactions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    CONCURRENT_TRANSACTIONS,
    DAY_MS,
    EMPTY,
    INVALID_PRODUCER_ID_MAPPING,
    MAX,
    NEVER,
    NOW,
    OK,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PRODUCER_FENCED,
    RECORDED_STATES,
    TIMEOUT_MS,
    P,
    World,
    a_transaction,
    a_world_in,
    ids_from,
    partitions,
)
from twofold.coordinator.transaction.coordinator import Coordinator, TransactionConfig
from twofold.coordinator.transaction.states import EXPIRABLE, RefusedTransition

NAME = lambda state: state.wire_name  # noqa: E731
TVS = pytest.mark.parametrize("tv", [1, 2], ids=["TV1", "TV2"])
COORDINATOR = Coordinator(TransactionConfig(), ids_from(2000))


# --- the sweep (2.2) ---


@TVS
def test_timeout_abort(tv):
    world = a_world_in(ONGOING, tv)
    world.now_ms = NOW + TIMEOUT_MS
    assert not world.sweep(), "the last millisecond belongs to the transaction"
    world.now_ms += 1
    assert world.sweep()
    assert world.written[1:] == [PREPARE_ABORT]
    assert world.pair == (P, 6)


def test_timeout_pending_skipped():
    world = a_world_in(PREPARE_COMMIT)
    world.now_ms = NOW + 10 * TIMEOUT_MS
    assert not world.sweep()
    assert len(world.log) == 1


@TVS
def test_timeout_append_fails(tv):
    entry = a_transaction(ONGOING)
    values = [COORDINATOR.fence(entry, NOW + n, server_version=tv).value for n in range(5)]
    assert {value and value.producer_epoch for value in values} == {6}


def test_timeout_2pc_exempt():
    entry = a_transaction(ONGOING, timeout_ms=NEVER, start_ms=0)
    for age_ms in (0, NOW, 1 << 62):
        assert not COORDINATOR.is_timed_out(entry, age_ms)


@pytest.mark.parametrize("state", [state for state in RECORDED_STATES if state is not ONGOING], ids=NAME)
def test_only_open_transactions_time_out(state):
    entry = a_transaction(state, start_ms=NOW)
    assert not COORDINATOR.is_timed_out(entry, 1000 * DAY_MS)
    with pytest.raises(RefusedTransition):
        COORDINATOR.fence(entry, NOW, server_version=2)


def test_the_timeout_counts_from_the_first_partition():
    world = World()
    world.init()
    world.now_ms += 10 * TIMEOUT_MS
    assert world.add() == OK
    started_ms = world.now_ms
    world.now_ms += TIMEOUT_MS - 1
    assert world.add(of=partitions("t-1")) == OK
    world.now_ms = started_ms + TIMEOUT_MS + 1
    assert world.sweep()


def test_a_clock_that_goes_back_ends_nothing_and_breaks_nothing():
    world = a_world_in(ONGOING)
    world.now_ms = NOW - DAY_MS
    assert not world.sweep()
    assert world.commit() == (P, 6)
    world.complete()
    assert world.now.last_update_ms < world.now.start_ms


# --- the next call of a client whose transaction was aborted (2.2) ---


def timed_out(tv: int, epoch: int = 5) -> World:
    """Its client still holds (P, epoch)."""
    world = a_world_in(ONGOING, tv, epoch=epoch)
    world.time_out()
    world.complete()
    return world


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_after_a_timeout_end_txn_of_tv1_is_fenced(commit):
    assert timed_out(1).end(commit, P, 5, version=1) == PRODUCER_FENCED


def test_after_a_timeout_commit_of_tv2_is_fenced():
    assert timed_out(2).commit(P, 5) == PRODUCER_FENCED


def test_after_a_timeout_abort_of_tv2_gets_the_new_epoch():
    world = timed_out(2)
    for _ in range(2):
        assert world.abort(P, 5) == (P, 6)
    assert world.add(P, 6) == OK


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_while_a_timeout_is_being_carried_out_end_txn_of_tv2_is_told_to_come_back(commit):
    world = a_world_in(ONGOING)
    world.time_out()
    assert world.end(commit, P, 5) == CONCURRENT_TRANSACTIONS


@TVS
def test_after_a_timeout_adding_is_fenced(tv):
    assert timed_out(tv).add(P, 5) == PRODUCER_FENCED


@TVS
def test_after_a_timeout_verification_is_fenced(tv):
    """The partition turns this into INVALID_PRODUCER_EPOCH."""
    assert set(timed_out(tv).verify(P, 5, partitions("new-0")).values()) == {PRODUCER_FENCED}


def test_after_a_timeout_naming_the_old_epoch_is_fenced_tv1():
    assert timed_out(1).init(P, 5) == PRODUCER_FENCED


def test_after_a_timeout_naming_the_old_epoch_is_a_retry_tv2():
    world = timed_out(2)
    for _ in range(2):
        assert world.init(P, 5) == (P, 6), "without a further bump"
    rotated = timed_out(2, MAX)
    for _ in range(2):
        assert rotated.init(P, MAX) == (2000, 0)


@TVS
def test_after_a_timeout_init_gets_the_epoch_after_the_next(tv):
    assert timed_out(tv).init() == (P, 7)


@pytest.mark.parametrize(("client_version", "expected"), [(0, PRODUCER_FENCED), (2, (P, 6))], ids=["TV1", "TV2"])
def test_a_client_of_tv2_may_go_on_after_a_fence_by_a_server_that_was_set_back(client_version, expected):
    world = a_world_in(ONGOING, 1, client_version=client_version)
    world.time_out()
    world.complete()
    assert world.end(False, P, 5, version=1) == PRODUCER_FENCED
    assert world.end(False, P, 5, version=2) == expected


# --- expiry of ids (2.3) ---

WEEK_MS = 7 * DAY_MS


@pytest.mark.parametrize("state", RECORDED_STATES, ids=NAME)
def test_expire_ids(state):
    world = a_world_in(state)
    world.now_ms = NOW + WEEK_MS - 1
    assert not world.expire()
    world.now_ms += 1
    assert world.expire() is (state in EXPIRABLE)
    assert (world.entry is None) is (state in EXPIRABLE)


def test_expire_uninitialised():
    """An entry with epoch -1, which Kafka keeps after a failed first append, expires like any other; here a failed
    append leaves none behind."""
    assert COORDINATOR.is_expired(a_transaction(EMPTY, -1), NOW + WEEK_MS)


def test_the_time_of_expiry_is_a_setting():
    coordinator = Coordinator(TransactionConfig(id_expiration_ms=1000), ids_from(1))
    assert coordinator.is_expired(a_transaction(EMPTY), NOW + 1000)
    assert not coordinator.is_expired(a_transaction(EMPTY), NOW + 999)


def test_use_postpones_expiry_and_looking_does_not():
    world = World()
    world.init()
    updates = []
    for step in (
        world.add,  # written
        world.add,  # already there
        world.verify,
        world.commit,
        world.complete,
        world.init,
    ):
        world.now_ms += 10
        step()
        updates.append(world.now.last_update_ms - NOW)
    assert updates == [10, 10, 10, 40, 50, 60]


@TVS
def test_an_expired_id_starts_anew(tv):
    world = World(tv)
    world.init()
    world.transaction()
    old = world.pair
    world.now_ms += WEEK_MS
    assert world.expire()
    assert world.written[-1] is None
    assert world.add(*old) == INVALID_PRODUCER_ID_MAPPING
    assert world.commit(*old) == INVALID_PRODUCER_ID_MAPPING
    assert set(world.verify(*old).values()) == {INVALID_PRODUCER_ID_MAPPING}
    assert world.init(*old) == (P + 1, 0)


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT], ids=NAME)
def test_an_old_client_may_come_back_after_its_id_expired(state):
    world = a_world_in(state)
    world.now_ms += WEEK_MS
    assert world.expire()
    assert world.init(P, 5) == (2000, 0)
