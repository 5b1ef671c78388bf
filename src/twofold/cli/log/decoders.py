"""The records of Kafka's own topics, decoded: transactions, groups, metadata, and control records of every kind."""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from twofold.cli.log.values import Row, plain, shown
from twofold.controller.records import UnsupportedRecord
from twofold.controller.records import decode as decode_metadata
from twofold.coordinator.group import records as group_records
from twofold.coordinator.transaction.records import NEVER_MS, Ended
from twofold.coordinator.transaction.records import decode as decode_transaction
from twofold.machine.schema import INT32, UUID_, MalformedRecord, Schema, array, nested
from twofold.metadata_log.control import decode_kraft_version, decode_snapshot_header, decode_voters
from twofold.records.batch import Record
from twofold.records.control import ControlType, parse_control_key
from twofold.records.varint import decode_uvarint
from twofold.types import Ending, TopicPartition
from twofold.wire.errors import InvalidRecord

Decoder: TypeAlias = Callable[[Record, int], tuple[Any, Any]]
"""Key and value of a record, of whose bytes so many are shown."""

_GROUP_TYPES = {
    0: "OffsetCommit",
    1: "OffsetCommit",
    2: "GroupMetadata",
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
    16: "ConsumerGroupRegularExpression",
}
# Of controllers and of releases before 3.3: no part of Twofold has a use for what they say.
OTHER_METADATA = {
    7: "FenceBroker", 8: "UnfenceBroker", 21: "ZkMigrationState", 27: "RegisterController", 29: "UnregisterController",
}  # fmt: skip
_ENDINGS = frozenset(Ending)
_HIDDEN = "(hidden)"
_SECRET_FIELDS = ("salt", "stored_key", "server_key")
_SECRET_SETTINGS = ("password", "secret", "sasl.jaas.config")


class UndecodedRecord(Exception):
    """A record that its topic should not hold; its bytes are shown as they are."""


def as_bytes(record: Record, most: int) -> tuple[Any, Any]:
    return shown(record.key, most), shown(record.value, most)


def transaction_state(record: Record, most: int) -> tuple[Any, Any]:
    try:
        decoded = decode_transaction(record.key or b"", record.value)
    except MalformedRecord as error:
        raise UndecodedRecord(str(error)) from None
    if decoded is None:
        raise UndecodedRecord("a key or a value of a version that is not known")
    key = {"transactional_id": decoded.transactional_id}
    value = decoded.value
    if value is None:
        return key, None
    row = plain(value, most)
    row["state"] = value.state.wire_name
    row["partitions"] = [str(TopicPartition(*partition)) for partition in sorted(value.partitions)]
    row["two_phase"] = value.timeout_ms == NEVER_MS
    if value.last_two_phase is not None:
        row["last_two_phase"] = _ended(value.last_two_phase)
    row["topic_ids"] = {topic: plain(topic_id, most) for topic, topic_id in sorted(value.topic_ids)}
    return key, row


def _ended(last: Ended) -> Row:
    ending = Ending(last.ending).name.lower() if last.ending in _ENDINGS else str(last.ending)
    return {"state": f"{last.producer_id}:{last.producer_epoch}", "ending": ending}


def consumer_offsets(record: Record, most: int) -> tuple[Any, Any]:
    key = record.key or b""
    try:
        decoded = group_records.decode(record.key, record.value)
        if isinstance(decoded, group_records.OffsetRecord):
            committed = None if decoded.value is None else group_records.decode_offset_value(decoded.value)
            names = {"type": "OffsetCommit", "group": decoded.group_id, "topic": decoded.topic}
            return names | {"partition": decoded.partition}, plain(committed, most)
        if isinstance(decoded, group_records.GroupRecord):
            return {"type": "GroupMetadata", "group": decoded.group_id}, plain(decoded.value, most)
    except (MalformedRecord, group_records.UnknownRecordType) as error:
        raise UndecodedRecord(str(error)) from None
    return _other_group(key, most), shown(record.value, most)


def _other_group(key: bytes, most: int) -> Row:
    """KIP-848, share and streams groups: all their keys begin with the group."""
    kind = int.from_bytes(key[:2], signed=True)
    family = "share" if kind in group_records.SHARE_GROUP_TYPES else "streams"
    size = int.from_bytes(key[2:4], signed=True)
    group = key[4 : 4 + max(size, 0)].decode(errors="replace")
    return {"type": _GROUP_TYPES.get(kind, f"{family} group, type {kind}"), "group": group, "key": shown(key, most)}


def metadata(record: Record, most: int) -> tuple[Any, Any]:
    value = record.value or b""
    try:
        decoded = decode_metadata(value)
    except (MalformedRecord, UnsupportedRecord) as error:
        kind = _metadata_kind(value)
        if kind is None:
            raise UndecodedRecord(str(error)) from None
        return shown(record.key, most), {"type": kind, "bytes": shown(value, most)}
    if decoded is None:
        return shown(record.key, most), {"type": _metadata_kind(value), "bytes": shown(value, most)}
    return shown(record.key, most), {"type": type(decoded).__name__} | without_secrets(plain(decoded, most))


def without_secrets(row: Row) -> Row:
    """Dumps are sent around: what passwords are made of, and settings that are one, stay in the file."""
    hidden = {name: _HIDDEN for name in _SECRET_FIELDS if name in row}
    if "resource_name" in row and any(part in str(row.get("name")) for part in _SECRET_SETTINGS):
        hidden["value"] = _HIDDEN
    return row | hidden


def _metadata_kind(value: bytes) -> str | None:
    try:
        _, position = decode_uvarint(value, 0)
        return OTHER_METADATA.get(decode_uvarint(value, position)[0])
    except (IndexError, InvalidRecord):
        return None


# --- control records ---


class _VoterId(NamedTuple):
    voter_id: int


class _VoterOfDirectory(NamedTuple):
    voter_id: int
    voter_directory_id: UUID


class _LeaderChange(NamedTuple):
    leader_id: int
    voters: tuple[Any, ...]
    granting_voters: tuple[Any, ...]


def _leader_change_schema(voter: Any) -> Schema[_LeaderChange]:
    return Schema(_LeaderChange, leader_id=INT32, voters=array(voter), granting_voters=array(voter))


_LEADER_CHANGES = (
    _leader_change_schema(nested(_VoterId, voter_id=INT32)),
    _leader_change_schema(nested(_VoterOfDirectory, voter_id=INT32, voter_directory_id=UUID_)),
)
_MARKER = struct.Struct(">hi")


def control_row(record: Record, most: int) -> Row:
    """A control record: its type and what it says. UndecodedRecord for one that breaks off."""
    try:
        kind = parse_control_key(record.key)
        name = f"type {int.from_bytes((record.key or b'')[2:4], signed=True)}" if kind is None else kind.name
        return {"type": name} | _control_value(kind, record.value, most)
    except (InvalidRecord, MalformedRecord, struct.error) as error:
        raise UndecodedRecord(f"a control record breaks off: {error}") from None


def _control_value(kind: ControlType | None, value: bytes | None, most: int) -> Row:
    if kind is ControlType.COMMIT or kind is ControlType.ABORT:
        return {"coordinator_epoch": _MARKER.unpack_from(value or b"")[1]}
    if kind is ControlType.LEADER_CHANGE:
        data = value or b""
        version = min(struct.unpack_from(">h", data)[0], len(_LEADER_CHANGES) - 1)
        return plain(_LEADER_CHANGES[max(version, 0)].read(data, 2, 0)[0], most)  # type: ignore[no-any-return]
    if kind is ControlType.SNAPSHOT_HEADER:
        return {"last_contained_timestamp": decode_snapshot_header(value)}
    if kind is ControlType.KRAFT_VERSION:
        return {"kraft_version": decode_kraft_version(value)}
    if kind is ControlType.KRAFT_VOTERS:
        return {"voters": plain(decode_voters(value), most)}
    if kind is ControlType.SNAPSHOT_FOOTER:
        return {}
    return {"value": shown(value, most)}
