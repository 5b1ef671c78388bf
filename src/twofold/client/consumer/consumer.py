"""The consumer: assigned partitions, or those that its group gives it; positions, records in order."""

from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Unpack

from twofold.client.admin.group_model import ConsumerGroupMetadata, OffsetAndMetadata
from twofold.client.cluster.cluster import Cluster
from twofold.client.config import ConsumerConfig, ConsumerOptions, from_dotted, from_keywords
from twofold.client.consumer.fetcher import Assigned, ConsumerRecord, Fetcher
from twofold.client.consumer.group.commits import CommitCallback
from twofold.client.consumer.group.listener import RebalanceListener
from twofold.client.consumer.group.member import GroupMember
from twofold.client.consumer.group.modern.member import ModernMember
from twofold.client.consumer.group.subscription import Subscription, check_topics
from twofold.client.consumer.offsets import ListedOffset, OffsetSpec, list_offsets
from twofold.client.errors import IllegalConsumerCall
from twofold.connections.errors import ClientClosed
from twofold.connections.waiting import Deadline, done_within
from twofold.runtime.api import Runtime
from twofold.runtime.real import real_runtime
from twofold.types import TopicId, TopicPartition
from twofold.wire.errors import InvalidGroupId

__all__ = ["CommitCallback", "Consumer", "ConsumerRecord", "Offsets", "RebalanceListener"]

ITERATION_POLL_MS = 60_000
CLOSE_TIMEOUT_MS = 30_000
LENT_AT_ONCE = 64  # records of a loop between two looks at whether the leader is still the same

Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]


class Consumer:
    """`async with Consumer(bootstrap_servers=...) as consumer`; must be made while its loop runs.

    A partition without a position starts where `auto_offset_reset` says. One task at a time may poll.
    """

    def __init__(self, *, runtime: Runtime | None = None, **options: Unpack[ConsumerOptions]) -> None:
        self._start(from_keywords(ConsumerConfig, options), runtime)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, runtime: Runtime | None = None) -> "Consumer":
        """With Kafka's own names: `{"bootstrap.servers": "...", "isolation.level": "read_committed"}`."""
        return cls.of(from_dotted(ConsumerConfig, config), runtime=runtime)

    @classmethod
    def of(cls, config: ConsumerConfig, *, runtime: Runtime | None = None) -> "Consumer":
        """With settings that were checked already."""
        consumer = cls.__new__(cls)
        consumer._start(config, runtime)
        return consumer

    def _start(self, config: ConsumerConfig, runtime: Runtime | None) -> None:
        self.config = config
        self._runtime = runtime or real_runtime()
        self._cluster = Cluster(self._runtime, config, allow_auto_create=config.allow_auto_create_topics)
        self._fetcher = Fetcher(self._runtime, config, self._cluster)
        self._group: GroupMember | ModernMember | None = None
        if config.group_id is not None:
            kind = ModernMember if config.is_assigned_by_broker else GroupMember
            self._group = kind(self._runtime, config, self._cluster, self._fetcher)
        self._is_assigned = False
        self._is_polling = False
        self._closing = False
        self._closed = False  # a listener may still commit while the consumer closes

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes. A block that was left by an exception commits nothing: what it was working on comes again."""
        await self._close(CLOSE_TIMEOUT_MS, commit=error is None)

    async def close(self, timeout_ms: float = CLOSE_TIMEOUT_MS) -> None:
        """Commits the positions where commits are automatic, tells the listener that its partitions are revoked, and
        leaves the group, all within `timeout_ms`. A static member (`group_instance_id`) does not leave: it keeps its
        partitions if it is back within `session_timeout_ms`."""
        await self._close(timeout_ms, commit=True)

    async def _close(self, timeout_ms: float, *, commit: bool) -> None:
        if self._closing:
            return
        self._check_caller("close")
        self._closing = True
        try:
            if self._group is not None:
                await self._group.close(self._cluster.deadline(timeout_ms, "timeout_ms"), commit=commit)
        finally:
            self._closed = True
            await self._fetcher.close()
            await self._cluster.close()

    # Groups

    def subscribe(
        self, topics: Iterable[str] = (), *, pattern: str | None = None, listener: RebalanceListener | None = None
    ) -> None:
        """Read these topics, or all whose whole name matches the pattern, as a member of the group `group_id`. `poll`
        joins the group. Another call replaces the topics and the listener; it does not go with `assign`.

        Patterns are those of RE2 and need the extra `twofold[re2]`. Internal topics match none. With
        `group_protocol="consumer"` the broker matches them, internal topics too, and nothing else is needed here.
        """
        group = self._member("subscribe")
        names = check_topics(topics, pattern)
        if self._is_assigned:
            raise IllegalConsumerCall("partitions were assigned: unsubscribe() first, or use assign only")
        by_broker = self.config.is_assigned_by_broker
        group.subscribe(Subscription(names, pattern, listener, broker_matches=by_broker))

    async def unsubscribe(self) -> None:
        """Leave the group, after `on_partitions_revoked`, or give up what was assigned. Nothing is committed."""
        self._check_open()
        self._check_caller("unsubscribe")
        if self._group is not None and self._group.subscription is not None:
            await self._group.unsubscribe(self._cluster.deadline(), "the consumer unsubscribed", commit=False)
        else:
            self._assign(())
        self._is_assigned = False

    @property
    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed; of a pattern those that match as far as is known."""
        subscription = None if self._group is None else self._group.subscription
        return frozenset() if subscription is None else subscription.topics

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit these offsets (the next to be read), or the positions of all assigned partitions. Tried until it is
        done, has failed for good, or `default_api_timeout_ms` is over.

        CommitFailed: the member is not in the group any more, so that other members read these partitions.
        RebalanceInProgress: poll until the rebalance is over, then commit what is still assigned.
        """
        group = self._member("commit")
        await group.commits.commit(self._to_commit(group, offsets), self._cluster.deadline())

    def commit_async(self, offsets: Offsets | None = None, callback: CommitCallback | None = None) -> None:
        """Commit without waiting, and without trying again. A later `poll`, `commit` or `close` calls
        `callback(offsets, error)`, where the error is None for success. Commits take effect in the order of the
        calls."""
        group = self._member("commit_async")
        group.commits.commit_soon(self._to_commit(group, offsets), callback, self._cluster.deadline())

    def _to_commit(
        self, group: GroupMember | ModernMember, offsets: Offsets | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return group.positions()
        rows = {TopicPartition(*tp): _with_metadata(value) for tp, value in offsets.items()}
        for tp, row in rows.items():
            if row.offset < 0:
                raise ValueError(f"{row.offset} is not an offset of {tp}")
        return rows

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None for a partition without an offset. Waits for open transactions that commit
        offsets of these partitions to end."""
        group = self._member("committed")
        wanted = [TopicPartition(*tp) for tp in partitions]
        found = await group.calls.committed(wanted, self._cluster.deadline()) if wanted else {}
        return {tp: found.get(tp) for tp in wanted}

    def group_metadata(self) -> ConsumerGroupMetadata:
        """For `send_offsets_to_transaction`: the member as it is now, so that the broker refuses its offsets after its
        partitions went to another one."""
        return self._member("group_metadata").metadata()

    def enforce_rebalance(self, reason: str = "") -> None:
        """Join the group anew at the next `poll`, because something that an assignor looks at has changed."""
        group = self._member("enforce_rebalance")
        if group.subscription is None:
            raise IllegalConsumerCall("enforce_rebalance is for members of a group: subscribe first")
        group.enforce_rebalance(reason or "the application enforces a rebalance")

    def _member(self, call: str) -> GroupMember | ModernMember:
        self._check_open()
        if self._group is None:
            raise InvalidGroupId(f"{call} is for members of a group: set group_id")
        return self._group

    def _check_caller(self, call: str) -> None:
        if self._group is not None:
            self._group.handover.check_not_in_listener(call)

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the consumer is closed")

    # What to read, and from where

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these and no others. Partitions that stay keep their positions. With `group_id` new ones begin where the
        group has committed; the group is not joined."""
        self._check_open()
        if self._group is not None and self._group.subscription is not None:
            raise IllegalConsumerCall("topics were subscribed: unsubscribe() first, or use subscribe only")
        self._assign(partitions)
        self._is_assigned = bool(self._fetcher.assigned)
        if self._group is not None:
            self._group.assigned()

    def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        before = {tp.topic for tp in self._fetcher.assigned}
        self._fetcher.assign(partitions, from_commit=self._group is not None)
        topics = {tp.topic for tp in self._fetcher.assigned}
        self._cluster.untrack(before - topics)
        self._cluster.track(topics)

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        return tuple(self._fetcher.assigned)

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """With `OffsetAndMetadata` the leader epoch goes along, so that a truncation of the log is noticed. An offset
        that the isolation level does not let this consumer read yet is waited for."""
        wanted = _with_metadata(offset)
        if wanted.offset < 0:
            raise ValueError(f"{wanted.offset} is not an offset; seek_to_beginning and seek_to_end find the ends")
        self._entry(partition).seek(wanted.offset, wanted.leader_epoch)

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
            self._fetcher.news.clear()
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
        count = self.config.max_poll_records if max_records is None else max_records
        if count < 1:
            raise ValueError(f"max_records={max_records} asks for no records: use at least 1")
        self._check_caller("poll")
        if self._is_polling:
            raise IllegalConsumerCall("another task is in a poll of this consumer: one at a time may poll")
        self._is_polling = True
        try:
            return await self._poll(self._cluster.deadline(timeout_ms, "timeout_ms"), count)
        finally:
            self._is_polling = False

    async def _poll(self, deadline: Deadline, count: int) -> list[ConsumerRecord]:
        group = self._group
        # An application that always finds records would starve the fetches and heartbeats. The loop has its turn before
        # records are taken, because a poll that is cancelled must not lose any.
        await self._runtime.timers.sleep(0)
        while True:
            if self._closing:
                raise ClientClosed("the consumer is closed")
            self._fetcher.news.clear()
            if group is not None:
                await group.step(deadline.remaining_s())
            self._raise_error()
            records = self._fetcher.take(count) if group is None or group.may_hand_out() else []
            if records or deadline.expired:
                # The next fetch goes out before the application works on these records.
                self._fetcher.work()
                return records
            wait_s = deadline.remaining_s()
            await self._work(wait_s if group is None else min(wait_s, group.wait_s()))

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Records without end. A record counts as read when the loop gets it, so that a commit in the middle of a loop,
        or after it, has no more than that."""
        while True:
            for record in await self.poll(ITERATION_POLL_MS, max_records=1):
                yield record
            # Those that are here already need none of what else a poll does, until it is its turn again.
            left = self.config.max_poll_records
            while left > 0 and self._is_quiet():
                entry = self._fetcher.lend(min(left, LENT_AT_ONCE))
                if entry is None:
                    break
                generation, ready = entry.generation, entry.answers[0].ready
                while ready and entry.generation == generation and not entry.paused and self._is_quiet():
                    record = ready.popleft()
                    entry.advance(record.offset + 1, record.leader_epoch)
                    left -= 1
                    yield record

    def _is_quiet(self) -> bool:
        return not self._closing and (self._group is None or self._group.is_quiet())

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

    async def topic_id(self, partition: TopicPartition) -> TopicId | None:
        """Of the topic in which the position is. A topic that is deleted and made anew has another id; brokers before
        Kafka 2.8 have none."""
        entry = self._entry(partition)
        if entry.topic_id is not None:
            return entry.topic_id
        return (await self._cluster.topic(partition.topic, self._cluster.deadline())).topic_id

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
        error = self._fetcher.next_error()
        if error is not None:
            raise error

    async def _work(self, timeout_s: float) -> None:
        """Start what should be under way and wait for news since `news` was cleared, at most so long."""
        news = self._fetcher.news
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


def _with_metadata(offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    return offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
