"""Markers that a power cut took: found after an unclean start, and written again where the outcome is proven.

1. After an unclean end every log is recovered before anything is served, so all open transactions are in memory: they
   are gathered once, in one walk over the logs. After a clean one nothing is looked for, and nothing is paid.
2. A shard of the coordinator compares them with every record that it loads (`coordinator.transaction.proofs`). From the
   turn in which it becomes active an id stays pending until its repairs are on disk, so no transaction of the id comes
   between a loss and its repair.
3. What is not proven is never ended here. It is named in the log with the reason, and `twofold txn hanging` lists it.
   The transactional id gets a new producer id where the pair could come again.
4. An administrator's repair (WriteTxnMarkers) asks `proven_outcome` in the turn in which the marker is written.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from twofold.broker.coordinators.transactions.markers import NEWEST_VERSION, MarkerSender
from twofold.broker.coordinators.transactions.producer_ids import ProducerIdBlocks
from twofold.broker.core import BrokerCore
from twofold.coordinator.transaction.proofs import (
    Evidence,
    Missing,
    Orphan,
    Orphans,
    Pair,
    Unproven,
    by_producer,
    outcome_of,
    set_apart,
)
from twofold.coordinator.transaction.records import TransactionRecord
from twofold.coordinator.transaction.state import TransactionsState
from twofold.log.api import TransactionMarker
from twofold.machine.runtime import Result
from twofold.types import NO_PRODUCER_ID, TopicPartition
from twofold.wire.errors import KafkaError

if TYPE_CHECKING:
    from twofold.broker.coordinators.transactions.shard import TransactionShard
    from twofold.log.log import PartitionLog

RETRY_S = 0.1
REPAIRS_AT_ONCE = 16
NAMED = 100
"""So many transactions are named in the log, one line each."""

log = logging.getLogger(__name__)


class MarkerOutcome(NamedTuple):
    """How a transaction was decided, and by which coordinator."""

    transactional_id: str
    commit: bool
    coordinator_epoch: int

    def marker(self, pair: Pair) -> TransactionMarker:
        return TransactionMarker(
            pair.producer_id, pair.marker_epoch, self.coordinator_epoch, self.commit, NEWEST_VERSION
        )


def proven_outcome(shards: Iterable["TransactionShard"], pair: Pair) -> MarkerOutcome | None:
    """What the newest records of the ids prove about a pair."""
    producer_id = pair.producer_id
    for shard in shards:
        for transactional_id, entry in shard.committed.entries.items():
            if entry.producer_id != producer_id != entry.previous_producer_id and entry.last_two_phase is None:
                continue  # almost always; a million ids take a second, as in ListTransactions
            commit = outcome_of(entry, pair)
            if commit is not None:
                return MarkerOutcome(transactional_id, commit, shard.epoch)
    return None


def open_transactions(logs: Iterable["PartitionLog"]) -> list[Orphan]:
    return [
        Orphan(known.topic_partition, Pair(producer_id, epoch), first_offset)
        for known in logs
        for first_offset, producer_id, epoch, *_ in known.open_transactions()
    ]


class MissingMarkers:
    """The orphans of this start, and what was found out about them."""

    def __init__(self, core: BrokerCore, producer_ids: ProducerIdBlocks) -> None:
        self._core = core
        self._producer_ids = producer_ids
        self._orphans: Orphans = {}
        self._evidence: list[Evidence] = []
        self.unproven: list[Unproven] = []

    def look(self) -> None:
        """Gather what is open; called once, after the logs were loaded and before any coordinator is."""
        logs = self._core.logs
        if logs.was_unclean:
            self._orphans = by_producer(open_transactions(logs.logs()))

    def repairs(self, markers: MarkerSender) -> "ShardRepairs | None":
        """For a shard that is about to be loaded; None where there is nothing to compare."""
        if not self._orphans:
            return None
        evidence = Evidence(self._orphans)
        self._evidence.append(evidence)
        return ShardRepairs(evidence, self._core, self._producer_ids, markers, self._note)

    def _note(self, unproven: Sequence[Unproven]) -> None:
        for row in unproven:
            if len(self.unproven) < NAMED:
                _name(row)
        self.unproven += unproven

    async def report(self, loading: "Iterable[asyncio.Task[None]]") -> None:
        """When every coordinator is loaded: name what none of them knows."""
        if tasks := list(loading):
            await asyncio.wait(tasks)
        if self._orphans:
            self._note(Evidence(self._orphans).unclaimed(self._evidence))
        if len(self.unproven) > NAMED:
            log.warning("%d more transactions are open without a known outcome", len(self.unproven) - NAMED)
        self._orphans, self._evidence = {}, []  # a shard that is loaded later finds what is open under way


class ShardRepairs:
    """What one shard does about orphans: it notes while it is loaded, and acts when it becomes active."""

    def __init__(
        self,
        evidence: Evidence,
        core: BrokerCore,
        producer_ids: ProducerIdBlocks,
        markers: MarkerSender,
        on_unproven: Callable[[Sequence[Unproven]], None],
    ) -> None:
        self._evidence = evidence
        self._core = core
        self._producer_ids = producer_ids
        self._markers = markers
        self._on_unproven = on_unproven

    def replayed(self, entries: "Sequence[tuple[int, TransactionRecord]]") -> None:
        note = self._evidence.note
        for _, (transactional_id, value) in entries:
            if value is not None:
                note(transactional_id, value)

    def begin(self, shard: "TransactionShard") -> None:
        missing, unproven = self._evidence.judge(shard.state.entries)
        for row in missing:
            shard.hold(row.transactional_id)
        if missing:
            self._core.runtime.spawn(self._repair_all(shard, missing), name=f"missing markers of {shard}")
        self._on_unproven(unproven)
        for pair, transactional_id in {row.orphan.pair: row.transactional_id for row in unproven}.items():
            entry = None if transactional_id is None else shard.state.entries.get(transactional_id)
            if transactional_id is None or entry is None or set_apart(entry, pair, 0, lambda: NO_PRODUCER_ID) is None:
                continue
            shard.hold(transactional_id)
            self._core.runtime.spawn(
                self._set_apart(shard, transactional_id, pair), name=f"a new producer id for {transactional_id}"
            )

    async def _repair_all(self, shard: "TransactionShard", missing: Sequence[Missing]) -> None:
        for start in range(0, len(missing), REPAIRS_AT_ONCE):
            some = missing[start : start + REPAIRS_AT_ONCE]
            await asyncio.gather(*(self._sync(name) for row in some for name in row.partitions))
            if not shard.is_active:
                return
            for row in some:
                self._repair(shard, row)

    async def _sync(self, partition: TopicPartition) -> None:
        """In a thread: to lead a partition that a killed process left unsynced would do it on the event loop."""
        known = self._core.logs.get(partition)
        if known is not None and known.recovery_point < known.log_end_offset:
            try:
                await known.sync()
            except (OSError, KafkaError) as error:
                log.info("%s cannot be synced before its missing marker is written: %s", partition, error)

    def _repair(self, shard: "TransactionShard", row: Missing) -> None:
        name, pair, commit, partitions = row
        log.warning(
            "%s lost the %s marker of the transaction of %r (producer %d, epoch %d), which is written again",
            ", ".join(map(str, sorted(partitions))), "commit" if commit else "abort", name, *pair,
        )  # fmt: skip
        self._markers.send_missing(
            shard.index,
            name,
            MarkerOutcome(name, commit, shard.epoch).marker(pair),
            partitions,
            partial(shard.let_go, name),
        )

    async def _set_apart(self, shard: "TransactionShard", transactional_id: str, pair: Pair) -> None:
        """Write the id's new producer id, as often as it takes."""
        runtime, take = self._core.runtime, self._producer_ids.take

        def handler(state: TransactionsState, now_ms: int) -> "Result[TransactionRecord, None]":
            entry = state.entries.get(transactional_id)
            value = None if entry is None else set_apart(entry, pair, now_ms, take)
            return Result(() if value is None else (TransactionRecord(transactional_id, value),), None)

        while shard.is_active:
            try:
                await shard.write(handler)
                break
            except KafkaError as error:  # no producer id is at hand yet, or the record is not written
                log.info("%s: %r gets its new producer id later: %s", shard, transactional_id, error)
                await runtime.timers.sleep(RETRY_S)
        shard.let_go(transactional_id)


def _name(row: Unproven) -> None:
    partition, pair, first_offset = row.orphan
    log.warning(
        "%s: the transaction of %s (producer %d, epoch %d) that is open from offset %d on is ended by no coordinator, "
        "and what was decided cannot be proven: %s. It is left alone: `twofold txn hanging --topic %s` shows it",
        partition,
        "an unknown id" if row.transactional_id is None else repr(row.transactional_id),
        *pair, first_offset, row.reason, partition.topic,
    )  # fmt: skip
