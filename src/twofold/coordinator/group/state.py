"""What a partition of `__consumer_offsets` says: groups, committed offsets, offsets of open transactions.

1. The state is a function of the log alone: live writes, a restart and a change of leadership go through the same
   `apply_all`.
2. A commit belongs to the main offsets at once, or with its transaction; then a commit that stands later in the log,
   by any client, is not overwritten. What counts is where the offsets stand, not where the marker stands.
3. A removal takes the main offset and all pending ones of its partition.
4. A group exists from its first record of any kind until the record that removes it. A name is a classic group or a
   consumer group: the first record of a consumer group takes the place of a simple one, a classic group that of any.
5. An offset costs some 120 bytes (its place in the log and the value as it stands there), and changing one costs the
   same with ten groups and with ten thousand.
6. Nothing is changed in place. The partitions of a topic are a plain dictionary that is copied when one of them
   changes: they are few, and a dictionary of numbers and bytes costs the garbage collector nothing, where a million
   nodes of a persistent map stop the broker for a second each time it looks at them.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from twofold.coordinator.group.consumer.records import GROUP_EPOCH, TOPICS, ConsumerGroupRecord
from twofold.coordinator.group.consumer.state import ConsumerGroup
from twofold.coordinator.group.records import (
    GroupRecord,
    GroupValue,
    LogRecord,
    OffsetRecord,
    OffsetValue,
    TransactionEnd,
    decode_offset_value,
)
from twofold.machine.maps import Map, MapMutation
from twofold.machine.runtime import Machine
from twofold.machine.schema import MalformedRecord
from twofold.types import NO_PRODUCER_ID, ProducerId
from twofold.wire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidFetchSize,
    InvalidProducerEpoch,
    KafkaError,
    KafkaStorageError,
    MessageTooLarge,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    ProducerFenced,
    RecordListTooLarge,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
)

Stored: TypeAlias = bytes  # the log offset of a commit (8 bytes), then its value
Partitions: TypeAlias = Mapping[int, Stored]
Topics: TypeAlias = Map[str, Partitions]
GroupPartition: TypeAlias = tuple[str, str, int]  # group, topic, partition
Producers: TypeAlias = frozenset[ProducerId]

SIMPLE_GROUP = GroupValue()
"""A group that never had members: a client committed offsets under its name."""

_LOG_OFFSET = struct.Struct(">Q")
VALUE_START = _LOG_OFFSET.size
_NO_TOPICS: Topics = Map()
_NO_PARTITIONS: Partitions = {}
_NO_PENDING: Map[GroupPartition, Stored] = Map()
_NO_OPEN: Map[tuple[str, int], Producers] = Map()
_NOBODY: Producers = frozenset()


def committed(stored: Stored) -> OffsetValue:
    return decode_offset_value(stored, VALUE_START)


def log_offset(stored: Stored) -> int:
    return int(_LOG_OFFSET.unpack_from(stored)[0])


@dataclass(frozen=True, slots=True)
class GroupsState:
    groups: Map[str, GroupValue] = field(default_factory=Map)
    offsets: Map[str, Topics] = field(default_factory=Map)
    # Offsets of open transactions by producer, and which producers have some for a partition of a group.
    pending: Map[int, Map[GroupPartition, Stored]] = field(default_factory=Map)
    open: Map[str, Map[tuple[str, int], Producers]] = field(default_factory=Map)
    consumers: Map[str, ConsumerGroup] = field(default_factory=Map)

    def exists(self, group_id: str) -> bool:
        return group_id in self.groups or group_id in self.consumers

    def topics(self, group_id: str) -> Topics:
        return self.offsets.get(group_id, _NO_TOPICS)

    def offset(self, group_id: str, topic: str, partition: int) -> Stored | None:
        return self.offsets.get(group_id, _NO_TOPICS).get(topic, _NO_PARTITIONS).get(partition)

    def is_open(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction that is not over has committed an offset here."""
        return (topic, partition) in self.open.get(group_id, _NO_OPEN)

    def has_open(self, group_id: str) -> bool:
        return group_id in self.open

    def open_partitions(self, group_id: str) -> Iterator[tuple[str, int]]:
        return iter(self.open.get(group_id, _NO_OPEN))


class GroupMachine(Machine[GroupsState, LogRecord]):
    busy: type[KafkaError] = CoordinatorNotAvailable

    def initial(self) -> GroupsState:
        return GroupsState()

    def apply_all(self, state: GroupsState, entries: Iterable[tuple[int, LogRecord]]) -> GroupsState:
        draft = _Draft(state)
        for offset, record in entries:
            if type(record) is OffsetRecord:
                draft.commit(record, offset)
            elif type(record) is GroupRecord:
                draft.set_group(record)
            elif type(record) is ConsumerGroupRecord:
                draft.change_consumers(record)
            elif type(record) is TransactionEnd:
                draft.end_transaction(record)
            else:
                raise TypeError(f"{record!r} is no record of a group")
        return draft.freeze()

    def map_error(self, error: Exception) -> KafkaError:
        return as_coordinator_error(super().map_error(error))


_COORDINATOR_ERRORS: dict[type[KafkaError], type[KafkaError]] = {
    NetworkException: CoordinatorLoadInProgress,
    UnknownTopicOrPartition: CoordinatorNotAvailable,
    NotEnoughReplicas: CoordinatorNotAvailable,
    RequestTimedOut: CoordinatorNotAvailable,
    NotLeaderOrFollower: NotCoordinator,
    KafkaStorageError: NotCoordinator,
    MessageTooLarge: UnknownServerError,
    RecordListTooLarge: UnknownServerError,
    InvalidFetchSize: UnknownServerError,
    ProducerFenced: InvalidProducerEpoch,
}


def as_coordinator_error(error: KafkaError) -> KafkaError:
    """What members get for an error of the log: they know coordinators, not the leaders of internal partitions."""
    known = _COORDINATOR_ERRORS.get(type(error))
    return error if known is None else known(error.message)


class _Draft:
    """A state that is being changed; a map is opened when something in it changes, once per run of records."""

    __slots__ = ("_base", "_consumers", "_groups", "_offsets", "_open", "_pending")

    def __init__(self, base: GroupsState) -> None:
        self._base = base
        self._groups: MapMutation[str, GroupValue] | None = None
        self._consumers: MapMutation[str, ConsumerGroup] | None = None
        self._offsets: dict[str, dict[str, dict[int, Stored]]] = {}
        self._pending = base.pending
        self._open = base.open

    # --- groups ---

    def set_group(self, record: GroupRecord) -> None:
        if self._groups is None:
            self._groups = self._base.groups.mutate()
        if record.value is None:
            self._groups.pop(record.group_id, None)
        else:
            self._groups[record.group_id] = record.value
            if self._consumer_group(record.group_id) is not None:
                self._changed_consumers().pop(record.group_id)

    def _group(self, group_id: str) -> GroupValue | None:
        return (self._base.groups if self._groups is None else self._groups).get(group_id)

    def _ensure_group(self, group_id: str) -> None:
        if self._group(group_id) is None and self._consumer_group(group_id) is None:
            self.set_group(GroupRecord(group_id, SIMPLE_GROUP))

    # --- consumer groups ---

    def _consumer_group(self, group_id: str) -> ConsumerGroup | None:
        consumers = self._base.consumers if self._consumers is None else self._consumers
        return consumers.get(group_id)

    def _changed_consumers(self) -> MapMutation[str, ConsumerGroup]:
        if self._consumers is None:
            self._consumers = self._base.consumers.mutate()
        return self._consumers

    def change_consumers(self, record: ConsumerGroupRecord) -> None:
        """Removals of what is unknown are passed over: a compacted log may have kept no more than those."""
        group_id = record.group_id
        group = self._consumer_group(group_id)
        if group is None:
            if record.value is None:
                return
            self._check_place(group_id)
            group = ConsumerGroup(group_id)
        if record.type == GROUP_EPOCH and record.value is None:
            self._changed_consumers().pop(group_id, None)
        elif record.type != TOPICS:
            self._changed_consumers()[group_id] = group.apply(record)

    def _check_place(self, group_id: str) -> None:
        classic = self._group(group_id)
        if classic is None:
            return
        if classic.members or classic.protocol_type:
            raise MalformedRecord(f"the log makes a consumer group of the classic group {group_id}, which is there")
        self.set_group(GroupRecord(group_id, None))

    # --- offsets ---

    def _partitions(self, group_id: str, topic: str) -> dict[int, Stored]:
        topics = self._offsets.get(group_id)
        if topics is None:
            topics = self._offsets[group_id] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = dict(self._base.topics(group_id).get(topic, _NO_PARTITIONS))
        return partitions

    def commit(self, record: OffsetRecord, offset: int) -> None:
        group_id, topic, partition, value, producer_id, _ = record
        if value is None:
            self._partitions(group_id, topic).pop(partition, None)
            self._forget_pending(group_id, topic, partition)
            return
        self._ensure_group(group_id)
        stored = _LOG_OFFSET.pack(offset) + value
        if producer_id == NO_PRODUCER_ID:
            self._partitions(group_id, topic)[partition] = stored
            return
        pending = self._pending.get(producer_id, _NO_PENDING).set((group_id, topic, partition), stored)
        self._pending = self._pending.set(producer_id, pending)
        opened = self._open.get(group_id, _NO_OPEN)
        producers = opened.get((topic, partition), _NOBODY) | {producer_id}
        self._open = self._open.set(group_id, opened.set((topic, partition), producers))

    def _forget_pending(self, group_id: str, topic: str, partition: int) -> None:
        for producer_id in self._open.get(group_id, _NO_OPEN).get((topic, partition), _NOBODY):
            left = self._pending[producer_id].delete((group_id, topic, partition))
            self._pending = self._pending.set(producer_id, left) if left else self._pending.delete(producer_id)
            self._close(group_id, topic, partition, producer_id)

    def _close(self, group_id: str, topic: str, partition: int, producer_id: ProducerId) -> None:
        opened = self._open[group_id]
        producers = opened[topic, partition] - {producer_id}
        if producers:
            opened = opened.set((topic, partition), producers)
        else:
            opened = opened.delete((topic, partition))
        self._open = self._open.set(group_id, opened) if opened else self._open.delete(group_id)

    def end_transaction(self, record: TransactionEnd) -> None:
        """Nothing happens for a producer that has no offsets here."""
        producer_id = record.producer_id
        pending = self._pending.get(producer_id)
        if pending is None:
            return
        self._pending = self._pending.delete(producer_id)
        for (group_id, topic, partition), stored in pending.items():
            self._close(group_id, topic, partition, producer_id)
            if record.committed:
                partitions = self._partitions(group_id, topic)
                known = partitions.get(partition)
                if known is None or log_offset(known) < log_offset(stored):
                    partitions[partition] = stored

    # --- the outcome ---

    def freeze(self) -> GroupsState:
        base = self._base
        offsets = base.offsets
        if self._offsets:
            changed = offsets.mutate()
            for group_id, drafts in self._offsets.items():
                topics = base.topics(group_id).mutate()
                for topic, partitions in drafts.items():
                    if partitions:
                        topics[topic] = partitions
                    else:
                        topics.pop(topic, None)
                finished = topics.finish()
                if finished:
                    changed[group_id] = finished
                else:
                    changed.pop(group_id, None)
            offsets = changed.finish()
        groups = base.groups if self._groups is None else self._groups.finish()
        consumers = base.consumers if self._consumers is None else self._consumers.finish()
        return GroupsState(groups, offsets, self._pending, self._open, consumers)
