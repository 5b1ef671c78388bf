"""AddPartitionsToTxn and AddOffsetsToTxn: adding to a transaction, and asking whether something belongs to it."""

import pytest

from kits.coordinator.transactions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    CONCURRENT_TRANSACTIONS,
    EMPTY,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    MAX,
    NOW,
    OK,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PRODUCER_FENCED,
    RECORDED_STATES,
    T0,
    TRANSACTION_ABORTABLE,
    TXN,
    P,
    World,
    a_transaction,
    a_world_in,
    ids_from,
    partitions,
    told,
)
from twofold.coordinator.transaction.coordinator import Coordinator, TransactionConfig
from twofold.types import TopicPartition

NOTHING = partitions()
MORE = partitions("t-0", "t-1")


def add(entry, transactional_id=TXN, pair=(P, 5), of=T0, pending=False):
    producer_id, epoch = pair
    coordinator = Coordinator(TransactionConfig(), ids_from(2000))
    return told(
        lambda: coordinator.add_partitions(
            entry, transactional_id, producer_id, epoch, of, 2, NOW, pending=pending, server_version=2
        )
    )


# --- adding (1.8.2) ---

ROWS = {
    "no partitions": (add(a_transaction(EMPTY), of=NOTHING), INVALID_REQUEST),
    "row 3": (add(None), INVALID_PRODUCER_ID_MAPPING),
    "row 4: it is being removed": (add(None, pending=True), CONCURRENT_TRANSACTIONS),
    "row 4": (add(a_transaction(ONGOING), pending=True), CONCURRENT_TRANSACTIONS),
    "row 4 before 5": (add(a_transaction(ONGOING), pair=(9, 5), pending=True), CONCURRENT_TRANSACTIONS),
    "row 4 before 6": (add(a_transaction(ONGOING), pair=(P, 4), pending=True), CONCURRENT_TRANSACTIONS),
    "row 4 before 8": (add(a_transaction(ONGOING), of=T0, pending=True), CONCURRENT_TRANSACTIONS),
    "row 5": (add(a_transaction(ONGOING), pair=(9, 5)), INVALID_PRODUCER_ID_MAPPING),
    "row 5 before 6": (add(a_transaction(ONGOING), pair=(9, 4)), INVALID_PRODUCER_ID_MAPPING),
    "row 6: lower": (add(a_transaction(ONGOING), pair=(P, 4)), PRODUCER_FENCED),
    "row 6: higher": (add(a_transaction(ONGOING), pair=(P, 6)), PRODUCER_FENCED),
    "row 6 before 7": (add(a_transaction(PREPARE_COMMIT), pair=(P, 4)), PRODUCER_FENCED),
    "row 7: commit": (add(a_transaction(PREPARE_COMMIT)), CONCURRENT_TRANSACTIONS),
    "row 7: abort": (add(a_transaction(PREPARE_ABORT)), CONCURRENT_TRANSACTIONS),
    "row 8": (add(a_transaction(ONGOING), of=T0), OK),
    "row 9": (add(a_transaction(ONGOING), of=MORE), OK),
}


@pytest.mark.parametrize("row", ROWS)
def test_adding_is_checked_in_order(row):
    found, expected = ROWS[row]
    assert found == expected


def test_add_unknown_id():
    assert World().add(P, 0) == INVALID_PRODUCER_ID_MAPPING


def test_add_wrong_pid():
    assert a_world_in(EMPTY).add(P + 1, 5) == INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("epoch", [4, 6])
def test_add_wrong_epoch(epoch):
    assert a_world_in(EMPTY).add(P, epoch) == PRODUCER_FENCED


@pytest.mark.parametrize("state", [PREPARE_COMMIT, PREPARE_ABORT], ids=lambda s: s.wire_name)
@pytest.mark.parametrize("is_marking", [True, False])
def test_add_while_prepare(state, is_marking):
    world = a_world_in(state)
    world.is_marking = is_marking
    assert world.add() == CONCURRENT_TRANSACTIONS
    assert len(world.log) == 1


def test_add_same_partitions():
    world = a_world_in(ONGOING)
    assert world.add(of=MORE) == OK
    written = len(world.log)
    for part in (MORE, T0, partitions("t-1")):
        assert world.add(of=part) == OK
    assert len(world.log) == written


@pytest.mark.parametrize("state", [COMPLETE_COMMIT, COMPLETE_ABORT], ids=lambda s: s.wire_name)
def test_add_from_complete(state):
    world = a_world_in(state)
    world.now_ms += 77
    assert world.add(of=partitions("u-3")) == OK
    assert world.now == a_transaction(
        ONGOING, 5, of=partitions("u-3"), start_ms=NOW + 77, last_update_ms=NOW + 77, client_version=2
    )


def test_adding_more_keeps_the_start_and_what_was_there():
    world = World()
    world.init()
    world.add(of=T0)
    world.now_ms += 5000
    world.add(of=partitions("t-1", "u-0"))
    assert world.now.start_ms == NOW, "nothing that a client does extends a transaction"
    assert world.now.last_update_ms == NOW + 5000
    assert world.now.partitions == partitions("t-0", "t-1", "u-0")


@pytest.mark.parametrize("client_version", [0, 2])
def test_the_version_of_the_client_that_adds_is_recorded(client_version):
    world = a_world_in(EMPTY)
    assert world.add(client_version=client_version) == OK
    assert world.now.client_version == client_version


def test_adding_keeps_the_last_epoch():
    """With TV1 a late duplicate of InitProducerId after a whole transaction is still answered as before."""
    world = a_world_in(EMPTY, tv=1)
    assert world.init(P, 5) == (P, 6)
    world.transaction()
    assert world.now.last_producer_epoch == 5
    assert world.init(P, 5) == (P, 6)


def test_adding_forgets_the_previous_producer_id():
    """It has begun something under the new id: what still comes under the old one is no retry."""
    world = a_world_in(EMPTY, epoch=MAX)
    world.init(P, MAX)
    world.add()
    assert world.now.previous_producer_id == 2000


def test_add_pending_before_identity():
    """The client may hold the rotated id already while its record is still on the way (KAFKA-18660)."""
    world = a_world_in(ONGOING, epoch=MAX)
    assert world.commit() == (2000, 0)
    assert world.add(2000, 0) == CONCURRENT_TRANSACTIONS
    world.complete()
    assert world.add(2000, 0) == OK


def test_end_add_race():
    world = a_world_in(ONGOING)
    assert world.commit() == (P, 6)
    assert world.add(P, 6) == CONCURRENT_TRANSACTIONS
    world.complete()
    assert world.add(P, 6) == OK


# --- verifying (1.8.3) ---


@pytest.mark.parametrize(
    ("entry", "pair", "code"),
    [
        pytest.param(None, (P, 5), INVALID_PRODUCER_ID_MAPPING, id="row 3: absent"),
        pytest.param(a_transaction(ONGOING), (9, 5), INVALID_PRODUCER_ID_MAPPING, id="row 3: another producer id"),
        pytest.param(a_transaction(ONGOING), (9, 4), INVALID_PRODUCER_ID_MAPPING, id="row 3 before 4"),
        pytest.param(a_transaction(ONGOING), (P, 4), PRODUCER_FENCED, id="row 4: lower"),
        pytest.param(a_transaction(ONGOING), (P, 6), PRODUCER_FENCED, id="row 4: higher"),
        pytest.param(a_transaction(PREPARE_ABORT), (P, 4), PRODUCER_FENCED, id="row 4 before 5"),
        pytest.param(a_transaction(PREPARE_COMMIT), (P, 5), CONCURRENT_TRANSACTIONS, id="row 5: commit"),
        pytest.param(a_transaction(PREPARE_ABORT), (P, 5), CONCURRENT_TRANSACTIONS, id="row 5: abort"),
        pytest.param(a_transaction(ONGOING), (P, 5), OK, id="row 6"),
        pytest.param(a_transaction(ONGOING, of=MORE - T0), (P, 5), TRANSACTION_ABORTABLE, id="row 7"),
        pytest.param(a_transaction(EMPTY), (P, 5), TRANSACTION_ABORTABLE, id="row 7: empty"),
        pytest.param(a_transaction(COMPLETE_COMMIT), (P, 5), TRANSACTION_ABORTABLE, id="row 7: committed"),
        pytest.param(a_transaction(COMPLETE_ABORT), (P, 5), TRANSACTION_ABORTABLE, id="row 7: aborted"),
    ],
)
def test_verifying_is_checked_in_order(entry, pair, code):
    coordinator = Coordinator(TransactionConfig(), ids_from(2000))
    producer_id, epoch = pair
    assert coordinator.verify(entry, producer_id, epoch, T0) == {TopicPartition("t", 0): code}


def test_verify_present():
    assert a_world_in(ONGOING).verify() == {TopicPartition("t", 0): OK}


def test_verify_absent():
    found = a_world_in(ONGOING).verify(of=partitions("t-0", "t-1", "u-0"))
    assert found == {
        TopicPartition("t", 0): OK,
        TopicPartition("t", 1): TRANSACTION_ABORTABLE,
        TopicPartition("u", 0): TRANSACTION_ABORTABLE,
    }


def test_verify_wrong_epoch():
    assert set(a_world_in(ONGOING).verify(epoch=4, of=MORE).values()) == {PRODUCER_FENCED}


def test_verify_prepare():
    assert set(a_world_in(PREPARE_COMMIT).verify(of=MORE).values()) == {CONCURRENT_TRANSACTIONS}


def test_verify_pending():
    """Waiting for what is pending made the first batches of a transaction loop (KAFKA-14904): it is not even asked."""
    world = a_world_in(ONGOING)
    assert "pending" not in world.coordinator.verify.__annotations__
    assert world.verify() == {TopicPartition("t", 0): OK}


@pytest.mark.parametrize("state", RECORDED_STATES, ids=lambda s: s.wire_name)
def test_verifying_writes_nothing(state):
    world = a_world_in(state)
    world.verify()
    assert len(world.log) == 1


def test_add_offsets_is_adding_one_partition():
    """1.9: AddOffsetsToTxn adds the partition of the group, as a client of TV1 does."""
    world = a_world_in(EMPTY, tv=1)
    offsets = partitions("__consumer_offsets-7")
    assert world.add(of=offsets, client_version=0) == OK
    assert world.now.partitions == offsets
    assert world.verify(of=offsets) == {TopicPartition("__consumer_offsets", 7): OK}


# --- a bound on what a principal may have open ---


def add_as_alice(entry, open_now, *, most=2, pair=(P, 5), pending=False):
    asked: list[str] = []
    producer_id, epoch = pair

    def count_open(principal):
        asked.append(principal)
        return open_now

    coordinator = Coordinator(TransactionConfig(max_open=most), ids_from(2000), count_open=count_open)
    found = told(
        lambda: coordinator.add_partitions(
            entry, TXN, producer_id, epoch, MORE, 2, NOW, pending=pending, server_version=2, principal="User:alice"
        )
    )
    return found, asked


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_a_principal_with_as_many_open_as_it_may_have_begins_no_other(state):
    assert add_as_alice(a_transaction(state), 1) == (OK, ["User:alice"])
    assert add_as_alice(a_transaction(state), 2) == (CONCURRENT_TRANSACTIONS, ["User:alice"])
    assert add_as_alice(a_transaction(state), 3) == (CONCURRENT_TRANSACTIONS, ["User:alice"])


def test_without_a_bound_nothing_is_counted():
    assert add_as_alice(a_transaction(EMPTY), 1_000_000, most=0) == (OK, [])


def test_what_is_open_may_be_added_to_whatever_its_principal_has_open():
    assert add_as_alice(a_transaction(ONGOING), 2) == (OK, [])


def test_a_fenced_or_unknown_producer_learns_that_before_it_is_told_to_ask_again():
    assert add_as_alice(a_transaction(EMPTY), 2, pair=(P, 4)) == (PRODUCER_FENCED, [])
    assert add_as_alice(a_transaction(EMPTY), 2, pair=(9, 5)) == (INVALID_PRODUCER_ID_MAPPING, [])
    assert add_as_alice(None, 2) == (INVALID_PRODUCER_ID_MAPPING, [])
