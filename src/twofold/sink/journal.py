"""The journal: a compacted topic of one partition whose newest record is the register, and its only writer.

1. The driver that opens it fences every earlier writer and ends what that one left half written. It then knows
   everything that was written before.
2. A record counts when the journal's own transaction is committed, and with two-phase commit that is on disk by then,
   as is every record of a topic with `flush.messages=1`.
3. A write whose outcome is not known closes the journal: opening it again finds out.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from twofold.client import Admin, ConsumerGroupMetadata, NewTopic, OffsetSpec, Producer
from twofold.client.parts import ISOLATION_LEVELS, Cluster, ConsumerConfig, ProducerConfig, SingleFetch, list_offsets
from twofold.connections.waiting import Deadline
from twofold.records.batch import iter_records
from twofold.records.filtering import visible_batches
from twofold.runtime.api import Runtime
from twofold.sink import names
from twofold.sink.register import Reader, Register, encode
from twofold.sink.remembered import Remembered
from twofold.sink.steps import Reached, unobserved
from twofold.types import TopicPartition
from twofold.wire.errors import OffsetOutOfRange, TopicAlreadyExists
from twofold.wire.messages.fetch import PartitionData

log = logging.getLogger(__name__)

TOPIC_CONFIGS = {"cleanup.policy": "compact", "flush.messages": "1"}
SHARED_CONFIGS = TOPIC_CONFIGS | {"segment.bytes": str(1024 * 1024), "segment.ms": str(3_600_000)}
"""Of the journal of many prefixes, most of which are forgotten soon: the newest segment is never compacted."""
REPLICAS, MIN_REPLICAS = 3, 2
FIRST_LOOK = 16
"""How many offsets before the end are read first: a few records and their markers."""
LOOK_FURTHER = 16
COMMITTED = "read_committed"
WAIT_MS = 10
ENDING_MS = 2_000
"""So long after it was decided the marker of a record is there, unless its broker is away."""


KeyAndValue = tuple[bytes, bytes | None]


class GroupOffsets(NamedTuple):
    """Offsets of the input that are committed together with a record."""

    group: str
    offsets: Mapping[TopicPartition, int]
    digest: str = ""
    """Of the input whose end they are, where that is known."""


class Journal:
    """Reads through `cluster`; the writer has connections of its own."""

    def __init__(
        self,
        runtime: Runtime,
        cluster: Cluster,
        config: ProducerConfig,
        prefix: str,
        topic: str | None = None,
        reached: Reached = unobserved,
    ) -> None:
        self.prefix = prefix
        self.topic = topic or names.decision_topic(prefix)
        self.register = Register()
        self._runtime = runtime
        self._cluster = cluster
        self._config = config
        self._reached = reached
        self._reading = ConsumerConfig(
            bootstrap_servers=config.bootstrap_servers,
            client_id=config.client_id,
            request_timeout_ms=config.request_timeout_ms,
            isolation_level=COMMITTED,
        )
        self._tp = TopicPartition(self.topic, 0)
        self._producer: Producer | None = None
        self._reader = Reader(prefix)
        self._position: int | None = None
        self.is_read = False
        """Whether all was read that was there when it was last read."""
        self._remembered: Remembered | None = None

    # Writing

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    @property
    def version(self) -> int | None:
        """Of the register that was last read; None where there was none."""
        return self._reader.version

    async def open(self, deadline: Deadline, *, two_phase: bool, timeout_ms: int) -> Register:
        """Fence the writer before, then read to the end."""
        await self.close()
        self._remembered = None
        config = replace(
            self._config,
            transactional_id=names.driver_id(self.prefix),
            transaction_two_phase_commit_enable=two_phase,
            transaction_timeout_ms=None if two_phase else timeout_ms,
            transaction_heartbeat_interval_ms=0,
            max_block_ms=max(1, deadline.remaining_ms()),
        )
        producer = Producer.of(config, runtime=self._runtime)
        try:
            await producer.init_transactions()
        except BaseException:
            await producer.close(flush=False)
            raise
        self._producer = producer
        return await self.read(deadline)

    async def append(
        self, register: Register, offsets: GroupOffsets | None = None, beside: Sequence[KeyAndValue] = ()
    ) -> None:
        """Committed when this returns, with the records `beside` it. An error says that it is not, or that its outcome
        is not known: open the journal again to know."""
        await self._write((*beside, *encode(self.prefix, register)), offsets, register.kind)
        self.register = replace(register, leaving=())
        if beside or register.leaving:
            self._remembered = None

    async def forget(self) -> None:
        """End the record of this prefix: compaction removes it."""
        await self._write(((self.prefix.encode(), None),), None, "forget")
        self.register = Register()

    async def _write(self, records: Sequence[KeyAndValue], offsets: GroupOffsets | None, kind: str) -> None:
        producer = self._producer
        assert producer is not None, "the journal is not open"
        try:
            await producer.begin_transaction()
            for key, value in records:
                await producer.send(self.topic, value, key=key, partition=0)
            if offsets is not None:
                group = ConsumerGroupMetadata(offsets.group)
                await producer.send_offsets_to_transaction(offsets.offsets, group)
            await producer.flush()
            self._reached(f"journal: {kind}")
            await producer.commit_transaction()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(flush=False)

    async def create(self) -> None:
        """The topic, unless it is there: no right to make it is asked for then."""
        admin = Admin.on(self._cluster)
        if self.topic in (await admin.describe_topics([self.topic])).values:
            return
        brokers = len((await admin.describe_cluster()).brokers)
        configs = dict(SHARED_CONFIGS if self.topic == names.ONCE_TOPIC else TOPIC_CONFIGS)
        if brokers >= MIN_REPLICAS:
            configs["min.insync.replicas"] = str(MIN_REPLICAS)
        topic = NewTopic(name=self.topic, num_partitions=1, replication_factor=min(REPLICAS, brokers), configs=configs)
        for error in (await admin.create_topics([topic])).errors.values():
            if not isinstance(error, TopicAlreadyExists):
                raise error

    # Reading

    async def read(self, deadline: Deadline) -> Register:
        """The register after everything that was in the journal when this was called, also what was not decided yet."""
        return await self._read(deadline, None)

    async def glance(self, deadline: Deadline) -> Register:
        """As `read`, but it does not wait long for a record that a writer, perhaps a dead one, left half written:
        `is_read` tells whether such a record was left out. With two-phase commit only the next driver that opens the
        journal ends it."""
        return await self._read(deadline, ENDING_MS)

    async def remembered(self, deadline: Deadline) -> Remembered:
        """The names that have left the register. For that the whole journal is read, once after it was opened."""
        if self._remembered is None:
            found = Remembered(self.prefix)
            position = await self._listed(OffsetSpec.EARLIEST, deadline)
            end = await self._listed(OffsetSpec.LATEST, deadline, ISOLATION_LEVELS[COMMITTED])
            while position < end:
                position = _take(await self._fetch(position, deadline), position, found.take)
                if deadline.expired:
                    raise deadline.gave_up(f"reading the journal {self.topic} for its names up to offset {end}")
            self._remembered = found
        return self._remembered

    async def _read(self, deadline: Deadline, wait_ms: float | None) -> Register:
        try:
            await self._follow(deadline, wait_ms)
        except OffsetOutOfRange:
            log.warning("the journal %s was made anew: reading it from its start", self.topic)
            self._position = None
            self._reader = Reader(self.prefix)
            await self._follow(deadline, wait_ms)
        if self._reader.damage is not None:
            raise self._reader.damage
        self.register = self._reader.register or Register()
        return self.register

    async def _follow(self, deadline: Deadline, wait_ms: float | None) -> None:
        patience = deadline if wait_ms is None else self._cluster.deadline(wait_ms, "the end of a record")
        if self._position is not None:
            await self._read_from(self._position, deadline, patience)
            return
        first = await self._listed(OffsetSpec.EARLIEST, deadline)
        end = await self._listed(OffsetSpec.LATEST, deadline)
        look = FIRST_LOOK
        while True:
            start = max(first, end - look)
            self._reader = Reader(self.prefix)
            await self._read_from(start, deadline, patience, complete=start == first)
            if self._reader.register is not None or start == first:
                return
            look *= LOOK_FURTHER

    async def _read_from(self, position: int, deadline: Deadline, patience: Deadline, complete: bool = True) -> None:
        end: int | None = None
        while True:
            data = await self._fetch(position, deadline)
            if end is None:
                end = data.high_watermark
            take = partial(self._reader.take, complete=complete)
            self._position = position = _take(data, position, take)
            self.is_read = position >= end
            if self.is_read:
                return
            if deadline.expired:
                raise deadline.gave_up(f"reading the journal {self.topic} to its end at offset {end}")
            if patience.expired and position >= data.last_stable_offset:
                return
            if not data.records:
                await self._runtime.timers.sleep(WAIT_MS / 1000)

    async def _fetch(self, position: int, deadline: Deadline) -> PartitionData:
        return await SingleFetch(self._cluster, self._reading, self._tp).fetch(position, 0, deadline)

    async def _listed(self, spec: OffsetSpec, deadline: Deadline, isolation: int = 0) -> int:
        return (await list_offsets(self._cluster, {self._tp: spec}, isolation, deadline))[self._tp].offset


def _take(data: PartitionData, position: int, take: Callable[[bytes | None, bytes | None, int], None]) -> int:
    """What is committed of an answer; where the next one begins."""
    records = bytes(data.records or b"")
    aborted = [(entry.first_offset, entry.producer_id) for entry in data.aborted_transactions or ()]
    for at, header, visible in visible_batches(records, aborted):
        if visible and header.last_offset >= position:
            for record in iter_records(records, at):
                if record.offset >= position:
                    take(record.key, record.value, record.offset)
        position = max(position, header.next_offset)
    return position
