"""InitProducerId: the checks of the request, the checks of the entry, and the numbers that come out."""

import pytest

from kits.coordinator.transactions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    EMPTY,
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
    T0,
    TIMEOUT_MS,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    TXN,
    P,
    World,
    a_transaction,
    a_world_in,
    ids_from,
    no_ids,
    told,
)
from twofold.config.settings import Settings
from twofold.coordinator.transaction.coordinator import Coordinator, InitRequest, TransactionConfig, check_identity

TVS = pytest.mark.parametrize("tv", [1, 2], ids=["TV1", "TV2"])
CLOSED = pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT], ids=lambda s: s.wire_name)


# --- the request (1.6.1) ---

MAX_TIMEOUT_MS = 900_000

CHECKS = {
    "row 6": (InitRequest("", 1000), INVALID_REQUEST),
    "row 6 before 7": (InitRequest("", 1000, enable_2pc=True), INVALID_REQUEST),
    "row 7": (InitRequest(TXN, 1000, enable_2pc=True), TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    "row 7 whatever the timeout": (InitRequest(TXN, 0, enable_2pc=True), TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    "row 9: zero": (InitRequest(TXN, 0), INVALID_TRANSACTION_TIMEOUT),
    "row 9: negative": (InitRequest(TXN, -1), INVALID_TRANSACTION_TIMEOUT),
    "row 9: one too many": (InitRequest(TXN, MAX_TIMEOUT_MS + 1), INVALID_TRANSACTION_TIMEOUT),
    "row 9: the limit itself": (InitRequest(TXN, MAX_TIMEOUT_MS), OK),
    "row 9: the least": (InitRequest(TXN, 1), OK),
}


@pytest.mark.parametrize("row", CHECKS)
def test_the_request_is_checked_in_order(row):
    request, code = CHECKS[row]
    coordinator = Coordinator(TransactionConfig(max_timeout_ms=MAX_TIMEOUT_MS), ids_from(P))
    assert told(lambda: coordinator.check_init(request)) == code


def test_the_limits_come_from_the_settings():
    texts = {
        "transaction.max.timeout.ms": "5000",
        "transactional.id.expiration.ms": "7000",
        "transaction.two.phase.commit.enable": "true",
    }
    assert TransactionConfig.from_settings(Settings.from_mapping(texts)) == TransactionConfig(5000, 7000, True)
    assert TransactionConfig.from_settings(Settings()) == TransactionConfig()


def test_init_empty_id():
    coordinator = Coordinator(TransactionConfig(), ids_from(P))
    assert told(lambda: coordinator.check_init(InitRequest("", 1000))) == INVALID_REQUEST


@pytest.mark.parametrize("pair", [(5, -1), (-1, 5)])
def test_init_half_specified(pair):
    assert told(lambda: check_identity(*pair)) == INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [0, -1, MAX_TIMEOUT_MS + 1])
def test_init_timeout_bounds(timeout_ms):
    world = World()
    assert world.init(timeout_ms=timeout_ms) == INVALID_TRANSACTION_TIMEOUT
    assert world.log == []
    assert world.init(timeout_ms=MAX_TIMEOUT_MS) == (P, 0)
    assert World().init(timeout_ms=timeout_ms, enable_2pc=True) == (P, 0)


def test_a_plain_client_cannot_take_the_timeout_that_means_two_phase():
    config = TransactionConfig(max_timeout_ms=NEVER)
    assert World(config=config).init(timeout_ms=NEVER) == INVALID_TRANSACTION_TIMEOUT
    assert World(config=config).init(timeout_ms=NEVER - 1) == (P, 0)


def test_init_2pc_disabled():
    world = World(config=TransactionConfig(two_phase_commit_enable=False))
    assert world.init(enable_2pc=True) == TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert world.log == []


# --- the entry (1.6.2) ---


@TVS
def test_init_new_id_epoch_zero(tv):
    world = World(tv)
    assert world.init() == (P, 0)
    assert world.written == [EMPTY]
    assert world.now == a_transaction(EMPTY, 0)


@TVS
def test_init_pid_epoch_given_no_state(tv):
    world = World(tv)
    assert world.init(42, 5) == (P, 0)
    assert world.pair == (P, 0)


def test_an_init_without_a_producer_id_at_hand_is_told_to_come_back():
    coordinator = Coordinator(TransactionConfig(), no_ids)
    for entry in (None, a_transaction(EMPTY, MAX)):
        decide = lambda entry=entry: coordinator.init_producer_id(  # noqa: E731
            entry, InitRequest(TXN, 1000), NOW, pending=False, server_version=2
        )
        assert told(decide) == COORDINATOR_LOAD_IN_PROGRESS


CURRENT, LAST, OTHER, NEW_ID = (P, 5), (P, 4), (P, 3), (2000, 0)

# The state, fields of the entry, what the request names, what it is told. Epoch 5 unless said, last epoch 4.
ENTRIES = {
    "row 2: another producer id": (EMPTY, {}, (P + 1, 5), PRODUCER_FENCED),
    "row 2: another producer id, exhausted": (EMPTY, {}, (P + 1, MAX), PRODUCER_FENCED),
    "row 2: the previous id with an epoch that was not its last": (
        EMPTY,
        {"previous_producer_id": 7},
        (7, MAX - 1),
        PRODUCER_FENCED,
    ),
    "row 2 before 3": (PREPARE_COMMIT, {}, (P + 1, 5), PRODUCER_FENCED),
    "row 2 before 10": (ONGOING, {}, (P + 1, 5), PRODUCER_FENCED),
    "row 2 before 10: the last epoch of another producer id": (ONGOING, {}, (P + 1, MAX), PRODUCER_FENCED),
    "row 3: commit": (PREPARE_COMMIT, {}, (), CONCURRENT_TRANSACTIONS),
    "row 3: abort": (PREPARE_ABORT, {}, CURRENT, CONCURRENT_TRANSACTIONS),
    "row 4: unnamed": (EMPTY, {"epoch": MAX}, (), NEW_ID),
    "row 4: named": (COMPLETE_ABORT, {"epoch": MAX}, (P, MAX), NEW_ID),
    "row 4: the epoch of the last fence": (COMPLETE_ABORT, {"epoch": MAX + 1}, (), NEW_ID),
    "row 5: retry": (EMPTY, {"epoch": MAX, "last_producer_epoch": MAX - 1}, (P, MAX - 1), (P, MAX)),
    "row 5: stale": (EMPTY, {"epoch": MAX, "last_producer_epoch": MAX - 1}, (P, 10), PRODUCER_FENCED),
    "row 5: never the epoch of the fence": (
        COMPLETE_ABORT,
        {"epoch": MAX + 1, "last_producer_epoch": MAX},
        (P, MAX),
        PRODUCER_FENCED,
    ),
    "row 6": (EMPTY, {}, (), (P, 6)),
    "row 7": (EMPTY, {}, CURRENT, (P, 6)),
    "row 8": (EMPTY, {}, LAST, (P, 5)),
    "row 8: after a change of ids": (
        EMPTY,
        {"epoch": 0, "previous_producer_id": 7, "last_producer_epoch": MAX},
        (7, MAX),
        (P, 0),
    ),
    "row 9": (EMPTY, {}, OTHER, PRODUCER_FENCED),
    "row 9: an epoch of the future": (COMPLETE_COMMIT, {}, (P, 6), PRODUCER_FENCED),
    "row 10: unnamed": (ONGOING, {}, (), CONCURRENT_TRANSACTIONS),
    "row 10: the owner itself": (ONGOING, {}, CURRENT, CONCURRENT_TRANSACTIONS),
    "row 10: any epoch of the right id": (ONGOING, {}, OTHER, CONCURRENT_TRANSACTIONS),
}


@TVS
@pytest.mark.parametrize("row", ENTRIES)
def test_the_entry_is_checked_in_order(row, tv):
    state, fields, pair, expected = ENTRIES[row]
    world = a_world_in(state, tv, **{"last_producer_epoch": 4, **fields})
    world.is_marking = False
    before = len(world.log)
    assert world.init(*pair) == expected
    if expected == PRODUCER_FENCED or row.startswith("row 3"):
        assert len(world.log) == before
    elif row.startswith("row 10"):
        assert world.written[-1] is PREPARE_ABORT and world.now.producer_epoch == 6
    else:
        assert world.written[-1] is EMPTY and world.pair == expected


@pytest.mark.parametrize("state", [EMPTY, ONGOING, PREPARE_ABORT, COMPLETE_COMMIT], ids=lambda s: s.wire_name)
@pytest.mark.parametrize("pair", [(), (P, 5), (P + 1, 5)])
def test_while_something_is_pending_nothing_else_is_looked_at(state, pair):
    coordinator = Coordinator(TransactionConfig(), ids_from(P))
    request = InitRequest(TXN, 1000, *pair)
    for entry in (None, a_transaction(state)):
        decide = lambda entry=entry: coordinator.init_producer_id(  # noqa: E731
            entry, request, NOW, pending=True, server_version=2
        )
        assert told(decide) == CONCURRENT_TRANSACTIONS


@TVS
@CLOSED
def test_init_existing_empty_complete(state, tv):
    world = a_world_in(state, tv)
    assert world.init(timeout_ms=5000) == (P, 6)
    assert world.now == a_transaction(EMPTY, 6, timeout_ms=5000)


@TVS
@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT], ids=lambda s: s.wire_name)
def test_init_prepare_state(state, tv):
    world = a_world_in(state, tv)
    assert world.init() == CONCURRENT_TRANSACTIONS
    assert len(world.log) == 1


@TVS
def test_init_ongoing_fences(tv):
    world = a_world_in(ONGOING, tv, epoch=10)
    assert world.init(timeout_ms=5000) == CONCURRENT_TRANSACTIONS
    assert world.written[1:] == [PREPARE_ABORT]
    assert world.pair == (P, 11)
    assert (world.now.start_ms, world.now.partitions, world.now.previous_producer_id) == (NOW, T0, P)
    assert world.now.timeout_ms == TIMEOUT_MS, "only the retry brings the new timeout"
    world.complete()
    assert world.written[2:] == [COMPLETE_ABORT]
    assert world.init(timeout_ms=5000) == (P, 12)
    assert world.now.timeout_ms == 5000


@TVS
@CLOSED
def test_init_current_epoch(state, tv):
    world = a_world_in(state, tv)
    for _ in range(3):
        assert world.init(P, 5) == (P, 6)
        assert world.now.last_producer_epoch == 5
    assert world.written[1:] == [EMPTY] * 3, "a retry is written again, so that its reply is durable"


@TVS
def test_init_stale_epoch(tv):
    world = a_world_in(EMPTY, tv)
    assert world.init(P, 5) == (P, 6)
    assert world.init() == (P, 7)
    assert world.now.last_producer_epoch == -1
    assert world.init(P, 6) == PRODUCER_FENCED
    assert world.init(P, 5) == PRODUCER_FENCED


def test_init_different_pid():
    assert a_world_in(EMPTY).init(P + 1, 5) == PRODUCER_FENCED


@TVS
@CLOSED
def test_init_rotation(state, tv):
    world = a_world_in(state, tv, epoch=MAX)
    for _ in range(3):
        assert world.init(P, MAX) == (2000, 0)
    assert world.now == a_transaction(EMPTY, 0, 2000, previous_producer_id=P, last_producer_epoch=MAX)
    assert world.init(P, 10) == PRODUCER_FENCED
    assert world.init() == (2000, 1)
    assert world.init(P, MAX) == PRODUCER_FENCED


def test_rotation_retry_after_failover():
    world = a_world_in(EMPTY, epoch=MAX)
    assert world.init(P, MAX) == (2000, 0)
    world.reload()
    assert world.init(P, MAX) == (2000, 0)


def test_a_log_of_version_0_forgets_what_a_retry_needs():
    """Version 0 has no place for the last epoch: after a failover the retry is fenced, and its producer starts anew."""
    world = a_world_in(EMPTY, tv=0)
    assert world.init(P, 5) == (P, 6)
    assert world.init(P, 5) == PRODUCER_FENCED
    assert world.init() == (P, 7)


# --- fencing (1.6.3) ---


def test_fence_append_fails_tv1():
    """A decision changes nothing: three failed appends later the epoch is what it was, not four higher."""
    world = a_world_in(ONGOING, tv=1, epoch=1)
    decisions = [world.coordinator.fence(world.now, NOW, server_version=1) for _ in range(3)]
    assert [decision.value.producer_epoch for decision in decisions if decision.value] == [2, 2, 2]
    assert world.pair == (P, 1)
    assert world.init_done() == (P, 3)


def test_fence_append_fails_tv2():
    world = a_world_in(ONGOING, tv=2, epoch=1)
    decisions = [world.coordinator.fence(world.now, NOW, server_version=2) for _ in range(3)]
    assert [decision.value.producer_epoch for decision in decisions if decision.value] == [2, 2, 2]
    assert world.pair == (P, 1)
    assert world.init_done() == (P, 3)


def test_fence_at_last_epoch_tv1():
    world = a_world_in(ONGOING, tv=1, epoch=MAX)
    assert world.init() == CONCURRENT_TRANSACTIONS
    assert world.pair == (P, 32767)
    assert world.now.next_producer_id == -1
    world.complete()
    assert world.pair == (P, 32767)
    assert world.init() == (2000, 0)


def test_fence_at_last_epoch_tv2():
    world = a_world_in(ONGOING, tv=2, epoch=MAX)
    assert world.init() == CONCURRENT_TRANSACTIONS
    assert world.pair == (P, 32767)
    assert world.now.next_producer_id == 2000
    world.complete()
    assert world.pair == (2000, 0)
    assert world.init() == (2000, 1)


@pytest.mark.parametrize("tv", [1, 2, 3])
def test_a_fence_never_exceeds_the_last_epoch(tv):
    """A log of a broker that counted too far: it can still be fenced, and nobody gets 32767."""
    world = a_world_in(ONGOING, tv, epoch=32767)
    assert world.init() == CONCURRENT_TRANSACTIONS
    assert world.pair == (P, 32767)
    world.complete()
    assert world.init() == ((2000, 0) if tv == 1 else (2000, 1))


def test_a_fence_by_tv1_leaves_nothing_to_recognise():
    world = a_world_in(ONGOING, tv=1, last_producer_epoch=4)
    world.init()
    assert world.now.last_producer_epoch == -1
    assert world.now.client_version == 0


@pytest.mark.parametrize("tv", [2, 3])
def test_a_fence_by_tv2_remembers_the_fenced_producer(tv):
    world = a_world_in(ONGOING, tv, last_producer_epoch=4)
    world.init()
    assert world.now.last_producer_epoch == 5
    assert world.now.client_version == 2


# --- numeric traces (1.6.4) ---


def test_trace_tv1_epoch_stays_through_transactions():
    world = World(tv=1)
    assert world.init() == (P, 0)
    for _ in range(2):
        assert world.add() == OK
        assert world.commit() == OK
        assert world.now.state is PREPARE_COMMIT and world.pair == (P, 0), "markers have epoch 0"
        world.complete()
        assert world.pair == (P, 0)


def test_trace_tv2_epoch_moves_with_every_transaction():
    world = World(tv=2)
    assert world.init() == (P, 0)
    for epoch in (1, 2):
        assert world.add() == OK
        assert world.commit() == (P, epoch)
        assert world.now.state is PREPARE_COMMIT and world.pair == (P, epoch), "markers have the epoch of the reply"
        world.complete()
        assert world.pair == (P, epoch)


@TVS
def test_trace_crash_while_ongoing(tv):
    world = a_world_in(ONGOING, tv)
    assert world.init() == CONCURRENT_TRANSACTIONS
    assert world.pair == (P, 6), "abort markers have E+1"
    world.complete()
    assert world.init() == (P, 7)


def test_trace_commit_at_the_last_epoch_tv1():
    world = a_world_in(ONGOING, tv=1, epoch=MAX)
    assert world.commit() == OK
    assert world.pair == (P, MAX)
    world.complete()
    assert world.init() == (2000, 0)


def test_trace_commit_at_the_last_epoch_tv2():
    world = a_world_in(ONGOING, tv=2, epoch=MAX)
    assert world.commit() == (2000, 0)
    assert world.pair == (P, 32767) and world.now.next_producer_id == 2000
    world.complete()
    assert world.pair == (2000, 0) and world.now.previous_producer_id == P


def test_trace_timeout_at_the_last_epoch_then_late_abort_tv1():
    world = a_world_in(ONGOING, tv=1, epoch=MAX)
    world.time_out()
    world.complete()
    assert world.abort(P, MAX) == PRODUCER_FENCED


def test_trace_timeout_at_the_last_epoch_then_late_abort_tv2():
    world = a_world_in(ONGOING, tv=2, epoch=MAX)
    world.time_out()
    world.complete()
    assert world.abort(P, MAX) == (2000, 0)


def test_timeout_at_boundary_late_abort_tv2():
    world = a_world_in(ONGOING, tv=2, epoch=MAX)
    world.time_out()
    assert world.now.next_producer_id == 2000
    assert world.abort(P, MAX) == CONCURRENT_TRANSACTIONS
    world.complete()
    assert world.abort(P, MAX) == (2000, 0)
    assert world.init(P, MAX) == (2000, 0)
    assert world.init(P, MAX) == (2000, 0)
