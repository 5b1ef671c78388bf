"""The fetchers of this broker: one for each leader that it follows, or as many as num.replica.fetchers says.

1. A fetcher has one request under way. Its memory is bounded by replica.fetch.response.max.bytes, whatever it follows.
2. What an answer means is decided by `replication/follower.py`, with the log as it is when the answer is dealt with. A
   partition that got another leader meanwhile is not touched by an answer of the one before.
3. A partition that cannot go on rests for replica.fetch.backoff.ms, and with it no other. While its leader cannot be
   reached, all of a fetcher rest.
4. A cycle costs what has moved, not what is followed. Many rows, or many logs to open, give way to the event loop.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from twofold.broker.partitions.following import carry_out
from twofold.broker.partitions.partition import Partition
from twofold.cluster.peers import PeerLink, Peers
from twofold.config.settings import Settings
from twofold.connections.connection import Connection
from twofold.connections.errors import UnsupportedByBroker
from twofold.replication.fetch_session import FollowerRequest, FollowerSession, Key
from twofold.replication.follower import (
    FetchAnswer,
    FetchQuestion,
    FollowerDecision,
    Following,
    OffsetQuestion,
    Phase,
    begin,
    fetched,
    held_back,
    offset_found,
    question,
)
from twofold.runtime.api import Runtime, TimerHandle
from twofold.types import TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import NONE, KafkaError, KafkaStorageError
from twofold.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from twofold.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

FETCH, LIST_OFFSETS = KEYS["Fetch"], KEYS["ListOffsets"]
REPLICA_STATE_VERSION = 15  # of Fetch: from here on a follower tells its broker epoch
OPENED_AT_ONCE = 8
BYTES_AT_ONCE = 1 << 20
ROWS_AT_ONCE = 64

log = logging.getLogger(__name__)


class FetcherOptions(NamedTuple):
    wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    backoff_s: float

    @classmethod
    def of(cls, settings: Settings) -> "FetcherOptions":
        return cls(
            wait_ms=settings.int("replica.fetch.wait.max.ms"),
            min_bytes=settings.int("replica.fetch.min.bytes"),
            max_bytes=settings.int("replica.fetch.response.max.bytes"),
            partition_max_bytes=settings.int("replica.fetch.max.bytes"),
            backoff_s=settings.int("replica.fetch.backoff.ms") / 1000,
        )


@dataclass(frozen=True, slots=True)
class FetcherContext:
    """What the fetchers of a broker share. Settings and broker epoch are asked when needed: both may change."""

    runtime: Runtime
    node_id: int
    settings: Callable[[], Settings]
    broker_epoch: Callable[[], int]
    may_begin: asyncio.Event  # the broker is registered: from now on a leader may count on what it says

    @property
    def options(self) -> FetcherOptions:
        return FetcherOptions.of(self.settings())


class Followed:
    """A partition that is followed, for as long as it has the same leader in the same epoch."""

    __slots__ = ("following", "has_begun", "key", "partition", "reason")

    def __init__(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        self.partition = partition
        self.key = Key(partition.topic_id, partition.topic_partition.partition)
        self.following = Following(leader_id, leader_epoch)
        self.has_begun = False  # its log has to be open for that
        self.reason = ""  # why it rests, as it was told last


class ReplicaFetchers:
    """All that this broker follows."""

    def __init__(self, context: FetcherContext, peers: Peers) -> None:
        self._context = context
        self._peers = peers
        self._fetchers: dict[tuple[int, int], LeaderFetcher] = {}
        self._place: dict[TopicPartition, LeaderFetcher] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """How many partitions are followed."""
        return len(self._place)

    def __iter__(self) -> "Iterator[LeaderFetcher]":
        return iter(self._fetchers.values())

    def follow(self, partition: Partition, leader_id: int, leader_epoch: int) -> None:
        """Fetch from this leader in this epoch, and from no other any more."""
        name = partition.topic_partition
        known = self._place.get(name)
        if known is not None:
            followed = known.followed[name]
            was = followed.following
            if followed.partition is partition and (was.leader_id, was.leader_epoch) == (leader_id, leader_epoch):
                return
            self.stop(name)
        if self._is_closed:
            return
        key = (leader_id, _slot(name, self._context.settings().int("num.replica.fetchers")))
        fetcher = self._fetchers.get(key)
        if fetcher is None:
            link = self._peers.link(leader_id, f"fetcher {key[1]}")
            fetcher = self._fetchers[key] = LeaderFetcher(self._context, link)
        self._place[name] = fetcher
        fetcher.add(Followed(partition, leader_id, leader_epoch))

    def stop(self, name: TopicPartition) -> None:
        """Do not fetch for the partition any more: when this returns, nothing touches its log."""
        fetcher = self._place.pop(name, None)
        if fetcher is not None:
            fetcher.remove(name)
            if not fetcher.followed:
                self._end(fetcher)

    def refresh(self, name: TopicPartition) -> None:
        """The partition has another log, which may end elsewhere."""
        fetcher = self._place.get(name)
        if fetcher is not None:
            fetcher.refresh(name)

    def brokers_changed(self) -> None:
        """A leader that could not be reached may be there now."""
        for fetcher in self._fetchers.values():
            fetcher.wake()

    async def close(self) -> None:
        """Return when no fetcher touches a log any more."""
        self._is_closed = True
        tasks = [fetcher.cancel() for fetcher in self._fetchers.values()]
        self._fetchers.clear()
        self._place.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, fetcher: "LeaderFetcher") -> None:
        for key, known in list(self._fetchers.items()):
            if known is fetcher:
                del self._fetchers[key]
                self._peers.give_up(key[0], f"fetcher {key[1]}")
        fetcher.cancel()


def _slot(name: TopicPartition, fetchers: int) -> int:
    return zlib.crc32(str(name).encode()) % fetchers if fetchers > 1 else 0


class LeaderFetcher:
    """Fetches from one leader."""

    def __init__(self, context: FetcherContext, link: PeerLink) -> None:
        self.followed: dict[TopicPartition, Followed] = {}
        self.bytes_in = 0
        self._context = context
        self._runtime = context.runtime
        self._link = link
        self._session = FollowerSession()
        self._by_key: dict[Key, Followed] = {}
        self._new: dict[TopicPartition, Followed] = {}
        self._resting: dict[TopicPartition, Followed] = {}
        self._searching: dict[TopicPartition, Followed] = {}  # for the leader's offsets
        self._wanted = asyncio.Event()
        self._reason = ""  # why the leader cannot be reached
        self._task = context.runtime.spawn(self._run(), name=f"fetch from broker {link.node_id}")

    # --- what is followed ---

    def add(self, followed: Followed) -> None:
        name = followed.partition.topic_partition
        self.followed[name] = self._by_key[followed.key] = self._new[name] = followed
        self.wake()

    def remove(self, name: TopicPartition) -> None:
        followed = self.followed.pop(name)
        self._by_key.pop(followed.key, None)
        self._session.drop(followed.key)
        for table in (self._new, self._resting, self._searching):
            table.pop(name, None)

    def refresh(self, name: TopicPartition) -> None:
        followed = self.followed[name]
        if followed.has_begun:
            self._place(followed)
            self.wake()

    def wake(self) -> None:
        self._wanted.set()

    def cancel(self) -> "asyncio.Task[None]":
        self._task.cancel()
        return self._task

    def _is_followed(self, followed: Followed) -> bool:
        return self.followed.get(followed.partition.topic_partition) is followed

    # --- the loop ---

    async def _run(self) -> None:
        await self._context.may_begin.wait()
        while True:
            self._wanted.clear()
            self._end_rests()
            await self._admit()
            if not self._searching and not self._session:
                await self._rest(self._next_end_of_rest())
                continue
            try:
                connection = await self._link.connect()
                if self._searching:
                    await self._search(connection)
                if self._session:
                    await self._fetch(connection)
                self._reason = ""
            except KafkaError as error:
                self._session.lost()
                self._tell_unreachable(error)
                await self._rest(self._retry_at_s())
            except Exception:  # a defect: what is followed here must not fall behind for ever because of it
                log.exception("fetching from broker %d failed and goes on", self._link.node_id)
                self._session.lost()
                await self._rest(self._retry_at_s())

    def _now_s(self) -> float:
        return self._runtime.clock.monotonic()

    def _retry_at_s(self) -> float:
        return self._now_s() + self._context.options.backoff_s

    async def _rest(self, until_s: float | None) -> None:
        """Until then, or until something is wanted."""
        timer: TimerHandle | None = None
        if until_s is not None:
            timer = self._runtime.timers.call_later(max(0.0, until_s - self._now_s()), self.wake)
        try:
            await self._wanted.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _next_end_of_rest(self) -> float | None:
        return min((followed.following.not_before_s for followed in self._resting.values()), default=None)

    def _end_rests(self) -> None:
        if self._resting:
            now_s = self._now_s()
            for followed in [one for one in self._resting.values() if one.following.is_due(now_s)]:
                if followed.has_begun:
                    self._place(followed)
                else:
                    name = followed.partition.topic_partition
                    self._new[name] = self._resting.pop(name)

    def _tell_unreachable(self, error: KafkaError) -> None:
        text = str(error)
        if text != self._reason:
            self._reason = text
            log.warning("cannot fetch %d partitions from broker %d: %s", len(self.followed), self._link.node_id, text)

    # --- beginning ---

    async def _admit(self) -> None:
        """Open the logs of those that are new, and begin."""
        while self._new:
            some = list(self._new.values())[:OPENED_AT_ONCE]
            reads = [one.partition.log.read_ahead() for one in some if not one.partition.log.is_open]
            if reads:
                await self._runtime.blocking(_do_all, reads)
            for followed in some:
                if self._new.pop(followed.partition.topic_partition, None) is not None:
                    self._begin(followed)
            await self._runtime.timers.sleep(0)

    def _begin(self, followed: Followed) -> None:
        partition, was = followed.partition, followed.following
        try:
            partition.log.ensure_open()
            decision = begin(was.leader_id, was.leader_epoch, partition.log)
            followed.has_begun = True
        except KafkaStorageError as error:  # the log may be mended by the next time
            fetching = Following(was.leader_id, was.leader_epoch, Phase.FETCH)
            decision = held_back(fetching, self._retry_at_s(), str(error))
        self._take(followed, decision)

    # --- deciding ---

    def _take(self, followed: Followed, decision: FollowerDecision) -> bool:
        """Do what was decided; returns whether a flush is due."""
        is_flush_due = False
        name = followed.partition.topic_partition
        try:
            is_flush_due = carry_out(followed.partition, decision.steps)
        except (KafkaError, OSError) as error:
            decision = held_back(followed.following, self._retry_at_s(), str(error))
        followed.following = decision.following
        if decision.reason and decision.reason != followed.reason:
            level = logging.INFO if decision.following.is_due(self._now_s()) else logging.WARNING
            log.log(level, "%s: following broker %d: %s", name, self._link.node_id, decision.reason)
        followed.reason = decision.reason
        self._place(followed)
        return is_flush_due

    def _place(self, followed: Followed) -> None:
        """Where it waits for what comes next."""
        name, following = followed.partition.topic_partition, followed.following
        self._resting.pop(name, None)
        self._searching.pop(name, None)
        if following.phase is not Phase.WAIT and not following.is_due(self._now_s()):
            self._resting[name] = followed
        else:
            try:
                asked = question(following, followed.partition.log)
            except KafkaStorageError:
                followed.following = held_back(following, self._retry_at_s(), "").following
                self._resting[name], asked = followed, None
            if isinstance(asked, FetchQuestion):
                self._session.want(followed.key, asked)
                return
            if asked is not None:
                self._searching[name] = followed
        self._session.drop(followed.key)

    # --- fetching ---

    async def _fetch(self, connection: Connection) -> None:
        version = connection.version(FETCH)
        if version < REPLICA_STATE_VERSION:
            raise UnsupportedByBroker(
                f"{connection.label} serves Fetch up to {version}, a follower needs {REPLICA_STATE_VERSION}"
            )
        options = self._context.options
        asked = self._session.request()
        try:
            response: FetchResponse = await connection.request(
                _fetch_request(asked, self._context, options), FETCH, version=version
            )
        except asyncio.CancelledError:
            self._session.lost()
            raise
        self._session.answered(response.error_code, response.session_id)
        if response.error_code != NONE:
            log.debug("broker %d refused a fetch: error %d", self._link.node_id, response.error_code)
            if asked.epoch == 0:  # a new session cannot be refused because of an earlier one
                await self._rest(self._retry_at_s())
            return
        await self._deal_with(response)

    async def _deal_with(self, response: FetchResponse) -> None:
        unsynced: list[Followed] = []
        rows = size = 0
        for topic in response.responses:
            for row in topic.partitions:
                assert topic.topic_id is not None
                followed = self._by_key.get(Key(topic.topic_id, row.partition_index))
                if followed is None:
                    continue
                length = len(row.records) if row.records is not None else 0
                if self._answered(followed, row):
                    unsynced.append(followed)
                self.bytes_in += length
                rows, size = rows + 1, size + length
                if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                    rows = size = 0
                    await self._runtime.timers.sleep(0)
        if unsynced:
            await self._sync(unsynced)

    def _answered(self, followed: Followed, row: PartitionData) -> bool:
        asked = self._session.asked(followed.key)
        if asked is None:
            return False
        diverging = row.diverging_epoch
        answer = FetchAnswer(
            row.error_code,
            row.high_watermark,
            row.log_start_offset,
            row.records if row.records is not None else b"",
            (diverging.epoch, diverging.end_offset) if diverging.epoch >= 0 else None,
        )
        partition_log, retry_at_s = followed.partition.log, self._retry_at_s()
        try:
            decision = fetched(followed.following, asked, answer, partition_log, retry_at_s)
        except KafkaStorageError as error:
            decision = held_back(followed.following, retry_at_s, str(error))
        return self._take(followed, decision)

    async def _sync(self, unsynced: list[Followed]) -> None:
        outcomes = await asyncio.gather(*(one.partition.log.sync() for one in unsynced), return_exceptions=True)
        for followed, outcome in zip(unsynced, outcomes, strict=True):
            if isinstance(outcome, Exception) and self._is_followed(followed):
                self._take(followed, held_back(followed.following, self._retry_at_s(), str(outcome)))

    # --- the leader's offsets ---

    async def _search(self, connection: Connection) -> None:
        """Ask where the leader's logs begin or end. It has refused the offsets of these."""
        asked: dict[TopicPartition, tuple[Followed, OffsetQuestion]] = {}
        for name, followed in self._searching.items():
            wish = question(followed.following, followed.partition.log)
            if isinstance(wish, OffsetQuestion):
                asked[name] = followed, wish
        request = _offsets_request(self._context.node_id, {name: wish for name, (_, wish) in asked.items()})
        response: ListOffsetsResponse = await connection.request(request, LIST_OFFSETS)
        for topic in response.topics:
            for row in topic.partitions:
                found = asked.pop(TopicPartition(topic.name, row.partition_index), None)
                if found is None or not self._is_followed(found[0]):
                    continue
                followed, wish = found
                decision = offset_found(
                    followed.following, wish, row.error_code, row.offset, followed.partition.log, self._retry_at_s()
                )
                self._take(followed, decision)
        for followed, _ in asked.values():  # not answered
            if self._is_followed(followed):
                self._take(followed, held_back(followed.following, self._retry_at_s(), "the leader told no offset"))


def _fetch_request(asked: FollowerRequest, context: FetcherContext, options: FetcherOptions) -> FetchRequest:
    topics: dict[UUID, list[FetchPartition]] = {}
    for key, wish in asked.named.items():
        topics.setdefault(key.topic_id, []).append(
            FetchPartition(
                partition=key.partition,
                current_leader_epoch=wish.leader_epoch,
                fetch_offset=wish.offset,
                last_fetched_epoch=wish.last_epoch,
                log_start_offset=wish.log_start_offset,
                partition_max_bytes=options.partition_max_bytes,
            )
        )
    forgotten: dict[UUID, list[int]] = {}
    for key in asked.forgotten:
        forgotten.setdefault(key.topic_id, []).append(key.partition)
    return FetchRequest(
        max_wait_ms=options.wait_ms if asked.is_complete else 0,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        topics=[FetchTopic(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()],
        session_id=asked.session_id,
        session_epoch=asked.epoch,
        forgotten_topics_data=[
            ForgottenTopic(topic_id=topic_id, partitions=rows) for topic_id, rows in forgotten.items()
        ],
        replica_state=ReplicaState(replica_id=context.node_id, replica_epoch=context.broker_epoch()),
    )


def _offsets_request(node_id: int, asked: dict[TopicPartition, OffsetQuestion]) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for name, wish in asked.items():
        topics.setdefault(name.topic, []).append(
            ListOffsetsPartition(
                partition_index=name.partition, timestamp=wish.timestamp, current_leader_epoch=wish.leader_epoch
            )
        )
    return ListOffsetsRequest(
        replica_id=node_id, topics=[ListOffsetsTopic(name=name, partitions=rows) for name, rows in topics.items()]
    )


def _do_all(works: Iterable[Callable[[], None]]) -> None:
    for work in works:
        work()
