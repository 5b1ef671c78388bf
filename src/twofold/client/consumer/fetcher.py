"""Fetching: which partitions to ask which broker for, and what their answers mean.

1. To each broker at most one fetch is out. A partition is asked for while at most one answer of it is unread, so that
   the network works while the application does, and memory stays within two answers.
2. An answer that belongs to an earlier position (the reader seeked or was assigned anew) is dropped.
3. The position moves over every batch, seen or not, and only when its records were handed out.
4. A position beyond what may be read (the LSO, or the high watermark of a leader that is new) stays where it is. It is
   asked for now and then, because Apache Kafka answers such a fetch at once.
5. Many partitions are asked for in a fetch session: a broker that leaves one out of an answer has no news of it.
6. A leader may name a replica that is nearer to `client_rack` (KIP-392). It is asked instead until it fails, or for
   `metadata_max_age_ms`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.metadata import PartitionMetadata
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.assigned import (
    MAX_UNREAD_ANSWERS,
    NO_BROKER,
    NO_EPOCH,
    Answer,
    Assigned,
    ConsumerRecord,
    check_assignment,
)
from twofold.client.consumer.fetch_session import ClientFetchSession, Wish
from twofold.client.consumer.positions import Hooks, Positions
from twofold.connections.waiting import spawn_shared
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    KafkaError,
    OffsetOutOfRange,
    error_for,
)
from twofold.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData

__all__ = ["Assigned", "ConsumerRecord", "Fetcher"]

log = logging.getLogger(__name__)

FETCH = KEYS["Fetch"]
LAST_VERSION_WITH_NAMES = 12
SESSION_ERRORS = (FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError)


class Asked(NamedTuple):
    """One partition of a fetch: what its answer is about."""

    entry: Assigned
    generation: int
    offset: int
    leader_epoch: int

    @property
    def counts(self) -> bool:
        return self.entry.generation == self.generation


class Fetcher:
    """Owned by one consumer, on whose loop everything here runs."""

    def __init__(self, runtime: Runtime, config: ConsumerConfig, cluster: Cluster) -> None:
        self.assigned: dict[TopicPartition, Assigned] = {}
        self.news = asyncio.Event()
        self.errors: deque[KafkaError] = deque()
        self._runtime = runtime
        self._config = config
        self._cluster = cluster
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._sessions: dict[int, ClientFetchSession] = {}  # by broker
        self.positions = Positions(
            runtime, config, cluster, Hooks(self.errors.append, self._pause, self.news.set, self._refresh_metadata)
        )

    def assign(self, partitions: Iterable[TopicPartition], *, from_commit: bool = False) -> None:
        """Read these and no others. Those that stay keep their positions; new ones begin with what the group has
        committed, if `from_commit`."""
        old, reset = self.assigned, self.positions.default_reset
        checked = check_assignment(partitions)
        for tp in old.keys() - set(checked):
            old[tp].forget()
        self.assigned = {tp: old.get(tp) or Assigned(tp, reset, from_commit=from_commit) for tp in checked}
        self.news.set()

    def take(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` records that are here already, from one partition after the other."""
        taken: list[ConsumerRecord] = []
        for tp in list(self.assigned):
            entry = self.assigned[tp]
            if not entry.answers or self._is_outdated(entry):
                continue
            try:
                while entry.answers and not entry.paused and len(taken) < count:
                    taken += self._take_from(entry, count - len(taken))
            except KafkaError as error:
                if not taken:
                    raise
                self.errors.append(error)  # for the next call: what was taken must reach the application
                break
            if len(taken) >= count:
                # The next call begins with the partition after this one.
                self.assigned[tp] = self.assigned.pop(tp)
                break
        return taken

    def lend(self, count: int) -> Assigned | None:
        """A partition that has records ready, up to `count` of them, in `answers[0].ready`. The caller takes them from
        there one by one and advances the position with each, so that a commit has no more than was taken."""
        for entry in self.assigned.values():
            while entry.answers and not entry.paused and not self._is_outdated(entry):
                answer = entry.answers[0]
                try:
                    answer.fill(count)
                except KafkaError:
                    entry.reread()
                    raise
                if answer.ready:
                    return entry
                entry.answers.popleft()
                entry.advance(answer.next_offset, answer.next_epoch)
        return None

    def _is_outdated(self, entry: Assigned) -> bool:
        """Whether another leader than the one that has sent its answers is known: the logs are compared first."""
        row = self._cluster.cache.leader(entry.tp)
        return row is not None and entry.must_compare(row.leader_epoch)

    def _take_from(self, entry: Assigned, count: int) -> list[ConsumerRecord]:
        answer = entry.answers[0]
        try:
            records, all_read = answer.take(count)
        except KafkaError:
            entry.reread()  # what was handed out stays so
            raise
        if all_read:
            entry.answers.popleft()
            entry.advance(answer.next_offset, answer.next_epoch)
        elif records:
            entry.advance(records[-1].offset + 1, records[-1].leader_epoch)
        return records

    def work(self) -> float | None:
        """Start whatever should be under way. Returns when a paused partition may be tried again."""
        now = self._runtime.clock.monotonic()
        self.positions.find(self.assigned.values(), now)
        to_fetch: dict[int, list[tuple[Assigned, PartitionMetadata]]] = {}
        to_compare: dict[int, list[tuple[Assigned, PartitionMetadata]]] = {}
        unknown = False
        for entry in self.assigned.values():
            if not entry.is_idle(now):
                continue
            row = self._cluster.cache.leader(entry.tp)
            if row is None or entry.epoch > row.leader_epoch != NO_EPOCH:
                unknown = True  # or older than what was read
                self._pause(entry)
            elif entry.must_compare(row.leader_epoch):
                to_compare.setdefault(row.leader, []).append((entry, row))
            elif len(entry.answers) < MAX_UNREAD_ANSWERS:
                broker = entry.leader_of_choice(row.leader, now, self._cluster.cache.nodes)
                to_fetch.setdefault(broker, []).append((entry, row))
        if unknown:
            self._refresh_metadata()
        for leader, rows in to_compare.items():
            self.positions.compare(leader, rows)
        for broker, rows in to_fetch.items():
            if broker not in self._fetches:
                self._start_fetch(broker, rows)
        return min((entry.not_before for entry in self.assigned.values() if entry.not_before > now), default=None)

    async def close(self) -> None:
        tasks = [*self.positions.tasks, *self._fetches.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Fetches

    def _start_fetch(self, broker: int, rows: list[tuple[Assigned, PartitionMetadata]]) -> None:
        asked: dict[TopicPartition, Asked] = {}
        for entry, row in rows:
            if row.leader_epoch > entry.leader_epoch:
                if entry.answers:
                    entry.reread()  # of the leader before
                entry.leader_epoch = row.leader_epoch
            entry.fetching = True
            asked[entry.tp] = Asked(entry, entry.generation, entry.fetch_offset, row.leader_epoch)
        task = spawn_shared(self._runtime, self._fetch(broker, asked), name=f"fetch from {broker}")
        self._fetches[broker] = task
        task.add_done_callback(lambda _: self._on_fetch_done(broker))

    def _on_fetch_done(self, broker: int) -> None:
        self._fetches.pop(broker, None)
        self.news.set()

    async def _fetch(self, broker: int, asked: dict[TopicPartition, Asked]) -> None:
        session = self._sessions.setdefault(broker, ClientFetchSession())
        try:
            response, incremental = await self._ask(broker, asked, session)
        except KafkaError as error:
            for item in asked.values():
                if item.counts:
                    item.entry.fetching = False
                    if not isinstance(error, SESSION_ERRORS):
                        self._on_error(item.entry, error)
            return
        for topic in response.responses:
            name = topic.topic or session.name_of(topic.topic_id) or ""
            for data in topic.partitions:
                found = asked.pop(TopicPartition(name, data.partition_index), None)
                if found is not None and found.counts:
                    found.entry.fetching = False
                    self._on_data(found.entry, found.offset, data)
        for item in asked.values():
            if item.counts:
                item.entry.fetching = False
                if not incremental:
                    self._pause(item.entry)
                    self._refresh_metadata()

    async def _ask(
        self, broker: int, asked: dict[TopicPartition, Asked], session: ClientFetchSession
    ) -> tuple[FetchResponse, bool]:
        """The answer, and whether it leaves out what has no news."""
        config = self._config
        deadline = self._cluster.deadline(config.request_timeout_ms, "request_timeout_ms")
        connection = await self._cluster.connection(broker, deadline)
        topics = {tp.topic: self._cluster.cache.topic(tp.topic) for tp in asked}
        ids = {name: None if topic is None else topic.topic_id for name, topic in topics.items()}
        by_id = all(topic_id is not None for topic_id in ids.values())
        version = connection.version(FETCH, at_most=None if by_id else LAST_VERSION_WITH_NAMES)
        size = config.max_partition_fetch_bytes
        wishes = {tp: Wish(ids[tp.topic], item.offset, size, item.leader_epoch) for tp, item in asked.items()}
        terms = session.request(wishes, by_id=version > LAST_VERSION_WITH_NAMES)
        incremental = session.is_incremental
        request = FetchRequest(
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=config.isolation,
            session_id=terms.session_id,
            session_epoch=terms.session_epoch,
            topics=terms.topics,
            forgotten_topics_data=terms.forgotten,
            rack_id=config.client_rack,
        )
        try:
            response: FetchResponse = await self._cluster.ask(connection, request, "Fetch", deadline, version=version)
            if response.error_code:
                raise error_for(response.error_code)(f"Fetch from broker {broker}")
        except BaseException:
            session.failed()
            raise
        session.answered(response)
        return response, incremental

    def _on_data(self, entry: Assigned, offset: int, data: PartitionData) -> None:
        if data.error_code:
            self._on_error(entry, error_for(data.error_code)(f"Fetch of {entry.tp} at offset {offset}"))
            return
        entry.failures = 0
        entry.high_watermark = data.high_watermark
        entry.last_stable_offset = data.last_stable_offset
        entry.log_start_offset = data.log_start_offset
        if data.preferred_read_replica != NO_BROKER:
            entry.preferred = data.preferred_read_replica
            max_age_s = self._config.metadata_max_age_ms / 1000
            entry.preferred_until = self._runtime.clock.monotonic() + max_age_s
        if not data.records:
            readable = data.last_stable_offset if self._config.isolation else data.high_watermark
            if offset > readable:
                entry.not_before = self._runtime.clock.monotonic() + self._config.retry_backoff_ms / 1000
            return
        try:
            answer = Answer(entry.tp, offset, data, self._config)
        except KafkaError as error:
            self._pause(entry)
            self.errors.append(error)
            return
        entry.fetch_offset = answer.next_offset
        entry.answers.append(answer)

    def _on_error(self, entry: Assigned, error: KafkaError) -> None:
        if entry.preferred != NO_BROKER:
            log.debug("%s: the preferred replica %d failed: %s", entry.tp, entry.preferred, error)
            entry.preferred = NO_BROKER
            self._pause(entry)
        elif isinstance(error, OffsetOutOfRange):
            self._on_out_of_range(entry)
        elif error.retriable:
            log.debug("%s: %s", entry.tp, error)
            self._pause(entry)
            self._refresh_metadata()
        else:
            self._pause(entry)
            self.errors.append(error)

    def _on_out_of_range(self, entry: Assigned) -> None:
        reset = self.positions.default_reset
        if reset is not None and not entry.answers:
            log.warning("%s: offset %d is out of range, going to the %s", entry.tp, entry.fetch_offset, reset.name)
            entry.seek_by(reset)
        else:
            self._pause(entry)
            if reset is None:
                self.errors.append(
                    OffsetOutOfRange(f"{entry.tp} has no offset {entry.fetch_offset} and auto_offset_reset is none")
                )

    def _pause(self, entry: Assigned) -> None:
        entry.failures += 1
        delay_s = self._config.retry_backoff.delay_s(entry.failures, self._runtime.random)
        entry.not_before = self._runtime.clock.monotonic() + delay_s

    def _refresh_metadata(self) -> None:
        self._cluster.refresh_soon().add_done_callback(lambda _: self.news.set())
