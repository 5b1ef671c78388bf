"""Acting on the effects of decisions: lines of the log, counters, and what a shard remembers of its ids.

The shard calls `run` when the record of a decision is committed (`coordinator.transaction.effects`).
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from twofold.broker.network.quiet import QuietLog
from twofold.coordinator.transaction.effects import (
    Audit,
    CountAbort,
    CountRemovedIds,
    Effect,
    NoteSignOfLife,
    RememberCause,
    ReportAbort,
    is_of_another,
)
from twofold.coordinator.transaction.heartbeats import AbortCause
from twofold.coordinator.transaction.transitions import is_two_phase

log = logging.getLogger(__name__)


class TransactionCounts:
    """What the coordinator has done to ids and transactions since the broker started, for metrics."""

    def __init__(self) -> None:
        self._aborts: Counter[AbortCause] = Counter()  # that the client of the transaction did not ask for
        self.removed_ids = 0
        self.refused_begins = 0  # because the principal had as many open as it may have

    def abort(self, cause: AbortCause) -> None:
        self._aborts[cause] += 1

    @property
    def fenced(self) -> int:
        """Transactions that were aborted because another producer took over their id."""
        return self._aborts[AbortCause.FENCE]

    @property
    def timed_out(self) -> int:
        return self._aborts[AbortCause.TIMEOUT]

    @property
    def silent(self) -> int:
        """Transactions that were aborted because no heartbeats came."""
        return self._aborts[AbortCause.HEARTBEAT]


class Memory(Protocol):
    """What a shard remembers of its ids beside the log."""

    def remember_cause(self, transactional_id: str, cause: AbortCause) -> None: ...

    def note_sign_of_life(self, transactional_id: str) -> None: ...


def run(effects: Sequence[Effect], memory: Memory, counts: TransactionCounts, audit: QuietLog) -> None:
    for effect in effects:
        match effect:
            case Audit():
                _audit(effect, audit)
            case ReportAbort():
                _report_abort(effect)
            case CountAbort(cause):
                counts.abort(cause)
            case CountRemovedIds(number):
                counts.removed_ids += number
            case RememberCause(transactional_id, cause):
                memory.remember_cause(transactional_id, cause)
            case NoteSignOfLife(transactional_id):
                memory.note_sign_of_life(transactional_id)


def _audit(effect: Audit, audit: QuietLog) -> None:
    """A warning where a client takes over a transaction that waits for an outside decision: that is rarely meant."""
    asker, entry = effect.asker, effect.entry
    forced = is_two_phase(entry) and effect.request != "EndTxn"
    of_another = is_of_another(entry, asker)
    # A client that ends transactions of its own without end does not hide one that ends another's.
    kind = f"{effect.request}{' forced' if forced else ''}{' of another' if of_another else ''}"
    (audit.warning if forced else audit.info)(
        kind,
        "%s by %s (%s, client %s): %s the %stransaction of %r (producer id %d, epoch %d) in %d partitions%s",
        effect.request,
        asker.principal,
        asker.client_host,
        asker.client_id,
        effect.outcome,
        "two-phase " if is_two_phase(entry) else "",
        effect.transactional_id,
        entry.producer_id,
        entry.producer_epoch,
        len(entry.partitions),
        f", opened by {entry.opened_by}" if of_another else "",
    )


def _report_abort(effect: ReportAbort) -> None:
    entry = effect.entry
    log.info(
        "transactional id %s: producer %d epoch %d is aborted: %s (timeout %d ms, heartbeats every %d ms)",
        effect.transactional_id,
        entry.producer_id,
        entry.producer_epoch,
        effect.cause.value,
        entry.timeout_ms,
        entry.heartbeat_interval_ms,
    )
