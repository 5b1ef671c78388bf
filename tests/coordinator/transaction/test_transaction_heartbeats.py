"""KIP-1309: the decisions that need neither a clock nor a socket."""

from functools import partial

import pytest

from kits.coordinator.transactions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DAY_MS,
    EMPTY,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    INVALID_TRANSACTION_TIMEOUT,
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
    TRANSACTION_ABORTABLE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_NOT_FOUND,
    TXN,
    P,
    World,
    a_transaction,
    a_world_in,
    identity,
    ids_from,
    told,
)
from twofold.coordinator.transaction.coordinator import Coordinator, InitRequest, TransactionConfig
from twofold.coordinator.transaction.heartbeats import AbortCause, heartbeat, is_silent, sweep_period_ms
from twofold.coordinator.transaction.records import encode_value

NAME = lambda state: state.wire_name  # noqa: E731
INTERVAL_MS = 5000
COORDINATOR_ENDED_IT = pytest.mark.parametrize(
    "cause", [AbortCause.TIMEOUT, AbortCause.HEARTBEAT, AbortCause.FENCE, None]
)


def beat(entry, producer_id=P, epoch=5, cause=None):
    return told(lambda: heartbeat(entry, TXN, producer_id, epoch, cause))


def counts(entry, producer_id=P, epoch=5, cause=None):
    return heartbeat(entry, TXN, producer_id, epoch, cause)


def an_open_one(**fields):
    return a_transaction(ONGOING, **{"heartbeat_interval_ms": INTERVAL_MS, "client_version": 2, **fields})


def check(**fields):
    config = TransactionConfig(two_phase_commit_enable=fields.pop("allowed", True))
    request = InitRequest(**{"transactional_id": TXN, "timeout_ms": TIMEOUT_MS, **fields})
    return told(lambda: Coordinator(config, ids_from(P)).check_init(request))


# --- the interval of InitProducerId ---


def test_decision_02_a_negative_interval_is_invalid():
    assert check(heartbeat_interval_ms=-1) == INVALID_REQUEST
    assert check(heartbeat_interval_ms=0) == OK
    assert check(heartbeat_interval_ms=1) == OK


@pytest.mark.parametrize("interval_ms", [-1, TIMEOUT_MS + 1])
def test_decision_03_a_malformed_interval_fails_before_the_server_is_asked_what_it_allows(interval_ms):
    assert check(heartbeat_interval_ms=interval_ms, enable_2pc=True, allowed=False) == INVALID_REQUEST
    assert check(heartbeat_interval_ms=interval_ms, timeout_ms=-1) == INVALID_REQUEST
    assert check(enable_2pc=True, allowed=False) == TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_decision_04_the_interval_is_compared_with_the_timeout_as_sent():
    assert check(heartbeat_interval_ms=TIMEOUT_MS) == OK
    assert check(heartbeat_interval_ms=TIMEOUT_MS + 1) == INVALID_REQUEST
    assert check(heartbeat_interval_ms=DAY_MS, timeout_ms=DAY_MS) == INVALID_TRANSACTION_TIMEOUT


def test_an_interval_and_two_phase_commit_exclude_each_other():
    assert check(heartbeat_interval_ms=1, enable_2pc=True) == INVALID_REQUEST
    assert check(enable_2pc=True) == OK


def test_decision_27_every_init_overwrites_the_interval():
    world = World()
    world.init(heartbeat_interval_ms=INTERVAL_MS)
    assert world.now.heartbeat_interval_ms == INTERVAL_MS
    world.transaction()
    assert world.now.heartbeat_interval_ms == INTERVAL_MS, "transactions leave it as it is"
    pair = world.pair
    assert world.init(*pair, heartbeat_interval_ms=700) == (P, 2)
    assert world.init(*pair, heartbeat_interval_ms=800) == (P, 2), "a retry"
    assert world.now.heartbeat_interval_ms == 800
    world.add()
    assert world.keep(enable_2pc=False, heartbeat_interval_ms=900) == (P, 3, P, 2)
    assert world.now.heartbeat_interval_ms == 900
    world.keep()
    assert world.now.heartbeat_interval_ms == 0, "an older client switches it off"


def test_decision_13_the_interval_survives_a_failover():
    world = World()
    world.init(heartbeat_interval_ms=INTERVAL_MS)
    world.reload()
    assert world.now.heartbeat_interval_ms == INTERVAL_MS
    old = World(tv=0)
    assert old.init(heartbeat_interval_ms=INTERVAL_MS) == (P, 0), "accepted, but value version 0 has no place for it"
    assert old.now.heartbeat_interval_ms == 0
    plain = a_transaction(EMPTY)
    assert len(encode_value(plain._replace(heartbeat_interval_ms=1), 1)) == len(encode_value(plain, 1)) + 6


# --- silence ---


def test_decision_06_three_intervals_are_computed_without_overflow():
    entry = an_open_one(heartbeat_interval_ms=NEVER, timeout_ms=NEVER - 1)
    assert not is_silent(entry, 0, 3 * NEVER)
    assert is_silent(entry, 0, 3 * NEVER + 1)


def test_decision_07_three_intervals_may_be_longer_than_the_timeout():
    assert check(heartbeat_interval_ms=TIMEOUT_MS - 1) == OK
    world = a_world_in(ONGOING, heartbeat_interval_ms=TIMEOUT_MS - 1)
    world.now_ms += TIMEOUT_MS + 1
    assert not is_silent(world.now, 0, TIMEOUT_MS + 1)
    assert world.sweep(), "the timeout comes first"


def test_decision_08_liveness_is_what_the_keeper_of_time_says():
    """The last heartbeat, add or init, whichever was last: it is an argument, not a field of the entry."""
    assert is_silent(an_open_one(), 1000, 1000 + 3 * INTERVAL_MS + 1)
    assert not is_silent(an_open_one(), 1001, 1000 + 3 * INTERVAL_MS + 1)


@pytest.mark.parametrize("state", RECORDED_STATES, ids=NAME)
def test_decision_09_only_open_transactions_die_of_silence(state):
    entry = a_transaction(state, heartbeat_interval_ms=INTERVAL_MS)
    assert is_silent(entry, 0, DAY_MS) is (state is ONGOING)


def test_decision_10_exactly_three_intervals_are_not_too_long():
    assert not is_silent(an_open_one(), 7, 7 + 3 * INTERVAL_MS)
    assert is_silent(an_open_one(), 7, 7 + 3 * INTERVAL_MS + 1)


def test_decision_11_silence_ends_a_transaction_as_a_timeout_does():
    by_timeout, by_silence = a_world_in(ONGOING), a_world_in(ONGOING)
    by_timeout.time_out()
    by_silence.now_ms = by_timeout.now_ms
    by_silence.write(by_silence.coordinator.fence(by_silence.now, by_silence.now_ms, server_version=2).value)
    assert by_silence.now == by_timeout.now
    by_silence.complete()
    assert not by_silence.coordinator.is_expired(by_silence.now, by_silence.now_ms + 7 * DAY_MS - 1)


@pytest.mark.parametrize(
    ("intervals_ms", "period_ms"),
    [((), 1000), ((0,), 1000), ((5000, 60_000), 1000), ((1000, 5000), 500), ((50, 5000), 100), ((0, 600), 300)],
)
def test_decision_12_silence_is_looked_for_twice_in_an_interval(intervals_ms, period_ms):
    assert sweep_period_ms(intervals_ms) == period_ms


@pytest.mark.parametrize("tv", [1, 2])
def test_decision_31_an_abort_that_could_not_be_written_is_decided_again(tv):
    entry = an_open_one()
    coordinator = Coordinator(TransactionConfig(), ids_from(2000))
    first = coordinator.fence(entry, NOW, server_version=tv)
    assert coordinator.fence(entry, NOW, server_version=tv) == first
    assert is_silent(entry, 0, DAY_MS), "the next sweep finds it again"


# --- heartbeats ---


def test_decision_16_an_unknown_id_is_not_found():
    assert beat(None) == TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize("state", RECORDED_STATES, ids=NAME)
def test_decision_17_another_producer_id_is_no_producer_of_this_id(state):
    assert beat(a_transaction(state), producer_id=P + 1) == INVALID_PRODUCER_ID_MAPPING


def test_decision_17_the_id_before_a_rotation_is_fenced():
    world = a_world_in(EMPTY, epoch=MAX)
    assert world.init() == (2000, 0)
    assert beat(world.now, P, MAX) == PRODUCER_FENCED
    assert beat(world.now, 2000, 0) == OK


@pytest.mark.parametrize("state", RECORDED_STATES, ids=NAME)
@pytest.mark.parametrize("epoch", [6, 7, 3, 0])
def test_decision_18_other_epochs_are_fenced(state, epoch):
    assert beat(a_transaction(state, client_version=2), epoch=epoch, cause=AbortCause.CLIENT) == PRODUCER_FENCED


@pytest.mark.parametrize("state", [EMPTY, ONGOING], ids=NAME)
def test_decision_18_the_epoch_before_is_fenced_where_nothing_was_ended(state):
    assert beat(a_transaction(state, client_version=2), epoch=4, cause=AbortCause.CLIENT) == PRODUCER_FENCED


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("epoch", [5, MAX])
def test_decision_18_a_late_heartbeat_of_a_finished_transaction_is_harmless(commit, epoch):
    world = a_world_in(ONGOING, epoch=epoch, heartbeat_interval_ms=INTERVAL_MS)
    fresh = identity(world.end(commit))
    for _ in ("while markers are written", "after them"):
        assert beat(world.now, P, epoch, AbortCause.CLIENT) == OK
        assert beat(world.now, *fresh, AbortCause.CLIENT) == OK, "and its next identity is good already"
        assert not counts(world.now, P, epoch, AbortCause.CLIENT)
        world.complete()


@COORDINATOR_ENDED_IT
@pytest.mark.parametrize("epoch", [5, MAX])
def test_decision_19_an_aborted_producer_is_told_to_abort_and_can_go_on(cause, epoch):
    world = a_world_in(ONGOING, epoch=epoch, client_version=2, heartbeat_interval_ms=INTERVAL_MS)
    world.time_out()
    assert beat(world.now, P, epoch, cause) == TRANSACTION_ABORTABLE
    world.complete()
    assert beat(world.now, P, epoch, cause) == TRANSACTION_ABORTABLE
    fresh = identity(world.abort(P, epoch))
    assert beat(world.now, *fresh, cause) == OK
    assert world.add(*fresh) == OK


def test_decision_19_a_commit_was_always_the_clients():
    for state in (PREPARE_COMMIT, COMPLETE_COMMIT):
        assert beat(a_transaction(state, client_version=2), epoch=4, cause=None) == OK


@COORDINATOR_ENDED_IT
def test_decision_20_a_client_of_tv1_that_was_aborted_is_fenced(cause):
    world = a_world_in(ONGOING, tv=1, heartbeat_interval_ms=INTERVAL_MS)
    world.time_out()
    assert beat(world.now, P, 5, cause) == PRODUCER_FENCED
    world.complete()
    assert beat(world.now, P, 5, cause) == PRODUCER_FENCED


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT], ids=NAME)
def test_decision_21_a_heartbeat_does_not_wait_for_what_is_pending(state):
    """`pending` is not even asked; while markers are written the client holds the next epoch already."""
    assert beat(a_transaction(state, client_version=2)) == OK
    assert counts(an_open_one())


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT], ids=NAME)
def test_decision_22_between_transactions_a_heartbeat_has_no_effect(state):
    assert counts(a_transaction(state, heartbeat_interval_ms=INTERVAL_MS)) is False


def test_decision_23_without_an_interval_a_heartbeat_has_no_effect():
    assert counts(a_transaction(ONGOING)) is False
    assert counts(an_open_one()) is True


@pytest.mark.parametrize("state", RECORDED_STATES, ids=NAME)
def test_decision_24_a_two_phase_producer_sends_no_heartbeats(state):
    assert beat(a_transaction(state, timeout_ms=NEVER, heartbeat_interval_ms=1)) == INVALID_REQUEST
    assert not is_silent(an_open_one(timeout_ms=NEVER), 0, DAY_MS)


@pytest.mark.parametrize("fields", [("", P, 5), (TXN, -1, 5), (TXN, P, -1), (TXN, -1, -1)])
def test_decision_25_a_heartbeat_names_its_sender(fields):
    for entry in (None, an_open_one()):
        assert told(partial(heartbeat, entry, *fields)) == INVALID_REQUEST
    assert beat(a_transaction(ONGOING, 0, 0), 0, 0) == OK, "0 is a producer id and an epoch"


@pytest.mark.parametrize("epoch", [5, MAX])
def test_decision_26_only_the_recovering_producer_keeps_a_transaction_alive(epoch):
    world = a_world_in(ONGOING, epoch=epoch, client_version=2)
    client = identity(world.keep(enable_2pc=False, heartbeat_interval_ms=INTERVAL_MS))
    assert counts(world.now, *client)
    assert beat(world.now, P, epoch) == PRODUCER_FENCED
    assert beat(world.now, 77, 0) == INVALID_PRODUCER_ID_MAPPING
    assert is_silent(world.now, 0, DAY_MS)
    assert not is_silent(world.now._replace(timeout_ms=NEVER), 0, DAY_MS)
    fresh = identity(world.commit(*client))
    for _ in ("while markers are written", "after them"):
        assert beat(world.now, *client, AbortCause.CLIENT) == OK
        assert beat(world.now, *fresh) == OK
        world.complete()
    assert beat(world.now, P, epoch) in (PRODUCER_FENCED, INVALID_PRODUCER_ID_MAPPING)


def test_a_transaction_that_became_two_phase_is_out_of_reach_of_silence():
    """Heartbeats until prepared, then the vow: from then on only the outside decision ends it."""
    world = World()
    world.init(heartbeat_interval_ms=INTERVAL_MS)
    world.add()
    assert is_silent(world.now, 0, DAY_MS)
    assert world.keep(enable_2pc=True) == (P, 1, P, 0)
    assert not is_silent(world.now, 0, 1 << 60)
    world.now_ms += 1 << 60
    assert not world.sweep()
    assert world.commit(P, 1) == (P, 2)
