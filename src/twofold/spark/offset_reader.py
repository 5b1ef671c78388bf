"""What the driver asks the cluster: which partitions there are, and which offsets they have.

1. Nothing is taken from a cache unless partition.metadata.cache.ttl.ms allows it: partitions that were added are seen
   by the next batch.
2. A question that fails is asked again, fetchOffset.numRetries times in all with fetchOffset.retryIntervalMs between.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from twofold.client.cluster.cluster import Cluster
from twofold.client.consumer.offsets import list_offsets
from twofold.spark.clients import client_for
from twofold.spark.errors import OptionError
from twofold.spark.offsets import EARLIEST, LATEST, MAX_OFFSET, AtOffsets, AtTimestamp, Bound, Everywhere, Offsets
from twofold.spark.options import Assign, ReadOptions, Subscribe, SubscribePattern
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, UnknownTopicOrPartition

log = logging.getLogger(__name__)

T = TypeVar("T")
NO_MATCH = -1


class OffsetReader:
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client = client_for(options.consumer)
        self._cluster: Cluster = self._client.cluster
        self._known: list[TopicPartition] = []
        self._known_until = float("-inf")
        self.ids: dict[str, str] = {}
        """Of the topics that were read last, as they were then; brokers of before Kafka 2.8 have none."""

    def now_ms(self) -> float:
        return self._cluster.runtime.clock.monotonic() * 1000

    def look_up_ids(self) -> None:
        async def ask() -> None:
            await self._partitions()

        self._ask(ask)

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Of those partitions that are there."""

        async def ask() -> Offsets:
            there = await self._partitions()
            return await self._list({tp: EARLIEST for tp in partitions if tp in there})

        return self._ask(ask)

    def latest(self, known: Mapping[TopicPartition, int]) -> Offsets:
        """Where every partition ends. An end below a known offset may be a broker's that is behind: asked again."""

        async def ask() -> Offsets:
            attempt = 1
            while True:
                found = await self._list(dict.fromkeys(await self._partitions(), LATEST))
                behind = {tp: (known[tp], end) for tp, end in found.items() if end < known.get(tp, end)}
                if not behind or attempt >= self._options.num_retries:
                    return found
                log.warning("partitions end before offsets that were read (known, found): %s", behind)
                attempt += 1
                await self._pause()

        return self._ask(ask)

    def resolve(self, bound: Bound, *, starting: bool = False) -> Offsets:
        """A bound as offsets, EARLIEST and LATEST in each partition that is read."""
        return self._ask(lambda: self._bound(bound, starting))

    def at_time(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Offsets:
        """The first record that is not older; an offset that no record has where there is none."""
        found = self._ask(lambda: self._list(dict.fromkeys(partitions, max(0, timestamp_ms))))
        return {tp: MAX_OFFSET if offset == NO_MATCH else offset for tp, offset in found.items()}

    def settle(self, offsets: Offsets) -> Offsets:
        """EARLIEST and LATEST as the offsets that they are now."""
        special = {tp: offset for tp, offset in offsets.items() if offset < 0}
        return offsets | self._ask(lambda: self._list(special)) if special else offsets

    async def _bound(self, bound: Bound, starting: bool) -> Offsets:
        partitions = await self._partitions()
        if isinstance(bound, Everywhere):
            return dict.fromkeys(partitions, bound.offset)
        if isinstance(bound, AtTimestamp):
            return await self._at_times(dict.fromkeys(partitions, bound.timestamp_ms), starting)
        if isinstance(bound, AtOffsets):
            self._check_named(bound.offsets, partitions, starting, "Offsets")
            return dict(bound.offsets)
        self._check_named(bound.timestamps, partitions, starting, "OffsetsByTimestamp")
        return await self._at_times(bound.timestamps, starting)

    def _check_named(
        self, named: Mapping[TopicPartition, int], there: list[TopicPartition], starting: bool, what: str
    ) -> None:
        missing, unknown = sorted(set(there) - named.keys()), sorted(named.keys() - set(there))
        if missing or unknown:
            name = f"{'starting' if starting else 'ending'}{what}"
            words = [f"{_list(missing)} is missing"] if missing else []
            words += [f"{_list(unknown)} is not read by this query"] if unknown else []
            special = ", -1 for latest and -2 for earliest" if what == "Offsets" else ""
            raise OptionError(f"{name} must name exactly the partitions that are read{special}: {' and '.join(words)}")

    async def _at_times(self, timestamps: Mapping[TopicPartition, int], starting: bool) -> Offsets:
        found = await self._list(timestamps)
        for tp, offset in found.items():
            if offset == NO_MATCH:
                if starting and not self._options.latest_without_match:
                    raise OptionError(
                        f"{tp} has no record at or after timestamp {timestamps[tp]}: choose an earlier one, or set "
                        "startingOffsetsByTimestampStrategy to latest"
                    )
                found[tp] = LATEST
        return found

    async def _list(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        if not wanted:
            return {}
        found = await list_offsets(self._cluster, wanted, self._options.consumer.isolation, self._cluster.deadline())
        return {tp: found[tp].offset for tp in wanted}

    # Partitions

    async def _partitions(self) -> list[TopicPartition]:
        """In order; internal topics are never among them."""
        if self.now_ms() < self._known_until:
            return self._known
        strategy = self._options.strategy
        if isinstance(strategy, Subscribe):
            found = await self._of_topics(strategy.topics)
        elif isinstance(strategy, Assign):
            chosen = set(strategy.partitions)
            found = [tp for tp in await self._of_topics({tp.topic for tp in chosen}) if tp in chosen]
        else:
            found = await self._of_topics(await self._matching(strategy))
        self._known = found
        self._known_until = self.now_ms() + self._options.metadata_ttl_ms
        return found

    async def _matching(self, pattern: SubscribePattern) -> list[str]:
        deadline = self._cluster.deadline()
        connection = await self._cluster.any_connection(deadline)
        response = await self._cluster.fetch_metadata(connection, None, deadline)
        return [row.name for row in response.topics if row.name and not row.is_internal and pattern.matches(row.name)]

    async def _of_topics(self, names: Iterable[str]) -> list[TopicPartition]:
        names = sorted(names)
        self._cluster.track(names)
        await self._cluster.refresh(self._cluster.deadline())
        found = []
        for name in names:
            topic = self._cluster.cache.topic(name)
            if topic is None:
                raise self._cluster.cache.error_of(name) or UnknownTopicOrPartition(f"topic {name!r} does not exist")
            if topic.topic_id is not None:
                self.ids[name] = str(topic.topic_id)
            if not topic.internal:
                found += [TopicPartition(name, partition) for partition in topic.partitions]
        return found

    # Attempts

    async def _pause(self) -> None:
        await self._cluster.runtime.timers.sleep(self._options.retry_interval_ms / 1000)

    def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        async def attempts() -> T:
            failures = 0
            while True:
                try:
                    return await question()
                except KafkaError as error:
                    failures += 1
                    if failures >= self._options.num_retries or not error.retriable:
                        raise
                    log.warning("attempt %d to find offsets: %s", failures, error)
                self._cluster.invalidate()
                await self._pause()

        return self._client.run(attempts())


def _list(partitions: list[TopicPartition]) -> str:
    names = [f"{tp.topic}-{tp.partition}" for tp in partitions]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
