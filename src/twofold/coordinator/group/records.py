"""The records of `__consumer_offsets`: keys and values as Apache Kafka 4.3 reads and writes them.

1. A key begins with an int16 that names its type, a value with an int16 that names its version. Keys are never
   flexible; values are from the version on that says so.
2. A committed offset is written as version 4, with the id of its topic; as version 1 when it has a time of its own at
   which it expires, which no other version has a place for. Group metadata is written as version 3. All versions are
   read.
3. Those of consumer groups (KIP-848) are in `consumer.records`. What is known to belong to another kind of group
   (share, streams) is passed over in silence. The reader logs an unknown type and passes it over. Bytes that do not
   hold what their version promises raise `MalformedRecord`.
4. A committed offset travels as its encoded value: what is in the log is what is in memory, a third of the size of the
   decoded form.
"""

import struct
from functools import lru_cache
from typing import NamedTuple, TypeAlias
from uuid import UUID

from twofold.coordinator.group.consumer import records as consumer
from twofold.coordinator.group.consumer.records import ConsumerGroupRecord
from twofold.machine.schema import MalformedRecord
from twofold.records.varint import encode_uvarint
from twofold.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId

OFFSET_COMMIT_LEGACY = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2

SHARE_GROUP_TYPES = frozenset(range(10, 16))
STREAMS_GROUP_TYPES = frozenset({17, 19, 20, 21, 22, 23})
OTHER_TYPES = SHARE_GROUP_TYPES | STREAMS_GROUP_TYPES

OFFSET_VALUE_WITH_EXPIRY = 1
OFFSET_VALUE = 4
GROUP_VALUE = 3
NEWEST_OFFSET_VALUE = 4
NEWEST_GROUP_VALUE = 4
FLEXIBLE_SINCE = 4

NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_VERSION_OFFSET = struct.Struct(">hq")
_VERSION_OFFSET_EPOCH = struct.Struct(">hqi")


class OffsetValue(NamedTuple):
    """A committed offset."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP  # -1: as long as offsets.retention.minutes says
    topic_id: UUID | None = None


class MemberValue(NamedTuple):
    """A member as it stands in the log, with its subscription under the group's protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """A classic group as it stands in the log: after its last assignment, or after its last member left."""

    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_timestamp_ms: int = NO_TIMESTAMP
    members: tuple[MemberValue, ...] = ()


class OffsetRecord(NamedTuple):
    """A commit (`value` as encoded), or its removal. With a producer id it counts once its transaction commits."""

    group_id: str
    topic: str
    partition: int
    value: bytes | None
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


class GroupRecord(NamedTuple):
    """A group, or its removal."""

    group_id: str
    value: GroupValue | None


class TransactionEnd(NamedTuple):
    """The marker that ends a producer's transaction: a control batch, not a record of a key and a value."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    coordinator_epoch: int
    committed: bool
    transaction_version: int = 2
    by_hand: bool = False


LogRecord: TypeAlias = OffsetRecord | GroupRecord | ConsumerGroupRecord | TransactionEnd


class UnknownRecordType(Exception):
    """A key of a type that this version does not know."""


# --- writing ---


def encode_key(record: OffsetRecord | GroupRecord | ConsumerGroupRecord) -> bytes:
    if type(record) is ConsumerGroupRecord:
        return consumer.encode_key(record)
    group = record.group_id.encode()
    if type(record) is OffsetRecord:
        topic = record.topic.encode()
        return b"".join(
            (
                b"\x00\x01",
                _INT16.pack(len(group)),
                group,
                _INT16.pack(len(topic)),
                topic,
                _INT32.pack(record.partition),
            )
        )
    return b"\x00\x02" + _INT16.pack(len(group)) + group


def encode_value(record: OffsetRecord | GroupRecord | ConsumerGroupRecord) -> bytes | None:
    if type(record) is OffsetRecord:
        return record.value
    if type(record) is ConsumerGroupRecord:
        return consumer.encode_value(record)
    value = record.value
    return None if value is None else encode_group_value(value)  # type: ignore[arg-type]


def encode_offset_value(value: OffsetValue) -> bytes:
    metadata = value.metadata.encode()
    if value.expire_timestamp_ms != NO_TIMESTAMP:
        return b"".join(
            (
                _VERSION_OFFSET.pack(OFFSET_VALUE_WITH_EXPIRY, value.offset),
                _INT16.pack(len(metadata)),
                metadata,
                _INT64.pack(value.commit_timestamp_ms),
                _INT64.pack(value.expire_timestamp_ms),
            )
        )
    topic_id = value.topic_id
    return b"".join(
        (
            _VERSION_OFFSET_EPOCH.pack(OFFSET_VALUE, value.offset, value.leader_epoch),
            encode_uvarint(len(metadata) + 1),
            metadata,
            _INT64.pack(value.commit_timestamp_ms),
            # One tagged field, number 0, of 16 bytes.
            b"\x00" if topic_id is None else b"\x01\x00\x10" + topic_id.bytes,
        )
    )


def encode_group_value(value: GroupValue) -> bytes:
    out = bytearray(_INT16.pack(GROUP_VALUE))
    _put_string(out, value.protocol_type)
    out += _INT32.pack(value.generation)
    _put_string(out, value.protocol)
    _put_string(out, value.leader)
    out += _INT64.pack(value.state_timestamp_ms)
    out += _INT32.pack(len(value.members))
    for member in value.members:
        _put_string(out, member.member_id)
        _put_string(out, member.group_instance_id)
        _put_string(out, member.client_id)
        _put_string(out, member.client_host)
        out += _INT32.pack(member.rebalance_timeout_ms)
        out += _INT32.pack(member.session_timeout_ms)
        for data in (member.subscription, member.assignment):
            out += _INT32.pack(len(data))
            out += data
    return bytes(out)


def _put_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += b"\xff\xff"
        return
    raw = text.encode()
    out += _INT16.pack(len(raw))
    out += raw


# --- reading ---


def decode(
    key: bytes | None,
    value: bytes | None,
    producer_id: ProducerId = NO_PRODUCER_ID,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
) -> OffsetRecord | GroupRecord | ConsumerGroupRecord | None:
    """A record of the log, of the batch of this producer; None for what belongs to another kind of group."""
    if key is None:
        raise MalformedRecord("a record without a key")
    try:
        kind = _INT16.unpack_from(key)[0]
        if kind <= OFFSET_COMMIT and kind >= OFFSET_COMMIT_LEGACY:
            group, topic, partition = _offset_key(key)
            if value is not None:
                check_offset_value(value)
            return OffsetRecord(group, topic, partition, value, producer_id, producer_epoch)
        if kind == GROUP_METADATA:
            fields = _Fields(key, 2)
            return GroupRecord(fields.string(), None if value is None else decode_group_value(value))
        if kind in consumer.TYPES:
            return consumer.decode(kind, key, value)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRecord(f"the record with the key {key.hex()} breaks off: {error}") from None
    if kind in OTHER_TYPES:
        return None
    raise UnknownRecordType(f"the key {key.hex()} is of the unknown type {kind}")


def _offset_key(key: bytes) -> tuple[str, str, int]:
    group, topic = _names(key[2:-4])
    return group, topic, _INT32.unpack_from(key, len(key) - 4)[0]


@lru_cache(maxsize=10_000)
def _names(raw: bytes) -> tuple[str, str]:
    """Group and topic: those of one commit follow each other, and come again with the next."""
    fields = _Fields(raw, 0)
    group, topic = fields.string(), fields.string()
    if fields.at != len(raw):
        raise MalformedRecord(f"{len(raw) - fields.at} bytes follow the names in the key of a committed offset")
    return group, topic


def check_offset_value(data: bytes) -> None:
    """Raise what reading the value would raise. Almost all have this form: no metadata, the id of the topic."""
    if len(data) != 42 or data[:2] != b"\x00\x04" or data[14] != 1 or data[23:26] != b"\x01\x00\x10":
        decode_offset_value(data)


def decode_offset_value(data: bytes, start: int = 0) -> OffsetValue:
    """The value that begins at `start`."""
    try:
        version = _INT16.unpack_from(data, start)[0]
        if version == OFFSET_VALUE:
            return _newest_offset_value(data, start)
        if not 0 <= version <= NEWEST_OFFSET_VALUE:
            raise MalformedRecord(f"a committed offset of the unknown version {version}")
        fields = _Fields(data, start + 2)
        offset = fields.int64()
        leader_epoch = fields.int32() if version >= 3 else NO_LEADER_EPOCH
        metadata = fields.string()
        commit_timestamp = fields.int64()
        expire_timestamp = fields.int64() if version == OFFSET_VALUE_WITH_EXPIRY else NO_TIMESTAMP
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRecord(f"the committed offset {data[start:].hex()} breaks off: {error}") from None
    return OffsetValue(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp)


def _newest_offset_value(data: bytes, start: int) -> OffsetValue:
    _, offset, leader_epoch = _VERSION_OFFSET_EPOCH.unpack_from(data, start)
    at = start + 14
    length = data[at]
    if length == 1:  # almost always there is no metadata
        metadata = ""
        at += 1
    else:
        fields = _Fields(data, at, flexible=True)
        metadata = fields.string()
        at = fields.at
    commit_timestamp = _INT64.unpack_from(data, at)[0]
    at += 8
    topic_id = None
    if data[at]:
        topic_id = _Fields(data, at, flexible=True).tagged_uuid()
    return OffsetValue(offset, leader_epoch, metadata, commit_timestamp, NO_TIMESTAMP, topic_id)


@lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> UUID:
    """The same few topics stand in very many offsets."""
    return UUID(bytes=raw)


def decode_group_value(data: bytes) -> GroupValue:
    try:
        version = _INT16.unpack_from(data)[0]
        if not 0 <= version <= NEWEST_GROUP_VALUE:
            raise MalformedRecord(f"group metadata of the unknown version {version}")
        fields = _Fields(data, 2, flexible=version >= FLEXIBLE_SINCE)
        protocol_type = fields.string()
        generation = fields.int32()
        protocol = fields.nullable_string()
        leader = fields.nullable_string()
        state_timestamp = fields.int64() if version >= 2 else NO_TIMESTAMP
        members = tuple(_member(fields, version) for _ in range(fields.count()))
        fields.skip_tags()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRecord(f"the group metadata {data.hex()} breaks off: {error}") from None
    return GroupValue(protocol_type, generation, protocol, leader, state_timestamp, members)


def _member(fields: "_Fields", version: int) -> MemberValue:
    member_id = fields.string()
    instance_id = fields.nullable_string() if version >= 3 else None
    client_id = fields.string()
    client_host = fields.string()
    rebalance_timeout = fields.int32() if version >= 1 else -1
    session_timeout = fields.int32()
    subscription = fields.data()
    assignment = fields.data()
    fields.skip_tags()
    # Before version 1 a rebalance waited for as long as a session.
    rebalance_timeout = session_timeout if rebalance_timeout == -1 else rebalance_timeout
    return MemberValue(
        member_id, instance_id, client_id, client_host, rebalance_timeout, session_timeout, subscription, assignment
    )


class _Fields:
    """Reads one field after the other, in the old or in the flexible encoding."""

    __slots__ = ("at", "_data", "_flexible")

    def __init__(self, data: bytes, at: int, *, flexible: bool = False) -> None:
        self.at = at
        self._data = data
        self._flexible = flexible

    def int32(self) -> int:
        self.at += 4
        return int(_INT32.unpack_from(self._data, self.at - 4)[0])

    def int64(self) -> int:
        self.at += 8
        return int(_INT64.unpack_from(self._data, self.at - 8)[0])

    def varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedRecord(f"a length that ends at byte {self.at} is longer than 32 bits")

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedRecord(f"null before byte {self.at} where a string has to be")
        return text

    def nullable_string(self) -> str | None:
        if self._flexible:
            size = self.varint() - 1
        else:
            size = _INT16.unpack_from(self._data, self.at)[0]
            self.at += 2
        return None if size == -1 else self._take(size).decode()

    def data(self) -> bytes:
        size = self.varint() - 1 if self._flexible else self.int32()
        return self._take(size)

    def count(self) -> int:
        count = self.varint() - 1 if self._flexible else self.int32()
        if not 0 <= count <= len(self._data):
            raise MalformedRecord(f"{count} items announced before byte {self.at} of {len(self._data)}")
        return count

    def tagged_uuid(self) -> UUID | None:
        """The field with tag 0; others are passed over."""
        found = None
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            content = self._take(size)
            if tag == 0:
                if size != 16:
                    raise MalformedRecord(f"a topic id of {size} bytes")
                found = _uuid(content)
        return found

    def skip_tags(self) -> None:
        if self._flexible:
            for _ in range(self.varint()):
                self.varint()
                self._take(self.varint())

    def _take(self, size: int) -> bytes:
        start = self.at
        self.at += size
        if size < 0 or self.at > len(self._data):
            raise MalformedRecord(f"{size} bytes announced at byte {start} of {len(self._data)}")
        return self._data[start : self.at]
