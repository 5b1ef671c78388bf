"""KIP-1309: what a heartbeat is answered, and when silence ends a transaction.

1. The interval is in the log, so it survives a failover. Heartbeats are not: when the last sign of life came, on a
   clock that never goes back, is known to the shard, and a coordinator that has just loaded starts from
   its own beginning, so that a producer never dies of a failover.
2. A transaction is ended by silence only while it is open, and only after more than three intervals of it. Silence
   between transactions means nothing, and no silence ends a two-phase transaction, also not one that is kept by a
   producer with heartbeats.
3. A heartbeat never waits for what is pending, and no answer asks for a retry: it would come too late.
4. The answer to one that arrives after its transaction was ended depends on what ended it. The client did: nothing is
   wrong. The coordinator did: the client may abort, which gives it the next epoch, and go on.
"""

from collections.abc import Iterable
from enum import Enum

from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.coordinator.transaction.states import PREPARING, State
from twofold.coordinator.transaction.transitions import (
    CLIENT_TV2,
    EXHAUSTED,
    has_kept,
    is_two_phase,
    reply_pair,
)
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.errors import (
    InvalidProducerIdMapping,
    InvalidRequest,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
)

MISSED_INTERVALS = 3
MIN_PERIOD_MS = 100
MAX_PERIOD_MS = 1000

_COMMITS = frozenset({State.PREPARE_COMMIT, State.COMPLETE_COMMIT})
_ENDED = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT}) | PREPARING


class AbortCause(Enum):
    """What ended the last transaction of an id."""

    CLIENT = "its client"
    TIMEOUT = "transaction.timeout.ms"
    HEARTBEAT = f"{MISSED_INTERVALS} missed heartbeats"
    FENCE = "InitProducerId of another client"


def heartbeat(
    entry: TransactionMetadata | None,
    transactional_id: str,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    cause: AbortCause | None = None,
) -> bool:
    """Raise what is wrong with a heartbeat; else whether it keeps an open transaction alive.

    `cause` is None where it is not known, because the coordinator that knew it has gone: then an abort is taken for the
    coordinator's, since a client that aborted itself no longer uses the old epoch.
    """
    if not transactional_id or producer_id < 0 or producer_epoch < 0:
        raise InvalidRequest(
            f"heartbeat of {transactional_id!r}, producer id {producer_id}, epoch {producer_epoch}: name all three"
        )
    if entry is None:
        raise TransactionalIdNotFound(f"{transactional_id!r} is not known here: it never was, or it expired")
    # The reply of EndTxn leaves before its transaction is complete: its client may be ahead of the entry.
    is_current = (producer_id, producer_epoch) == reply_pair(entry)
    if not is_current:
        _check_late(entry, transactional_id, producer_id, producer_epoch, cause)
    if is_two_phase(entry) and not (entry.next_terms and entry.next_terms.heartbeat_interval_ms):
        raise InvalidRequest(
            f"{transactional_id!r} uses two-phase commit: its transaction never times out, so it needs no heartbeat"
        )
    return is_current and entry.state is State.ONGOING and entry.heartbeat_interval_ms > 0


def _check_late(
    entry: TransactionMetadata,
    transactional_id: str,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    cause: AbortCause | None,
) -> None:
    """Accept the epoch under which the last transaction was ended, unless the coordinator ended it."""
    state = entry.state
    if state not in _ENDED or entry.client_version < CLIENT_TV2 or not _ended_it(entry, producer_id, producer_epoch):
        raise _stranger(entry, transactional_id, producer_id, producer_epoch)
    if state in _COMMITS or cause is AbortCause.CLIENT:
        return
    by = "the coordinator" if cause is None else cause.value
    raise TransactionAbortable(
        f"the transaction of {transactional_id!r}, producer id {producer_id}, epoch {producer_epoch}, was ended by "
        f"{by}: abort it, then go on"
    )


def _ended_it(entry: TransactionMetadata, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
    """Whether this pair is the one that the last end of a transaction took from its client."""
    if entry.state in PREPARING:
        before = entry.last_producer_epoch if has_kept(entry) else entry.producer_epoch - 1
        return producer_id == entry.previous_producer_id and producer_epoch == before
    if producer_id == entry.producer_id:
        return producer_epoch + 1 == entry.producer_epoch
    return producer_id == entry.previous_producer_id and producer_epoch == EXHAUSTED and entry.producer_epoch == 0


def _stranger(
    entry: TransactionMetadata, transactional_id: str, producer_id: ProducerId, producer_epoch: ProducerEpoch
) -> KafkaError:
    holder, epoch = reply_pair(entry)
    if producer_id in (holder, entry.producer_id, entry.previous_producer_id):
        return ProducerFenced(
            f"{transactional_id!r} belongs to producer id {holder} with epoch {epoch}, the heartbeat has {producer_id} "
            f"with epoch {producer_epoch}"
        )
    return InvalidProducerIdMapping(f"{transactional_id!r} has producer id {holder}, the heartbeat {producer_id}")


def is_silent(entry: TransactionMetadata, liveness_ms: int, now_ms: int) -> bool:
    """Whether an open transaction has gone without a sign of life for too long. Both times are of a clock that never
    goes back and stands still while the broker cannot listen."""
    return (
        entry.state is State.ONGOING
        and entry.heartbeat_interval_ms > 0
        and not is_two_phase(entry)
        and now_ms - liveness_ms > MISSED_INTERVALS * entry.heartbeat_interval_ms
    )


def sweep_period_ms(intervals_ms: Iterable[int]) -> int:
    """How often to look for silence when these intervals are in use: twice in the shortest, within reason."""
    shortest = min((interval for interval in intervals_ms if interval > 0), default=2 * MAX_PERIOD_MS)
    return min(MAX_PERIOD_MS, max(MIN_PERIOD_MS, shortest // 2))
