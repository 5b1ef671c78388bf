"""The consumer: assigned partitions, positions, records in order."""

from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Unpack

from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ConsumerConfig, ConsumerOptions, from_dotted, from_keywords
from twofold.client.consumer.fetcher import Assigned, ConsumerRecord, Fetcher, check_assignment
from twofold.client.consumer.offsets import ListedOffset, OffsetSpec, list_offsets
from twofold.connections.errors import ClientClosed
from twofold.connections.waiting import done_within
from twofold.runtime.api import Runtime
from twofold.runtime.real import real_runtime
from twofold.types import TopicPartition

__all__ = ["Consumer", "ConsumerRecord"]

ITERATION_POLL_MS = 60_000


class Consumer:
    """`async with Consumer(bootstrap_servers=...) as consumer`; must be made while its loop runs.

    A partition without a position starts where `auto_offset_reset` says. One task at a time may poll.
    """

    def __init__(self, *, runtime: Runtime | None = None, **options: Unpack[ConsumerOptions]) -> None:
        self._start(from_keywords(ConsumerConfig, options), runtime)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, runtime: Runtime | None = None) -> "Consumer":
        """With Kafka's own names: `{"bootstrap.servers": "...", "isolation.level": "read_committed"}`."""
        consumer = cls.__new__(cls)
        consumer._start(from_dotted(ConsumerConfig, config), runtime)
        return consumer

    def _start(self, config: ConsumerConfig, runtime: Runtime | None) -> None:
        self.config = config
        self._runtime = runtime or real_runtime()
        self._cluster = Cluster(self._runtime, config, allow_auto_create=config.allow_auto_create_topics)
        self._fetcher = Fetcher(self._runtime, config, self._cluster)
        self._closed = False

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._fetcher.close()
            await self._cluster.close()

    # What to read, and from where

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these and no others. Partitions that stay keep their positions."""
        old = self._fetcher.assigned
        reset = self._fetcher.default_reset()
        checked = check_assignment(partitions)
        for tp in old.keys() - set(checked):
            old[tp].forget()
        self._fetcher.assigned = {tp: old.get(tp) or Assigned(tp, reset) for tp in checked}
        topics = {tp.topic for tp in checked}
        self._cluster.untrack({tp.topic for tp in old} - topics)
        self._cluster.track(topics)
        self._fetcher.news.set()

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        return tuple(self._fetcher.assigned)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """An offset that the isolation level does not let this consumer read yet is waited for."""
        if offset < 0:
            raise ValueError(f"{offset} is not an offset; seek_to_beginning and seek_to_end find the ends")
        self._entry(partition).seek(offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """All assigned ones when none is named. Resolved when it is next needed."""
        for tp in partitions or self.assignment:
            self._entry(tp).seek_by(OffsetSpec.EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """With read_committed the end is the LSO: the first offset of an open transaction, where there is one."""
        for tp in partitions or self.assignment:
            self._entry(tp).seek_by(OffsetSpec.LATEST)

    async def seek_to_timestamp(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """To the first record that is not older; to the end where all are."""
        chosen = partitions or self.assignment
        found = await self.offsets_for_times(dict.fromkeys(chosen, timestamp_ms))
        for tp in chosen:
            if found[tp].offset >= 0:
                self.seek(tp, found[tp].offset)
            else:
                self.seek_to_end(tp)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that `poll` returns; waits at most `default_api_timeout_ms`."""
        entry = self._entry(partition)
        deadline = self._cluster.deadline()
        while entry.position is None:
            await self._work(deadline.remaining_s())
            self._raise_error()
            if entry.position is None and deadline.expired:
                raise deadline.gave_up(f"finding the position of {partition}")
        return entry.position

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these until `resume`."""
        for tp in partitions:
            self._entry(tp).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        for tp in partitions:
            self._entry(tp).paused = False
        self._fetcher.news.set()

    # Reading

    async def poll(self, timeout_ms: float = 0, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """Records in the order of their partitions; empty when there were none within `timeout_ms`."""
        deadline = self._cluster.deadline(timeout_ms, "timeout_ms")
        count = max_records or self.config.max_poll_records
        while True:
            if self._closed:
                raise ClientClosed("the consumer is closed")
            self._raise_error()
            records = self._fetcher.take(count)
            if records or deadline.expired:
                # The next fetch goes out before the application works on these records.
                self._fetcher.work()
                if not records:
                    # A caller that polls in a loop without a timeout must not starve the fetches.
                    await self._runtime.timers.sleep(0)
                return records
            await self._work(deadline.remaining_s())

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Records without end."""
        while True:
            for record in await self.poll(ITERATION_POLL_MS):
                yield record

    # Asking about offsets

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._ends(partitions, OffsetSpec.EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last record that this consumer's isolation level lets it read."""
        return await self._ends(partitions, OffsetSpec.LATEST)

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """How far each position, of all assigned partitions when none is named, is behind `end_offsets`.

        What is in an open transaction, and all after it, is no lag of a consumer that reads committed records only.
        """
        positions = {tp: await self.position(tp) for tp in partitions or self.assignment}
        ends = await self.end_offsets(positions)
        return {tp: max(0, ends[tp] - position) for tp, position in positions.items()}

    async def offsets_for_times(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        return await list_offsets(self._cluster, timestamps, self.config.isolation, self._cluster.deadline())

    async def partitions_for(self, topic: str) -> list[int]:
        return list((await self._cluster.topic(topic, self._cluster.deadline())).partitions)

    async def _ends(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, int(spec))
        found = await list_offsets(self._cluster, wanted, self.config.isolation, self._cluster.deadline())
        return {tp: listed.offset for tp, listed in found.items()}

    def _entry(self, tp: TopicPartition) -> Assigned:
        entry = self._fetcher.assigned.get(tp)
        if entry is None:
            raise ValueError(f"{TopicPartition(*tp)} is not assigned to this consumer")
        return entry

    def _raise_error(self) -> None:
        if self._fetcher.errors:
            raise self._fetcher.errors.popleft()

    async def _work(self, timeout_s: float) -> None:
        """Start what should be under way and wait for news of it, at most so long."""
        news = self._fetcher.news
        news.clear()
        retry_at = self._fetcher.work()
        if retry_at is not None:
            timeout_s = min(timeout_s, max(0.001, retry_at - self._runtime.clock.monotonic()))
        if news.is_set() or timeout_s <= 0:
            return
        waiting = self._runtime.spawn(news.wait(), name="consumer waits for news")
        try:
            await done_within(self._runtime, waiting, timeout_s)
        finally:
            waiting.cancel()
