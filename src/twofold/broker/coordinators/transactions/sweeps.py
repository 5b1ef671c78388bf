"""What time does to transactions: timeouts, missing heartbeats, ids that no client uses any more.

1. A sweep looks at open transactions only, and decides on each of them anew at the moment of the write: one that ended
   meanwhile is left alone. A two-phase transaction has no deadline, and no silence ends it.
2. Silence and age are measured on the attention clock, which stands still while the broker cannot listen: silence from
   the last sign of life that this coordinator has seen, age from the beginning of the transaction. A sweep for silence
   runs twice in the shortest interval, at least every second.
3. Ids that no client used for `transactional.id.expiration.ms` are removed by tombstones, some thousand at a time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from twofold.broker.coordinators.transactions.shard import TransactionShard
from twofold.broker.core import BrokerCore
from twofold.coordinator.transaction.coordinator import NOTHING, Decision
from twofold.coordinator.transaction.effects import CountRemovedIds
from twofold.coordinator.transaction.heartbeats import AbortCause, is_silent, sweep_period_ms
from twofold.coordinator.transaction.records import TransactionMetadata, TransactionRecord
from twofold.coordinator.transaction.state import TransactionsState
from twofold.machine.runtime import Result
from twofold.wire.errors import KafkaError

if TYPE_CHECKING:
    from twofold.broker.coordinators.transactions.service import TransactionService

LOOKED_AT_PER_TURN = 2000
ABORTED_PER_TURN = 100
REMOVED_PER_TURN = 1000

log = logging.getLogger(__name__)


class TransactionSweeps:
    def __init__(self, service: "TransactionService", core: BrokerCore) -> None:
        self._service = service
        self._core = core

    async def run_timeouts(self) -> None:
        """Abort what took longer than its timeout, until cancelled."""
        core = self._core
        while True:
            interval_ms = core.settings.int("transaction.abort.timed.out.transaction.cleanup.interval.ms")
            await core.runtime.timers.sleep(interval_ms / 1000)
            for shard in self._service.led():
                await self._abort_timed_out(shard)

    async def _abort_timed_out(self, shard: TransactionShard) -> None:
        work = 0
        for transactional_id in list(shard.begun_ms):
            entry = shard.committed.entries.get(transactional_id)
            work += 1
            if entry is not None and self._is_timed_out(shard, transactional_id, entry):
                work += LOOKED_AT_PER_TURN // ABORTED_PER_TURN
                is_due = partial(self._is_timed_out, shard, transactional_id)
                self._abort(shard, transactional_id, AbortCause.TIMEOUT, is_due)
            if work >= LOOKED_AT_PER_TURN:
                work = 0
                await self._core.runtime.timers.sleep(0)

    def _is_timed_out(self, shard: TransactionShard, transactional_id: str, entry: TransactionMetadata) -> bool:
        return self._service.coordinator.is_timed_out(entry, shard.age_ms(transactional_id))

    async def run_heartbeats(self) -> None:
        """Abort what has gone without a sign of life for too long, until cancelled."""
        period_ms = sweep_period_ms(())
        while True:
            await self._core.runtime.timers.sleep(period_ms / 1000)
            intervals: set[int] = set()
            for shard in self._service.led():
                if shard.signs_ms:
                    await self._abort_silent(shard, intervals)
            period_ms = sweep_period_ms(intervals)

    async def _abort_silent(self, shard: TransactionShard, intervals: set[int]) -> None:
        for looked_at, transactional_id in enumerate(list(shard.signs_ms), 1):
            entry = shard.state.entries.get(transactional_id)
            if entry is not None:
                intervals.add(entry.heartbeat_interval_ms)
                if self._is_silent(shard, transactional_id, entry):
                    is_due = partial(self._is_silent, shard, transactional_id)
                    self._abort(shard, transactional_id, AbortCause.HEARTBEAT, is_due)
            if not looked_at % LOOKED_AT_PER_TURN:
                await self._core.runtime.timers.sleep(0)

    def _is_silent(self, shard: TransactionShard, transactional_id: str, entry: TransactionMetadata) -> bool:
        seen_ms = shard.signs_ms.get(transactional_id)
        return seen_ms is not None and is_silent(entry, seen_ms, shard.now_ms)

    def _abort(
        self,
        shard: TransactionShard,
        transactional_id: str,
        cause: AbortCause,
        is_due: Callable[[TransactionMetadata], bool],
    ) -> None:
        service = self._service
        version = service.server_version

        def decide(entry: TransactionMetadata | None, now_ms: int, pending: bool) -> Decision:
            if entry is None or pending or not is_due(entry):
                return NOTHING
            return service.coordinator.abort(entry, transactional_id, cause, now_ms, server_version=version)

        try:
            decided = shard.decide(transactional_id, decide)
        except KafkaError as error:
            log.warning("transactional id %s is not aborted now, the next sweep tries: %s", transactional_id, error)
        else:
            decided.add_done_callback(partial(_report, transactional_id))

    async def run_expiry(self) -> None:
        """Remove ids that were not used for long, until cancelled."""
        core = self._core
        while True:
            interval_ms = core.settings.int("transaction.remove.expired.transaction.cleanup.interval.ms")
            await core.runtime.timers.sleep(interval_ms / 1000)
            if core.logs.clock_watch.is_doubtful():
                continue
            for shard in self._service.led():
                await self._expire_ids(shard)

    async def _expire_ids(self, shard: TransactionShard) -> None:
        runtime = self._core.runtime
        found: list[str] = []
        looked_at = 0
        for transactional_id, entry in shard.committed.entries.items():
            if not shard.is_active:
                return
            looked_at += 1
            if self._service.coordinator.is_expired(entry, runtime.clock.wall_ms()):
                found.append(transactional_id)
            if looked_at >= LOOKED_AT_PER_TURN or len(found) >= REMOVED_PER_TURN:
                self._remove(shard, found)
                found, looked_at = [], 0
                await runtime.timers.sleep(0)
        if shard.is_active:
            self._remove(shard, found)

    def _remove(self, shard: TransactionShard, transactional_ids: Iterable[str]) -> None:
        def handler(state: TransactionsState, now_ms: int) -> Result[TransactionRecord, None]:
            entries = state.entries
            removed = [
                TransactionRecord(transactional_id, None)
                for transactional_id in transactional_ids
                if (entry := entries.get(transactional_id)) is not None
                and not shard.is_pending(transactional_id, entry)
                and self._service.coordinator.is_expired(entry, now_ms)
            ]
            return Result(removed, None, effects=(CountRemovedIds(len(removed)),) if removed else ())

        try:
            shard.write(handler).add_done_callback(partial(_report, f"expiry in {shard}"))
        except KafkaError as error:
            log.warning("%s: unused transactional ids are not removed now: %s", shard, error)


def _report(what: str, future: "asyncio.Future[object]") -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        log.warning("%s: not written for now: %s", what, error)
