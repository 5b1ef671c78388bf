"""EndTxn: both protocols, every state, and what a retry is told."""

import pytest

from kits.coordinator.transactions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    EMPTY,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    MAX,
    NOW,
    OK,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PRODUCER_FENCED,
    RECORDED_STATES,
    T0,
    TXN,
    P,
    World,
    a_transaction,
    a_world_in,
    ids_from,
    no_ids,
    partitions,
    told,
)
from twofold.coordinator.transaction.coordinator import Coordinator, TransactionConfig

NAME = lambda state: state.wire_name  # noqa: E731
VERBS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])


def end(entry, version, transactional_id=TXN, pair=(P, 5), commit=True, pending=False, ids=None):
    coordinator = Coordinator(TransactionConfig(), ids or ids_from(2000))
    producer_id, epoch = pair
    return told(
        lambda: coordinator.end(
            entry, transactional_id, producer_id, epoch, commit, NOW, version=version, pending=pending
        )
    )


# --- TV1 (1.10.1) ---

V1_ROWS = {
    "row 2": (end(None, 1), INVALID_PRODUCER_ID_MAPPING),
    "row 3": (end(a_transaction(ONGOING), 1, pair=(9, 5)), INVALID_PRODUCER_ID_MAPPING),
    "row 3 before 4": (end(a_transaction(ONGOING), 1, pair=(9, 4)), INVALID_PRODUCER_ID_MAPPING),
    "row 3 before 5": (end(a_transaction(ONGOING), 1, pair=(9, 5), pending=True), INVALID_PRODUCER_ID_MAPPING),
    "row 4: lower": (end(a_transaction(ONGOING), 1, pair=(P, 4)), PRODUCER_FENCED),
    "row 4: higher": (end(a_transaction(ONGOING), 1, pair=(P, 6)), PRODUCER_FENCED),
    "row 4 before 5": (end(a_transaction(ONGOING), 1, pair=(P, 4), pending=True), PRODUCER_FENCED),
    "row 5": (end(a_transaction(ONGOING), 1, pending=True), CONCURRENT_TRANSACTIONS),
    "row 5: it is being removed": (end(None, 1, pending=True), CONCURRENT_TRANSACTIONS),
    "row 5 before 7": (end(a_transaction(COMPLETE_COMMIT), 1, pending=True), CONCURRENT_TRANSACTIONS),
    "row 5 before 11": (end(a_transaction(EMPTY), 1, pending=True), CONCURRENT_TRANSACTIONS),
}


@pytest.mark.parametrize("row", V1_ROWS)
def test_end_v1_is_checked_in_order(row):
    found, expected = V1_ROWS[row]
    assert found == expected


V1_STATES = {
    ONGOING: (OK, OK),
    COMPLETE_COMMIT: (OK, INVALID_TXN_STATE),
    COMPLETE_ABORT: (INVALID_TXN_STATE, OK),
    PREPARE_COMMIT: (CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE),
    PREPARE_ABORT: (INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS),
    EMPTY: (INVALID_TXN_STATE, INVALID_TXN_STATE),
}


@VERBS
@pytest.mark.parametrize("state", RECORDED_STATES, ids=NAME)
def test_end_tv1_matrix(state, commit):
    world = a_world_in(state, tv=1)
    world.is_marking = False
    assert world.end(commit) == V1_STATES[state][0 if commit else 1]
    if state is ONGOING:
        assert world.now == a_transaction(PREPARE_COMMIT if commit else PREPARE_ABORT)
    else:
        assert len(world.log) == 1


@VERBS
def test_end_v1_keeps_the_epoch_and_the_version_of_the_client(commit):
    world = a_world_in(ONGOING, tv=1, client_version=2, last_producer_epoch=4)
    world.now_ms += 9
    assert world.end(commit) == OK
    now = world.now
    assert (now.producer_epoch, now.last_producer_epoch, now.client_version) == (5, 4, 0)
    assert (now.last_update_ms, now.start_ms, now.partitions) == (NOW + 9, NOW, T0)
    world.complete()
    assert world.pair == (P, 5) and world.now.partitions == frozenset() and world.now.start_ms == NOW


# --- TV2 (1.10.2, 1.10.3) ---

V2_ROWS = {
    "row 2": (end(None, 2), INVALID_PRODUCER_ID_MAPPING),
    "row 3: it is being removed": (end(None, 2, pending=True), CONCURRENT_TRANSACTIONS),
    "row 3": (end(a_transaction(ONGOING), 2, pending=True), CONCURRENT_TRANSACTIONS),
    "row 3 before 4": (end(a_transaction(ONGOING), 2, pair=(9, 5), pending=True), CONCURRENT_TRANSACTIONS),
    "row 3 before 5": (end(a_transaction(ONGOING), 2, pair=(P, 1), pending=True), CONCURRENT_TRANSACTIONS),
    "row 3 before 6": (end(a_transaction(COMPLETE_COMMIT), 2, pair=(P, 4), pending=True), CONCURRENT_TRANSACTIONS),
    "row 4": (end(a_transaction(ONGOING), 2, pair=(9, 5)), INVALID_PRODUCER_ID_MAPPING),
    "row 4 before 5": (end(a_transaction(ONGOING), 2, pair=(9, 1)), INVALID_PRODUCER_ID_MAPPING),
    "row 4: the previous id, but not its last epoch": (
        end(a_transaction(COMPLETE_COMMIT, 0, previous_producer_id=9), 2, pair=(9, MAX - 1)),
        INVALID_PRODUCER_ID_MAPPING,
    ),
    "row 4: the previous id, but a transaction later": (
        end(a_transaction(COMPLETE_COMMIT, 1, previous_producer_id=9), 2, pair=(9, MAX)),
        INVALID_PRODUCER_ID_MAPPING,
    ),
    "row 5: an overflow retry where nothing was ended": (
        end(a_transaction(EMPTY, 0, previous_producer_id=9), 2, pair=(9, MAX)),
        PRODUCER_FENCED,
    ),
    "row 5: an overflow retry after the next transaction began": (
        end(a_transaction(ONGOING, 0, previous_producer_id=9), 2, pair=(9, MAX)),
        PRODUCER_FENCED,
    ),
}


@pytest.mark.parametrize("row", V2_ROWS)
def test_end_v2_is_checked_in_order(row):
    found, expected = V2_ROWS[row]
    assert found == expected


BUMPED = (P, 6)
# ABORT retry, ABORT current, COMMIT retry, COMMIT current; the entry has epoch 5.
V2_STATES = {
    EMPTY: (PRODUCER_FENCED, BUMPED, PRODUCER_FENCED, INVALID_TXN_STATE),
    ONGOING: (PRODUCER_FENCED, BUMPED, PRODUCER_FENCED, BUMPED),
    PREPARE_COMMIT: (INVALID_TXN_STATE, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, PRODUCER_FENCED),
    PREPARE_ABORT: (CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, INVALID_TXN_STATE, PRODUCER_FENCED),
    COMPLETE_COMMIT: (INVALID_TXN_STATE, BUMPED, (P, 5), INVALID_TXN_STATE),
    # The third cell: Kafka 4.3 says INVALID_TXN_STATE, which is fatal; KAFKA-20785 says this.
    COMPLETE_ABORT: ((P, 5), BUMPED, PRODUCER_FENCED, INVALID_TXN_STATE),
}
KINDS = {"abort-retry": (False, 4), "abort-current": (False, 5), "commit-retry": (True, 4), "commit-current": (True, 5)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", RECORDED_STATES, ids=NAME)
def test_end_tv2_matrix(state, kind):
    world = a_world_in(state, last_producer_epoch=4, client_version=2)
    world.is_marking = False
    commit, epoch = KINDS[kind]
    expected = V2_STATES[state][list(KINDS).index(kind)]
    assert world.end(commit, epoch=epoch) == expected
    if expected == BUMPED:
        assert world.written[-1] is (PREPARE_COMMIT if commit else PREPARE_ABORT)
        assert (world.now.last_producer_epoch, world.now.client_version) == (5, 2)
        assert world.now.partitions == (T0 if state is ONGOING else partitions())
        world.is_marking = True
        world.complete()
        assert world.pair == BUMPED
    else:
        assert len(world.log) == 1


@VERBS
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("state", RECORDED_STATES, ids=NAME)
def test_end_epoch_larger(state, version, commit):
    world = a_world_in(state)
    world.is_marking = False
    for epoch in (6, 7, MAX):
        assert world.end(commit, epoch=epoch, version=version) == PRODUCER_FENCED


@VERBS
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("state", RECORDED_STATES, ids=NAME)
def test_end_epoch_smaller(state, version, commit):
    world = a_world_in(state)
    world.is_marking = False
    for epoch in (3, 0, -1):
        assert world.end(commit, epoch=epoch, version=version) == PRODUCER_FENCED


def test_the_version_of_the_request_decides_whatever_the_server_has():
    old = a_world_in(ONGOING, tv=2)
    assert old.end(True, version=1) == OK
    assert old.pair == (P, 5)
    new = a_world_in(ONGOING, tv=1)
    assert new.end(True, version=2) == (P, 6)
    assert new.pair == (P, 6)


def test_end_empty_abort_tv2():
    world = World()
    assert world.init() == (P, 0)
    world.now_ms += 5
    assert world.abort(P, 0) == (P, 1)
    assert world.now == a_transaction(
        PREPARE_ABORT,
        1,
        of=(),
        start_ms=NOW + 5,
        last_update_ms=NOW + 5,
        client_version=2,
        last_producer_epoch=0,
    )
    world.complete()
    assert world.written == [EMPTY, PREPARE_ABORT, COMPLETE_ABORT]
    assert world.abort(P, 0) == (P, 1)
    assert len(world.log) == 3


@pytest.mark.parametrize("state", [COMPLETE_COMMIT, COMPLETE_ABORT], ids=NAME)
def test_an_empty_abort_after_a_transaction_starts_a_clock_of_its_own(state):
    world = a_world_in(state)
    world.now_ms += 5
    assert world.abort() == (P, 6)
    assert world.now.start_ms == NOW + 5
    assert world.now.partitions == frozenset()


@pytest.mark.parametrize("version", [1, 2])
def test_end_empty_commit(version):
    assert a_world_in(EMPTY).end(True, version=version) == INVALID_TXN_STATE


@VERBS
def test_end_overflow_tv2(commit):
    world = a_world_in(ONGOING, epoch=MAX)
    prepared, done = (PREPARE_COMMIT, COMPLETE_COMMIT) if commit else (PREPARE_ABORT, COMPLETE_ABORT)
    assert world.end(commit) == (2000, 0)
    assert world.now == a_transaction(prepared, 32767, next_producer_id=2000, client_version=2, last_producer_epoch=MAX)
    assert world.end(commit, P, MAX) == CONCURRENT_TRANSACTIONS
    world.complete()
    assert world.now == a_transaction(done, 0, 2000, previous_producer_id=P, client_version=2, last_producer_epoch=MAX)
    for _ in range(2):
        assert world.end(commit, P, MAX) == (2000, 0)
    assert world.end(not commit, P, MAX) == (INVALID_TXN_STATE if commit else PRODUCER_FENCED)
    assert len(world.log) == 3


def test_an_overflow_retry_of_a_commit_after_an_abort_is_fenced():
    world = a_world_in(ONGOING, epoch=MAX)
    world.time_out()
    world.complete()
    assert world.commit(P, MAX) == PRODUCER_FENCED


def test_an_empty_abort_at_the_last_epoch_changes_the_producer_id():
    world = a_world_in(EMPTY, epoch=MAX)
    assert world.abort() == (2000, 0)
    world.complete()
    assert world.abort(P, MAX) == (2000, 0)
    assert world.pair == (2000, 0)


@VERBS
def test_an_end_without_a_producer_id_at_hand_is_told_to_come_back(commit):
    assert end(a_transaction(ONGOING, MAX), 2, pair=(P, MAX), commit=commit, ids=no_ids) == COORDINATOR_LOAD_IN_PROGRESS
    assert end(a_transaction(ONGOING, MAX - 1), 2, pair=(P, MAX - 1), commit=commit, ids=no_ids) == OK


@pytest.mark.parametrize("state", [COMPLETE_COMMIT, COMPLETE_ABORT], ids=NAME)
@VERBS
def test_no_client_is_told_the_epoch_of_the_last_fence(state, commit):
    """Logs of older brokers hold such entries: the id of the next producer was not in them (KAFKA-20310)."""
    assert a_world_in(state, epoch=32767).end(commit, P, MAX) == PRODUCER_FENCED


def test_a_transaction_at_the_epoch_of_the_last_fence_can_only_be_aborted():
    world = a_world_in(ONGOING, epoch=32767)
    assert world.commit() == PRODUCER_FENCED
    assert world.abort() == (2000, 0)
    assert world.pair == (P, 32767)
    world.complete()
    assert world.pair == (2000, 0)


def test_a_late_duplicate_of_an_end_does_not_end_the_next_transaction():
    world = World()
    world.init()
    world.transaction(commit=True)
    assert world.add(P, 1) == OK
    assert world.commit(P, 0) == PRODUCER_FENCED
    assert world.abort(P, 0) == PRODUCER_FENCED
    assert world.now.state is ONGOING


@VERBS
def test_a_fenced_client_of_tv2_does_not_get_the_epoch_of_one_of_tv1(commit):
    """Kafka takes "one epoch behind" for a retry and hands out the epoch that another client is using."""
    world = World(tv=1)
    assert world.init() == (P, 0), "the first client"
    assert world.init() == (P, 1), "the second, which ends its transaction as TV1 does"
    assert world.transaction(commit) == OK
    assert world.end(commit, P, 0, version=2) == PRODUCER_FENCED


def test_a_client_of_tv1_after_one_of_tv2_takes_no_id_that_was_not_meant_for_it():
    """`next_producer_id` counts for clients of TV2 only; with TV1 the epoch never moves at the end."""
    prepared = a_transaction(PREPARE_COMMIT, 7, next_producer_id=2000, client_version=0)
    done = Coordinator(TransactionConfig(), ids_from(1)).complete(prepared, NOW)
    assert (done.producer_id, done.producer_epoch, done.next_producer_id) == (P, 7, -1)


@pytest.mark.parametrize("state", [EMPTY, ONGOING, COMPLETE_COMMIT, COMPLETE_ABORT], ids=NAME)
def test_only_decided_transactions_complete(state):
    coordinator = Coordinator(TransactionConfig(), ids_from(1))
    with pytest.raises(Exception, match="cannot take: every marker is written"):
        coordinator.complete(a_transaction(state), NOW)
