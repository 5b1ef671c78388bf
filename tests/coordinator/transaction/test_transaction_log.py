"""The state as a function of the log: applying, loading, corruption, and what producers hear of a failed append."""

from itertools import starmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kits.coordinator.transactions import (
    COMPLETE_COMMIT,
    EMPTY,
    NEVER,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    RECORDED_STATES,
    P,
    World,
    a_transaction,
)
from twofold.coordinator.transaction.records import TransactionMetadata, TransactionRecord
from twofold.coordinator.transaction.state import (
    CorruptTransactionLog,
    TransactionMachine,
    TransactionsState,
    check_successor,
)
from twofold.coordinator.transaction.states import State
from twofold.wire.errors import (
    CoordinatorNotAvailable,
    InvalidRecord,
    KafkaStorageError,
    MessageTooLarge,
    NotCoordinator,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)


def load(*records: tuple[str, TransactionMetadata | None], check: bool = True) -> TransactionsState:
    machine = TransactionMachine(check=check)
    return machine.apply_all(machine.initial(), list(enumerate(starmap(TransactionRecord, records))))


def test_open_transactions_are_counted_by_principal_until_they_are_decided_or_removed():
    def of(state: State, principal: str) -> TransactionMetadata:
        return a_transaction(state)._replace(opened_by=principal)

    machine = TransactionMachine(counts=True)
    state = machine.initial()
    steps: list[tuple[str, TransactionMetadata | None]] = [
        ("a", of(ONGOING, "User:alice")),
        ("b", of(ONGOING, "User:alice")),
        ("c", of(ONGOING, "")),
        ("b", of(ONGOING, "User:alice")),  # a partition more
        ("a", of(PREPARE_COMMIT, "User:alice")),
        ("a", of(COMPLETE_COMMIT, "")),
        ("b", None),
        ("never", None),
        ("c", of(PREPARE_ABORT, "")),
    ]
    seen: list[dict[str, int]] = []
    for name, value in steps:
        state = machine.apply_all(state, [(len(seen), TransactionRecord(name, value))])
        seen.append(dict(state.opened_by))
    alice, both = {"User:alice": 1}, {"User:alice": 2, "": 1}
    assert seen == [alice, {"User:alice": 2}, both, both, {**alice, "": 1}, {**alice, "": 1}, {"": 1}, {"": 1}, {}]


def test_where_nothing_is_bounded_nothing_is_counted():
    state = load(("a", a_transaction(ONGOING)), check=False)
    assert list(state.ongoing) == ["a"]
    assert dict(state.opened_by) == {}


def test_load_and_unload():
    state = load(
        ("commit", a_transaction(ONGOING)),
        ("commit", a_transaction(PREPARE_COMMIT)),
        ("abort", a_transaction(PREPARE_ABORT, 6)),
        ("open", a_transaction(ONGOING, 7)),
        ("done", a_transaction(PREPARE_COMMIT, 8)),
        ("done", a_transaction(COMPLETE_COMMIT, 8)),
        ("gone", a_transaction(EMPTY, 9)),
        ("gone", None),
        ("never", None),
    )
    assert set(state.entries) == {"commit", "abort", "open", "done"}
    assert set(state.preparing) == {"commit", "abort"}, "these get their markers again"
    assert set(state.ongoing) == {"open"}
    assert state.entries["done"].state is COMPLETE_COMMIT


values = st.builds(
    lambda state, epoch, timeout_ms: a_transaction(state, epoch, timeout_ms=timeout_ms),
    st.sampled_from(RECORDED_STATES),
    st.integers(0, 9),
    st.sampled_from([1000, NEVER]),
)
logs = st.lists(st.builds(TransactionRecord, st.sampled_from("abc"), st.none() | values), max_size=30)


@given(logs, st.integers(0, 30))
def test_any_way_of_applying_gives_the_same_state(log, cut):
    """One by one, all at once, in two parts: and loading twice gives equal states."""
    machine = TransactionMachine()
    one_by_one = machine.initial()
    for offset, record in enumerate(log):
        one_by_one = machine.apply(one_by_one, record, offset)
    entries = list(enumerate(log))
    assert machine.apply_all(machine.initial(), entries) == one_by_one
    assert machine.apply_all(machine.initial(), iter(entries)) == one_by_one
    halfway = machine.apply_all(machine.initial(), entries[:cut])
    assert machine.apply_all(halfway, entries[cut:]) == one_by_one


@given(logs)
def test_what_is_open_and_what_is_decided_is_read_off_the_entries(log):
    machine = TransactionMachine()
    state = machine.apply_all(machine.initial(), list(enumerate(log)))
    assert set(state.ongoing) == {name for name, value in state.entries.items() if value.state is ONGOING}
    assert set(state.preparing) == {
        name for name, value in state.entries.items() if value.state in (PREPARE_COMMIT, PREPARE_ABORT)
    }


# --- corruption ---


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "in a batch"])
def test_a_lower_epoch_of_the_same_producer_id_is_corruption(count):
    machine = TransactionMachine(check=True)
    state = load(("x", a_transaction(EMPTY, 5)))
    worse = [TransactionRecord("y", a_transaction(EMPTY, 1)), TransactionRecord("x", a_transaction(EMPTY, 4))]
    with pytest.raises(CorruptTransactionLog, match=r"'x' with producer id 1000 has epoch 4 .* after epoch 5"):
        machine.apply_all(state, list(enumerate(worse[-count:])))


def test_no_lower_epoch_is_seen_where_the_producer_id_changed_or_the_id_was_removed():
    load(
        ("x", a_transaction(EMPTY, 5)),
        ("x", a_transaction(EMPTY, 5)),
        ("x", a_transaction(EMPTY, 0, P + 1)),
        ("x", None),
        ("x", a_transaction(EMPTY, 0, P)),
        ("x", a_transaction(EMPTY, 3, P)),
    )


def test_the_check_can_be_made_by_any_loader():
    check_successor(None, a_transaction(EMPTY, 3))
    check_successor(a_transaction(EMPTY, 3), None)
    check_successor(a_transaction(EMPTY, 3), a_transaction(ONGOING, 3))
    with pytest.raises(CorruptTransactionLog):
        check_successor(a_transaction(EMPTY, 3), a_transaction(ONGOING, 2))
    load(("x", a_transaction(EMPTY, 5)), ("x", a_transaction(EMPTY, 4)), check=False)


@pytest.mark.parametrize("tv", [1, 2])
def test_what_the_coordinator_writes_is_never_taken_for_corruption(tv):
    world = World(tv, start=a_transaction(EMPTY, 32764), next_id=2000)
    for turn in range(6):
        world.transaction(commit=turn % 2 == 0)
        world.add()
        world.time_out()
        world.init_done()
    world.reload()


# --- a failed append (1.5) ---


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnknownTopicOrPartition, CoordinatorNotAvailable),
        (NotEnoughReplicas, CoordinatorNotAvailable),
        (NotEnoughReplicasAfterAppend, CoordinatorNotAvailable),
        (RequestTimedOut, CoordinatorNotAvailable),
        (NotLeaderOrFollower, NotCoordinator),
        (KafkaStorageError, NotCoordinator),
        (MessageTooLarge, UnknownServerError),
        (RecordListTooLarge, UnknownServerError),
        (InvalidRecord, InvalidRecord),
        (CoordinatorNotAvailable, CoordinatorNotAvailable),
    ],
    ids=lambda kind: kind.name,
)
def test_append_error_mapping(error, told):
    found = TransactionMachine().map_error(error("the log says no"))
    assert type(found) is told
    assert found.message == "the log says no"


def test_append_error_mapping_of_the_disk():
    assert type(TransactionMachine().map_error(OSError(28, "no space left"))) is NotCoordinator
    assert type(TransactionMachine().map_error(ZeroDivisionError())) is UnknownServerError
