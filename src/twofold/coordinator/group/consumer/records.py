"""The records of consumer groups: keys and values as Apache Kafka 4.3 reads and writes them.

    type  key              value
    3     group            group epoch; tag 0: the hash of the metadata that the epoch stands for
    4     group            never written any more; its removal belongs to the removal of a group
    5     group, member    what the member says of itself
    6     group            epoch of the target; tag 0: when it was computed
    7     group, member    the target of one member
    8     group, member    what the member has, and what it has to give up
    16    group, pattern   the topics that a pattern stands for

1. A key begins with an int16 that names its type; strings in it have an int16 length. A value begins with its version,
   which is 0, and is in the flexible encoding.
2. The classic part of a member (type 5, tag 0) is always written, as one byte 0 where there is none: Apache Kafka does.
3. A value of type 8 without assignment epochs is from before KIP-1251: they read as the member's epoch.
"""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from twofold.machine.schema import (
    BYTES,
    INT8,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID_,
    Kind,
    MalformedRecord,
    Schema,
    array,
    nested,
    tagged,
)

GROUP_EPOCH, TOPICS, SUBSCRIPTION, TARGET_EPOCH, TARGET, CURRENT, PATTERN = 3, 4, 5, 6, 7, 8, 16
TYPES = frozenset({GROUP_EPOCH, TOPICS, SUBSCRIPTION, TARGET_EPOCH, TARGET, CURRENT, PATTERN})
NAMED = frozenset({SUBSCRIPTION, TARGET, CURRENT, PATTERN})  # keys with a member or a pattern behind the group
VERSION = b"\x00\x00"

Partitions: TypeAlias = Mapping[UUID, frozenset[int]]
Epochs: TypeAlias = Mapping[int, int]  # the epochs in which partitions were assigned
Held: TypeAlias = Mapping[UUID, Epochs]

NOTHING_HELD: Held = {}


class ClassicPart(NamedTuple):
    """What a member that speaks the classic protocol has besides."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberSubscription(NamedTuple):
    """What a member says of itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()  # in order, each once
    pattern: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicPart | None = None


class Current(NamedTuple):
    """Where a member is on its way to its target."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: Held = NOTHING_HELD
    pending: Held = NOTHING_HELD  # to be given up


class GroupEpoch(NamedTuple):
    epoch: int
    metadata_hash: int = 0


class TargetEpoch(NamedTuple):
    epoch: int
    timestamp_ms: int = 0


class Resolved(NamedTuple):
    """The topics that a pattern stands for."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


class ConsumerGroupRecord(NamedTuple):
    """A record of one of the types above, or a removal. `name` is the member or the pattern, where the key has one."""

    type: int
    group_id: str
    name: str
    value: Any | None


# --- the encoding ---


class _Topic(NamedTuple):
    topic_id: UUID
    partitions: tuple[int, ...]


class _HeldTopic(NamedTuple):
    topic_id: UUID
    partitions: tuple[int, ...]
    epochs: tuple[int, ...] = ()


class _Protocol(NamedTuple):
    name: str
    metadata: bytes


class _Classic(NamedTuple):
    session_timeout_ms: int
    protocols: tuple[_Protocol, ...]


class _Member(NamedTuple):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: Any = ()  # is never the value that is written, so that null is written, too


class _Current(NamedTuple):
    epoch: int
    previous_epoch: int
    state: int
    assigned: tuple[_HeldTopic, ...]
    pending: tuple[_HeldTopic, ...]


class _Target(NamedTuple):
    topics: tuple[_Topic, ...]


_CLASSIC = nested(_Classic, session_timeout_ms=INT32, protocols=array(nested(_Protocol, name=STRING, metadata=BYTES)))


def _write_classic(out: bytearray, value: _Classic | None) -> None:
    if value is None:
        out.append(0)
        return
    out.append(1)
    _CLASSIC.write(out, value)


def _read_classic(data: bytes, position: int) -> tuple[_Classic | None, int]:
    return (None, position + 1) if data[position] == 0 else _CLASSIC.read(data, position + 1)


_HELD = array(nested(_HeldTopic, topic_id=UUID_, partitions=array(INT32), epochs=tagged(0, array(INT32))))
_SCHEMAS: Mapping[int, Schema[Any]] = {
    GROUP_EPOCH: Schema(GroupEpoch, epoch=INT32, metadata_hash=tagged(0, INT64)),
    SUBSCRIPTION: Schema(
        _Member,
        instance_id=NULLABLE_STRING,
        rack_id=NULLABLE_STRING,
        client_id=STRING,
        client_host=STRING,
        topics=array(STRING),
        pattern=NULLABLE_STRING,
        rebalance_timeout_ms=INT32,
        assignor=NULLABLE_STRING,
        classic=tagged(0, Kind(_write_classic, _read_classic)),
    ),
    TARGET_EPOCH: Schema(TargetEpoch, epoch=INT32, timestamp_ms=tagged(0, INT64)),
    TARGET: Schema(_Target, topics=array(nested(_Topic, topic_id=UUID_, partitions=array(INT32)))),
    CURRENT: Schema(_Current, epoch=INT32, previous_epoch=INT32, state=INT8, assigned=_HELD, pending=_HELD),
    PATTERN: Schema(Resolved, topics=array(STRING), version=INT64, timestamp_ms=INT64),
}


def encode_key(record: ConsumerGroupRecord) -> bytes:
    names = (record.group_id, record.name) if record.type in NAMED else (record.group_id,)
    out = bytearray(struct.pack(">h", record.type))
    for name in names:
        raw = name.encode()
        out += struct.pack(">h", len(raw)) + raw
    return bytes(out)


def encode_value(record: ConsumerGroupRecord) -> bytes | None:
    value = record.value
    if value is None:
        return None
    if type(value) is MemberSubscription:
        classic = value.classic
        rows = None if classic is None else _Classic(classic[0], tuple(_Protocol(*row) for row in classic.protocols))
        value = _Member(*value[:8], rows)
    elif type(value) is Current:
        value = _Current(*value[:3], _held_rows(value.assigned), _held_rows(value.pending))
    elif record.type == TARGET:
        value = _Target(tuple(_Topic(topic, tuple(sorted(value[topic]))) for topic in sorted(value)))
    out = bytearray(VERSION)
    _SCHEMAS[record.type].write(out, value, 0)
    return bytes(out)


def _held_rows(held: Held) -> tuple[_HeldTopic, ...]:
    return tuple(
        _HeldTopic(topic, tuple(sorted(held[topic])), tuple(held[topic][index] for index in sorted(held[topic])))
        for topic in sorted(held)
    )


def decode(kind: int, key: bytes, value: bytes | None) -> ConsumerGroupRecord | None:
    """None for the description of topics (type 4), which says nothing any more."""
    names, at = [], 2
    for _ in range(2 if kind in NAMED else 1):
        size = struct.unpack_from(">h", key, at)[0]
        raw = key[at + 2 : at + 2 + size]
        if len(raw) != size:
            raise MalformedRecord(f"the key {key.hex()} breaks off")
        names.append(raw.decode())
        at += 2 + size
    if kind == TOPICS:
        return None
    name = names[1] if len(names) > 1 else ""
    return ConsumerGroupRecord(kind, names[0], name, None if value is None else _decode_value(kind, value))


def _decode_value(kind: int, data: bytes) -> Any:
    if data[:2] != VERSION:
        raise MalformedRecord(f"a record of type {kind} of the unknown version {data[:2].hex()}")
    value, _ = _SCHEMAS[kind].read(data, 2, 0)
    if kind == SUBSCRIPTION:
        classic = value.classic or None
        part = None if classic is None else ClassicPart(classic[0], tuple(map(tuple, classic.protocols)))
        topics = tuple(sorted(set(value.topics)))
        return MemberSubscription(
            value.instance_id, value.rack_id, value.client_id, value.client_host, topics, value.pattern or "",
            value.rebalance_timeout_ms, value.assignor, part,
        )  # fmt: skip
    if kind == CURRENT:
        oldest = max(value.epoch, 0)
        held, pending = _held(value.assigned, oldest), _held(value.pending, oldest)
        return Current(value.epoch, value.previous_epoch, value.state, held, pending)
    if kind == TARGET:
        return {row.topic_id: frozenset(row.partitions) for row in value.topics}
    return value


def _held(rows: tuple[_HeldTopic, ...], oldest: int) -> Held:
    return {
        row.topic_id: dict(zip(row.partitions, row.epochs, strict=True))
        if len(row.epochs) == len(row.partitions)
        else dict.fromkeys(row.partitions, oldest)
        for row in rows
    }
