"""Who holds the readers of committed records up: said once, when a transaction is open for too long.

1. The last stable offset stands at the first offset of the oldest open transaction. One that holds it for longer than
   `transaction.max.timeout.ms` is one that no coordinator ends any more (it is hanging), or a two-phase one that waits
   for its decision: a person should know which producer it is.
2. A line for each such transaction and partition, not one for each look; another when it is over.
3. A look costs a few look-ups in memory for each partition in use. Of one that is seen for the first time (after a
   start) the file tells when the transaction began; of those that begin later the broker itself knows.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from twofold.log.log import PartitionLog
from twofold.log.scan import InvalidBatch
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaStorageError

if TYPE_CHECKING:
    from twofold.broker.replicas import ReplicaManager
    from twofold.runtime.api import Runtime

CHECK_INTERVAL_S = 10.0

log = logging.getLogger(__name__)


class Holder(NamedTuple):
    """The transaction at which the last stable offset of a partition stands."""

    first_offset: int
    producer_id: int
    producer_epoch: int
    since_ms: int
    is_reported: bool = False

    def age_ms(self, now_ms: int) -> int:
        return now_ms - self.since_ms


class HeldLso:
    def __init__(self, replicas: "ReplicaManager", runtime: "Runtime", max_timeout_ms: Callable[[], int]) -> None:
        """`max_timeout_ms` is asked at every look: transaction.max.timeout.ms may change."""
        self._replicas = replicas
        self._runtime = runtime
        self._max_timeout_ms = max_timeout_ms
        self._looked_at: set[TopicPartition] = set()
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
            holder = self._holder(name, partition.log, now_ms)
            if holder is not None:
                if not holder.is_reported and holder.age_ms(now_ms) > limit_ms:
                    holder = _report(name, holder, now_ms, limit_ms)
                holders[name] = holder
        self._say_what_is_over(holders, looked_at, now_ms)
        self.holders, self._looked_at = holders, looked_at

    def _holder(self, name: TopicPartition, partition_log: PartitionLog, now_ms: int) -> Holder | None:
        found = partition_log.first_open_transaction()
        if found is None:
            return None
        known = self.holders.get(name)
        if known is not None and known[:2] == found[:2]:
            return known
        return Holder(*found, now_ms if name in self._looked_at else _began(partition_log, now_ms))

    def _say_what_is_over(
        self, holders: dict[TopicPartition, Holder], looked_at: set[TopicPartition], now_ms: int
    ) -> None:
        for name, was in self.holders.items():
            now = holders.get(name)
            if was.is_reported and name in looked_at and (now is None or now[:2] != was[:2]):
                log.info(
                    "%s: the transaction of producer %d that was open since offset %d ended after %d s",
                    name, was.producer_id, was.first_offset, was.age_ms(now_ms) // 1000,
                )  # fmt: skip


def _began(partition_log: PartitionLog, now_ms: int) -> int:
    """When the oldest transaction began, as its first batch says; now, where that cannot be."""
    try:
        oldest = partition_log.oldest_open_transaction()
    except (OSError, InvalidBatch, KafkaStorageError):
        return now_ms
    timestamp = -1 if oldest is None else oldest[2]
    return timestamp if 0 <= timestamp <= now_ms else now_ms


def _report(name: TopicPartition, holder: Holder, now_ms: int, limit_ms: int) -> Holder:
    log.warning(
        "%s: readers of committed records do not get beyond offset %d: the transaction of producer %d, epoch %d is "
        "open there for %d s, longer than transaction.max.timeout.ms=%d",
        name, holder.first_offset, holder.producer_id, holder.producer_epoch, holder.age_ms(now_ms) // 1000, limit_ms,
    )  # fmt: skip
    return holder._replace(is_reported=True)
