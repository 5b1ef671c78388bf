"""Open transactions as an administrator looks for them: which are hanging, which hold readers back (KIP-664).

1. A hanging transaction is open in a partition and nothing will end it. Leaders are asked first, then coordinators,
   then the leaders again about what looks hanging: what ended in between is not reported.
2. A transaction is hanging where no coordinator has its producer, where the coordinator has another epoch of it open,
   or where the partition is not part of what the coordinator has open. While markers are being written the
   coordinator's epoch is ahead, and the partition is listed until it has its marker: that is not hanging.
3. Where the coordinator's record shows that it was decided, the partition has lost the marker (a power cut took it).
   To abort it would tear the transaction: it is to be repaired. Where the id has no transaction any more and its record
   shows nothing, it may be a late batch or such a loss, and no record tells which.
4. A transaction lasts from its start at the coordinator that has it open, else from the append of its first record, as
   the leader tells. Apache Kafka does not tell that: there the timestamp of the record is all there is, which is its
   client's. Which of them an age is from is said with it (`Began`).
5. Requests are bounded: so many partitions, ids or fetches at a time.
6. What holds readers back can be seen without knowing the producer: where a broker is too old to tell, that is said,
   and the rest is shown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from twofold.client.admin.admin import Admin
from twofold.client.admin.model import Results
from twofold.client.admin.transaction_model import TransactionDescription, TransactionListing, TransactionState
from twofold.client.config import ConsumerConfig
from twofold.client.consumer.offsets import OffsetSpec
from twofold.client.consumer.single_fetch import SingleFetch
from twofold.connections.errors import UnsupportedByBroker
from twofold.records.batch import iter_headers
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError, OffsetOutOfRange, TransactionalIdNotFound

T = TypeVar("T")
R = TypeVar("R")

PARTITIONS_AT_ONCE = 500
IDS_AT_ONCE = 1_000
FETCHES_AT_ONCE = 20
FILTERED_PRODUCERS = 1_000
"""Up to so many producers the coordinators are asked for by id; of more, for all that they have."""
NO_TIME_MS = -1


class PartitionTransaction(NamedTuple):
    """As the leader of a partition (or another replica) has it."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int
    began_ms: int = NO_TIME_MS
    """When its first record was appended, by the leader's clock; NO_TIME_MS where the leader does not tell."""
    began_is_bound: bool = False
    """It was appended then or earlier."""


class ToldBy(StrEnum):
    """What an age is from."""

    COORDINATOR = "coordinator"
    LEADER = "leader"
    BOUND = "leader, at least"
    RECORD = "timestamp of its first record"
    NOBODY = "nobody"


class Began(NamedTuple):
    """When a transaction began, as far as that is known."""

    ms: int
    told_by: ToldBy

    def age_ms(self, now_ms: int) -> int | None:
        return None if self.told_by is ToldBy.NOBODY else max(0, now_ms - self.ms)


class Reason(StrEnum):
    UNKNOWN = "unknown to the coordinator"
    EPOCH = "epoch differs"
    NOT_MEMBER = "partition not in the transaction"
    UNPROVEN = "not in the transaction, and the coordinator's record shows no outcome"
    COMMIT_LOST = "decided: commit, marker missing here"
    ABORT_LOST = "decided: abort, marker missing here"

    @property
    def is_decided(self) -> bool:
        """Not to be aborted: `twofold txn repair` writes the marker of what was decided."""
        return self in (Reason.COMMIT_LOST, Reason.ABORT_LOST)


@dataclass(frozen=True, slots=True)
class Hanging:
    transaction: PartitionTransaction
    reason: Reason
    transactional_id: str | None
    """The id whose coordinator knows the producer, if one does."""
    first_timestamp: int
    """Of its first record; NO_TIME_MS where that is gone."""
    began: Began


@dataclass(frozen=True, slots=True)
class Blocked:
    """A partition whose readers of committed data wait."""

    tp: TopicPartition
    stable_offset: int
    high_watermark: int
    transaction: PartitionTransaction | None
    """The one that they wait for; None where it ended meanwhile or the leader does not tell."""
    transactional_id: str | None
    first_timestamp: int
    began: Began
    groups: tuple[str, ...]
    """Groups that have read everything before it."""
    opened_by: str = ""
    """The principal that opened the transaction, where the caller may describe it and the cluster tells."""

    @property
    def hidden(self) -> int:
        """Offsets behind the stable one, markers among them."""
        return self.high_watermark - self.stable_offset


Told = Callable[[int], None]


def _nobody(_: int) -> None:
    return None


# Where to look


async def choose_partitions(
    admin: Admin, *, topic: str | None = None, partition: int | None = None, broker_id: int | None = None
) -> list[TopicPartition]:
    """All partitions, internal topics too, or those that were named; with a broker those that it has a replica of."""
    if topic is None:
        topics = await admin.list_topics(include_internal=True)
    else:
        topics = dict((await admin.describe_topics([topic])).get())
    found = []
    for name, metadata in topics.items():
        for index, row in sorted(metadata.partitions.items()):
            if partition is not None and index != partition:
                continue
            if broker_id is None or broker_id in row.replicas:
                found.append(TopicPartition(name, index))
    return found


async def find_open(
    admin: Admin, partitions: Sequence[TopicPartition], *, broker_id: int | None = None, told: Told = _nobody
) -> Results[TopicPartition, tuple[PartitionTransaction, ...]]:
    """The open transactions of each partition, in the order of their offsets."""
    values: dict[TopicPartition, tuple[PartitionTransaction, ...]] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for some in _slices(partitions, PARTITIONS_AT_ONCE):
        found = await admin.describe_producers(some, broker_id=broker_id)
        errors |= found.errors
        for tp, rows in found.values.items():
            values[tp] = tuple(
                PartitionTransaction(
                    tp,
                    row.producer_id,
                    row.producer_epoch,
                    row.coordinator_epoch,
                    row.current_txn_start_offset,
                    row.last_timestamp,
                    row.current_txn_start_ms,
                    row.current_txn_start_is_bound,
                )
                for row in sorted(rows, key=lambda row: row.current_txn_start_offset)
                if row.current_txn_start_offset >= 0
            )
        told(len(some))
    return Results(values, errors)


# Hanging


async def find_hanging(
    admin: Admin,
    partitions: Sequence[TopicPartition],
    *,
    broker_id: int | None = None,
    told: Told = _nobody,
) -> tuple[list[Hanging], dict[TopicPartition, KafkaError]]:
    """The transactions of these partitions that nothing will end; and the partitions that could not be looked at."""
    found = await find_open(admin, partitions, broker_id=broker_id, told=told)
    candidates = [row for rows in found.values.values() for row in rows]
    owners = await owners_of(admin, {row.producer_id for row in candidates})
    suspects = {row: reason for row in candidates if (reason := why_hanging(row, owners.get(row.producer_id)))}
    again = await find_open(admin, list(dict.fromkeys(row.tp for row in suspects)), broker_id=broker_id)
    still = {(row.tp, row.producer_id, row.start_offset) for rows in again.values.values() for row in rows}
    left = [row for row in suspects if (row.tp, row.producer_id, row.start_offset) in still]
    times = await first_timestamps(admin, left)
    hanging = []
    for row in left:
        owner = owners.get(row.producer_id)
        name = None if owner is None else owner.transactional_id
        first_ms = times.get(row, NO_TIME_MS)
        hanging.append(Hanging(row, suspects[row], name, first_ms, began(row, owner, first_ms)))
    return hanging, dict(found.errors)


def why_hanging(row: PartitionTransaction, owner: TransactionDescription | None) -> Reason | None:
    """None where the coordinator is going to end it."""
    if owner is None:
        return Reason.UNKNOWN
    if row.tp not in owner.partitions:
        committed = owner.outcome_of(row.producer_id, row.producer_epoch)
        if committed is not None:
            return Reason.COMMIT_LOST if committed else Reason.ABORT_LOST
        return Reason.NOT_MEMBER if owner.state.is_open else Reason.UNPROVEN
    if owner.state is TransactionState.ONGOING and owner.producer_epoch != row.producer_epoch:
        return Reason.EPOCH
    return None


def began(row: PartitionTransaction, owner: TransactionDescription | None, first_timestamp: int) -> Began:
    """Since when a transaction is open; `owner` is the id whose coordinator knows its producer."""
    if owner is not None and owner.start_ms >= 0 and why_hanging(row, owner) is None:
        return Began(owner.start_ms, ToldBy.COORDINATOR)
    if row.began_ms >= 0:
        return Began(row.began_ms, ToldBy.BOUND if row.began_is_bound else ToldBy.LEADER)
    if first_timestamp >= 0:
        return Began(first_timestamp, ToldBy.RECORD)
    return Began(NO_TIME_MS, ToldBy.NOBODY)


async def owners_of(admin: Admin, producer_ids: Collection[int]) -> dict[int, TransactionDescription]:
    """The transactional ids that use these producer ids, as far as a coordinator knows them.
    An error of one coordinator is raised: what it has would look hanging."""
    if not producer_ids:
        return {}
    wanted = sorted(producer_ids) if len(producer_ids) <= FILTERED_PRODUCERS else []
    listed = (await admin.list_transactions(producer_ids=wanted)).get()
    # One that had a new producer id after its last epoch is listed under the old one, too.
    names = {
        row.transactional_id for rows in listed.values() for row in rows if wanted or row.producer_id in producer_ids
    }
    owners: dict[int, TransactionDescription] = {}
    for some in _slices(sorted(names), IDS_AT_ONCE):
        described = await admin.describe_transactions(some)
        for error in described.errors.values():
            if not isinstance(error, TransactionalIdNotFound):
                raise error
        for row in described.values.values():
            owners[row.producer_id] = row
            if row.decided is not None:
                owners.setdefault(row.decided.producer_id, row)
            if row.last_two_phase is not None:
                owners.setdefault(row.last_two_phase.state.producer_id, row)
    return owners


async def find_two_phase(admin: Admin, listed: Iterable[TransactionListing]) -> list[TransactionDescription]:
    """Those of these transactions that only an outside decision ends (KIP-939), the oldest first. A listing does not
    tell, so they are described. What has ended since it was listed is left out."""
    states = {row.transactional_id: row.state for row in listed}
    found: list[TransactionDescription] = []
    for some in _slices(sorted(states), IDS_AT_ONCE):
        described = await admin.describe_transactions(some)
        for error in described.errors.values():
            if not isinstance(error, TransactionalIdNotFound):
                raise error
        found += [
            row
            for name, row in described.values.items()
            if row.is_two_phase and row.state.is_open == states[name].is_open
        ]
    return sorted(found, key=lambda row: (row.start_ms, row.transactional_id))


async def first_timestamps(admin: Admin, rows: Iterable[PartitionTransaction]) -> dict[PartitionTransaction, int]:
    """What the first record of each says of its time."""
    reading = ConsumerConfig(
        bootstrap_servers=admin.config.bootstrap_servers, max_partition_fetch_bytes=1, fetch_max_bytes=1
    )

    async def look(row: PartitionTransaction) -> tuple[PartitionTransaction, int]:
        fetch = SingleFetch(admin.cluster, reading, row.tp)
        try:
            data = await fetch.fetch(row.start_offset, 0, admin.cluster.deadline())
        except OffsetOutOfRange:
            return row, NO_TIME_MS
        for _, header in iter_headers(data.records or b""):
            return row, header.base_timestamp
        return row, NO_TIME_MS

    return dict(await _some_at_a_time(look, list(rows), FETCHES_AT_ONCE))


# Blocked


async def find_blocked(
    admin: Admin, partitions: Sequence[TopicPartition], *, told: Told = _nobody
) -> tuple[list[Blocked], dict[TopicPartition | str, KafkaError]]:
    """The partitions whose readers of committed data cannot go on, each with what they wait for; and what could not be
    looked at."""
    held: dict[TopicPartition, tuple[int, int]] = {}
    for some in _slices(partitions, PARTITIONS_AT_ONCE):
        # In this order, so that what is written meanwhile does not look held back.
        stable = await admin.list_offsets(dict.fromkeys(some, OffsetSpec.LATEST), isolation_level="read_committed")
        ends = await admin.list_offsets(dict.fromkeys(some, OffsetSpec.LATEST))
        for tp in some:
            if stable[tp].offset < ends[tp].offset:
                held[tp] = stable[tp].offset, ends[tp].offset
        told(len(some))
    errors: dict[TopicPartition | str, KafkaError] = {}
    found: Results[TopicPartition, tuple[PartitionTransaction, ...]] = Results({}, {})
    owners: dict[int, TransactionDescription] = {}
    first: dict[TopicPartition, PartitionTransaction] = {}
    try:
        found = await find_open(admin, list(held))
        first = {tp: rows[0] for tp, rows in found.values.items() if rows and rows[0].start_offset <= held[tp][0]}
        owners = await owners_of(admin, {row.producer_id for row in first.values()})
    except UnsupportedByBroker as error:
        errors["what holds the readers back"] = error
    errors.update(found.errors.items())
    times = await first_timestamps(admin, first.values())
    waiting = await _waiting_groups(admin, {tp: stable for tp, (stable, _) in held.items()})
    blocked = []
    for tp, (stable_offset, end) in held.items():
        row = first.get(tp)
        if row is None and tp in found.values:
            continue  # it ended while we asked
        owner = None if row is None else owners.get(row.producer_id)
        first_ms = NO_TIME_MS if row is None else times.get(row, NO_TIME_MS)
        blocked.append(
            Blocked(
                tp,
                stable_offset,
                end,
                row,
                None if owner is None else owner.transactional_id,
                first_ms,
                Began(NO_TIME_MS, ToldBy.NOBODY) if row is None else began(row, owner, first_ms),
                tuple(waiting.get(tp, ())),
                "" if owner is None else owner.opened_by,
            )
        )
    return blocked, errors


async def _waiting_groups(admin: Admin, stable: Mapping[TopicPartition, int]) -> dict[TopicPartition, list[str]]:
    """Groups that have committed up to the stable offset of a partition, or beyond it."""
    waiting: dict[TopicPartition, list[str]] = {}
    if not stable:
        return waiting
    listed = [name for name, row in (await admin.list_groups()).items() if row.type in ("", "classic", "consumer")]
    for some in _slices(listed, IDS_AT_ONCE):
        offsets = await admin.list_group_offsets(some)
        for group, rows in offsets.values.items():
            for tp, row in rows.values.items():
                if tp in stable and row.offset >= stable[tp]:
                    waiting.setdefault(tp, []).append(group)
    return waiting


# How


def _slices(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


async def _some_at_a_time(work: Callable[[T], Awaitable[R]], items: Sequence[T], count: int) -> list[R]:
    found: list[R] = []
    for some in _slices(items, count):
        found += await asyncio.gather(*map(work, some))
    return found
