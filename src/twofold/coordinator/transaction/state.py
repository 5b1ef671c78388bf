"""What a partition of `__transaction_state` says: the transactional ids, which are open, which are being ended.

1. The state is a function of the log alone: live writes, a restart and a change of leadership go through the same
   `apply_all`.
2. `ongoing` and `preparing` are read off `entries`, so that looking for timeouts and for markers that are owed costs
   what is open, not what is known.
3. `opened_by` counts the open transactions of each principal, so that one more is admitted or not at the same cost
   however many there are. It is kept only where the machine is asked to.
4. For one producer id the epoch never goes down. A log that says otherwise is corrupt: a coordinator that served
   it could let a fenced producer write again.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from twofold.coordinator.transaction.records import TransactionMetadata, TransactionRecord
from twofold.coordinator.transaction.states import PREPARING, State
from twofold.machine.maps import Map, MapMutation
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


class CorruptTransactionLog(ValueError):
    """Records that contradict each other: the partition must not be served."""


class TransactionsState(NamedTuple):
    entries: Map[str, TransactionMetadata] = _NOTHING
    ongoing: Map[str, None] = _NOTHING  # ids whose transaction is open
    preparing: Map[str, None] = _NOTHING  # ids whose transaction is decided and not complete
    opened_by: Map[str, int] = _NOTHING  # principals, with the number of their open transactions; "" did not log in


def check_successor(
    old: TransactionMetadata | None, new: TransactionMetadata | None, transactional_id: str = ""
) -> None:
    """Whether the log may say one after the other; for loading, because a live decision never lowers an epoch."""
    if old is None or new is None or old.producer_id != new.producer_id or new.producer_epoch >= old.producer_epoch:
        return
    raise CorruptTransactionLog(
        f"transactional id {transactional_id!r} with producer id {new.producer_id} has epoch {new.producer_epoch} "
        f"({new.state.wire_name}) after epoch {old.producer_epoch} ({old.state.wire_name})"
    )


class TransactionMachine(Machine[TransactionsState, TransactionRecord]):
    """With `check`, records that lower an epoch raise `CorruptTransactionLog`. With `counts`, the open transactions of
    each principal are counted."""

    busy: type[KafkaError] = CoordinatorNotAvailable

    def __init__(self, *, check: bool = False, counts: bool = False) -> None:
        self.check = check
        self.counts = counts

    def initial(self) -> TransactionsState:
        return TransactionsState()

    def apply_all(
        self, state: TransactionsState, entries: Iterable[tuple[int, TransactionRecord]]
    ) -> TransactionsState:
        known, ongoing, preparing = state.entries.mutate(), state.ongoing.mutate(), state.preparing.mutate()
        check = self.check
        opened_by = state.opened_by.mutate() if self.counts else None
        for _, (transactional_id, value) in entries:
            old = known.get(transactional_id)
            if check and old is not None:
                check_successor(old, value, transactional_id)
            if opened_by is not None:
                _count(opened_by, old, value)
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
        counted = state.opened_by if opened_by is None else opened_by.finish()
        return TransactionsState(known.finish(), ongoing.finish(), preparing.finish(), counted)

    def map_error(self, error: Exception) -> KafkaError:
        return as_coordinator_error(super().map_error(error))


def _count(opened_by: MapMutation[str, int], old: TransactionMetadata | None, new: TransactionMetadata | None) -> None:
    if old is not None and old.state is State.ONGOING:
        left = (opened_by.get(old.opened_by) or 0) - 1
        if left > 0:
            opened_by[old.opened_by] = left
        else:
            opened_by.pop(old.opened_by, None)
    if new is not None and new.state is State.ONGOING:
        opened_by[new.opened_by] = (opened_by.get(new.opened_by) or 0) + 1


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
    """What producers get for an error of the log: they know coordinators, not leaders of internal partitions."""
    known = _COORDINATOR_ERRORS.get(type(error))
    return error if known is None else known(error.message)
