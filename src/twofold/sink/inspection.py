"""What a sink has decided and what it has open, for programs that only look.

1. Nothing here changes anything: no producer is initialized, so that looking at a query does not fence it.
2. What is read may be over a moment later. A program that acts on it takes the sink over first, and looks again.
3. A topic is known as a journal by its records, and not by its name alone.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from twofold.client import Admin, ConfigResource, OffsetSpec, ResourceType, TransactionDescription, TransactionState
from twofold.client.parts import (
    ISOLATION_LEVELS,
    NO_TIMEOUT_MS,
    Cluster,
    ConsumerConfig,
    Coordinators,
    ProducerIdentity,
    SingleFetch,
    group_by_topic,
    list_offsets,
)
from twofold.connections.waiting import Deadline
from twofold.records.batch import Record, iter_records
from twofold.records.filtering import visible_batches
from twofold.sink import names
from twofold.sink.completion import is_open, was_aborted, was_committed
from twofold.sink.decided import DecidedEntry
from twofold.sink.register import BatchDecision, JournalDamaged, Mode, Participant, Reader, Register
from twofold.sink.transactions import Descriptions, TransactionLookup
from twofold.types import TopicPartition
from twofold.wire.messages.fetch import PartitionData

FIRST_LOOK = 64
LOOK_FURTHER = 16
SUFFIX = names.decision_topic("")
COMMITTED = "read_committed"
UNFINISHED = (
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.PREPARE_EPOCH_FENCE,
)


class Standing(StrEnum):
    """Of a transaction that is not over."""

    WRITING = "writing"
    """It has a timeout: a task is at work on it, or was. Without two-phase commit also one that waits."""
    PREPARED = "prepared"
    """It has none, and waits for a decision."""
    DECIDED = "decided"
    """It is to be committed."""
    DECIDING = "deciding"
    """The driver's own: a record of the journal that does not count yet."""
    COMMITTING = "committing"
    ABORTING = "aborting"


@dataclass(frozen=True, slots=True)
class SinkTransaction:
    transactional_id: str
    standing: Standing
    identity: ProducerIdentity
    start_ms: int
    timeout_ms: int
    partitions: Mapping[str, tuple[int, ...]]

    @property
    def is_undecided(self) -> bool:
        return self.standing in (Standing.WRITING, Standing.PREPARED)


@dataclass(frozen=True, slots=True)
class Tally:
    """What became of the transactions of a decision."""

    decision: BatchDecision
    left: tuple[Participant, ...]
    committed: tuple[Participant, ...]
    lost: tuple[Participant, ...]
    forgotten: tuple[Participant, ...] = ()
    """Lost or committed: their coordinators do not know the ids any more."""

    @classmethod
    def of(cls, decision: BatchDecision, found: Descriptions) -> "Tally":
        left = tuple(p for p in decision.participants if is_open(found, p))
        forgotten: tuple[Participant, ...] = ()
        if decision.mode is Mode.TWO_PHASE:
            # Only somebody's hand aborts one: those that are neither were committed, and their ids may be forgotten.
            lost = tuple(p for p in decision.participants if was_aborted(found, p))
            committed = _without(decision.participants, left, lost)
        else:
            committed = tuple(p for p in decision.participants if was_committed(found, p))
            forgotten = tuple(p for p in decision.participants if found[p.transactional_id] is None)
            lost = _without(decision.participants, left, committed, forgotten)
        return cls(decision, left, committed, lost, forgotten)

    @property
    def is_taken_back(self) -> bool:
        """Without two-phase commit: nothing of it is committed, and it cannot be committed whole any more."""
        return self.decision.mode is Mode.RESUME and bool(self.lost) and not self.committed and not self.forgotten

    @property
    def is_lost_in_part(self) -> bool:
        return bool(self.lost or self.forgotten) and not self.is_taken_back


@dataclass(frozen=True, slots=True)
class SinkState:
    """What the journal `topic` says of the sink `prefix`, and its transactions that are not over."""

    prefix: str
    topic: str
    register: Register
    tally: Tally | None
    transactions: tuple[SinkTransaction, ...]

    @property
    def undecided(self) -> tuple[SinkTransaction, ...]:
        return tuple(row for row in self.transactions if row.is_undecided)

    @property
    def is_deciding(self) -> bool:
        return any(row.standing is Standing.DECIDING for row in self.transactions)

    @property
    def is_clean(self) -> bool:
        """There is nothing to do: what is not over is being ended by its coordinator."""
        return self.tally is None and not self.undecided and not self.is_deciding


@dataclass(frozen=True, slots=True)
class FoundJournal:
    """A sink that has records in a topic; `problem` says why they cannot be read."""

    prefix: str
    topic: str
    register: Register | None
    problem: JournalDamaged | None = None
    decided: tuple[DecidedEntry, ...] = ()
    """The last batches, oldest first, as far as they were read."""


class Inspector:
    """Looks through the connections of `cluster`, whose they stay."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators = Coordinators(cluster)
        self._transactions = TransactionLookup(cluster, self._coordinators)
        config = cluster.config
        self._reading = ConsumerConfig(
            bootstrap_servers=config.bootstrap_servers,
            client_id=config.client_id,
            request_timeout_ms=config.request_timeout_ms,
            isolation_level=COMMITTED,
        )

    def close(self) -> None:
        self._coordinators.close()

    # Journals

    async def journals(self) -> list[str]:
        """Topics that may be journals: by their name, one partition, and the policy that a journal has."""
        admin = Admin.on(self._cluster)
        topics = await admin.list_topics()
        named = [name for name, row in topics.items() if name.endswith(SUFFIX) and len(row.partitions) == 1]
        if not named:
            return []
        resources = {ConfigResource(ResourceType.TOPIC, name): name for name in named}
        configs = (await admin.describe_configs(resources)).values
        return sorted(
            name
            for resource, name in resources.items()
            if any(entry.name == "cleanup.policy" and "compact" in (entry.value or "") for entry in configs[resource])
        )

    async def find(
        self, topic: str, prefix: str | None, deadline: Deadline, *, thorough: bool = False
    ) -> list[FoundJournal]:
        """The sinks that keep their decisions in a topic. With a prefix only as much is read as it takes to find that
        one; without, and not thorough, what the newest records are about."""
        tp = TopicPartition(topic, 0)
        first = await self._listed(tp, OffsetSpec.EARLIEST, deadline)
        end = await self._listed(tp, OffsetSpec.LATEST, deadline)
        look = end if thorough else FIRST_LOOK
        while True:
            start = max(first, end - look)
            scan = Scan(prefix, complete=start == first)
            await self._read(tp, start, end, scan, deadline)
            found = [FoundJournal(name, topic, *row, scan.decided(name)) for name, row in scan.results().items()]
            if found or start == first or (prefix is None and scan.is_foreign):
                return found
            look *= LOOK_FURTHER

    async def _read(self, tp: TopicPartition, position: int, end: int, scan: "Scan", deadline: Deadline) -> None:
        while position < end:
            data = await SingleFetch(self._cluster, self._reading, tp).fetch(position, 0, deadline)
            position = _take(data, position, scan)
            if deadline.expired:
                raise deadline.gave_up(f"reading {tp.topic} to its end at offset {end}")

    async def _listed(self, tp: TopicPartition, spec: OffsetSpec, deadline: Deadline) -> int:
        return (await list_offsets(self._cluster, {tp: spec}, ISOLATION_LEVELS[COMMITTED], deadline))[tp].offset

    async def ends(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """Up to where a `read_committed` reader can read."""
        specs = dict.fromkeys(partitions, OffsetSpec.LATEST)
        found = await list_offsets(self._cluster, specs, ISOLATION_LEVELS[COMMITTED], deadline)
        return {tp: row.offset for tp, row in found.items()}

    # Transactions

    async def open_ids(self, prefix: str, deadline: Deadline) -> list[str]:
        """Of tasks, whatever became of their batch."""
        return await self._transactions.task_ids(prefix, UNFINISHED, deadline)

    async def transactions(self, prefix: str, deadline: Deadline) -> tuple[SinkTransaction, ...]:
        """Of tasks, and not over. What is decided is not looked up: it is prepared until it is committed."""
        ids = await self.open_ids(prefix, deadline)
        described = await self._transactions.describe(ids, deadline)
        rows = ((name, described[name]) for name in ids)
        return tuple(
            _transaction(name, row, is_driver=False, is_decided=False)
            for name, row in rows
            if row is not None and row.state in UNFINISHED
        )

    async def state(self, prefix: str, topic: str, register: Register, deadline: Deadline) -> SinkState:
        ids = await self.open_ids(prefix, deadline)
        pending = register.pending
        decided = {} if pending is None else {p.transactional_id: p for p in pending.participants}
        driver = names.driver_id(prefix)
        described = await self._transactions.describe([*ids, *decided, driver], deadline)
        rows = []
        for name in [*sorted({*ids, *decided}), driver]:
            row = described[name]
            if row is not None and row.state in UNFINISHED:
                known = decided.get(name)
                is_decided = known is not None and is_open(described, known)
                rows.append(_transaction(name, row, is_driver=name == driver, is_decided=is_decided))
        tally = None if pending is None else Tally.of(pending, described)
        return SinkState(prefix, topic, register, tally, tuple(rows))

    async def outcomes(self, transactional_ids: list[str], deadline: Deadline) -> Descriptions:
        return await self._transactions.describe(transactional_ids, deadline)


class Scan:
    """Takes the records of a topic and knows the register of every sink among their keys, or of one if it has a prefix.
    `complete` is false if the reading began in the middle."""

    def __init__(self, prefix: str | None, *, complete: bool) -> None:
        self._seen = 0
        self._prefix = prefix
        self._complete = complete
        self._readers: dict[str, Reader] = {}
        self._problems: dict[str, JournalDamaged] = {}
        self._decided: dict[str, dict[tuple[str, int], DecidedEntry]] = {}

    @property
    def is_foreign(self) -> bool:
        """There are records, and none is a sink's."""
        return self._seen > 0 and not self._readers

    def take(self, record: Record) -> None:
        self._seen += 1
        name = (record.key or b"").decode("utf-8", "replace").partition("#")[0]
        is_known = name == self._prefix or name in self._readers
        if not is_known and (self._prefix is not None or not _is_ours(name, record.value)):
            return
        reader = self._readers.setdefault(name, Reader(name))
        try:
            reader.take(record.key, record.value, record.offset, complete=self._complete)
            problem = reader.damage
            self._note_decided(name, reader.register)
        except JournalDamaged as error:
            problem = error
        if problem is None:
            self._problems.pop(name, None)
        else:
            self._problems[name] = problem

    def _note_decided(self, name: str, register: Register | None) -> None:
        if register is not None and register.decided:
            last = register.decided[-1]
            known = self._decided.setdefault(name, {})
            known.pop((last.name, last.batch_id), None)
            known[last.name, last.batch_id] = last
            if len(known) > FIRST_LOOK:
                del known[next(iter(known))]

    def decided(self, name: str) -> tuple[DecidedEntry, ...]:
        return tuple(self._decided.get(name, {}).values())

    def results(self) -> dict[str, tuple[Register | None, JournalDamaged | None]]:
        return {
            name: (reader.register, self._problems.get(name))
            for name, reader in self._readers.items()
            if name in self._problems or (reader.register is not None and not reader.register.is_forgotten)
        }


def _without(participants: Iterable[Participant], *some: Iterable[Participant]) -> tuple[Participant, ...]:
    out = {participant for group in some for participant in group}
    return tuple(participant for participant in participants if participant not in out)


def _is_ours(name: str, value: bytes | None) -> bool:
    """Whether a record may be a sink's, going by the key and by what every record of a journal has."""
    try:
        names.check_prefix(name)
        return "v" in json.loads(value or b"{}")
    except (ValueError, TypeError):
        return False


def _take(data: PartitionData, position: int, scan: Scan) -> int:
    records = bytes(data.records or b"")
    aborted = [(entry.first_offset, entry.producer_id) for entry in data.aborted_transactions or ()]
    for at, header, visible in visible_batches(records, aborted):
        if visible:
            for record in _from(iter_records(records, at), position):
                scan.take(record)
        position = max(position, header.next_offset)
    return position


def _from(records: Iterator[Record], position: int) -> Iterator[Record]:
    return (record for record in records if record.offset >= position)


def _transaction(name: str, row: TransactionDescription, *, is_driver: bool, is_decided: bool) -> SinkTransaction:
    if row.state is not TransactionState.ONGOING:
        standing = Standing.COMMITTING if row.state is TransactionState.PREPARE_COMMIT else Standing.ABORTING
    elif is_driver:
        standing = Standing.DECIDING
    elif is_decided:
        standing = Standing.DECIDED
    else:
        standing = Standing.PREPARED if row.timeout_ms == NO_TIMEOUT_MS else Standing.WRITING
    partitions = {topic: tuple(indexes) for topic, indexes in group_by_topic(row.partitions).items()}
    return SinkTransaction(name, standing, row.identity, row.start_ms, row.timeout_ms, partitions)
