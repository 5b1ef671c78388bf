"""KIP-939: prepared transactions, their two identities, and who may end them."""

import pytest

from kits.coordinator.transactions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    CONCURRENT_TRANSACTIONS,
    EMPTY,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TXN_STATE,
    MAX,
    NEVER,
    NOW,
    OK,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PRODUCER_FENCED,
    RECORDED_STATES,
    T0,
    TIMEOUT_MS,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    TXN,
    UNSUPPORTED_VERSION,
    P,
    World,
    a_transaction,
    a_world_in,
    identity,
    ids_from,
    partitions,
)
from twofold.coordinator.transaction.coordinator import TransactionConfig
from twofold.coordinator.transaction.heartbeats import heartbeat, is_silent
from twofold.coordinator.transaction.records import Ended
from twofold.types import Ending, ProducerEpoch

NAME = lambda state: state.wire_name  # noqa: E731
VERBS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])


def a_kept_one(epoch: int = 5, next_producer_id: int = P, next_producer_epoch: int = 6, **fields: int) -> World:
    """Written by (1000, 5), recovered by (1000, 6), unless said."""
    return a_world_in(
        ONGOING,
        epoch=epoch,
        next_producer_id=next_producer_id,
        next_producer_epoch=next_producer_epoch,
        **{"timeout_ms": NEVER, "client_version": 2, **fields},
    )


# --- InitProducerId with keepPreparedTxn (1.7.2) ---


def test_keeping_and_naming_a_producer_exclude_each_other():
    world = a_world_in(ONGOING)
    assert world.init(P, 5, keep_prepared_txn=True) == INVALID_REQUEST
    assert len(world.log) == 1


def test_keeping_needs_the_epochs_of_tv2():
    assert a_world_in(ONGOING, tv=1).keep() == UNSUPPORTED_VERSION
    assert a_world_in(ONGOING, tv=3).keep() == (P, 6, P, 5)


def test_the_checks_of_the_request_come_before_those_of_keeping():
    assert a_world_in(ONGOING).init(keep_prepared_txn=True, timeout_ms=0) == INVALID_TRANSACTION_TIMEOUT
    assert a_world_in(ONGOING).init(5, -1, keep_prepared_txn=True) == INVALID_REQUEST
    off = World(config=TransactionConfig(two_phase_commit_enable=False))
    assert off.keep() == TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert off.keep(enable_2pc=False) == (P, 0)


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT], ids=NAME)
@pytest.mark.parametrize("is_marking", [True, False])
def test_what_is_being_ended_cannot_be_kept(state, is_marking):
    world = a_world_in(state)
    world.is_marking = is_marking
    assert world.keep() == CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("epoch", [5, MAX])
@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT], ids=NAME)
def test_with_nothing_to_keep_it_is_a_plain_init(state, epoch):
    """An outside coordinator that repeats its decision after a crash must be able to learn that it is done."""
    kept, plain = a_world_in(state, epoch=epoch), a_world_in(state, epoch=epoch)
    assert kept.keep() == plain.init(enable_2pc=True)
    assert kept.now == plain.now


def test_with_a_new_id_it_is_a_plain_init():
    assert World().keep() == (P, 0)


def test_an_open_transaction_gets_a_second_identity():
    world = a_world_in(ONGOING, client_version=2, timeout_ms=NEVER, last_producer_epoch=4)
    world.now_ms += 50
    assert world.keep() == (P, 6, P, 5)
    assert world.now == a_transaction(
        ONGOING,
        5,
        next_producer_id=P,
        next_producer_epoch=6,
        timeout_ms=NEVER,
        client_version=2,
        last_producer_epoch=4,
        last_update_ms=NOW + 50,
    )
    assert world.keep() == (P, 7, P, 5), "each recovery raises the second one only"
    assert world.pair == (P, 5)


def test_at_the_last_epoch_the_second_identity_has_another_producer_id():
    world = a_world_in(ONGOING, epoch=MAX)
    assert world.keep() == (2000, 0, P, MAX)
    assert world.now.previous_producer_id == P
    assert world.keep() == (2000, 1, P, MAX)
    assert world.now.previous_producer_id == 2000


def test_keeping_does_not_need_the_right_of_two_phase_commit():
    """As the KIP says: an engine without it may recover too; its transaction keeps its timeout."""
    world = a_world_in(ONGOING)
    assert world.keep(enable_2pc=False, timeout_ms=1000) == (P, 6, P, 5)
    assert world.now.timeout_ms == TIMEOUT_MS
    world.now_ms += TIMEOUT_MS + 1
    assert world.sweep()


def test_keeping_may_turn_a_plain_transaction_into_a_two_phase_one():
    world = a_world_in(ONGOING)
    world.keep(enable_2pc=True)
    assert world.now.timeout_ms == NEVER
    world.now_ms += 1 << 50
    assert not world.sweep()


def test_keeping_never_takes_a_vow_away():
    world = a_world_in(ONGOING, timeout_ms=NEVER)
    world.now_ms += 10 * TIMEOUT_MS
    assert world.keep(enable_2pc=False, timeout_ms=TIMEOUT_MS) == (P, 6, P, 5)
    assert (world.now.timeout_ms, world.now.start_ms) == (NEVER, NOW)
    world.now_ms += 1 << 50
    assert not world.sweep()
    assert world.keep(enable_2pc=False, timeout_ms=TIMEOUT_MS) == (P, 7, P, 5), "however often"
    assert not world.sweep()
    assert world.commit(P, 7) == (P, 8)


@VERBS
@pytest.mark.parametrize("was", [NEVER, TIMEOUT_MS], ids=["two-phase", "plain"])
def test_the_mode_of_the_keeping_producer_counts_from_the_next_transaction(was, commit):
    world = a_world_in(ONGOING, timeout_ms=was)
    world.keep(enable_2pc=False, timeout_ms=30_000, heartbeat_interval_ms=1000)
    assert world.now.timeout_ms == was
    world.end(commit, P, 6)
    assert world.now.timeout_ms == was, "not while it is being ended"
    world.complete()
    assert (world.now.timeout_ms, world.now.heartbeat_interval_ms, world.now.next_terms) == (30_000, 1000, None)
    assert world.add(P, 7) == OK
    world.now_ms += 30_001
    assert world.sweep()


def test_the_last_one_that_keeps_says_what_counts_afterwards():
    world = a_world_in(ONGOING, timeout_ms=NEVER)
    world.keep(enable_2pc=False, timeout_ms=30_000)
    world.keep(enable_2pc=True)
    assert world.now.next_terms is None
    world.commit(P, 7)
    world.complete()
    assert world.now.timeout_ms == NEVER


def test_heartbeats_for_a_kept_two_phase_transaction_do_no_harm_and_their_absence_neither():
    world = a_world_in(ONGOING, timeout_ms=NEVER)
    world.keep(enable_2pc=False, heartbeat_interval_ms=1000)
    assert not heartbeat(world.now, TXN, P, ProducerEpoch(6))
    assert not is_silent(world.now, 0, 1 << 50)


# --- transaction.version below 2 ---


@pytest.mark.parametrize("tv", [0, 1])
@pytest.mark.parametrize("state", [None, *RECORDED_STATES], ids=lambda state: state.wire_name if state else "none")
def test_no_producer_vows_below_transaction_version_2(state, tv):
    world = World(tv) if state is None else a_world_in(state, tv=tv)
    world.is_marking = False
    records = len(world.log)
    assert world.init(enable_2pc=True) == UNSUPPORTED_VERSION
    assert len(world.log) == records


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT], ids=NAME)
def test_an_id_that_has_vowed_begins_nothing_below_transaction_version_2(state):
    """Every transaction of it would have the same state."""
    world = a_world_in(state, tv=1, timeout_ms=NEVER)
    assert world.add() == UNSUPPORTED_VERSION
    assert world.init() == (P, 6)
    assert world.add() == OK, "without the vow it goes on"


@VERBS
@pytest.mark.parametrize("version", [1, 2])
def test_what_was_begun_before_can_be_ended_below_transaction_version_2(version, commit):
    world = a_world_in(ONGOING, tv=1, timeout_ms=NEVER, client_version=2)
    assert world.add(of=partitions("t-0", "t-1")) == OK
    assert world.end(commit, version=version) in (OK, (P, 6))
    world.complete()
    assert world.now.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)


# --- how the last one ended ---


@VERBS
@pytest.mark.parametrize("kept", [False, True])
def test_how_a_two_phase_transaction_ended_is_known_until_the_next_one_ends(commit, kept):
    world = a_world_in(ONGOING, timeout_ms=NEVER, client_version=2)
    ended = Ended(P, ProducerEpoch(5), Ending.COMMITTED if commit else Ending.ABORTED)
    holder = identity(world.keep()) if kept else (P, 5)
    assert world.now.last_two_phase is None, "it is not decided"
    fresh = identity(world.end(commit, *holder))
    assert world.now.last_two_phase == ended, "from the decision on"
    world.complete()
    assert world.now.last_two_phase == ended
    for more in ({}, {"enable_2pc": True}, {"enable_2pc": True, "keep_prepared_txn": True}):
        fresh = identity(world.init(**more))
        assert world.now.last_two_phase == ended
    world.add(*fresh)
    assert world.now.last_two_phase == ended
    world.keep()
    assert world.now.last_two_phase == ended, "the open one is not decided"
    world.init_done()
    assert world.now.last_two_phase == Ended(*fresh, Ending.TERMINATED)


@pytest.mark.parametrize("tv", [1, 2])
@pytest.mark.parametrize("kept", [False, True])
def test_an_end_by_force_leaves_the_cause(kept, tv):
    world = a_world_in(ONGOING, timeout_ms=NEVER, client_version=2)
    if kept:
        world.keep()
    world.tv = tv
    assert world.init() == CONCURRENT_TRANSACTIONS
    assert world.now.last_two_phase == Ended(P, ProducerEpoch(5), Ending.TERMINATED)


def test_plain_transactions_leave_what_is_known_of_a_two_phase_one():
    ended = Ended(P, ProducerEpoch(1), Ending.COMMITTED)
    world = a_world_in(EMPTY, last_two_phase=ended)
    world.transaction(commit=True)
    world.transaction(commit=False)
    assert world.abort() == (P, 8), "also one that never began"
    world.complete()
    world.add()
    world.time_out()
    world.complete()
    assert world.now.last_two_phase == ended
    world.now_ms += 10**12
    assert world.expire() and world.entry is None


@VERBS
def test_an_end_that_keeps_the_epoch_is_not_remembered(commit):
    """EndTxn of the first protocol: the next transaction has the same pair, so the pair says nothing."""
    world = a_world_in(ONGOING, timeout_ms=NEVER, last_two_phase=Ended(P, ProducerEpoch(4), Ending.COMMITTED))
    assert world.end(commit, version=1) == OK
    assert world.now.last_two_phase is None


def test_the_second_init_fences_the_first():
    """Two instances that recover at once: one of them may end the transaction."""
    world = a_world_in(ONGOING, timeout_ms=NEVER)
    first, second = identity(world.keep()), identity(world.keep())
    assert world.commit(*first) == PRODUCER_FENCED
    assert world.abort(*first) == PRODUCER_FENCED
    assert world.commit(*second) == (P, 8)


# --- other requests while there are two identities (1.7.3) ---

ADDS = {
    "the recovered client may only finish": ((P, 6), T0, INVALID_TXN_STATE),
    "the old incarnation repeats itself": ((P, 5), T0, OK),
    "the old incarnation widens it": ((P, 5), partitions("t-0", "t-9"), PRODUCER_FENCED),
    "another epoch": ((P, 4), T0, PRODUCER_FENCED),
    "an epoch of the future": ((P, 7), T0, PRODUCER_FENCED),
    "another producer id": ((77, 5), T0, INVALID_PRODUCER_ID_MAPPING),
}


@pytest.mark.parametrize("case", ADDS)
def test_no_producer_widens_a_kept_transaction(case):
    pair, of, expected = ADDS[case]
    world = a_kept_one()
    assert world.add(*pair, of) == expected
    assert set(world.verify(*pair, of).values()) <= {expected, OK}
    assert expected in world.verify(*pair, of).values()
    assert len(world.log) == 1


def test_no_producer_widens_a_kept_transaction_with_two_producer_ids():
    world = a_kept_one(epoch=MAX, next_producer_id=73, next_producer_epoch=3)
    for pair, code in {
        (73, 3): INVALID_TXN_STATE,
        (73, 2): PRODUCER_FENCED,
        (P, MAX): OK,
        (P, 1): PRODUCER_FENCED,
    }.items():
        assert world.add(*pair) == code
        assert set(world.verify(*pair).values()) == {code}


@pytest.mark.parametrize("is_marking", [True, False])
def test_a_kept_transaction_that_is_being_ended_takes_nothing(is_marking):
    world = a_kept_one()
    fresh = identity(world.commit(P, 6))
    world.is_marking = is_marking
    assert world.add(*fresh) == CONCURRENT_TRANSACTIONS
    assert world.add(77, 0) == (CONCURRENT_TRANSACTIONS if is_marking else INVALID_PRODUCER_ID_MAPPING)


@VERBS
def test_only_the_recovered_client_ends_it(commit):
    for pair, code in {
        (P, 5): PRODUCER_FENCED,
        (P, 4): PRODUCER_FENCED,
        (P, 7): PRODUCER_FENCED,
        (77, 6): INVALID_PRODUCER_ID_MAPPING,
    }.items():
        world = a_kept_one()
        assert world.end(commit, *pair) == code
        assert len(world.log) == 1
    assert a_kept_one().end(commit, P, 6) == (P, 7)


@VERBS
@pytest.mark.parametrize("pair", [(P, 5), (P, 6), (P, 4)])
def test_an_old_version_of_end_txn_cannot_end_it(commit, pair):
    producer_id, epoch = pair
    assert a_kept_one().end(commit, producer_id, epoch, version=1) == PRODUCER_FENCED


@pytest.mark.parametrize("tv", [1, 2])
def test_forced_termination_raises_both_identities(tv):
    world = a_kept_one()
    world.tv = tv
    assert world.init() == CONCURRENT_TRANSACTIONS
    now = world.now
    assert (now.state, *world.pair) == (PREPARE_ABORT, P, 6)
    assert (now.next_producer_id, now.next_producer_epoch, now.previous_producer_id) == (P, 7, P)
    world.complete()
    assert world.pair == (P, 7)
    assert world.init() == (P, 8)
    assert world.now.timeout_ms == TIMEOUT_MS, "it has lost its status by that"


@pytest.mark.parametrize("tv", [1, 2])
def test_forced_termination_at_the_last_epochs(tv):
    world = a_kept_one(epoch=MAX, next_producer_id=73, next_producer_epoch=MAX)
    world.tv = tv
    assert world.init() == CONCURRENT_TRANSACTIONS
    assert world.pair == (P, 32767)
    world.complete()
    assert world.pair == (2000, 0)
    assert world.init() == (2000, 1)


def test_an_old_incarnation_cannot_abort_what_was_kept():
    """It names itself in InitProducerId, as clients do that bump their epoch: where nothing is kept, that fences."""
    world = a_kept_one()
    assert world.init(P, 5) == PRODUCER_FENCED
    assert world.init(P, 4) == PRODUCER_FENCED
    assert len(world.log) == 1
    assert world.init(P, 6) == CONCURRENT_TRANSACTIONS, "who recovered it may give it up"


# --- the end (1.7.4) ---


@VERBS
def test_the_end_raises_both_identities(commit):
    world = a_kept_one()
    assert world.end(commit, P, 6) == (P, 7)
    now = world.now
    assert (now.state, *world.pair) == (PREPARE_COMMIT if commit else PREPARE_ABORT, P, 6), "markers have E+1"
    assert (now.next_producer_id, now.next_producer_epoch) == (P, 7)
    assert (now.previous_producer_id, now.last_producer_epoch, now.partitions) == (P, 6, T0)
    world.complete()
    now = world.now
    assert (now.state, *world.pair) == (COMPLETE_COMMIT if commit else COMPLETE_ABORT, P, 7)
    assert (now.next_producer_id, now.next_producer_epoch, now.previous_producer_id) == (-1, -1, P)


@VERBS
@pytest.mark.parametrize(
    ("next_id", "next_epoch", "fresh"), [(P, 6, (P, 7)), (73, 3, (73, 4)), (73, MAX, (2000, 0)), (P, MAX, (2000, 0))]
)
def test_a_repeated_end_is_told_the_same(commit, next_id, next_epoch, fresh):
    world = a_kept_one(next_producer_id=next_id, next_producer_epoch=next_epoch)
    assert world.end(commit, next_id, next_epoch) == fresh
    assert world.end(commit, next_id, next_epoch) == CONCURRENT_TRANSACTIONS
    world.is_marking = False
    assert world.end(commit, next_id, next_epoch) == CONCURRENT_TRANSACTIONS
    assert world.end(not commit, next_id, next_epoch) == CONCURRENT_TRANSACTIONS
    assert world.end(commit, 77, 0) == INVALID_PRODUCER_ID_MAPPING
    assert world.end(commit, P, 5) == PRODUCER_FENCED
    world.is_marking = True
    world.complete()
    for _ in range(2):
        assert world.end(commit, next_id, next_epoch) == fresh
    if commit:
        assert world.abort(next_id, next_epoch) == INVALID_TXN_STATE
    assert world.init(next_id, next_epoch) == fresh, "InitProducerId knows it too"


@VERBS
def test_a_late_end_does_not_end_the_next_transaction(commit):
    world = a_kept_one()
    world.commit(P, 6)
    world.complete()
    assert world.add(P, 7) == OK
    assert world.end(commit, P, 6) == PRODUCER_FENCED
    assert world.end(commit, P, 5) == PRODUCER_FENCED


@VERBS
def test_the_writer_of_a_kept_transaction_never_gets_an_identity_from_it(commit):
    for world in (a_kept_one(), a_kept_one(epoch=MAX, next_producer_id=73, next_producer_epoch=0)):
        old = world.pair
        world.end(commit, world.now.next_producer_id, world.now.next_producer_epoch)
        world.complete()
        for again in (True, False):
            assert world.end(again, *old) in (PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING)
        assert world.init(*old) == PRODUCER_FENCED


def test_no_producer_id_is_needed_to_mark_the_last_epoch_of_a_kept_transaction():
    world = a_kept_one(epoch=MAX, next_producer_id=73, next_producer_epoch=3)
    world.coordinator._new_producer_id = ids_from(10**9)
    assert world.commit(73, 3) == (73, 4)
    assert world.pair == (P, 32767)


# --- two-phase transactions and the clock (1.7.5, 2.4) ---


@pytest.mark.parametrize("timeout_ms", [-5, 0, 1, TIMEOUT_MS, NEVER])
def test_with_two_phase_commit_the_timeout_of_the_request_is_ignored(timeout_ms):
    world = World()
    assert world.init(timeout_ms=timeout_ms, enable_2pc=True) == (P, 0)
    assert world.now.timeout_ms == NEVER


def test_prepared_transaction_survives_any_clock_advance():
    world = World()
    world.init(enable_2pc=True)
    world.add()
    for shift in range(10, 62):
        world.now_ms = NOW + (1 << shift)
        assert not world.sweep()
        assert not world.expire()
    world.reload()
    assert world.keep() == (P, 1, P, 0)
    assert world.commit(P, 1) == (P, 2)


@pytest.mark.parametrize("state", RECORDED_STATES, ids=NAME)
def test_two_phase_commit_is_a_property_of_the_id_until_the_next_init(state):
    world = a_world_in(state, timeout_ms=NEVER)
    while world.now.state is not EMPTY:
        assert world.now.timeout_ms == NEVER
        world.complete()
        world.init()
    assert world.init() == (P, world.pair[1])
    assert world.now.timeout_ms == TIMEOUT_MS


def test_switching_two_phase_commit_off_stops_new_ones_only():
    world = World(
        config=TransactionConfig(two_phase_commit_enable=False), start=a_transaction(ONGOING, timeout_ms=NEVER)
    )
    world.now_ms += 1 << 50
    assert not world.sweep()
    assert world.keep() == TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert world.init() == CONCURRENT_TRANSACTIONS, "who may write to the id may still end it by force"
