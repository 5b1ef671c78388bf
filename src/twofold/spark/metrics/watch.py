"""Asks the brokers what Spark does not tell between two batches: where topics end now, and which transactions of a
query are open. It only looks, so that a query is never fenced or slowed by it. It connects as the query does.
"""

import logging
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass

from twofold.client import OffsetSpec
from twofold.client.config import from_dotted
from twofold.client.parts import ISOLATION_LEVELS, Cluster, ConsumerConfig, list_offsets
from twofold.connections.waiting import Deadline
from twofold.runtime.api import Runtime
from twofold.sink.inspection import Inspector
from twofold.spark.metrics.plan import Reach
from twofold.spark.metrics.table import Transactions
from twofold.spark.offsets import Offsets
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

TIMEOUT_MS = 5_000
PATIENCE_MS = 1_000
MAX_CLUSTERS = 8

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceQuestion:
    """Where the partitions of a source end, for readers of that isolation level."""

    query_id: str
    index: int
    reach: Reach
    isolation: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class SinkQuestion:
    """Which transactions of a prefix are not over."""

    query_id: str
    reach: Reach
    prefix: str


class BrokerWatch:
    """Keeps its connections, to at most MAX_CLUSTERS clusters."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._looking: dict[Reach, tuple[Cluster, Inspector]] = {}

    async def ends(self, question: SourceQuestion) -> Offsets | None:
        """None where they could not be found: a broker is away, or the topic is."""
        try:
            cluster, _ = self._at(question.reach)
            specs = dict.fromkeys(question.partitions, OffsetSpec.LATEST)
            level = ISOLATION_LEVELS.get(question.isolation, ISOLATION_LEVELS["read_committed"])
            await cluster.bootstrap(PATIENCE_MS)
            found = await list_offsets(cluster, specs, level, self._deadline(cluster))
        except (KafkaError, ValueError) as error:
            log.debug("the ends of %s are not known: %s", question.partitions, error)
            return None
        return {tp: row.offset for tp, row in found.items()}

    async def transactions(self, question: SinkQuestion) -> Transactions | None:
        try:
            cluster, inspector = self._at(question.reach)
            await cluster.bootstrap(PATIENCE_MS)
            rows = await inspector.transactions(question.prefix, self._deadline(cluster))
        except (KafkaError, ValueError) as error:
            log.debug("the transactions of %s are not known: %s", question.prefix, error)
            return None
        started = [row.start_ms for row in rows if row.start_ms >= 0]
        oldest_s = max(0.0, (self._runtime.clock.wall_ms() - min(started)) / 1000) if started else 0.0
        return Transactions(Counter(row.standing.value for row in rows), oldest_s)

    def _deadline(self, cluster: Cluster) -> Deadline:
        return cluster.deadline(TIMEOUT_MS, "the time of a look")

    def _at(self, reach: Reach) -> tuple[Cluster, Inspector]:
        if reach not in self._looking:
            if len(self._looking) >= MAX_CLUSTERS:
                raise ValueError(f"more than {MAX_CLUSTERS} clusters are not asked")
            settings = {
                **dict(reach.security),
                "bootstrap.servers": reach.servers,
                "client.id": "twofold-metrics",
                "request.timeout.ms": TIMEOUT_MS,
                "default.api.timeout.ms": TIMEOUT_MS,
            }
            cluster = Cluster(self._runtime, from_dotted(ConsumerConfig, settings))
            self._looking[reach] = cluster, Inspector(cluster)
        return self._looking[reach]

    async def keep(self, reached: Set[Reach]) -> None:
        """Connections to others go: no query asks for those brokers, or they may have other addresses the next time."""
        for reach in self._looking.keys() - reached:
            cluster, inspector = self._looking.pop(reach)
            inspector.close()
            await cluster.close()

    async def close(self) -> None:
        await self.keep(frozenset())
