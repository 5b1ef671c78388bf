"""What a partition of `__transaction_state` says: the transactional ids, which are open, which are being ended.

1. The state is a function of the log alone: live writes, a restart and a change of leadership go through the same
   `apply`.
2. `ongoing` and `preparing` are read off `entries`, so that looking for timeouts and for markers that are owed costs
   what is open, not what is known.
3. For one producer id the epoch never goes down. A log that says otherwise is corrupt: whoever served it could let a
   fenced producer write again.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from immutables import Map

from twofold.coordinator.transaction.records import Transaction, TransactionRecord
from twofold.coordinator.transaction.states import PREPARING, State
from twofold.machine.runtime import Machine
from twofold.wire.errors import (
    CoordinatorNotAvailable,
    KafkaError,
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

_NOTHING: Map[Any, Any] = Map()
_new_tuple = tuple.__new__


class CorruptTransactionLog(ValueError):
    """Records that contradict each other: the partition must not be served."""


class TransactionsState(NamedTuple):
    entries: Map[str, Transaction] = _NOTHING
    ongoing: Map[str, None] = _NOTHING  # ids whose transaction is open
    preparing: Map[str, None] = _NOTHING  # ids whose transaction is decided and not complete


def check_successor(old: Transaction | None, new: Transaction | None, transactional_id: str = "") -> None:
    """Whether the log may say one after the other; for loading, because a live decision never lowers an epoch."""
    if old is None or new is None or old.producer_id != new.producer_id or new.producer_epoch >= old.producer_epoch:
        return
    raise CorruptTransactionLog(
        f"transactional id {transactional_id!r} with producer id {new.producer_id} has epoch {new.producer_epoch} "
        f"({new.state.wire_name}) after epoch {old.producer_epoch} ({old.state.wire_name})"
    )


class TransactionMachine(Machine[TransactionsState, TransactionRecord]):
    """With `check`, records that lower an epoch raise `CorruptTransactionLog`."""

    busy: type[KafkaError] = CoordinatorNotAvailable

    def __init__(self, *, check: bool = False) -> None:
        self.check = check

    def initial(self) -> TransactionsState:
        return TransactionsState()

    def apply(self, state: TransactionsState, record: TransactionRecord, offset: int) -> TransactionsState:
        transactional_id, value = record
        entries, ongoing, preparing = state.entries, state.ongoing, state.preparing
        old = entries.get(transactional_id)
        if self.check:
            check_successor(old, value, transactional_id)
        if value is None:
            return state if old is None else _without(state, transactional_id)
        was = None if old is None else old.state
        now = value.state
        if now is State.ONGOING:
            if was is not State.ONGOING:
                ongoing = ongoing.set(transactional_id, None)
        elif was is State.ONGOING:
            ongoing = ongoing.delete(transactional_id)
        if now in PREPARING:
            if was not in PREPARING:
                preparing = preparing.set(transactional_id, None)
        elif was in PREPARING:
            preparing = preparing.delete(transactional_id)
        return _new_tuple(TransactionsState, (entries.set(transactional_id, value), ongoing, preparing))

    def apply_all(
        self, state: TransactionsState, entries: Iterable[tuple[int, TransactionRecord]]
    ) -> TransactionsState:
        numbered = entries if isinstance(entries, list) else list(entries)
        if len(numbered) == 1:
            ((offset, record),) = numbered
            return self.apply(state, record, offset)
        known, ongoing, preparing = state.entries.mutate(), state.ongoing.mutate(), state.preparing.mutate()
        check = self.check
        for _, (transactional_id, value) in numbered:
            old = known.get(transactional_id)
            if check and old is not None:
                check_successor(old, value, transactional_id)
            if value is None:
                known.pop(transactional_id, None)
                ongoing.pop(transactional_id, None)
                preparing.pop(transactional_id, None)
                continue
            known[transactional_id] = value
            now = value.state
            if now is State.ONGOING:
                ongoing[transactional_id] = None
            elif old is not None and old.state is State.ONGOING:
                ongoing.pop(transactional_id, None)
            if now in PREPARING:
                preparing[transactional_id] = None
            elif old is not None and old.state in PREPARING:
                preparing.pop(transactional_id, None)
        return TransactionsState(known.finish(), ongoing.finish(), preparing.finish())

    def map_error(self, error: Exception) -> KafkaError:
        return as_coordinator_error(super().map_error(error))


def _without(state: TransactionsState, transactional_id: str) -> TransactionsState:
    ongoing, preparing = state.ongoing, state.preparing
    if transactional_id in ongoing:
        ongoing = ongoing.delete(transactional_id)
    if transactional_id in preparing:
        preparing = preparing.delete(transactional_id)
    return TransactionsState(state.entries.delete(transactional_id), ongoing, preparing)


_COORDINATOR_ERRORS: dict[type[KafkaError], type[KafkaError]] = {
    UnknownTopicOrPartition: CoordinatorNotAvailable,
    NotEnoughReplicas: CoordinatorNotAvailable,
    NotEnoughReplicasAfterAppend: CoordinatorNotAvailable,
    RequestTimedOut: CoordinatorNotAvailable,
    NotLeaderOrFollower: NotCoordinator,
    KafkaStorageError: NotCoordinator,
    MessageTooLarge: UnknownServerError,
    RecordListTooLarge: UnknownServerError,
}


def as_coordinator_error(error: KafkaError) -> KafkaError:
    """What producers are told of an error of the log: they know coordinators, not leaders of internal partitions."""
    known = _COORDINATOR_ERRORS.get(type(error))
    return error if known is None else known(error.message)
