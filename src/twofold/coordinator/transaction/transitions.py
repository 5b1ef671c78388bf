"""The record that each row of the table of states writes.

1. Epochs end at 32766 for clients. 32767 is kept so that a producer can always be fenced, and its transaction marked,
   one last time. A producer at 32766 or above gets a new producer id with its next epoch.
2. The previous producer id is the one that the client had before the record, so a retry after a change of ids is known
   by it; the last epoch does the same for epochs. Both are in the log, so both survive a failover (KAFKA-20310,
   KAFKA-20357).
3. A coordinator that ends a transaction on its own always raises the epoch, and by one only (KAFKA-6119, KAFKA-19367).
4. A kept prepared transaction has two identities: the main pair, which wrote the data and gets the markers, and the
   next pair, which the recovered client holds. Its end raises both, so that a late duplicate of the request that ended
   it never ends the next transaction.
5. A kept transaction stays what it is until it is complete: no request changes its timeout, or makes a two-phase
   transaction (KIP-939) a plain one. What the client that keeps it has asked for counts from its next transaction on.
6. How a two-phase transaction ended is in every record after it, until the next one ends or the id expires. One that
   ends under its own epoch (TV1) is not remembered, because the next transaction may have the same pair.
7. The principal that opened a transaction is in its records until it is complete.
8. No clock is compared with another: the wall clock may go backwards (KAFKA-5415, KAFKA-8803).

Values are made with the constructor, by keywords. `_replace` takes five times as long.
"""

from collections.abc import Callable

from twofold.coordinator.transaction.records import NEVER_MS, NO_PARTITIONS, Ended, NextTerms, TransactionMetadata
from twofold.coordinator.transaction.states import TARGETS, Event, State
from twofold.types import (
    FIRST_PRODUCER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    Ending,
    ProducerEpoch,
    ProducerId,
    ProducerPair,
    TopicPartition,
)

EPOCH_MAX = 32767
EXHAUSTED = EPOCH_MAX - 1

CLIENT_TV1 = 0
CLIENT_TV2 = 2

_ON_INIT, _ON_KEEP, _ON_ADD = TARGETS[Event.INIT], TARGETS[Event.KEEP], TARGETS[Event.ADD]
_ON_COMMIT, _ON_ABORT, _ON_FENCE = TARGETS[Event.COMMIT], TARGETS[Event.ABORT], TARGETS[Event.FENCE]
_ON_COMPLETE = TARGETS[Event.COMPLETE]
_ENDINGS = {
    Event.COMMIT: Ending.COMMITTED.value,
    Event.ABORT: Ending.ABORTED.value,
    Event.FENCE: Ending.TERMINATED.value,
}


def has_kept(entry: TransactionMetadata) -> bool:
    """Whether the client holds another identity than the one that wrote the transaction."""
    return entry.next_producer_epoch != NO_PRODUCER_EPOCH


def client_pair(entry: TransactionMetadata) -> ProducerPair:
    """The identity that the client holds."""
    if entry.next_producer_epoch != NO_PRODUCER_EPOCH:
        return entry.next_producer_id, entry.next_producer_epoch
    return entry.producer_id, entry.producer_epoch


def reply_pair(prepared: TransactionMetadata) -> ProducerPair:
    """The identity that the client goes on with once this transaction is complete."""
    if prepared.next_producer_epoch != NO_PRODUCER_EPOCH:
        return prepared.next_producer_id, prepared.next_producer_epoch
    if prepared.next_producer_id != NO_PRODUCER_ID and prepared.client_version >= CLIENT_TV2:
        return prepared.next_producer_id, FIRST_PRODUCER_EPOCH
    return prepared.producer_id, prepared.producer_epoch


def created(producer_id: ProducerId, timeout_ms: int, interval_ms: int, now_ms: int) -> TransactionMetadata:
    state = _ON_INIT[None]
    return TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=FIRST_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        state=state,
        last_update_ms=now_ms,
        previous_producer_id=producer_id,
        heartbeat_interval_ms=interval_ms,
    )


def initialized(
    entry: TransactionMetadata,
    identity: ProducerPair,
    previous_producer_id: ProducerId,
    last_epoch: ProducerEpoch,
    timeout_ms: int,
    interval_ms: int,
    now_ms: int,
) -> TransactionMetadata:
    """EMPTY under the given identity: the next epoch, the same one for a retry, or a new producer id."""
    return TransactionMetadata(
        producer_id=identity[0],
        producer_epoch=identity[1],
        timeout_ms=timeout_ms,
        state=_ON_INIT[entry.state],
        partitions=NO_PARTITIONS,
        last_update_ms=now_ms,
        start_ms=NO_TIMESTAMP,
        previous_producer_id=previous_producer_id,
        next_producer_id=NO_PRODUCER_ID,
        client_version=entry.client_version,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        last_producer_epoch=last_epoch,
        heartbeat_interval_ms=interval_ms,
        last_two_phase=entry.last_two_phase,
    )


def kept(
    entry: TransactionMetadata,
    new_producer_id: Callable[[], ProducerId],
    timeout_ms: int,
    interval_ms: int,
    now_ms: int,
) -> TransactionMetadata:
    """ONGOING as before, with the next identity for the client that recovered it. A timeout of NEVER_MS makes
    it a two-phase one at once; any other counts after this transaction. So do heartbeats of a two-phase one."""
    state = _ON_KEEP[entry.state]
    holder, epoch = client_pair(entry)
    next_id, next_epoch = _bump(holder, epoch, new_producer_id)
    terms = (timeout_ms, interval_ms)
    if timeout_ms != NEVER_MS:
        timeout_ms = entry.timeout_ms
    if timeout_ms == NEVER_MS:
        interval_ms = 0
    return TransactionMetadata(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=entry.partitions,
        last_update_ms=now_ms,
        start_ms=entry.start_ms,
        previous_producer_id=holder,
        next_producer_id=next_id,
        client_version=entry.client_version,
        next_producer_epoch=next_epoch,
        last_producer_epoch=entry.last_producer_epoch,
        heartbeat_interval_ms=interval_ms,
        last_two_phase=entry.last_two_phase,
        next_terms=None if terms == (timeout_ms, interval_ms) else NextTerms._make(terms),
        opened_by=entry.opened_by,
    )


def added(
    entry: TransactionMetadata,
    partitions: frozenset[TopicPartition],
    client_version: int,
    now_ms: int,
    principal: str = "",
) -> TransactionMetadata:
    state = _ON_ADD[entry.state]
    opens = entry.state is not State.ONGOING
    return TransactionMetadata(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        timeout_ms=entry.timeout_ms,
        state=state,
        partitions=partitions if opens else entry.partitions | partitions,
        last_update_ms=now_ms,
        start_ms=now_ms if opens else entry.start_ms,
        previous_producer_id=entry.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        client_version=client_version,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        last_producer_epoch=entry.last_producer_epoch,
        heartbeat_interval_ms=entry.heartbeat_interval_ms,
        last_two_phase=entry.last_two_phase,
        opened_by=principal if opens else entry.opened_by,
    )


def ended_with_epoch_kept(entry: TransactionMetadata, commit: bool, now_ms: int) -> TransactionMetadata:
    """The end of a transaction of TV1: the client goes on under the same epoch."""
    return TransactionMetadata(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        timeout_ms=entry.timeout_ms,
        state=(_ON_COMMIT if commit else _ON_ABORT)[entry.state],
        partitions=entry.partitions,
        last_update_ms=now_ms,
        start_ms=entry.start_ms,
        previous_producer_id=entry.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        client_version=CLIENT_TV1,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        last_producer_epoch=entry.last_producer_epoch,
        heartbeat_interval_ms=entry.heartbeat_interval_ms,
        last_two_phase=None if is_two_phase(entry) else entry.last_two_phase,
        next_terms=entry.next_terms,
        opened_by=entry.opened_by,
    )


def ended_with_epoch_raised(
    entry: TransactionMetadata, event: Event, now_ms: int, new_producer_id: Callable[[], ProducerId]
) -> TransactionMetadata:
    """The end of a transaction of TV2, by its client or by the coordinator; also of one that never began."""
    state = TARGETS[event][entry.state]
    producer_id, epoch = entry.producer_id, entry.producer_epoch
    if entry.next_producer_epoch != NO_PRODUCER_EPOCH:
        previous_id, last_epoch = client_pair(entry)
        next_id, next_epoch = _bump(previous_id, last_epoch, new_producer_id)
    else:
        previous_id, last_epoch = producer_id, epoch
        next_id = new_producer_id() if epoch >= EXHAUSTED else NO_PRODUCER_ID
        next_epoch = NO_PRODUCER_EPOCH
    return TransactionMetadata(
        producer_id=producer_id,
        # Only logs of brokers that counted too far hold 32767 here; it can be marked, and never exceeded.
        producer_epoch=ProducerEpoch(epoch + 1) if epoch < EPOCH_MAX else epoch,
        timeout_ms=entry.timeout_ms,
        state=state,
        partitions=entry.partitions,
        last_update_ms=now_ms,
        start_ms=entry.start_ms if entry.state is State.ONGOING else now_ms,
        previous_producer_id=previous_id,
        next_producer_id=next_id,
        client_version=CLIENT_TV2,
        next_producer_epoch=next_epoch,
        last_producer_epoch=last_epoch,
        heartbeat_interval_ms=entry.heartbeat_interval_ms,
        last_two_phase=_ended(entry, event),
        next_terms=entry.next_terms,
        opened_by=entry.opened_by,
    )


def fenced_without_retry(
    entry: TransactionMetadata, now_ms: int, new_producer_id: Callable[[], ProducerId]
) -> TransactionMetadata:
    """The abort by the coordinator under TV1: an InitProducerId of the old client is not taken for a retry.

    The version stays that of the client: one of TV2, whose server was set back to TV1 meanwhile, may still abort and
    go on.
    """
    state = _ON_FENCE[entry.state]
    producer_id, epoch = entry.producer_id, entry.producer_epoch
    previous_id, next_id, next_epoch = producer_id, NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    if entry.next_producer_epoch != NO_PRODUCER_EPOCH:
        previous_id, holder_epoch = client_pair(entry)
        next_id, next_epoch = _bump(previous_id, holder_epoch, new_producer_id)
    return TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=ProducerEpoch(epoch + 1) if epoch < EPOCH_MAX else epoch,
        timeout_ms=entry.timeout_ms,
        state=state,
        partitions=entry.partitions,
        last_update_ms=now_ms,
        start_ms=entry.start_ms,
        previous_producer_id=previous_id,
        next_producer_id=next_id,
        client_version=entry.client_version,
        next_producer_epoch=next_epoch,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        heartbeat_interval_ms=entry.heartbeat_interval_ms,
        last_two_phase=_ended(entry, Event.FENCE),
        next_terms=entry.next_terms,
        opened_by=entry.opened_by,
    )


def completed(entry: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    producer_id, epoch = reply_pair(entry)
    terms = entry.next_terms
    return TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=entry.timeout_ms if terms is None else terms.timeout_ms,
        state=_ON_COMPLETE[entry.state],
        partitions=NO_PARTITIONS,
        last_update_ms=now_ms,
        start_ms=entry.start_ms,
        previous_producer_id=entry.previous_producer_id if has_kept(entry) else entry.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        client_version=entry.client_version,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        last_producer_epoch=entry.last_producer_epoch,
        heartbeat_interval_ms=entry.heartbeat_interval_ms if terms is None else terms.heartbeat_interval_ms,
        last_two_phase=entry.last_two_phase,
    )


def _ended(entry: TransactionMetadata, event: Event) -> Ended | None:
    """What is known of the last two-phase transaction of an id when this one ends."""
    if entry.timeout_ms != NEVER_MS or entry.state is not State.ONGOING:
        return entry.last_two_phase
    return Ended(entry.producer_id, entry.producer_epoch, _ENDINGS[event])


def _bump(producer_id: ProducerId, epoch: ProducerEpoch, new_producer_id: Callable[[], ProducerId]) -> ProducerPair:
    if epoch >= EXHAUSTED:
        return new_producer_id(), FIRST_PRODUCER_EPOCH
    return producer_id, ProducerEpoch(epoch + 1)


def is_two_phase(entry: TransactionMetadata) -> bool:
    """Whether only its client, or a client that fences it, may end a transaction of this id."""
    return entry.timeout_ms == NEVER_MS
