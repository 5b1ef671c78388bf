"""Transactions that hold the readers of committed records up: named once, when they are open for too long.

1. The last stable offset stands at the first offset of the oldest open transaction. One that holds it for longer than
   `transaction.max.timeout.ms` is one that no coordinator ends any more (it is hanging), or a two-phase one that waits
   for its decision: a person should know which producer it is.
2. A line for each such transaction and partition, not one for each look; another when it is over.
3. A look costs a few look-ups in memory for each partition in use. The log tells since when a transaction is open
   there, by the broker's own clock and over restarts; where only a bound of it is known, that is said.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from twofold.log.api import OpenTransaction
from twofold.log.log import PartitionLog
from twofold.types import TopicPartition

if TYPE_CHECKING:
    from twofold.broker.partitions.replicas import ReplicaManager
    from twofold.runtime.api import Runtime

CHECK_INTERVAL_S = 10.0

log = logging.getLogger(__name__)


class Holder(NamedTuple):
    """The transaction at which the last stable offset of a partition stands."""

    transaction: OpenTransaction
    is_reported: bool = False

    def age_ms(self, now_ms: int) -> int:
        return now_ms - self.transaction.since_ms

    def is_same(self, other: "Holder | None") -> bool:
        return other is not None and self.transaction[:2] == other.transaction[:2]


class HeldLso:
    def __init__(self, replicas: "ReplicaManager", runtime: "Runtime", max_timeout_ms: Callable[[], int]) -> None:
        """`max_timeout_ms` is asked at every look: transaction.max.timeout.ms may change."""
        self._replicas = replicas
        self._runtime = runtime
        self._max_timeout_ms = max_timeout_ms
        self.holders: dict[TopicPartition, Holder] = {}

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await self._runtime.timers.sleep(CHECK_INTERVAL_S)
            self.check(self._runtime.clock.wall_ms())

    def check(self, now_ms: int) -> None:
        limit_ms = self._max_timeout_ms()
        looked_at: set[TopicPartition] = set()
        holders: dict[TopicPartition, Holder] = {}
        for partition in self._replicas.partitions():
            if not partition.is_leader:
                continue
            name = partition.topic_partition
            looked_at.add(name)
            holder = self._holder(name, partition.log)
            if holder is not None:
                if not holder.is_reported and holder.age_ms(now_ms) > limit_ms:
                    holder = _report(name, holder, now_ms, limit_ms)
                holders[name] = holder
        self._say_what_is_over(holders, looked_at, now_ms)
        self.holders = holders

    def _holder(self, name: TopicPartition, partition_log: PartitionLog) -> Holder | None:
        found = partition_log.oldest_open_transaction()
        if found is None:
            return None
        holder, known = Holder(found), self.holders.get(name)
        return known if known is not None and known.is_same(holder) else holder

    def _say_what_is_over(
        self, holders: dict[TopicPartition, Holder], looked_at: set[TopicPartition], now_ms: int
    ) -> None:
        for name, was in self.holders.items():
            now = holders.get(name)
            if was.is_reported and name in looked_at and not was.is_same(now):
                log.info(
                    "%s: the transaction of producer %d that was open since offset %d ended after %s",
                    name, was.transaction.producer_id, was.transaction.first_offset, _age(was, now_ms),
                )  # fmt: skip


def _age(holder: Holder, now_ms: int) -> str:
    return f"{'' if holder.transaction.is_exact else 'at least '}{holder.age_ms(now_ms) // 1000} s"


def _report(name: TopicPartition, holder: Holder, now_ms: int, limit_ms: int) -> Holder:
    held = holder.transaction
    log.warning(
        "%s: readers of committed records do not get beyond offset %d: the transaction of producer %d, epoch %d is "
        "open there for %s, longer than transaction.max.timeout.ms=%d",
        name, held.first_offset, held.producer_id, held.producer_epoch, _age(holder, now_ms), limit_ms,
    )  # fmt: skip
    return holder._replace(is_reported=True)
