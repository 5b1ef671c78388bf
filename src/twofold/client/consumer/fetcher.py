"""Fetching: which partitions to ask which broker for, and what their answers mean.

1. To each broker at most one fetch is out. A partition is asked for while at most one answer of it is unread, so that
   the network works while the application does, and memory stays within two answers.
2. An answer that belongs to an earlier position (the reader seeked or was assigned anew) is dropped.
3. The position moves over every batch, seen or not, and only when its records were handed out.
4. A position beyond what may be read (the LSO, or the high watermark of a leader that is new) stays where it is. It is
   asked for now and then, because Apache Kafka answers such a fetch at once.
5. Many partitions are asked for in a fetch session: a broker that leaves one out of an answer has no news of it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.metadata import PartitionMetadata
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.fetch_session import ClientFetchSession, Wish
from twofold.client.consumer.offsets import OffsetSpec, list_offsets
from twofold.client.errors import NoOffset
from twofold.connections.waiting import spawn_shared
from twofold.records.batch import Header, RecordHeader, crc_is_valid, iter_records
from twofold.records.filtering import visible_batches
from twofold.runtime.api import Runtime
from twofold.types import TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    CorruptMessage,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    KafkaError,
    OffsetOutOfRange,
    RecordListTooLarge,
    error_for,
)
from twofold.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData

log = logging.getLogger(__name__)

FETCH = KEYS["Fetch"]
LAST_VERSION_WITH_NAMES = 12
MAX_UNREAD_ANSWERS = 2
SESSION_ERRORS = (FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError)
_RESETS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}


class ConsumerRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[RecordHeader, ...]
    leader_epoch: int


class Answer:
    """Fetched bytes of one partition, read record by record."""

    __slots__ = ("_damage", "_records", "next_offset")

    def __init__(self, tp: TopicPartition, start: int, data: PartitionData, isolation: int, check_crcs: bool) -> None:
        records = data.records or b""
        aborted = None
        if isolation:
            aborted = [(entry.first_offset, entry.producer_id) for entry in data.aborted_transactions or ()]
        self.next_offset = start
        self._damage: KafkaError | None = None
        batches = list(visible_batches(bytes(records), aborted))
        if batches:
            self.next_offset = max(start, batches[-1][1].next_offset)
        elif records:
            raise RecordListTooLarge(
                f"the batch at offset {start} of {tp} is larger than max_partition_fetch_bytes: raise it"
            )
        self._records = _records(tp, start, bytes(records), batches, check_crcs)

    def take(self, count: int) -> tuple[list[ConsumerRecord], bool]:
        """Up to `count` records, and whether that was all. Damage is raised after the records before it were taken."""
        if self._damage is not None:
            raise self._damage
        taken: list[ConsumerRecord] = []
        try:
            for record in self._records:
                taken.append(record)
                if len(taken) == count:
                    return taken, False
        except KafkaError as error:
            if not taken:
                raise
            self._damage = error
            return taken, False
        return taken, True


def _records(
    tp: TopicPartition, start: int, buf: bytes, batches: list[tuple[int, Header, bool]], check_crcs: bool
) -> Iterator[ConsumerRecord]:
    topic, partition = tp
    for position, header, visible in batches:
        if not visible or header.last_offset < start:
            continue
        if check_crcs and not crc_is_valid(buf, position, header):
            raise CorruptMessage(f"the batch at offset {header.base_offset} of {tp} does not match its CRC")
        epoch = header.leader_epoch
        for record in iter_records(buf, position):
            if record.offset >= start:
                yield ConsumerRecord(topic, partition, *record, epoch)


class Assigned:
    """What is known of one assigned partition."""

    __slots__ = (
        "answers",
        "failures",
        "fetch_offset",
        "fetching",
        "generation",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "not_before",
        "paused",
        "position",
        "reset",
        "resetting",
        "tp",
    )

    def __init__(self, tp: TopicPartition, reset: OffsetSpec | None) -> None:
        self.tp = tp
        self.position: int | None = None  # the next offset for the application; None until `reset` is resolved
        self.reset = reset
        self.resetting = False
        self.fetch_offset = -1  # the next offset to ask for
        self.fetching = False
        self.generation = 0
        self.answers: deque[Answer] = deque()
        self.paused = False
        self.failures = 0
        self.not_before = 0.0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1

    def seek(self, offset: int) -> None:
        self.forget()
        self.position = self.fetch_offset = offset

    def seek_by(self, reset: OffsetSpec) -> None:
        self.forget()
        self.reset = reset

    def forget(self) -> None:
        """Nothing that was fetched or is on its way counts any more."""
        self.generation += 1
        self.answers.clear()
        self.position = None
        self.fetching = False
        self.resetting = False

    def is_fetchable(self, now: float) -> bool:
        if self.position is None or self.paused or self.fetching or now < self.not_before:
            return False
        return len(self.answers) < MAX_UNREAD_ANSWERS


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
        self._tasks: set[asyncio.Task[None]] = set()

    def default_reset(self) -> OffsetSpec | None:
        return _RESETS.get(self._config.auto_offset_reset)

    def take(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` records that are here already, from one partition after the other."""
        taken: list[ConsumerRecord] = []
        for tp in list(self.assigned):
            entry = self.assigned[tp]
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

    def _take_from(self, entry: Assigned, count: int) -> list[ConsumerRecord]:
        answer = entry.answers[0]
        try:
            records, all_read = answer.take(count)
        except KafkaError:
            # What was handed out stays so; the rest is asked for again.
            assert entry.position is not None
            entry.seek(entry.position)
            raise
        if all_read:
            entry.answers.popleft()
            entry.position = answer.next_offset
        elif records:
            entry.position = records[-1].offset + 1
        return records

    def work(self) -> float | None:
        """Start whatever should be under way. Returns when a paused partition may be tried again."""
        now = self._runtime.clock.monotonic()
        self._start_resets(now)
        by_leader: dict[int, list[tuple[Assigned, PartitionMetadata]]] = {}
        unknown = False
        for entry in self.assigned.values():
            if not entry.is_fetchable(now):
                continue
            row = self._cluster.cache.leader(entry.tp)
            if row is None:
                unknown = True
                self._pause(entry)
            else:
                by_leader.setdefault(row.leader, []).append((entry, row))
        if unknown:
            self._refresh_metadata()
        for leader, entries in by_leader.items():
            if leader not in self._fetches:
                self._start_fetch(leader, entries)
        return min((entry.not_before for entry in self.assigned.values() if entry.not_before > now), default=None)

    async def close(self) -> None:
        tasks = [*self._tasks, *self._fetches.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Positions that are not known yet

    def _start_resets(self, now: float) -> None:
        entries = []
        for entry in self.assigned.values():
            if entry.position is not None or entry.resetting or now < entry.not_before:
                continue
            if entry.reset is None:
                entry.not_before = now + self._config.retry_backoff_ms / 1000
                self.errors.append(
                    NoOffset(f"{entry.tp} has no position: seek to one, or set auto_offset_reset to earliest or latest")
                )
                self.news.set()
                continue
            entry.resetting = True
            entries.append(entry)
        if entries:
            task = spawn_shared(self._runtime, self._reset(entries), name="consumer resets offsets")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _reset(self, entries: list[Assigned]) -> None:
        generations = {entry.tp: entry.generation for entry in entries}
        wanted = {entry.tp: int(entry.reset) for entry in entries if entry.reset is not None}
        try:
            found = await list_offsets(self._cluster, wanted, self._config.isolation, self._cluster.deadline())
        except KafkaError as error:
            self.errors.append(error)
            found = {}
        for entry in entries:
            if entry.generation == generations[entry.tp]:
                entry.resetting = False
                if entry.tp in found:
                    entry.seek(found[entry.tp].offset)
                else:
                    self._pause(entry)
        self.news.set()

    # Fetches

    def _start_fetch(self, leader: int, entries: list[tuple[Assigned, PartitionMetadata]]) -> None:
        for entry, _ in entries:
            entry.fetching = True
        task = spawn_shared(self._runtime, self._fetch(leader, entries), name=f"fetch from {leader}")
        self._fetches[leader] = task
        task.add_done_callback(lambda _: self._on_fetch_done(leader))

    def _on_fetch_done(self, leader: int) -> None:
        self._fetches.pop(leader, None)
        self.news.set()

    async def _fetch(self, leader: int, entries: list[tuple[Assigned, PartitionMetadata]]) -> None:
        asked = {entry.tp: (entry, entry.generation, entry.fetch_offset) for entry, _ in entries}
        session = self._sessions.setdefault(leader, ClientFetchSession())
        try:
            response, incremental = await self._ask(leader, entries, session)
        except KafkaError as error:
            for entry, generation, _ in asked.values():
                if entry.generation == generation:
                    entry.fetching = False
                    if not isinstance(error, SESSION_ERRORS):
                        self._on_error(entry, error)
            return
        for topic in response.responses:
            name = topic.topic or session.name_of(topic.topic_id) or ""
            for data in topic.partitions:
                found = asked.pop(TopicPartition(name, data.partition_index), None)
                if found is not None and found[0].generation == found[1]:
                    found[0].fetching = False
                    self._on_data(found[0], found[2], data)
        for entry, generation, _ in asked.values():
            if entry.generation == generation:
                entry.fetching = False
                if not incremental:
                    self._pause(entry)
                    self._refresh_metadata()

    async def _ask(
        self, leader: int, entries: list[tuple[Assigned, PartitionMetadata]], session: ClientFetchSession
    ) -> tuple[FetchResponse, bool]:
        """The answer, and whether it leaves out what has no news."""
        config = self._config
        deadline = self._cluster.deadline(config.request_timeout_ms, "request_timeout_ms")
        connection = await self._cluster.connection(leader, deadline)
        topics = {entry.tp.topic: self._cluster.cache.topic(entry.tp.topic) for entry, _ in entries}
        ids = {name: None if topic is None else topic.topic_id for name, topic in topics.items()}
        by_id = all(topic_id is not None for topic_id in ids.values())
        version = connection.version(FETCH, at_most=None if by_id else LAST_VERSION_WITH_NAMES)
        size = config.max_partition_fetch_bytes
        wishes = {
            entry.tp: Wish(ids[entry.tp.topic], entry.fetch_offset, size, row.leader_epoch) for entry, row in entries
        }
        asked = session.request(wishes, by_id=version > LAST_VERSION_WITH_NAMES)
        incremental = session.is_incremental
        request = FetchRequest(
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=config.isolation,
            session_id=asked.session_id,
            session_epoch=asked.session_epoch,
            topics=asked.topics,
            forgotten_topics_data=asked.forgotten,
        )
        try:
            response: FetchResponse = await self._cluster.ask(connection, request, "Fetch", deadline, version=version)
            if response.error_code:
                raise error_for(response.error_code)(f"Fetch from broker {leader}")
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
        if not data.records:
            readable = data.last_stable_offset if self._config.isolation else data.high_watermark
            if offset > readable:
                entry.not_before = self._runtime.clock.monotonic() + self._config.retry_backoff_ms / 1000
            return
        try:
            answer = Answer(entry.tp, offset, data, self._config.isolation, self._config.check_crcs)
        except KafkaError as error:
            self._pause(entry)
            self.errors.append(error)
            return
        entry.fetch_offset = answer.next_offset
        entry.answers.append(answer)

    def _on_error(self, entry: Assigned, error: KafkaError) -> None:
        if isinstance(error, OffsetOutOfRange):
            self._on_out_of_range(entry)
        elif error.retriable:
            log.debug("%s: %s", entry.tp, error)
            self._pause(entry)
            self._refresh_metadata()
        else:
            self._pause(entry)
            self.errors.append(error)

    def _on_out_of_range(self, entry: Assigned) -> None:
        reset = self.default_reset()
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


def check_assignment(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Without repetitions, in order; ValueError names a partition that cannot be."""
    checked = [TopicPartition(*tp) for tp in dict.fromkeys(partitions)]
    for tp in checked:
        if tp.partition < 0:
            raise ValueError(f"{tp} has a negative partition")
    return checked
