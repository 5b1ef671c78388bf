"""What the records of a transactional id prove about transactions that are open in a partition.

A power cut may take the last bytes of a partition, and with them the marker of a transaction that was decided, had all
its markers and was completed. The partition then has open what no coordinator is going to end. Which way it was decided
is known again where a record of the coordinator says so:

1. From transaction.version 2 on a pair of producer id and epoch belongs to one transaction: every end hands out the
   next epoch, or a new producer id. The record of the end, PREPARE or COMPLETE, has the pair that ended in its previous
   producer id and its last epoch. A kept transaction (KIP-939) has it in the producer id and epoch of its PREPARE
   record, which are those of its marker, and in what is remembered of the last two-phase transaction.
2. The pair is enough; which partitions took part need not be known any more. A batch of a pair enters a partition only
   when the coordinator has made the partition part of the transaction with that pair (KIP-890), so whatever is open
   there under the pair belongs to that transaction.
3. Before transaction.version 2 many transactions share a pair: nothing is proven. Where a client changed from the first
   protocol to the second without a new epoch, the last pair of the first is one of these.
4. A power cut may take records of the coordinator too. They go from the end, so that what is left was true: the id is
   then in an earlier state, which proves nothing about later pairs. A pair that is open somewhere and about which
   nothing is proven must not be given out again: the next transaction under it would prove something false. Such an
   id gets a new producer id (`set_apart`), which also keeps its next transaction from taking in what is open there.
5. A record proves for ever what it proves, also when the id has gone on. So all records that a coordinator reads while
   it is loaded are looked at, not only the last one of each id: compaction has not taken those of the last minutes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.coordinator.transaction.states import EXPIRABLE, PREPARING, Event, State
from twofold.coordinator.transaction.transitions import (
    CLIENT_TV2,
    EPOCH_MAX,
    ended_with_epoch_raised,
    has_kept,
    initialized,
    is_two_phase,
)
from twofold.types import FIRST_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, Ending, ProducerEpoch, ProducerId, TopicPartition

_COMMITTED = frozenset({State.PREPARE_COMMIT, State.COMPLETE_COMMIT})
_ENDINGS = frozenset(Ending)
_DECIDED = PREPARING | {State.COMPLETE_COMMIT, State.COMPLETE_ABORT}


class Pair(NamedTuple):
    """The identity under which the records of a transaction were written."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch

    @property
    def marker_epoch(self) -> ProducerEpoch:
        """From transaction.version 2 on a transaction ends under the next epoch."""
        return ProducerEpoch(self.producer_epoch + 1)


class Orphan(NamedTuple):
    """A transaction that is open in a partition after an unclean end of the broker."""

    partition: TopicPartition
    pair: Pair
    first_offset: int


class Missing(NamedTuple):
    """A decided transaction, and the partitions that lack its marker."""

    transactional_id: str
    pair: Pair
    commit: bool
    partitions: frozenset[TopicPartition]


class Unproven(NamedTuple):
    """An open transaction that no coordinator is going to end, and why it is left alone."""

    transactional_id: str | None
    orphan: Orphan
    reason: str


Orphans = Mapping[int, list[Orphan]]
"""By producer id."""


def by_producer(found: Iterable[Orphan]) -> Orphans:
    orphans: dict[int, list[Orphan]] = defaultdict(list)
    for orphan in found:
        orphans[orphan.pair.producer_id].append(orphan)
    return dict(orphans)


def proven(entry: TransactionMetadata) -> Iterator[tuple[Pair, bool]]:
    """The transactions whose outcome a record tells: the pair, and whether it was committed."""
    if entry.state in _DECIDED and entry.client_version >= CLIENT_TV2:
        if entry.state in PREPARING and has_kept(entry):
            pair = Pair(entry.producer_id, ProducerEpoch(entry.producer_epoch - 1))
        else:
            pair = Pair(entry.previous_producer_id, entry.last_producer_epoch)
        if pair.producer_epoch != NO_PRODUCER_EPOCH and pair.marker_epoch <= EPOCH_MAX:
            yield pair, entry.state in _COMMITTED
    ended = entry.last_two_phase
    if ended is not None and ended.ending in _ENDINGS:
        yield Pair(ended.producer_id, ended.producer_epoch), ended.ending == Ending.COMMITTED


def is_cared_for(entry: TransactionMetadata, partition: TopicPartition, pair: Pair) -> bool:
    """Whether the coordinator ends, sooner or later, what is open in the partition under the pair."""
    if partition not in entry.partitions:
        return False
    return entry.state in PREPARING or (entry.state is State.ONGOING and entry[:2] == pair)


def outcome_of(entry: TransactionMetadata, pair: Pair) -> bool | None:
    """Whether the record proves that the transaction was committed, or aborted; None where it proves neither."""
    return next((commit for found, commit in proven(entry) if found == pair), None)


class Evidence:
    """What the log of one coordinator says about orphans, record by record in the order of the log."""

    def __init__(self, orphans: Orphans) -> None:
        self._orphans = orphans
        self._outcomes: dict[Pair, dict[bool, str]] = {}
        self._shared: set[Pair] = set()
        self._owners: dict[int, str] = {}  # by producer id

    def note(self, transactional_id: str, value: TransactionMetadata) -> None:
        orphans = self._orphans
        if (
            value.producer_id not in orphans
            and value.previous_producer_id not in orphans
            and value.last_two_phase is None
        ):
            return  # almost always; a million records take half a second
        if value.producer_id in orphans:
            self._owners[value.producer_id] = transactional_id
            if value.client_version < CLIENT_TV2 and value.state is not State.EMPTY:
                self._shared.add(Pair(value.producer_id, value.producer_epoch))
        for pair, commit in proven(value):
            if pair.producer_id in orphans:
                self._owners.setdefault(pair.producer_id, transactional_id)
                self._outcomes.setdefault(pair, {})[commit] = transactional_id

    def judge(self, entries: Mapping[str, TransactionMetadata]) -> tuple[list[Missing], list[Unproven]]:
        """The markers that are missing, and what is not proven. `entries` are the ids as they are now."""
        missing: dict[tuple[str, Pair, bool], set[TopicPartition]] = {}
        unproven: list[Unproven] = []
        for producer_id, owner in self._owners.items():
            entry = entries.get(owner)
            for orphan in self._orphans[producer_id]:
                pair = orphan.pair
                if entry is not None and is_cared_for(entry, orphan.partition, pair):
                    continue
                outcomes = {} if pair in self._shared else self._outcomes.get(pair, {})
                if len(outcomes) == 1:
                    ((commit, name),) = outcomes.items()
                    missing.setdefault((name, pair, commit), set()).add(orphan.partition)
                else:
                    unproven.append(Unproven(owner, orphan, self._why(entry, pair)))
        return [Missing(*key, frozenset(partitions)) for key, partitions in missing.items()], unproven

    def _why(self, entry: TransactionMetadata | None, pair: Pair) -> str:
        if pair in self._shared:
            return "before transaction.version 2 many transactions share one epoch, so no record tells which one it is"
        if entry is None:
            return "the transactional id has expired"
        if entry[:2] == pair and entry.state is State.ONGOING:
            return "the coordinator has the transaction open without this partition"
        if entry.producer_id == pair.producer_id and entry.producer_epoch <= pair.producer_epoch:
            return f"the coordinator has lost its newest records and has epoch {entry.producer_epoch}"
        return "the transactional id has gone on since, and no record of the outcome is left"

    def unclaimed(self, others: Iterable["Evidence"]) -> list[Unproven]:
        """The orphans whose producer id no coordinator knows."""
        known = set(self._owners).union(*(other._owners for other in others))
        return [
            Unproven(None, orphan, "no transactional id has this producer id")
            for producer_id, orphans in self._orphans.items()
            if producer_id not in known
            for orphan in orphans
        ]


def set_apart(
    entry: TransactionMetadata, pair: Pair, now_ms: int, new_producer_id: Callable[[], ProducerId]
) -> TransactionMetadata | None:
    """The record that gives the id of an unproven pair a new producer id; None where the pair cannot come again.

    What is open under an earlier epoch than the pair is aborted: the coordinator has lost its newest records, so the
    producer of that transaction has gone on and cannot end it. A two-phase transaction is never ended here.
    """
    if entry.producer_id != pair.producer_id:
        return None
    if entry.state in EXPIRABLE:
        identity = (new_producer_id(), FIRST_PRODUCER_EPOCH)
        return initialized(
            entry, identity, entry.producer_id, NO_PRODUCER_EPOCH, entry.timeout_ms, entry.heartbeat_interval_ms, now_ms
        )
    is_behind = entry.state is State.ONGOING and entry.producer_epoch < pair.producer_epoch
    if is_behind and not is_two_phase(entry) and not has_kept(entry):
        fenced = ended_with_epoch_raised(entry, Event.FENCE, now_ms, new_producer_id)
        return fenced._replace(next_producer_id=new_producer_id())
    return None
