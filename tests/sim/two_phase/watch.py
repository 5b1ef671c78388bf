"""What must hold of two-phase transactions at every append, beside what holds of all.

1. The decision about a two-phase transaction is the outside one: it is committed only when the database says so,
   aborted only when the database does not and never will, and either only because somebody asked. Never by the broker.
2. While a transaction is kept its own identity and its partitions do not change; the client's identity goes up by one,
   or to a producer id of its own.
3. What follows the end of a kept transaction belongs to the client that ended it.
4. How the last two-phase transaction of an id ended is in every record after it, and is what the database says.
"""

from collections.abc import Callable

from sim.transactions.watch import PREPARED, TxnWatch, must
from twofold.config.internal_topics import CONSUMER_OFFSETS
from twofold.coordinator.transaction.records import NEVER_MS, TransactionMetadata
from twofold.coordinator.transaction.states import State
from twofold.log.log import PartitionLog
from twofold.records.batch import Header
from twofold.types import Ending

Pair = tuple[int, int]


class TwoPhaseWatch(TxnWatch):
    def __init__(self, *, compacted: bool = False) -> None:
        super().__init__(compacted=compacted)
        self.is_committed: Callable[[Pair], bool] = lambda pair: False
        """What the outside says of the transaction with this identity."""
        self.asked: set[tuple[Pair, bool]] = set()
        """Ends that somebody has asked for."""
        self.decided = 0
        self.keeps = 0
        self.remembered = 0

    def _check_transition(self, transactional_id: str, new: TransactionMetadata | None) -> None:
        known = self.known.get(transactional_id)
        old = known.value if known is not None else None
        text = (transactional_id, ":", old, "is followed by", new)
        if new is not None:
            self._check_outcome(old, new, text)
        if old is not None and new is not None and old.state is State.ONGOING:
            self._check_kept(old, new, text)
            if new.state in PREPARED:
                self._check_decision(old, PREPARED[new.state], text)
        if old is not None and new is not None and old.state in PREPARED and old.next_producer_epoch >= 0:
            must((new.producer_id, new.producer_epoch) == (old.next_producer_id, old.next_producer_epoch), *text)
            must(known is not None and known.committed, *text, "while the first is not committed")
            must(PREPARED[old.state] == (new.state is State.COMPLETE_COMMIT), *text)
            self._check_complete(old, new, text)
            return
        super()._check_transition(transactional_id, new)

    def _check_data(self, log: PartitionLog, header: Header) -> None:
        """Offsets have no sequences: a request that comes twice is written twice, also while the end of a transaction
        is on its way to the disk. Markers follow it, so nothing else comes of that."""
        known = self.known.get(self.ids.get(header.producer_id, ""))
        value = known.value if known is not None else None
        tp = log.topic_partition
        if tp.topic == CONSUMER_OFFSETS and value is not None and value.state in PREPARED and tp in value.partitions:
            last = self._last_marker(tp, header.producer_id)
            unmarked = last is None or last.producer_epoch < value.producer_epoch
            if unmarked and header.producer_epoch == value.producer_epoch - 1:
                return
        super()._check_data(log, header)

    def _check_decision(self, old: TransactionMetadata, commit: bool, text: tuple[object, ...]) -> None:
        pair = (old.producer_id, old.producer_epoch)
        if commit or old.timeout_ms == NEVER_MS:
            must(self.is_committed(pair) == commit, *text, "and the outside says commit =", self.is_committed(pair))
            must((pair, commit) in self.asked, *text, "and nobody asked for it")
            self.decided += 1

    def _check_outcome(
        self, old: TransactionMetadata | None, new: TransactionMetadata, text: tuple[object, ...]
    ) -> None:
        if old is None:
            must(new.last_two_phase is None, *text)
            return
        last = new.last_two_phase
        if old.state is State.ONGOING and new.state in PREPARED and old.timeout_ms == NEVER_MS:
            pair = (old.producer_id, old.producer_epoch)
            must(last is not None and last[:2] == pair, *text, "and does not say how", pair, "ended")
        else:
            must(last == old.last_two_phase, *text, "and forgets how the last one ended")
        if last is not None:
            committed = last.ending == Ending.COMMITTED
            must(self.is_committed(last[:2]) == committed, *text, "and the outside says commit =", not committed)
            self.remembered += 1

    def _check_kept(self, old: TransactionMetadata, new: TransactionMetadata, text: tuple[object, ...]) -> None:
        if new.state is not State.ONGOING or new.next_producer_epoch < 0:
            must(new.state is not State.ONGOING or old.next_producer_epoch < 0, *text)
            return
        same = (new.producer_id, new.producer_epoch, new.partitions, new.start_ms)
        must(same == (old.producer_id, old.producer_epoch, old.partitions, old.start_ms), *text)
        has_kept = old.next_producer_epoch >= 0
        before = (old.next_producer_id, old.next_producer_epoch) if has_kept else (old.producer_id, old.producer_epoch)
        after = (new.next_producer_id, new.next_producer_epoch)
        if before[1] < 32_766:
            must(after == (before[0], before[1] + 1), *text)
        else:
            must(after[0] not in (before[0], old.producer_id) and after[1] == 0, *text)
        self.keeps += 1
